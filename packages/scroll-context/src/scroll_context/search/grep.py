"""Exhaustive matching over the log: every event within a grant whose text matches, in order of seq.

Search ranks and stops at k; this reads everything, payload bodies included, so its count is the
count. Where a pattern has a part that every match must hold (grep_pattern.py), SQLite searches for
that first: its LIKE reads a row without copying it, which is several times faster. Echoes, notices,
bookkeeping and erased events are never matched. A scan stops at its deadline and says where.
"""

import time
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec

from scroll_context.errors import PayloadDamaged, PayloadMissing
from scroll_context.events import EVERYTHING, UNSEARCHABLE, Grant, Payload
from scroll_context.log.filters import NO_FILTERS, SearchFilters, conditions
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import IS_ERASED
from scroll_context.search.grep_pattern import Pattern
from scroll_context.work import check as check_work

# Rows fetched at once, and rows fetched at once to be counted.
PAGE = 200
COUNTED = 1_000
# Bytes of a large body that are read again with the next piece.
OVERLAP = 2_000
# Seconds after which a scan stops.
SECONDS = 10.0

# All of its text is in the row, and it is not an echo.
_IS_PLAIN = "payload IS NULL AND instr(metadata, '\"echo\"') = 0"


class _Candidate(NamedTuple):
    """A row that may match, as the log has it."""

    seq: int
    metadata: str
    payload: str | None
    payload_type: str
    content: bytes


_COLUMNS = "seq, metadata, payload, payload_type, CAST(content AS BLOB)"


class GrepMatch(msgspec.Struct, frozen=True):
    """A row that matched. Only the first rows of a scan have an excerpt and a count."""

    seq: int
    # The text around the first place that matched.
    excerpt: str = ""
    # Places that matched, at most MOST_COUNTED.
    count: int = 0


class Scan:
    """One pass over the log. After it, `stopped_at` and `unreadable` say what it did not see.

    The first `detailed` matches have an excerpt, `width` characters to each side, and a count.
    """

    def __init__(
        self, log: EventLog, *, detailed: int = 0, width: int = 120, seconds: float = SECONDS
    ) -> None:
        self._log = log
        # How many of the next matches get an excerpt.
        self._detailed = detailed
        self._width = width
        self._until = time.monotonic() + seconds
        # The SQL condition that a row must fulfil, and its parameters.
        self._where = "1"
        self._values: list[Any] = []
        # The rows of the current page that were not read yet.
        self._page: Iterator[_Candidate] = iter(())
        # The last seq of that page, and of the scan.
        self._end = (0, 0)
        # The last seq that was read before time ran out.
        self.stopped_at: int | None = None
        # Seqs whose payload is missing or damaged: only the preview was searched.
        self.unreadable: list[int] = []

    def rows(
        self,
        sought: Pattern,
        *,
        grant: Grant = EVERYTHING,
        exclude: Collection[int] = (),
        filters: SearchFilters = NO_FILTERS,
    ) -> Iterator[GrepMatch]:
        """The rows that match a pattern."""
        where, values = conditions(grant, filters.without_range())
        holding, texts = sought.condition()
        lo, hi = filters.seq_range or (0, self._log.last_seq())
        self._where, self._values = f"{where} AND ({holding})", [*values, *texts]
        for page in self._pages(_COLUMNS, lo - 1, hi, PAGE):
            self._page = map(_Candidate._make, page)
            self._end = (page[-1][0] if len(page) == PAGE else hi, hi)
            for row in self._page:
                check_work()
                if row.seq in exclude:
                    continue
                match = self._match(row, sought)
                if match is not None:
                    yield match

    def count_rest(self, sought: Pattern, exclude: Collection[int] = ()) -> int:
        """How many more rows a begun rows(sought) would give, in a third of the time: only the
        text is read.
        """
        self._detailed = 0
        total = 0
        for row in self._page:
            total += row.seq not in exclude and self._match(row, sought) is not None
        # A row that SQLite already knows to match need not be read.
        content = "NULL" if sought.is_held else "CAST(content AS BLOB)"
        for page in self._pages(f"seq, {_IS_PLAIN}, {content}", *self._end, COUNTED):
            others = []
            for seq, is_plain, text in page:
                if seq in exclude:
                    continue
                if not is_plain:
                    others.append(seq)
                elif text is None or sought.occurs(text):
                    total += 1
            total += sum(self._match(row, sought) is not None for row in self._rows_at(others))
        return total

    def _rows_at(self, seqs: list[int]) -> Iterator[_Candidate]:
        if not seqs:
            return iter(())
        marks = ", ".join("?" * len(seqs))
        rows = self._log.query(f"SELECT {_COLUMNS} FROM event WHERE seq IN ({marks})", seqs)
        return map(_Candidate._make, rows)

    def _pages(
        self, columns: str, after: int, hi: int, size: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The rows behind a seq that may match, in order, as far as time allows; their first column
        is the seq.
        """
        while True:
            page = self._log.query(
                f"""SELECT {columns} FROM event WHERE seq > ? AND seq <= ?
                AND kind NOT IN ({", ".join("?" * len(UNSEARCHABLE))}) AND NOT ({IS_ERASED})
                AND {self._where} ORDER BY seq LIMIT ?""",
                [after, hi, *UNSEARCHABLE, *self._values, size],
            )
            yield page
            if len(page) < size:
                return
            after = page[-1][0]
            if time.monotonic() > self._until:
                self.stopped_at = after
                return

    def _match(self, row: _Candidate, sought: Pattern) -> GrepMatch | None:
        if '"echo"' in row.metadata and msgspec.json.decode(row.metadata).get("echo"):
            return None
        width = self._width if self._detailed > 0 else None
        look = _Look(sought, width)
        try:
            if row.payload is not None and Payload(row.payload, 0, row.payload_type).is_text:
                for piece in _pieces(self._log.payloads, row.payload):
                    look.at(piece)
            else:
                look.at(row.content)
        except (PayloadMissing, PayloadDamaged, OSError):
            self.unreadable.append(row.seq)
            look = _Look(sought, width)
            look.at(row.content)
        if not look.is_match:
            return None
        self._detailed -= 1
        return GrepMatch(row.seq, look.excerpt, look.count)


class _Look:
    """The search in one text that is read piece by piece; one piece is in memory at a time."""

    def __init__(self, sought: Pattern, width: int | None) -> None:
        self._sought = sought
        # The width of the excerpt; None if only the fact of a match counts.
        self._width = width
        self._is_first = True
        self.is_match = False
        self.excerpt = ""
        # The number of places that matched.
        self.count = 0

    def at(self, text: bytes) -> None:
        check_work()
        if self._width is not None:
            self._count(text, self._width)
        elif not self.is_match:
            self.is_match = self._sought.occurs(text)
        self._is_first = False

    def _count(self, text: bytes, width: int) -> None:
        places = self._sought.places(text)
        self.is_match = self.is_match or bool(places)
        if not self._is_first:
            # A place completely inside the overlap was counted with the piece before.
            places = [place for place in places if place[1] > OVERLAP]
        if places and not self.excerpt:
            self.excerpt = around(text, places[0], width)
        self.count += len(places)


def around(text: bytes, place: tuple[int, int], width: int) -> str:
    """The text around a place, on one line, so many characters before and after it."""
    start, end = place
    # A character has at most four bytes.
    most_bytes = 4 * width
    before = text[max(0, start - most_bytes) : start].decode(errors="ignore")
    match = text[start:end][: 2 * most_bytes].decode(errors="ignore")
    after = text[end : end + most_bytes].decode(errors="ignore")
    excerpt = " ".join((before[-width:] + match + after[:width]).split())
    if len(before) > width or start > most_bytes:
        excerpt = "…" + excerpt
    if len(after) > width or end + most_bytes < len(text):
        excerpt += "…"
    return excerpt


def _pieces(payloads: PayloadStore, digest: str) -> Iterator[bytes]:
    """A body in pieces that overlap, verified before the last."""
    tail = b""
    for chunk in payloads.chunks(digest):
        yield tail + chunk
        tail = (tail + chunk)[-OVERLAP:]
