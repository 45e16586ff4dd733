"""The exact bytes of a host's message, kept beside its text and given back by its address.

The text of a message is in the log already, so only the rest of its bytes is recorded: its shape,
in which the text and the base64 form of media are cut out. Where the text cannot be found in the
bytes exactly once, the shape is all of them. A shape goes into the metadata of the event; one too
long for that becomes a payload of its own.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

from scroll_context.events import Event, Kind
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog
from scroll_context.messages import Media
from scroll_context.session.host import HostMessage

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
