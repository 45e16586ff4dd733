"""The messages that a model reads: the view renders them, and a model bridge sends them.

They belong to no provider. A tool result is a message of role `tool` that names its call. A call
carries its arguments as a dict, or as the raw text that the model wrote when that was not a JSON
object, so that the agent can answer with an error instead of losing the reply. `canonical` is the
one byte form of these values: equal values give equal bytes, and the bytes decode to an equal
value, so the hash of what was sent can be computed again from the log. This module holds values
only: no provider, no order of messages.

`Media` is an image or a file on its way to a model, with its bytes. `contents.MediaFacts` is the
same in the metadata of an event, with the address of its bytes; session/media.py records one as the
other and reads the bytes back. Sizes come from headers: nothing is decoded, and bytes of any kind
are safe to pass.
"""

import struct
from typing import Any, Literal

import msgspec

from scroll_context.contents import MediaFacts

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


# sizes and costs of media -------------------------------------------------------------------------

IMAGE_TOKENS = 1_600
"""The most that an image costs, and what one costs whose size is not known."""
LEAST_IMAGE_TOKENS = 85
FILE_TOKENS = 3_000
"""The assumed cost of a file that is not text. The provider's count corrects it."""


def media_tokens(media_type: str, size: int, width: int = 0, height: int = 0) -> int:
    """Tokens of an image or a file.

    An image costs a token for 750 pixels, as Anthropic counts; OpenAI's tiles come to about the
    same for large images and to less for small ones.
    """
    if media_type.startswith("image/"):
        if not width:
            return IMAGE_TOKENS
        by_pixels = max(LEAST_IMAGE_TOKENS, width * height // 750)
        return min(IMAGE_TOKENS, by_pixels)
    if media_type.startswith("text/"):
        return size * 2 // 7
    return FILE_TOKENS


def facts_of(media: Media) -> MediaFacts:
    """An image or a file as an event describes it, without the address of its bytes."""
    size = len(media.data)
    width, height = image_size(media.data)
    return MediaFacts(
        media_type=media.media_type,
        name=media.name,
        url=media.url,
        size=size,
        tokens=media_tokens(media.media_type, size, width, height),
    )


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG, GIF, JPEG or WebP; zeros for anything else."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        width, height = struct.unpack("<HH", data[6:10])
        return width, height
    if data[:4] == b"RIFF" and data[8:15] == b"WEBPVP8" and len(data) >= 30:
        return _webp_size(data)
    if data[:2] == b"\xff\xd8":
        return _jpeg_size(data)
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    if data[15:16] == b"X":
        width = int.from_bytes(data[24:27], "little") + 1
        return width, int.from_bytes(data[27:30], "little") + 1
    if data[15:16] == b"L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """The size in the first frame header; segments before it are skipped by their length."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return 0, 0
