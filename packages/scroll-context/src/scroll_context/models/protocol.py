"""Requests to a language model and its replies, the same for every provider.

A `Model` turns a `Request` into a `Reply`, synchronously: the caller's thread waits, receives the
text as it is written through `on_text` (called in that same thread), and can stop waiting through
`cancel`, through `timeout` or with Ctrl-C. Faults are the `ModelError` branch of the error tree and
nothing else. A model keeps no conversation: everything it reads is in the request. Requests and
replies are values with one canonical JSON form (`messages.canonical`), so both can be logged and
compared.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from scroll_context.contents import Usage
from scroll_context.messages import Message, Thinking, ToolCall, ToolSpec

DEFAULT_WINDOW = 128_000
"""Context window in tokens, assumed when neither the caller nor the provider's data names one."""

NO_OUTPUT = "(no output)"
NO_RESULT = "(no result was recorded for this call)"

OnText = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Generation settings. A field that is None is left to the provider.

    >>> from scroll_context import Agent, ScriptedModel, Session, Settings, Store
    >>> model = ScriptedModel(["Lisbon."])
    >>> with Store("trip.scroll", create=True) as store, Session.open(store) as session:
    ...     run = Agent(session, model, settings=Settings(temperature=0.2)).run("Where to?")
    >>> model.requests[0].settings.temperature
    0.2
    """

    max_tokens: int | None = None
    temperature: float | None = None
    # True, False, or an effort such as "low", "medium", "high".
    thinking: bool | str | None = None
    # Other settings by their pydantic-ai name, passed through as they are.
    extra: dict[str, Any] = {}

    def over(self, defaults: "Settings") -> "Settings":
        """These settings, with `defaults` where a field is not set."""
        fields = msgspec.structs.asdict(self)
        chosen = {name: value for name, value in fields.items() if value is not None}
        chosen["extra"] = {**defaults.extra, **self.extra}
        return msgspec.structs.replace(defaults, **chosen)


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a model reads for one reply.

    >>> from scroll_context import Session, Store
    >>> with Store("chat.scroll", create=True) as store, Session.open(store) as session:
    ...     said = session.say("What was question 3?")
    ...     request = session.view("You are helpful.", window=8_000)
    >>> [message.role for message in request.messages]
    ['system', 'user']
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    settings: Settings = Settings()


class Spent(msgspec.Struct, kw_only=True):
    """The cost of the replies so far.

    Tokens are the provider's own count, so a request without a reply adds none.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    dollars: float = 0.0

    def add(self, usage: Usage, cost: float | None) -> None:
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cache_read_tokens += usage.cache_read_tokens
        self.dollars += cost or 0.0


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of a model.

    >>> from scroll_context.hosts import Reply, ToolCall
    >>> reply = Reply(tool_calls=(ToolCall("c1", "exec", {"source": "print(1)"}),))
    >>> reply.message().role
    'assistant'
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: tuple[Thinking, ...] = ()
    usage: Usage = Usage()
    # One of stop, tool_call, length, content_filter, error, or a provider's own; "" if unreported.
    finish_reason: str = ""
    # The name the provider answered under, often a dated version.
    model: str = ""
    # US dollars, when a price is known.
    cost: float | None = None

    def message(self) -> Message:
        """This reply as a message of the conversation."""
        return Message(
            role="assistant", text=self.text, tool_calls=self.tool_calls, thinking=self.thinking
        )


class Model(Protocol):
    """A language model. Safe to use from several threads at once.

    >>> from scroll_context import Agent, Session, Store
    >>> from scroll_context.hosts import Reply
    >>> class Parrot:
    ...     name = "parrot"
    ...     window = 8_000
    ...
    ...     def reply(self, request, *, on_text=None, cancel=None, timeout=None):
    ...         asked = next(m for m in reversed(request.messages) if m.role == "user")
    ...         return Reply(text=asked.text.splitlines()[0])
    >>> with Store("birds.scroll", create=True) as store, Session.open(store) as session:
    ...     Agent(session, Parrot()).run("Polly!").answer
    'Polly!'
    """

    @property
    def name(self) -> str:
        """The name of the model in logs and prompts, such as `anthropic:claude-x`."""

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

        `on_text` receives the visible text in pieces, in the calling thread; together they are
        `Reply.text`. Setting `cancel` makes the call raise `ModelCancelled` soon; `timeout` seconds
        without a complete reply raise `ModelUnavailable`.
        """


def well_formed(messages: Iterable[Message]) -> list[Message]:
    """The messages with every call answered exactly once, right after it, and without empty texts.

    Providers answer HTTP 400 to a tool result without its call, to a call without its result and to
    an empty text. The view does not produce them; a hand-made or imported history can. What is left
    out here says nothing (an empty message) or answers nothing (a result without its call), and is
    still in the log.
    """
    out: list[Message] = []
    # Calls of the newest assistant message without a result, as id to tool name.
    open_calls: dict[str, str] = {}

    def answer_the_rest() -> None:
        for call_id, name in open_calls.items():
            out.append(Message(role="tool", text=NO_RESULT, tool_call_id=call_id, name=name))
        open_calls.clear()

    for message in messages:
        if message.role == "tool":
            if message.tool_call_id in open_calls:
                name = open_calls.pop(message.tool_call_id)
                text = message.text if message.text.strip() else NO_OUTPUT
                out.append(msgspec.structs.replace(message, text=text, name=message.name or name))
            continue
        answer_the_rest()
        if message.role == "assistant":
            open_calls.update((call.id, call.name) for call in message.tool_calls)
            if message.text.strip() or message.tool_calls:
                out.append(message)
        elif message.text.strip() or message.media:
            out.append(message)
    answer_the_rest()
    return out


class Stoppable:
    """The same model, lent to other code (such as that which writes summaries).

    A reply that is given no `cancel` of its own ends, with ModelCancelled, when `stop` is set.
    """

    def __init__(self, model: Model, stop: threading.Event) -> None:
        self.name = model.name
        self.window = model.window
        self._model = model
        self._stop = stop

    def reply(
        self,
        request: Request,
        *,
        on_text: OnText | None = None,
        cancel: threading.Event | None = None,
        timeout: float | None = None,
    ) -> Reply:
        return self._model.reply(
            request, on_text=on_text, cancel=cancel or self._stop, timeout=timeout
        )
