"""The HTTP side of a gateway: one address on loopback, one upstream.

Requests for a reply go through their conversation; everything else passes as it is. The bytes of a
reply pass as they come. The gateway answers for itself only where it must: a caller without the
token, another host name, a web page, a WebSocket, a message thread, an upstream out of reach.

Authorization headers are forwarded and never stored or logged. The upstream is fixed, so keys go
nowhere else.
"""

import hmac
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpx2
import uvicorn
from anyio import CancelScope, to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scroll_context.connections import configuration
from scroll_gateway.conversations import Conversations
from scroll_gateway.request_bodies import expanded
from scroll_gateway.splices import SplicedReply
from scroll_gateway.wire.session import MOST_REPLY, Exchange, protocol_of
from scroll_gateway.wire.slices import KeptByProvider

STATUS_PATH = "/.scroll/status"

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-connection te trailer transfer-encoding upgrade".split()
)
REQUEST_ONLY_HERE = HOP_BY_HOP | {"host", "content-length", "expect", "x-scroll-token"}
RESPONSE_ONLY_HERE = HOP_BY_HOP | {"alt-svc", "strict-transport-security", "set-cookie"}
"""Headers of an upstream that mean nothing, or harm, under another address. Those that would open
this address to web pages (access-control-…) do not pass either."""

ENCODED = frozenset({"content-encoding", "content-length"})
"""Headers that do not hold for a body that has been read."""

TOKEN_HEADER = "x-scroll-token"
"""For clients whose base URL other users can see, such as in the arguments of a process. The path
then has "-" in place of the token."""

# A model may think for minutes before its first byte, and the client has its own patience.
TIMEOUT = httpx2.Timeout(None, connect=30.0)

_logger = logging.getLogger("scroll_gateway")


class BrokenReply(Exception):
    """A reply that cannot be continued behind a recall."""


class Gateway:
    """The application, as ASGI has it. `base_path` is the secret beginning of every path."""

    def __init__(
        self,
        conversations: Conversations,
        upstream: str,
        *,
        token: str,
        port: int,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.conversations = conversations
        self.base_path = f"/k/{token}"
        self._upstream = upstream.rstrip("/")
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._facts = dict(facts or {})
        self._client = httpx2.AsyncClient(timeout=TIMEOUT, follow_redirects=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        request = Request(scope, receive)
        response = self._refusal(request) or await self._answer(request)
        await response(scope, receive, send)

    async def close(self) -> None:
        await self._client.aclose()

    def _refusal(self, request: Request) -> Response | None:
        """The refusal for a caller without access; None lets the request pass."""
        headers = request.headers
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("This host is not served here.\n", 421)
        if "origin" in headers:
            return PlainTextResponse("This gateway is not for web pages.\n", 403)
        if self._path(request) is None:
            return PlainTextResponse("Not found: the path lacks the gateway's token.\n", 404)
        if headers.get("upgrade", "").lower() == "websocket":
            return PlainTextResponse(
                "WebSocket is not supported; use HTTP.\n", 426, {"upgrade": "HTTP/1.1"}
            )
        return None

    def _path(self, request: Request) -> str | None:
        """The path behind the token; None if the request does not have the token."""
        path = _raw_path(request)
        base = self.base_path
        if path.startswith("/k/-/"):
            path = f"/k/{request.headers.get(TOKEN_HEADER, '')}{path.removeprefix('/k/-')}"
        start, rest = path[: len(base)], path[len(base) :]
        is_ours = hmac.compare_digest(start.encode(), base.encode()) and rest.startswith("/")
        return rest if is_ours else None

    async def _answer(self, request: Request) -> Response:
        path = self._path(request)
        assert path is not None
        if path == STATUS_PATH:
            return JSONResponse(self._facts | self.conversations.sums().row())
        body = await request.body()
        protocol = protocol_of(request.method, path)
        exchange = None
        if protocol is not None:
            headers = dict(request.headers)
            plain: bytes | None = body
            if "content-encoding" in headers:
                plain = await to_thread.run_sync(expanded, body, headers["content-encoding"])
            if plain is None:
                _logger.warning("a request is sent as it came: its compression is not read")
            else:
                try:
                    exchange = await to_thread.run_sync(
                        self.conversations.exchange, protocol, headers, plain
                    )
                except KeptByProvider:
                    return _THREAD_REFUSAL
        try:
            return await self._forwarded(request, path, body, exchange)
        except httpx2.TransportError as error:
            _logger.warning("the upstream cannot be reached: %r", error)
            return _unreachable(self._upstream, error)

    async def _forwarded(
        self, request: Request, path: str, body: bytes, reply: Exchange | SplicedReply | None
    ) -> Response:
        if reply is None:
            return self._passing(await self._send(request, path, body, is_read=False), None)
        exchange = reply.exchange if isinstance(reply, SplicedReply) else reply
        response = await self._sent(request, path, exchange)
        if response.status_code != 200 or _is_encoded(response):
            return self._passing(response, None)
        if _is_stream(response):
            if isinstance(reply, SplicedReply):
                stream = self._spliced(request, path, response, reply)
                return _with_headers(StreamingResponse(stream, 200), _headers_back(response))
            return self._passing(response, exchange)
        # The reply must be recorded before the client can continue from it.
        content = await _body_of(response)
        await to_thread.run_sync(_record, exchange, content)
        if isinstance(reply, SplicedReply):
            response, content = await self._completed(request, path, response, content, reply)
        return _whole(response, content)

    async def _sent(self, request: Request, path: str, exchange: Exchange) -> httpx2.Response:
        """The response to a request that is followed, which is sent once more if it is too long."""
        response = await self._send(request, path, exchange.body, is_read=True)
        if 400 <= response.status_code < 500 and not _is_encoded(response):
            error = await response.aread()
            shorter = await to_thread.run_sync(exchange.shorter, response.status_code, error)
            if shorter is None:
                return response
            await response.aclose()
            response = await self._send(request, path, shorter, is_read=True)
        if response.status_code == 200:
            exchange.start_reply(response.headers.get("content-type", ""))
        return response

    async def _spliced(
        self, request: Request, path: str, response: httpx2.Response, reply: SplicedReply
    ) -> AsyncIterator[bytes]:
        """The events of a stream in which the gateway answers recalls."""
        try:
            while True:
                async for chunk in response.aiter_raw():
                    edited = await to_thread.run_sync(reply.feed, chunk)
                    if edited:
                        yield edited
                exchange = await to_thread.run_sync(reply.next_exchange)
                if exchange is None:
                    yield reply.end()
                    return
                await response.aclose()
                response = await self._sent(request, path, exchange)
                if not (response.status_code == 200 and _is_stream(response)):
                    # The program has a part of the reply already. It sees a stream that is cut,
                    # and asks again.
                    raise BrokenReply(f"status {response.status_code} behind a recall")
        finally:
            with CancelScope(shield=True):
                await response.aclose()

    async def _completed(
        self,
        request: Request,
        path: str,
        response: httpx2.Response,
        content: bytes,
        reply: SplicedReply,
    ) -> tuple[httpx2.Response, bytes]:
        """The last response to a request in which the gateway answers recalls, and its body."""
        while exchange := await to_thread.run_sync(reply.next_exchange):
            response = await self._sent(request, path, exchange)
            content = await _body_of(response)
            if response.status_code != 200:
                return response, content
            await to_thread.run_sync(_record, exchange, content)
        return response, reply.shown(content)

    async def _send(
        self, request: Request, path: str, body: bytes, *, is_read: bool
    ) -> httpx2.Response:
        # As bytes: a header need not be ASCII.
        headers = [
            (name, value)
            for name, value in request.headers.raw
            if name.decode("latin-1") not in REQUEST_ONLY_HERE
            and not (is_read and name in (b"accept-encoding", b"content-encoding"))
        ]
        if is_read:
            # A compressed reply could not be read as it passes.
            headers.append((b"accept-encoding", b"identity"))
        query = request.scope.get("query_string", b"").decode("latin-1")
        url = self._upstream + path + (f"?{query}" if query else "")
        outgoing = self._client.build_request(
            request.method, url, headers=headers, content=body or None
        )
        for name in (b"accept", b"user-agent", b"accept-encoding"):
            if name not in dict(headers):
                outgoing.headers.pop(name.decode(), None)
        response = await self._client.send(outgoing, stream=True)
        if is_read and not _is_stream(response):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)
        return response

    def _passing(self, response: httpx2.Response, exchange: Exchange | None) -> Response:
        """The response as it comes, seen by the exchange."""
        if response.is_closed:
            return _whole(response, response.content)
        streaming = StreamingResponse(_bytes(response, exchange), response.status_code)
        return _with_headers(streaming, _headers_back(response))


def server(gateway: Gateway) -> uvicorn.Server:
    config = configuration(
        gateway, timeout_graceful_shutdown=3, server_header=False, lifespan="off"
    )
    # A stream that the upstream cuts is cut here too, which uvicorn would report as our fault.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return GatewayServer(config, gateway)


class GatewayServer(uvicorn.Server):
    """Closes the connections to the upstream at its end."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        await super().shutdown(sockets)
        await self._gateway.close()


class ReplyTooLarge(httpx2.TransportError):
    """A body that an upstream does not end."""


class _Bounded(httpx2.AsyncByteStream):
    """A body that is held until it is complete, and so must not be without end."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MOST_REPLY:
                raise ReplyTooLarge(f"a body of more than {MOST_REPLY} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bytes(response: httpx2.Response, exchange: Exchange | None) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            if exchange is not None:
                await to_thread.run_sync(exchange.feed, chunk)
            yield chunk
        if exchange is not None:
            await to_thread.run_sync(exchange.finish)
    finally:
        # A client that leaves cancels this, and the upstream must hear of it.
        with CancelScope(shield=True):
            await response.aclose()


async def _body_of(response: httpx2.Response) -> bytes:
    try:
        return await response.aread()
    finally:
        await response.aclose()


def _is_stream(response: httpx2.Response) -> bool:
    return str(response.headers.get("content-type", "")).startswith("text/event-stream")


def _is_encoded(response: httpx2.Response) -> bool:
    """Whether an upstream compressed a body although it was asked not to. It is never expanded: a
    few bytes may stand for gigabytes."""
    return response.headers.get("content-encoding", "identity") != "identity"


def _record(exchange: Exchange, content: bytes) -> None:
    exchange.feed(content)
    exchange.finish()


def _headers_back(response: httpx2.Response) -> Iterable[tuple[str, str]]:
    for name, value in response.headers.multi_items():
        if name not in RESPONSE_ONLY_HERE and not name.startswith("access-control-"):
            yield name, value


def _whole(response: httpx2.Response, content: bytes) -> Response:
    """A response with a body that has been read, and that may be another one than it had."""
    headers = [pair for pair in _headers_back(response) if pair[0] not in ENCODED]
    length = ("content-length", str(len(content)))
    return _with_headers(Response(content, response.status_code), [*headers, length])


def _with_headers(response: Response, headers: Iterable[tuple[str, str]]) -> Response:
    response.raw_headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers
    ]
    return response


def _raw_path(request: Request) -> str:
    """The path as the client wrote it, with its escapes."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


# The Anthropic SDK sends its complete list when it is told this.
_THREAD_REFUSAL = JSONResponse(
    {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "This gateway does not support message threads; send the complete list.",
            "details": {
                "error_code": "thread_unsupported_request",
                "unsupported": ["gateway"],
            },
        },
    },
    400,
)


def _unreachable(upstream: str, error: Exception) -> Response:
    message = f"The Scroll gateway cannot reach {upstream}: {type(error).__name__}."
    return JSONResponse({"type": "error", "error": {"type": "api_error", "message": message}}, 502)
