"""`wrap`: a client of the OpenAI or Anthropic SDK whose conversation fits its window.

The wrapped client is used like the original. Below it, an HTTP transport follows each request for a
reply: what no longer fits is folded or moved to the index, everything else is sent as the bytes
that the SDK wrote, and the reply is recorded as it passes. A request that the provider refuses as
too long is sent once more, shorter. Sync and async clients, streamed or not, in Chat Completions,
Responses and Messages.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from anyio import to_thread

from scroll_context.errors import BadInput
from scroll_context.messages import ToolSpec
from scroll_context.models import DEFAULT_WINDOW
from scroll_context.recall.memory_tools import call_tool, recall_tools, tool_specs
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.eviction import ViewBudget
from scroll_gateway.wire.session import Exchange, WiredSession

Client = TypeVar("Client")

LOW_MARK = 0.25
"""Evictions go deeper than in our own agent: each one costs the provider's cache of what follows
it, and pays back sooner the more it removes."""


def wrap(
    client: Client,
    store: Store | str | Path,
    *,
    session: str,
    window: int = DEFAULT_WINDOW,
    budget: ViewBudget | None = None,
    http_client: httpx2.Client | httpx2.AsyncClient | None = None,
) -> Client:
    """A copy of an SDK client that keeps its conversation within `window` tokens.

    The conversation is recorded in `store` as the session of this name, which a later run resumes.
    One wrapped client serves one conversation. Pass `http_client` if the client was made with one
    of its own: the SDKs do not give it back. Closing the client closes the session.

    The copy has an attribute `recall` with the functions `search` and `expand`, which a program may
    offer to its model as tools: folded results name the seq to expand.

    >>> import httpx2, openai
    >>> from scroll_gateway import wrap
    >>> def provider(request):
    ...     message = {"role": "assistant", "content": "To Lisbon."}
    ...     choice = {"index": 0, "message": message, "finish_reason": "stop"}
    ...     return httpx2.Response(200, json={"choices": [choice]})
    >>> http = httpx2.Client(transport=httpx2.MockTransport(provider))
    >>> plain = openai.OpenAI(api_key="key", http_client=http)
    >>> with wrap(plain, "trip.scroll", session="trip", http_client=http) as client:
    ...     prompt = {"role": "user", "content": "Where do we go?"}
    ...     reply = client.chat.completions.create(model="gpt-x", messages=[prompt])
    ...     reply.choices[0].message.content
    'To Lisbon.'
    """
    sdk, is_async = _sdk_of(client)
    own_store = None if isinstance(store, Store) else Store(store, create=True)
    opened = own_store or store
    assert isinstance(opened, Store)
    options = SessionOptions(context="plain", budget=budget or ViewBudget(low=LOW_MARK))
    try:
        scroll = Session.open_or_resume(opened, session, options=options)
    except BaseException:
        if own_store is not None:
            own_store.close()
        raise
    wired = WiredSession(scroll, window=window)
    make: Any = sdk.DefaultAsyncHttpxClient if is_async else sdk.DefaultHttpxClient
    transport: Any = _AsyncTransport if is_async else _Transport
    outer = make(transport=transport(http_client or make(), wired, own_store))
    copy: Any = client.copy(http_client=outer)  # type: ignore[attr-defined]
    copy.recall = Recall(scroll)
    wrapped: Client = copy
    return wrapped


def _sdk_of(client: object) -> tuple[Any, bool]:
    """The package of an SDK client, and whether the client is async."""
    packages = {kind.__module__.partition(".")[0] for kind in type(client).__mro__}
    if "openai" in packages:
        import openai

        if isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
            return openai, isinstance(client, openai.AsyncOpenAI)
    if "anthropic" in packages:
        import anthropic

        if isinstance(client, anthropic.Anthropic | anthropic.AsyncAnthropic):
            return anthropic, isinstance(client, anthropic.AsyncAnthropic)
    raise BadInput(
        "wrap takes an OpenAI or AsyncOpenAI client, or an Anthropic or AsyncAnthropic client, "
        f"not {type(client).__name__}"
    )


class Recall:
    """Recall for the program of a wrapped client: call it, or offer it to the model as tools.

    `specs` describes the tools for a model, and `call` answers a model's call.
    """

    def __init__(self, session: Session) -> None:
        self._tools = recall_tools(session.environment.memory, ("search", "expand"))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tool_specs(self._tools)

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call of one of the tools."""
        return call_tool(self._tools, name, arguments)

    def search(self, query: str, k: int = 10) -> dict[str, Any]:
        """Events with these words, best first: `rows`, and a `note` about them."""
        return self.call("search", {"query": query, "k": k})

    def expand(self, seq: int, last: int | None = None, start: int = 0) -> dict[str, Any]:
        """The exact events from one seq to another."""
        return self.call("expand", {"seq": seq, "last": last, "start": start})


def _with_body(request: httpx2.Request, body: bytes) -> httpx2.Request:
    """A request with another body. Compressed responses could not be read as they pass."""
    headers = httpx2.Headers(request.headers)
    del headers["content-length"]
    headers["accept-encoding"] = "identity"
    return httpx2.Request(
        request.method, request.url, headers=headers, content=body, extensions=request.extensions
    )


def _with_stream(response: httpx2.Response, stream: Any) -> httpx2.Response:
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


class _Transport(httpx2.BaseTransport):
    """Below a sync client. `inner` sends the requests, with its own proxies and limits."""

    def __init__(self, inner: httpx2.Client, wired: WiredSession, store: Store | None) -> None:
        self._inner = inner
        self._wired = wired
        self._store = store

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = self._wired.exchange(request.method, request.url.path, request.read())
        if exchange is None:
            return self._inner.send(request, stream=True)
        response = self._inner.send(_with_body(request, exchange.body), stream=True)
        if 400 <= response.status_code < 500:
            body = exchange.shorter(response.status_code, response.read())
            if body is not None:
                response = self._inner.send(_with_body(request, body), stream=True)
        if response.status_code != 200:
            return response
        exchange.start_reply(response.headers.get("content-type", ""))
        return _with_stream(response, _Tee(response, exchange))

    def close(self) -> None:
        self._inner.close()
        _close(self._wired, self._store)


class _Tee(httpx2.SyncByteStream):
    """The bytes of a response, which the exchange sees before the client."""

    def __init__(self, response: httpx2.Response, exchange: Exchange) -> None:
        self._response = response
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        assert isinstance(self._response.stream, httpx2.SyncByteStream)
        for chunk in self._response.stream:
            self._exchange.feed(chunk)
            yield chunk
        self._exchange.finish()

    def close(self) -> None:
        self._response.close()


class _AsyncTransport(httpx2.AsyncBaseTransport):
    """Below an async client. The session works in threads, so that the event loop goes on."""

    def __init__(self, inner: httpx2.AsyncClient, wired: WiredSession, store: Store | None) -> None:
        self._inner = inner
        self._wired = wired
        self._store = store

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        content = await request.aread()
        exchange = await to_thread.run_sync(
            self._wired.exchange, request.method, request.url.path, content
        )
        if exchange is None:
            return await self._inner.send(request, stream=True)
        response = await self._inner.send(_with_body(request, exchange.body), stream=True)
        if 400 <= response.status_code < 500:
            error = await response.aread()
            body = await to_thread.run_sync(exchange.shorter, response.status_code, error)
            if body is not None:
                response = await self._inner.send(_with_body(request, body), stream=True)
        if response.status_code != 200:
            return response
        exchange.start_reply(response.headers.get("content-type", ""))
        return _with_stream(response, _AsyncTee(response, exchange))

    async def aclose(self) -> None:
        await self._inner.aclose()
        await to_thread.run_sync(_close, self._wired, self._store)


class _AsyncTee(httpx2.AsyncByteStream):
    """As `_Tee`, for an async client."""

    def __init__(self, response: httpx2.Response, exchange: Exchange) -> None:
        self._response = response
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        async for chunk in self._response.stream:
            # Most chunks only grow a buffer; the last one of a stream is recorded.
            await to_thread.run_sync(self._exchange.feed, chunk)
            yield chunk
        await to_thread.run_sync(self._exchange.finish)

    async def aclose(self) -> None:
        await self._response.aclose()


def _close(wired: WiredSession, store: Store | None) -> None:
    wired.session.close()
    if store is not None:
        store.close()
