"""How an event becomes documents of the search index.

A large body becomes one document a passage. Labels, times and the stance of a turn are fields of
their own, for filters and for ranking.
"""

import datetime as dt
import re
from collections.abc import Iterator
from functools import lru_cache

import tantivy

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import Event
from scroll_context.log import times
from scroll_context.log.payloads import PayloadStore
from scroll_context.origin import LABELS
from scroll_context.search.tokenize import (
    SPACELESS,
    compounds,
    exact,
    kinds,
    normal,
    pairs,
    quantities,
    runs,
    signs,
)
from scroll_context.search.turns import only_makes_calls
from scroll_context.text.stance import stance

# Characters of a large body that make one document.
PASSAGE = 64_000
# Characters shared by neighbouring passages, so that a phrase across the cut matches.
OVERLAP = 200
NOT_THE_USER = "user (not of this store)"
"""The label of events with role `user` that are not the user of this store speaking."""


@lru_cache(maxsize=1 << 10)
def _exactly(*values: str) -> tuple[str, ...]:
    """The same for several ids, which are mostly those of the previous event."""
    return tuple(map(exact, values))


# Digits of a time: from the year to the second, and five places of the second.
_DIGITS = 19


def created_key(created_at: str) -> int:
    """A time as a number that sorts as the text does: its digits as written, whatever the zone."""
    try:
        at = dt.datetime.fromisoformat(created_at)
    except ValueError:
        # It is not a time of ours, and no time filter matches it.
        return 0
    day = (at.year * 100 + at.month) * 100 + at.day
    second = ((day * 100 + at.hour) * 100 + at.minute) * 100 + at.second
    return second * 100_000 + at.microsecond // 10


def created_bound(text: str, *, upper: bool) -> int:
    """The first or last moment that a date or time, or the beginning of one, stands for."""
    digits = re.sub(r"\D", "", times.bound(text, upper=upper))[:_DIGITS]
    return int(digits.ljust(_DIGITS, "9" if upper else "0"))


# documents ----------------------------------------------------------------------------------------


def documents(event: Event, answers: int, payloads: PayloadStore) -> Iterator[tantivy.Document]:
    """The documents that make an event findable: one, or one a passage for a large body.

    A reply that only makes calls has none: its headline repeats the arguments of a call, which has
    an event of its own.
    """
    if only_makes_calls(event):
        return
    if event.payload is None or not event.payload.is_text:
        yield _document(event, answers, event.content, event.name, event.headline)
        return
    try:
        for number, passage in enumerate(_passages(payloads.text_pieces(event.payload.digest))):
            titles = () if number else (event.name, event.headline)
            document = _document(event, answers, passage, *titles)
            document.add_bytes("passage", passage.encode())
            yield document
    except (PayloadMissing, PayloadDamaged, OSError):
        # Only its preview is left.
        yield _document(event, answers, event.content, event.name, event.headline)


def mark(document: tantivy.Document, upto: int, chain: bytes) -> None:
    """Let the last document of a commit record up to where, and of which log, the index then is."""
    document.add_text("mark", "last")
    document.add_unsigned("upto", upto)
    document.add_bytes("chain", chain)


def _document(event: Event, answers: int, *texts: str) -> tantivy.Document:
    document = tantivy.Document()
    document.add_unsigned("seq", event.seq)
    document.add_unsigned("answers", answers)
    document.add_unsigned("created", created_key(event.created_at))
    is_from_user = event.is_from_user
    document.add_unsigned("stance", stance(event.content) if is_from_user else 0)
    # The filter role="user" means the user of this store, so nobody else has this label.
    role = NOT_THE_USER if event.role == "user" and not is_from_user else event.role
    labels = _exactly(event.session_id, event.agent_id, event.task_id, event.kind, role)
    for name, label in zip(LABELS, labels, strict=True):
        document.add_text(name, label)
    for text in texts:
        if text:
            _add_text(document, normal(text))
    return document


def _add_text(document: tantivy.Document, text: str) -> None:
    spaceless = runs(text)
    if spaceless:
        document.add_text("pairs", " ".join(pair for run in spaceless for pair in pairs(run)))
        text = SPACELESS.sub(" ", text)
    document.add_text("text", text)
    document.add_text("stems", text)
    kinds_of_text = kinds(text)
    units, percentages = quantities(text, kinds_of_text)
    if units:
        document.add_text("text", " ".join(units))
    # Parts are found like other forms of a word; only complete words count as written.
    parts = compounds(text, kinds_of_text)
    if parts:
        document.add_text("stems", " ".join(parts))
    signed_words = signs(text) + percentages
    if signed_words:
        document.add_text("signs", " ".join(signed_words))


def _passages(pieces: Iterator[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        rest += piece
        while len(rest) > PASSAGE + OVERLAP:
            yield rest[: PASSAGE + OVERLAP]
            rest = rest[PASSAGE:]
    if rest:
        yield rest
