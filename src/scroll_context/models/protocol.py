"""What the agent asks of a language model and what it gets back, whoever the provider is.

A `Model` turns a `Request` into a `Reply`, synchronously: the caller's thread waits, receives the text as
it is written through `on_text` (called in that same thread), and can stop waiting through `cancel`, through
`timeout` or with Ctrl-C. Faults are the `ModelError` branch of the error tree and nothing else. A model
keeps no conversation: everything it is told is in the request. Requests and replies are values with one
canonical JSON form (`messages.canonical`), so both can be logged and compared.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from scroll_context.messages import Message, Thinking, ToolCall, ToolSpec

DEFAULT_WINDOW = 128_000
"""Context window in tokens, assumed when neither the caller nor the provider's data names one."""

OnText = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to generate. A field that is None is left to the provider."""

    max_tokens: int | None = None
    temperature: float | None = None
    thinking: bool | str | None = None  # True, False, or an effort such as "low", "medium", "high"
    extra: dict[str, Any] = {}  # other settings by their pydantic-ai name, passed through as they are

    def over(self, defaults: "Settings") -> "Settings":
        """These settings, with `defaults` where a field is not set."""
        return Settings(
            max_tokens=defaults.max_tokens if self.max_tokens is None else self.max_tokens,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            thinking=defaults.thinking if self.thinking is None else self.thinking,
            extra={**defaults.extra, **self.extra},
        )


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything a model is told for one reply."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    settings: Settings = Settings()


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens as the provider counted them. Cached tokens are part of `input_tokens`; 0 means not reported."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the provider counted the prompt at all; if not, a local estimate must stand in."""
        return self.input_tokens > 0


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model answered."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: tuple[Thinking, ...] = ()
    usage: Usage = Usage()
    finish_reason: str = ""  # stop, tool_call, length, content_filter, error; empty when not reported
    model: str = ""  # the name the provider answered under, often a dated version
    cost: float | None = None  # US dollars, when a price is known

    def message(self) -> Message:
        """This reply as a message of the conversation."""
        return Message(role="assistant", text=self.text, tool_calls=self.tool_calls, thinking=self.thinking)


class Model(Protocol):
    """A language model. Safe to use from several threads at once."""

    @property
    def name(self) -> str:
        """What to call the model in logs and prompts, such as `anthropic:claude-x`."""

    @property
    def window(self) -> int:
        """The context window in tokens, prompt and reply together."""

    def reply(
        self,
        request: Request,
        *,
        on_text: OnText | None = None,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Ask for one reply.

        `on_text` receives the visible text in pieces, in the calling thread; together they are `Reply.text`.
        Setting `cancel` makes the call raise `ModelCancelled` soon; `timeout` seconds without a whole reply
        raise `ModelUnavailable`.
        """
