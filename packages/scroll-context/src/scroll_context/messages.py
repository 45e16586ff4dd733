"""The messages that a model reads: the view renders them, and a model bridge sends them.

They belong to no provider. A tool result is a message of role `tool` that names its call. A call
carries its arguments as a dict, or as the raw text that the model wrote when that was not a JSON
object, so that the agent can answer with an error instead of losing the reply. `canonical` is the
one byte form of these values: equal values give equal bytes, and the bytes decode to an equal
value, so the hash of what was sent can be computed again from the log. This module holds values
only: no provider, no token count, no order of messages.
"""

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]

_encoder = msgspec.json.Encoder(order="deterministic")


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call that the model asks for.

    A `str` in `arguments` is text that was not a JSON object.

    >>> from scroll_context.hosts import ToolCall
    >>> ToolCall("c1", "exec", {"source": "print(1)"}).name
    'exec'
    """

    id: str
    name: str
    arguments: dict[str, Any] | str = {}
    # The provider that wrote `opaque`. It is sent to no other.
    provider: str = ""
    opaque: dict[str, Any] = {}


class Thinking(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the model's reasoning, to be sent back as it came, and to its own provider only.

    >>> from scroll_context.hosts import Reply, Thinking
    >>> reply = Reply(text="4", thinking=(Thinking("two and two", provider="anthropic"),))
    >>> reply.message().thinking[0].provider
    'anthropic'
    """

    text: str = ""
    signature: str = ""
    provider: str = ""
    opaque: dict[str, Any] = {}


class Media(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image or a file that is part of a message: its bytes, or the address where they are.

    `name` and `caption` describe it for a reader who cannot see it, and search finds it by them.
    `digest` is the SHA-256 of the bytes, once they are recorded, and stands for them in hashes.

    >>> from scroll_context.hosts import Media
    >>> Media(media_type="image/png", data=b"...", name="chart.png").name
    'chart.png'
    """

    media_type: str
    data: bytes = b""
    url: str = ""
    name: str = ""
    caption: str = ""
    digest: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. `cache_mark` asks the provider to cache the prefix that ends with this message.

    `tail` is sent after the message, behind its cache mark, in this request only: the next request
    holds the same message without it, so that what the provider cached stays valid.

    >>> from scroll_context import Session, Store
    >>> with Store("chat.scroll", create=True) as store, Session.open(store) as session:
    ...     _ = session.say("Good morning.")
    ...     request = session.view("You are kind.")
    >>> [message.role for message in request.messages]
    ['system', 'user']
    """

    role: Role
    text: str = ""
    # Assistant only.
    tool_calls: tuple[ToolCall, ...] = ()
    # Tool only: the call that this answers.
    tool_call_id: str = ""
    # Tool only: the tool that answered.
    name: str = ""
    # Assistant only.
    thinking: tuple[Thinking, ...] = ()
    cache_mark: bool = False
    # User and tool only.
    tail: str = ""
    # User and tool only.
    media: tuple[Media, ...] = ()


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it; `parameters` is a JSON schema of type object.

    >>> from scroll_context.hosts import ToolSpec
    >>> ToolSpec("now", "The current time.", {"type": "object", "properties": {}}).name
    'now'
    """

    name: str
    description: str
    parameters: dict[str, Any]


def canonical(value: object) -> bytes:
    """The one JSON form of a message value: fields in declared order, dict keys sorted, defaults
    left out.
    """
    return _encoder.encode(value)


def parsed_arguments(raw: Any) -> dict[str, Any] | str:
    """The arguments of a call: an object, or the text that was not one."""
    if isinstance(raw, dict):
        return raw
    text = raw if isinstance(raw, str) else ""
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as APIs write them that take a string."""
    if isinstance(call.arguments, str):
        return call.arguments
    return msgspec.json.encode(call.arguments).decode()
