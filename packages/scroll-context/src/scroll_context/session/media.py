"""What a message has besides its text: images and files, and the exact bytes that a host had.

Images and files are recorded as payloads with addresses of their own. Each is an `artifact` event,
recorded before the message that has it, so that no message ever names bytes that are not on disk.
The metadata of the message lists them (`MediaFacts`): the view counts them and words their stubs
from that list alone.

The exact bytes of a host's message are kept beside its text and given back by its address. The text
is in the log already, so only the rest is recorded: its shape, in which the text and the base64
form of media are cut out. Where the text cannot be found in the bytes exactly once, the shape is
all of them. A shape goes into the metadata of the event; one too long for that becomes a payload of
its own.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from scroll_context.contents import MediaFacts
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog
from scroll_context.messages import Media, facts_of
from scroll_context.session.host import HostMessage


def record_media(journal: Journal, media: Sequence[Media], role: str) -> list[dict[str, Any]]:
    """Record images and files; what the metadata of their message says about them."""
    return [msgspec.to_builtins(_record(journal, item, role)) for item in media]


def _record(journal: Journal, media: Media, role: str) -> MediaFacts:
    if not media.data and not media.url:
        raise BadInput(
            f"the media {media.name or media.media_type!r} has neither bytes nor a URL; nothing "
            "was recorded. Give Media(data=...) or Media(url=...)."
        )
    facts = facts_of(media)
    if not media.data:
        return facts
    draft = journal.draft(
        Kind.ARTIFACT, role=role, name=media.name, content=media.caption or facts.label
    )
    event = journal.append(draft, body=media.data, media_type=media.media_type)
    digest = event.payload.digest if event.payload is not None else ""
    return msgspec.structs.replace(facts, seq=event.seq, digest=digest)


def with_bytes(log: EventLog, media: Iterable[Media]) -> tuple[Media, ...]:
    """Media that a view shows, with the bytes behind their digests."""
    complete = []
    for item in media:
        if item.digest:
            item = msgspec.structs.replace(item, data=log.payloads.read(item.digest))
        complete.append(item)
    return tuple(complete)


# the exact bytes of a host's message --------------------------------------------------------------

SHAPE = "wire"
"""Where the metadata of an event has the shape of its message."""
SHAPE_SEQ = "wire_seq"
"""Where it has the address of a payload with the shape instead."""
LONGEST_SHAPE = 16 << 10
SHORTEST_CUT = 64
"""Texts shorter than this stay in the shape."""

_MEDIA_TYPE = "application/octet-stream"
_PLAIN, _ESCAPED = "\x00t", "\x00u"


def wire_facts(journal: Journal, message: HostMessage) -> dict[str, Any]:
    """The metadata about the bytes of an event's message; empty if it has none."""
    if not message.raw:
        return {}
    shape = shape_of(message.raw, message.text, message.media)
    if len(shape) <= LONGEST_SHAPE:
        return {SHAPE: shape}
    draft = journal.draft(
        Kind.ARTIFACT, role=message.role, content="the bytes of a message", metadata={"echo": True}
    )
    body = shape.encode("utf-8", "surrogateescape")
    return {SHAPE_SEQ: journal.append(draft, body=body, media_type=_MEDIA_TYPE).seq}


def shape_of(raw: bytes, text: str, media: Sequence[Media]) -> str:
    """The bytes of a message without its text and media."""
    shape = raw.decode("utf-8", "surrogateescape")
    if "\x00" in shape:
        return shape
    for number, item in enumerate(media):
        encoded = base64.b64encode(item.data).decode()
        if len(encoded) >= SHORTEST_CUT:
            shape = _with_mark(shape, encoded, f"\x00m{number}\x00") or shape
    if len(text) >= SHORTEST_CUT:
        for mark, escape in ((_PLAIN, False), (_ESCAPED, True)):
            encoded = json.dumps(text, ensure_ascii=escape)[1:-1]
            if shorter := _with_mark(shape, encoded, mark + "\x00"):
                return shorter
    return shape


def _with_mark(shape: str, part: str, mark: str) -> str:
    """The shape with a mark in the place of a part; "" if the part is not there exactly once."""
    # Searching for a long text takes several times as long as reading it. Its first characters
    # nearly always lead to it.
    start = shape.find(part[:SHORTEST_CUT])
    if start >= 0 and not shape.startswith(part, start):
        start = shape.find(part)
    end = start + len(part)
    if start < 0 or shape.find(part, end) >= 0:
        return ""
    return shape[:start] + mark + shape[end:]


def wire_bytes(log: EventLog, event: Event) -> bytes | None:
    """The exact bytes of the message that an event stands for; None if none were recorded.

    A message whose bytes became known after it was recorded, such as a reply, has them in a later
    event.

    >>> from scroll_context import Session, Store
    >>> from scroll_context.hosts import HostMessage, wire_bytes
    >>> raw = b'{"role": "user", "content": "hello"}'
    >>> with Store("work.scroll", create=True) as store, Session.open(store) as session:
    ...     layout = session.follow([HostMessage(role="user", text="hello", raw=raw)])
    ...     wire_bytes(store.log, store.log.get(layout.seqs[0])) == raw
    True
    """
    metadata = event.metadata
    if SHAPE not in metadata and SHAPE_SEQ not in metadata:
        later = log.iterate(after=event.seq, session_id=event.session_id, kind=[Kind.WIRE])
        supplements = (other.metadata for other in later if other.reply_to == event.seq)
        metadata = next(supplements, {})
    shape = metadata.get(SHAPE)
    if shape is None and SHAPE_SEQ in metadata:
        payload = log.get(metadata[SHAPE_SEQ]).payload
        assert payload is not None
        shape = log.payloads.read(payload.digest).decode("utf-8", "surrogateescape")
    if shape is None:
        return None
    return _rebuilt(str(shape), log, event).encode("utf-8", "surrogateescape")


def _rebuilt(shape: str, log: EventLog, event: Event) -> str:
    for mark, escape in ((_PLAIN, False), (_ESCAPED, True)):
        if mark + "\x00" in shape:
            text = json.dumps(log.text(event), ensure_ascii=escape)[1:-1]
            shape = shape.replace(mark + "\x00", text)
    for number, item in enumerate(event.metadata.get("media") or ()):
        mark = f"\x00m{number}\x00"
        if mark in shape:
            data = log.payloads.read(item["digest"])
            shape = shape.replace(mark, base64.b64encode(data).decode())
    return shape
