"""Images and files that are part of a message: recorded as payloads with addresses of their own.

Each is an `artifact` event, recorded before the message that has it, so that no message ever names
bytes that are not on disk. The metadata of the message lists them (`MediaFacts`): the view counts
them and words their stubs from that list alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from scroll_context.contents import MediaFacts
from scroll_context.errors import BadInput
from scroll_context.events import Kind
from scroll_context.images import facts_of
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog
from scroll_context.messages import Media


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
