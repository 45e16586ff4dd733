"""Real models, through pydantic-ai's low-level model interface (not its agent).

Imported only when a model is made: `scroll_context.models.connect` is the way in. Every request is
streamed unless switched off, so that a reply can be shown as it is written and stopped in the
middle; a stream that ends without saying why it ended was cut, and is an error rather than a short
answer. The client libraries' own retries are off (`with_retries` is the one place for them).

pydantic-ai sorts provider errors into classes; `as_model_error` maps them to the `ModelError`
branch and adds what it leaves out: overflow texts of servers it does not know, the token counts
inside those texts, and a remedy. An error text never carries a key: providers echo parts of it in
their messages, so texts are cleaned, and the original exception is not chained.
"""

import asyncio
import codecs
import queue
import re
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import msgspec
from pydantic_ai import exceptions as foreign_errors
from pydantic_ai import messages as foreign
from pydantic_ai.models import Model as ForeignModel
from pydantic_ai.models import infer_model, parse_model_id
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from scroll_context.background import in_loop
from scroll_context.errors import (
    BadInput,
    ContextOverflow,
    ModelCancelled,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from scroll_context.models import translate
from scroll_context.models.overflow import (
    PASSING_STATUS,
    has_overflow_phrase,
    message_in,
    token_count,
    token_limit,
)
from scroll_context.models.protocol import (
    DEFAULT_WINDOW,
    OnText,
    Reply,
    Request,
    Settings,
    well_formed,
)
from scroll_context.models.translate import ThinkTags

T = TypeVar("T")

# How soon a set `cancel` is noticed.
POLL_SECONDS = 0.05
# How long a cancelled request may take to close its connection.
CLOSING_SECONDS = 5.0
COMPATIBLE = "openai-compatible"
# The decoder holds back half of a pair that was cut between two chunks.
_Joined = codecs.getincrementaldecoder("utf-16-le")
# The part of a remedy that cannot be done on a command line.
_IN_PYTHON = re.compile(r" or pass it via `[^`]*`")
PROFILE = {
    # pydantic-ai sees a tag only when it is a chunk of its own; `ThinkTags` does it for any cut.
    "thinking_tags": ("\0think\0", "\0/think\0"),
    "openai_chat_streaming_requires_finish_reason": True,
}
PROFILE_COMPATIBLE = {
    # Self-hosted servers know `max_tokens`.
    "openai_chat_supports_max_completion_tokens": False,
    "openai_chat_supports_multiple_system_messages": False,
}


class ConnectedModel:
    """A model at a provider."""

    def __init__(
        self,
        foreign_model: ForeignModel,
        *,
        name: str,
        window: int,
        settings: Settings,
        stream: bool,
        priced: bool,
    ) -> None:
        self.name = name
        self.window = window
        self._model = foreign_model
        self._settings = settings
        self._stream = stream
        self._priced = priced
        key = getattr(getattr(foreign_model, "client", None), "api_key", None)
        self._secret = key if isinstance(key, str) else ""

    def reply(
        self,
        request: Request,
        *,
        on_text: OnText | None = None,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Reply:
        async def work(emit: Callable[[str], None]) -> foreign.ModelResponse:
            try:
                async with asyncio.timeout(timeout):
                    return await self._respond(request, emit)
            except TimeoutError:
                raise ModelUnavailable(
                    f"{self.name} did not finish its reply within {timeout:g} s. Nothing was "
                    "lost; try again."
                ) from None

        response = _run_streaming(work, on_text, cancel)
        reply = translate.reply(response, cost=self._cost(response))
        if not self._stream and on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    async def _respond(
        self, request: Request, emit: Callable[[str], None]
    ) -> foreign.ModelResponse:
        """One request to the provider.

        Errors of its client library are raised as errors of ours.
        """
        messages = well_formed(request.messages)
        history = translate.history(messages, self._model.system)
        parameters = translate.parameters(messages, request.tools)
        settings = self._foreign_settings(request.settings)
        try:
            if not self._stream:
                return await self._model.request(history, settings, parameters)
            tags, joined = ThinkTags(), _Joined("replace")
            async with self._model.request_stream(history, settings, parameters) as stream:
                async for event in stream:
                    encoded = _text_in(event).encode("utf-16-le", "surrogatepass")
                    visible = tags.feed(joined.decode(encoded))
                    if visible:
                        emit(visible)
                response = stream.get()
            rest = tags.feed(joined.decode(b"", final=True)) + tags.finish()
            if rest:
                emit(rest)
        except Exception as error:  # noqa: BLE001 - SDKs raise errors of their parsers too
            raise as_model_error(error, self.name, self._secret) from None
        if response.finish_reason is None and "finish_reason" not in (
            response.provider_details or {}
        ):
            raise ModelUnavailable(
                f"the reply of {self.name} was cut off: the stream ended without a finish reason. "
                "Nothing was lost; try again. If the server never sends one, connect with "
                "stream=False."
            )
        return response

    def _foreign_settings(self, asked: Settings) -> ModelSettings:
        fields = msgspec.structs.asdict(asked.over(self._settings))
        extra = fields.pop("extra")
        chosen = {name: value for name, value in fields.items() if value is not None}
        settings: dict[str, Any] = {"max_retries": 0, **chosen}
        if self._model.system == "anthropic":
            # The mark covers the tools too, which come before.
            settings["anthropic_cache_instructions"] = True
        return cast(ModelSettings, {**settings, **extra})

    def _cost(self, response: foreign.ModelResponse) -> float | None:
        if response.usage.cost is not None:
            return float(response.usage.cost)
        if not self._priced:
            return None
        try:
            return float(response.cost().total_price)
        except (LookupError, ValueError, AssertionError):
            # No price is known for this model, or it did not report its usage.
            return None


def _run_streaming(
    work: Callable[[Callable[[str], None]], Coroutine[Any, Any, T]],
    on_text: OnText | None,
    cancel: threading.Event | None,
) -> T:
    """Run `work(emit)` on an event loop and pass what it emits to `on_text` in this thread; return
    its result.

    The calling thread stays open to Ctrl-C and to `cancel`. However the wait ends, the coroutine is
    cancelled and gets a few seconds to close its connection before this function returns.
    """
    text = ""
    # None says that the coroutine has ended.
    pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    started, ended = threading.Event(), threading.Event()

    async def emitting() -> T:
        started.set()
        try:
            return await work(pieces.put)
        finally:
            ended.set()
            pieces.put(None)

    future = in_loop(emitting(), "libraries")
    try:
        while True:
            if cancel is not None and cancel.is_set():
                raise ModelCancelled("the reply was stopped by the caller", partial=text)
            try:
                piece = pieces.get(timeout=None if cancel is None else POLL_SECONDS)
            except queue.Empty:
                continue
            if piece is None:
                return future.result()
            text += piece
            if on_text is not None:
                on_text(piece)
    except BaseException:
        future.cancel()
        if started.is_set():
            ended.wait(CLOSING_SECONDS)
        raise


def connect(
    spec: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    window: int | None = None,
    settings: Settings | None = None,
    stream: bool = True,
) -> ConnectedModel:
    """The model that `spec` names; see `scroll_context.models.connect`."""
    provider_name, model_name = parse_model_id(spec)
    if provider_name is None or not model_name:
        raise BadInput(
            f"{spec!r} does not name a model. Write provider:model, for example anthropic:claude-x."
        )
    try:
        if base_url is not None and provider_name in ("openai", "openai-chat"):
            model = _compatible(model_name, base_url, api_key)
        else:
            model = infer_model(spec, lambda name: _provider(name, base_url, api_key))
    except ImportError as error:
        raise BadInput(f"{spec} needs a package that is not installed: {error}") from None
    except (foreign_errors.UserError, ValueError) as error:
        reason = _IN_PYTHON.sub("", str(error).split(" To try Pydantic AI", 1)[0])
        raise BadInput(f"cannot connect to {spec}: {reason}") from None
    # `profile` is a cached property: writing it is how an instance gets another one after its
    # construction.
    model.__dict__["profile"] = {**model.profile, **PROFILE}
    return ConnectedModel(
        model,
        name=spec,
        window=window or model.context_window or DEFAULT_WINDOW,
        settings=settings or Settings(),
        stream=stream,
        priced=base_url is None,
    )


def _compatible(model_name: str, base_url: str, api_key: str | None) -> ForeignModel:
    """Any server that speaks OpenAI's chat completions.

    A key is sent only if one is given for it.
    """
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    provider = OpenAICompatibleProvider(
        COMPATIBLE,
        base_url=base_url,
        api_key=api_key,
        profile=cast(ModelProfile, PROFILE_COMPATIBLE),
    )
    return OpenAIChatModel(model_name, provider=provider)


def _provider(name: str, base_url: str | None, api_key: str | None) -> Provider[Any]:
    options = {"base_url": base_url, "api_key": api_key}
    make = cast(Callable[..., Provider[Any]], infer_provider_class(name))
    try:
        return make(**{key: value for key, value in options.items() if value is not None})
    except TypeError:
        raise BadInput(
            f"the provider {name} does not take a base URL or a key here; use its environment "
            "variables"
        ) from None


def _text_in(event: foreign.ModelResponseStreamEvent) -> str:
    if isinstance(event, foreign.PartStartEvent) and isinstance(event.part, foreign.TextPart):
        return event.part.content
    if isinstance(event, foreign.PartDeltaEvent) and isinstance(event.delta, foreign.TextPartDelta):
        return event.delta.content_delta
    return ""


# errors of providers ------------------------------------------------------------------------------

SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|key)[-_][\w*.\-]{6,}|\bAIza[\w\-]{10,}|\bbearer\s+\S+", re.IGNORECASE
)
# Anything shorter is a placeholder, and would be found in ordinary words.
SHORTEST_SECRET = 6
LONGEST_TEXT = 500


def as_model_error(error: Exception, name: str, secret: str = "") -> ModelError:
    """The error of ours for one that a provider or its client library raised while `name` was
    replying.
    """
    text = _error_text(error, secret)
    status = error.status_code if isinstance(error, foreign_errors.ModelHTTPError) else None
    where = f"{name} (HTTP {status})" if status else name
    if isinstance(error, foreign_errors.ModelQuotaExceededError):
        return ModelRefused(
            f"{where} refused: {text}. The account is out of credit: top it up, then resume."
        )
    # A limit on tokens a minute is worded like an overflow, but passes with time.
    if status not in PASSING_STATUS and _is_overflow(error, status, text):
        return ContextOverflow(
            f"{where} says that the request is too long: {text}. Nothing was lost; send a smaller "
            "view, or set the model's window to what the provider allows.",
            tokens=token_count(text),
            limit=token_limit(text),
        )
    if isinstance(error, foreign_errors.ModelAuthenticationError):
        return ModelRefused(
            f"{where} refused the credentials: {text}. Check the API key and its permissions."
        )
    if isinstance(error, foreign_errors.ModelNotFoundError):
        return ModelRefused(
            f"{where} was not found: {text}. Check the model's name and the base URL."
        )
    if _is_rejection(error, status):
        return ModelRefused(
            f"{where} rejected the request: {text}. Sending it again unchanged will not help."
        )
    return ModelUnavailable(
        f"{where} failed for now: {text}. Nothing was lost; try again, or resume later.",
        retry_after=error.retry_after if isinstance(error, foreign_errors.ModelAPIError) else None,
    )


def _is_overflow(error: Exception, status: int | None, text: str) -> bool:
    return (
        isinstance(error, foreign_errors.ModelContextWindowExceededError)
        or status == 413
        or has_overflow_phrase(text)
    )


def _is_rejection(error: Exception, status: int | None) -> bool:
    if status is not None:
        return status < 500 and status not in PASSING_STATUS
    rejections = (
        foreign_errors.ModelRequestRejectedError
        | foreign_errors.ContentFilterError
        | foreign_errors.UserError
    )
    return isinstance(error, rejections)


def _error_text(error: Exception, secret: str) -> str:
    """The provider's error text, in one short line and without keys."""
    body = getattr(error, "body", None)
    text = message_in(body) or (str(body) if body else str(error)) or type(error).__name__
    if len(secret) >= SHORTEST_SECRET:
        text = text.replace(secret, "[key]")
    text = " ".join(SECRET.sub("[key]", text).split())
    return text[:LONGEST_TEXT].rstrip(". ")
