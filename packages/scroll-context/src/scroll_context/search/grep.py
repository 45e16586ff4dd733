"""Exhaustive matching over the log: every event within a grant whose text matches, in order of seq.

Search ranks and stops at k; this reads everything, payload bodies included, so its count is the
count. Matching is linear in the text (RE2), so that no pattern can stall the host. Where a pattern
has a part that every match must hold, SQLite searches for that first: its LIKE reads a row without
copying it, which is several times faster. Echoes, notices, bookkeeping and erased events are never
matched. A scan stops at its deadline and says where.
"""

import re
import time
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import EVERYTHING, UNSEARCHABLE, Grant, Payload
from scroll_context.log.filters import NO_FILTERS, SearchFilters, conditions
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import IS_ERASED
from scroll_context.work import check as check_work

# Characters of a pattern.
LONGEST_PATTERN = 1_000
# Rows fetched at once, and rows fetched at once to be counted.
PAGE = 200
COUNTED = 1_000
# Bytes of a large body that are read again with the next piece.
OVERLAP = 2_000
# Occurrences that are counted in one text.
MOST_COUNTED = 100
# Seconds after which a scan stops.
SECONDS = 10.0

# All of its text is in the row, and it is not an echo.
_IS_PLAIN = "payload IS NULL AND instr(metadata, '\"echo\"') = 0"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_FLAGS = re.compile(r"\A\(\?[ims]+\)")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?([^()?]|[^()?]*[^()])?\)([?*]|\{[\d,]*\})?")
_OPTIONAL = re.compile(r".(?:[?*]|\{[\d,]*\})", re.DOTALL)
_PRIVATE = 0xE000
_HIDDEN = re.compile("[\ue000-\ue0ff]")
_PLAIN = re.compile("[A-Za-z0-9 _,;:=@#%&<>/'\"~\ue000-\ue0ff-]+")


class _Candidate(NamedTuple):
    """A row that may match, as the log has it."""

    seq: int
    metadata: str
    payload: str | None
    payload_type: str
    content: bytes


_COLUMNS = "seq, metadata, payload, payload_type, CAST(content AS BLOB)"


class Pattern(msgspec.Struct, frozen=True):
    """A text or expression to search for, and texts that a row must hold for it, in any case.

    A row holds all texts of at least one tuple in `must_hold`; nothing is known when it is empty.
    """

    # A compiled pattern of re2, which is imported when it is first used.
    matcher: Any
    must_hold: tuple[tuple[str, ...], ...] = ()
    # Whether a row that holds these matches, so that it need not be read again.
    is_held: bool = False

    def occurs(self, text: bytes) -> bool:
        return self.matcher.search(text) is not None

    def places(self, text: bytes) -> list[tuple[int, int]]:
        """Where it occurs, in bytes, up to a number of times."""
        return [place.span() for place in islice(self.matcher.finditer(text), MOST_COUNTED)]


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
        holding, texts = _holding(sought)
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


def pattern(text: str, *, regex: bool = False, case: bool = False) -> Pattern:
    """A pattern of plain text, in which white space matches any white space, or of a regular
    expression.
    """
    if not isinstance(text, str) or not text.strip():
        raise BadInput("the pattern must be a non-empty text")
    if len(text) > LONGEST_PATTERN:
        raise BadInput(f"a pattern has at most {LONGEST_PATTERN:,} characters, not {len(text):,}")
    if regex:
        return Pattern(_compiled(text, case), _alternatives(text))
    parts = text.split()
    must_hold = _one_of([_longest(parts)])
    is_held = not case and must_hold == ((text.strip(),),)
    return Pattern(_compiled(r"\s+".join(map(re.escape, parts)), case), must_hold, is_held)


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


def _compiled(expression: str, case: bool) -> Any:
    import re2

    options = re2.Options()
    options.case_sensitive = case
    options.log_errors = False
    try:
        return re2.compile(expression.encode(errors="replace"), options)
    except re2.error as error:
        reason = str(error)
        if error.args and isinstance(error.args[0], bytes):
            reason = error.args[0].decode(errors="replace")
        raise BadInput(
            f"{expression[:80]!r} cannot be used as a regular expression ({reason}). "
            "Look-around, back-references and repetitions above 1,000 are not supported; "
            "leave out regex=True to look for the text itself."
        ) from None


def _alternatives(expression: str) -> tuple[tuple[str, ...], ...]:
    """Texts that every match of a regular expression holds, as far as they can be found without
    parsing all of it.

    Syntax that is not understood counts as "anything": no match is missed then, and the scan is
    slower. An escaped character becomes a private one, so that it is not read as syntax.
    """

    def hide_escaped(match: re.Match[str]) -> str:
        return "\0" if match[1].isalnum() else chr(_PRIVATE + ord(match[1]) % 256)

    def open_group(match: re.Match[str]) -> str:
        inside = match[1] or ""
        is_optional = bool(match[2])
        return "\0" if is_optional or "|" in inside else f"\0{inside}\0"

    plain = _ESCAPED.sub(hide_escaped, expression)
    if re.search(r"\\[QEpPx]", expression) or re.search(r"[^\x00-\uffff]", expression):
        return ()
    plain = _CLASS.sub("\0", _FLAGS.sub("", plain))
    while _GROUP.search(plain):
        plain = _GROUP.sub(open_group, plain, 1)
    if "(" in plain or ")" in plain:
        return ()
    parts = [_PLAIN.findall(_OPTIONAL.sub("\0", part)) for part in plain.split("|")]
    return _one_of([_longest([_restored(text) for text in texts]) for texts in parts])


def _restored(text: str) -> str:
    """The text with its escaped characters in place of the private ones."""
    return _HIDDEN.sub(lambda match: chr(ord(match[0]) - _PRIVATE), text)


def _longest(parts: list[str]) -> tuple[str, ...]:
    """The longest of these texts that SQLite compares without regard to case."""
    usable = {run for part in parts for run in re.findall(r"[\x20-\x7e]+", part)}
    return tuple(sorted(usable, key=lambda run: (-len(run), run))[:3])


def _one_of(alternatives: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(alternatives) if all(alternatives) else ()


def _holding(sought: Pattern) -> tuple[str, list[str]]:
    """A condition that every matching row fulfils, as far as SQLite can tell by LIKE."""
    if not sought.must_hold:
        return "1", []
    like = "content LIKE ? ESCAPE '\\'"
    alternatives = ["(" + " AND ".join([like] * len(texts)) + ")" for texts in sought.must_hold]
    values = []
    for texts in sought.must_hold:
        values += ["%" + re.sub(r"([%_\\])", r"\\\1", text) + "%" for text in texts]
    return f"payload IS NOT NULL OR {' OR '.join(alternatives)}", values


def _pieces(payloads: PayloadStore, digest: str) -> Iterator[bytes]:
    """A body in pieces that overlap, verified before the last."""
    tail = b""
    for chunk in payloads.chunks(digest):
        yield tail + chunk
        tail = (tail + chunk)[-OVERLAP:]
