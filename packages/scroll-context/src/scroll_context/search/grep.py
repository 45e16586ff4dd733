"""Exhaustive matching over the log: every event within a grant whose text matches, in order of seq.

Search ranks and stops at k; this looks at everything, payload bodies included, so its count is the
count. Matching is linear in the text (RE2), so that no pattern can stall the host. Where a pattern
has a part that every match must hold, SQLite looks for that first: its LIKE reads a row without
copying it, which is several times faster. Echoes, notices, bookkeeping and erased events are never
matched. A scan stops at its deadline and says where.
"""

import re
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import BOOKKEEPING, EVERYTHING, Grant, Kind, Payload
from scroll_context.log.filters import NO_FILTERS, SearchFilters, conditions
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import IS_ERASED
from scroll_context.origin import FROM_USER_SQL
from scroll_context.text.words import STOP_WORDS, WORD, stem
from scroll_context.work import check as check_work

LONGEST_PATTERN = 1_000  # characters
MOST_WORDS = 8  # of a query; the longest say most
PAGE = 200  # rows fetched at once,
COUNTED = 1_000  # and when they are only counted
OVERLAP = 2_000  # bytes of a large body that are looked at again with the next piece
MOST_COUNTED = 100  # occurrences in one text
SECONDS = 10.0  # after which a scan stops

_COLUMNS = (
    "seq, session_id, role, kind, name, created_at, metadata, payload, payload_type, "
    f"CAST(content AS BLOB), {FROM_USER_SQL}"
)
# all of its text is in the row, and it is no echo
_IS_PLAIN = "payload IS NULL AND instr(metadata, '\"echo\"') = 0"
_HIDDEN = sorted({*BOOKKEEPING, Kind.NOTICE})
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_FLAGS = re.compile(r"\A\(\?[ims]+\)")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?([^()?]|[^()?]*[^()])?\)([?*]|\{[\d,]*\})?")
_OPTIONAL = re.compile(r".(?:[?*]|\{[\d,]*\})", re.DOTALL)
_PLAIN = re.compile("[A-Za-z0-9 _,;:=@#%&<>/'\"~\ue000-\ue0ff-]+")
_QUERY = re.compile(r'(?P<no>-|NOT\s+)?(?:"(?P<phrase>[^"]+)"|(?P<word>[^\s"]+))')


class Pattern(msgspec.Struct, frozen=True):
    """What to look for in a text, and texts that a row must hold for it, whatever their case."""

    matcher: Any  # of re2, which is imported when it is first used
    must_hold: tuple[
        tuple[str, ...], ...
    ] = ()  # all texts of at least one of these; nothing is known when empty
    is_held: bool = (
        False  # whether a row that holds these matches, so that it need not be looked at again
    )

    def occurs(self, text: bytes) -> bool:
        return self.matcher.search(text) is not None

    def places(self, text: bytes) -> list[tuple[int, int]]:
        """Where it occurs, in bytes, up to a number of times."""
        return [place.span() for place in islice(self.matcher.finditer(text), MOST_COUNTED)]


class GrepMatch(msgspec.Struct, frozen=True):
    """A row that matched: its address, and which patterns did.

    Only the first rows of a scan have the rest.
    """

    seq: int
    session_id: str
    role: str
    kind: str
    name: str
    created_at: str
    matched: frozenset[int]
    is_from_user: bool
    excerpt: str = ""  # the text around the first place that matched
    count: int = 0  # places that matched, at most MOST_COUNTED


class Scan:
    """One pass over the log. After it, `stopped_at` and `unreadable` say what it did not see.

    The first `detailed` rows are told with an excerpt, `width` characters to each side, and a
    count.
    """

    def __init__(
        self, log: EventLog, *, detailed: int = 0, width: int = 120, seconds: float = SECONDS
    ) -> None:
        self._log = log
        self.detailed = detailed  # rows that are still told in detail
        self._width = width
        self._until = time.monotonic() + seconds
        self._where, self._values = "1", list[Any]()  # what a row must fulfil, by SQLite
        self._here = iter(
            list[tuple[Any, ...]]()
        )  # the rows of the page at hand that were not looked at yet
        self._end = (0, 0)  # the last seq of that page, and of the scan
        self.stopped_at: int | None = None  # the last seq that was looked at, when time ran out
        self.unreadable: list[
            int
        ] = []  # seqs whose payload is missing or damaged: only the preview was looked at

    def rows(
        self,
        patterns: Sequence[Pattern],
        *,
        every: bool = True,
        without: Sequence[Pattern] = (),
        grant: Grant = EVERYTHING,
        exclude: Collection[int] = (),
        filters: SearchFilters = NO_FILTERS,
    ) -> Iterator[GrepMatch]:
        """The rows that match every pattern, or any of them, and none of those in `without`."""
        where, values = conditions(grant, filters.without_range())
        holding, held = _holding(patterns, every)
        lo, hi = filters.seq_range or (0, self._log.last_seq())
        self._where, self._values = f"{where} AND ({holding})", [*values, *held]
        for page in self._pages(_COLUMNS, lo - 1, hi, PAGE):
            self._here, self._end = iter(page), (page[-1][0] if len(page) == PAGE else hi, hi)
            for row in self._here:
                check_work()
                if (
                    row[0] not in exclude
                    and (found := self._match(row, patterns, every, without)) is not None
                ):
                    yield found

    def count_rest(self, sought: Pattern, exclude: Collection[int] = ()) -> int:
        """How many more rows a begun rows([sought]) would give, in a third of the time: only the
        text is read.
        """
        self.detailed = 0
        total = sum(
            row[0] not in exclude and self._match(row, [sought]) is not None for row in self._here
        )
        text = "NULL" if sought.is_held else "CAST(content AS BLOB)"
        occurs = sought.matcher.search
        for page in self._pages(f"seq, {_IS_PLAIN}, {text}", *self._end, COUNTED):
            matched = [
                seq for seq, is_plain, text in page if is_plain and (text is None or occurs(text))
            ]
            total += len(matched) - len(set(exclude).intersection(matched))
            others = [seq for seq, is_plain, _ in page if not is_plain and seq not in exclude]
            marks = ", ".join("?" * len(others))
            rows = (
                self._log.query(f"SELECT {_COLUMNS} FROM event WHERE seq IN ({marks})", others)
                if others
                else ()
            )
            total += sum(self._match(row, [sought]) is not None for row in rows)
        return total

    def _pages(
        self, columns: str, after: int, hi: int, size: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The rows behind a seq that may match, in order, as far as time allows; their first column
        is the seq.
        """
        while True:
            page = self._log.query(
                f"""SELECT {columns} FROM event WHERE seq > ? AND seq <= ?
                AND kind NOT IN ({", ".join("?" * len(_HIDDEN))}) AND NOT ({IS_ERASED})
                AND {self._where} ORDER BY seq LIMIT ?""",
                [after, hi, *_HIDDEN, *self._values, size],
            )
            yield page
            if len(page) < size:
                return
            after = page[-1][0]
            if time.monotonic() > self._until:
                self.stopped_at = after
                return

    def _match(
        self,
        row: tuple[Any, ...],
        patterns: Sequence[Pattern],
        every: bool = True,
        without: Sequence[Pattern] = (),
    ) -> GrepMatch | None:
        (
            seq,
            session_id,
            role,
            kind,
            name,
            created_at,
            metadata,
            payload,
            media_type,
            content,
            is_from_user,
        ) = row
        if '"echo"' in metadata and msgspec.json.decode(metadata).get("echo"):
            return None
        looked = _Looked(patterns, without, self._width if self.detailed > 0 else None)
        try:
            if payload is not None and Payload(payload, 0, media_type).is_text:
                for piece in _pieces(self._log.payloads, payload):
                    looked.at(piece)
            else:
                looked.at(content)
        except (PayloadMissing, PayloadDamaged, OSError):
            self.unreadable.append(seq)
            looked = _Looked(patterns, without, self._width if self.detailed > 0 else None)
            looked.at(content)
        matched = looked.matched
        if not matched or looked.is_unwanted or (every and len(matched) < len(patterns)):
            return None
        if self.detailed > 0:
            self.detailed -= 1
        return GrepMatch(
            seq,
            session_id,
            role,
            kind,
            name,
            created_at,
            frozenset(matched),
            bool(is_from_user),
            looked.excerpt,
            looked.count,
        )


class _Looked:
    """What was seen in a text that is read piece by piece; one piece is in memory at a time."""

    def __init__(
        self, patterns: Sequence[Pattern], without: Sequence[Pattern], width: int | None
    ) -> None:
        self._patterns = patterns
        self._without = without
        self._width = width  # of the excerpt; None when only the fact of a match counts
        self._is_first = True
        self.matched: set[int] = set()
        self.is_unwanted = False
        self.excerpt = ""
        self.count = 0  # places that matched

    def at(self, text: bytes) -> None:
        check_work()
        for number, pattern in enumerate(self._patterns):
            if self._width is not None:
                self._look_closely(number, pattern, text, self._width)
            elif number not in self.matched and pattern.occurs(text):
                self.matched.add(number)
        self.is_unwanted = self.is_unwanted or any(
            pattern.occurs(text) for pattern in self._without
        )
        self._is_first = False

    def _look_closely(self, number: int, pattern: Pattern, text: bytes, width: int) -> None:
        places = pattern.places(text)
        if places:
            self.matched.add(number)
        if not self._is_first:
            # What lies completely in the overlap was counted with the piece before.
            places = [place for place in places if place[1] > OVERLAP]
        if places and not self.excerpt:
            self.excerpt = around(text, places[0], width)
        self.count += len(places)


def pattern(text: str, *, regex: bool = False, case: bool = False) -> Pattern:
    """A pattern of plain text, in which white space matches any white space, or of a regular
    expression.
    """
    if not isinstance(text, str) or not text.strip():
        raise BadInput("a pattern is a text to look for, and not an empty one")
    if len(text) > LONGEST_PATTERN:
        raise BadInput(f"a pattern has at most {LONGEST_PATTERN:,} characters, not {len(text):,}")
    if regex:
        return Pattern(_compiled(text, case), _alternatives(text))
    parts = text.split()
    must_hold = _one_of([_longest(parts)])
    is_held = not case and must_hold == ((text.strip(),),)
    return Pattern(_compiled(r"\s+".join(map(re.escape, parts)), case), must_hold, is_held)


def query_patterns(query: str) -> tuple[list[Pattern], list[Pattern]]:
    """Patterns for the words and "phrases" of a query, in any grammatical form, and for those after
    NOT or a minus.
    """
    wanted: list[tuple[int, Pattern]] = []
    unwanted: list[Pattern] = []
    for part in _QUERY.finditer(query[:LONGEST_PATTERN]):
        made: list[tuple[int, Pattern]] = []
        if part["phrase"] and part["phrase"].strip():
            made = [(1_000, pattern(part["phrase"]))]
        elif part["word"] and part["word"] not in ("AND", "OR", "NOT"):
            words = [word for word in WORD.findall(part["word"].lower()) if word not in STOP_WORDS]
            made = [(len(word), _any_form(word)) for word in words]
        if part["no"]:
            unwanted += (one for _, one in made)
        else:
            wanted += made
    wanted.sort(key=lambda one: -one[0])
    return [one for _, one in wanted[:MOST_WORDS]], unwanted


def around(text: bytes, place: tuple[int, int], width: int) -> str:
    """The text around a place, on one line, so many characters before and after it."""
    before = text[max(0, place[0] - 4 * width) : place[0]].decode(errors="ignore")
    match = text[place[0] : place[1]][: 8 * width].decode(errors="ignore")
    after = text[place[1] : place[1] + 4 * width].decode(errors="ignore")
    starts = len(before) <= width and place[0] <= 4 * width
    ends = len(after) <= width and place[1] + 4 * width >= len(text)
    shown = " ".join((before[-width:] + match + after[:width]).split())
    return ("" if starts else "…") + shown + ("" if ends else "…")


def _any_form(word: str) -> Pattern:
    root = stem(word)
    root = root[:-1] if len(root) > 4 and root.endswith("y") else root  # story, stories
    return Pattern(
        _compiled(rf"(?:^|[^\pL\pN]){re.escape(root)}\pL*", case=False), _one_of([_longest([root])])
    )


def _compiled(expression: str, case: bool) -> Any:
    import re2

    options = re2.Options()
    options.case_sensitive = case
    options.log_errors = False
    try:
        return re2.compile(expression.encode(errors="replace"), options)
    except re2.error as error:
        said = (
            error.args[0].decode(errors="replace")
            if error.args and isinstance(error.args[0], bytes)
            else str(error)
        )
        raise BadInput(
            f"{expression[:80]!r} cannot be used as a regular expression ({said}). Look-around, back-references and "
            "repetitions above 1,000 are not supported; leave out regex=True to look for the text itself."
        ) from None


def _alternatives(expression: str) -> tuple[tuple[str, ...], ...]:
    """Texts that every match of a regular expression holds, as far as they can be told without
    parsing all of it.

    What is not understood counts as "anything": then nothing is left out, and the scan is slower.
    """
    plain = _ESCAPED.sub(
        lambda one: "\0" if one[1].isalnum() else chr(0xE000 + ord(one[1]) % 256), expression
    )
    if re.search(r"\\[QEpPx]", expression) or re.search(r"[^\x00-\uffff]", expression):
        return ()
    plain = _CLASS.sub("\0", _FLAGS.sub("", plain))
    while _GROUP.search(plain):
        plain = _GROUP.sub(
            lambda one: "\0" if one[2] or "|" in (one[1] or "") else f"\0{one[1] or ''}\0", plain, 1
        )
    if "(" in plain or ")" in plain:
        return ()
    parts = [_PLAIN.findall(_OPTIONAL.sub("\0", part)) for part in plain.split("|")]
    return _one_of([_longest([_restored(text) for text in texts]) for texts in parts])


def _restored(text: str) -> str:
    return "".join(
        chr(ord(char) - 0xE000) if "\ue000" <= char <= "\ue0ff" else char for char in text
    )


def _longest(parts: list[str]) -> tuple[str, ...]:
    """Of these texts, the longest that SQLite compares without regard to case."""
    usable = {run for part in parts for run in re.findall(r"[\x20-\x7e]+", part)}
    return tuple(sorted(usable, key=lambda run: (-len(run), run))[:3])


def _one_of(alternatives: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(alternatives) if all(alternatives) else ()


def _holding(patterns: Sequence[Pattern], every: bool) -> tuple[str, list[str]]:
    """A condition that every matching row fulfils, as far as SQLite can tell by LIKE."""
    needs = [one.must_hold for one in patterns if one.must_hold]
    if not needs or (not every and len(needs) < len(patterns)):
        return "1", []
    like = "content LIKE ? ESCAPE '\\'"
    one_of = [
        " OR ".join("(" + " AND ".join([like] * len(texts)) + ")" for texts in need)
        for need in needs
    ]
    joined = (" AND " if every else " OR ").join(f"({one})" for one in one_of)
    escaped = [
        re.sub(r"([%_\\])", r"\\\1", text) for need in needs for texts in need for text in texts
    ]
    return f"payload IS NOT NULL OR {joined}", [f"%{text}%" for text in escaped]


def _pieces(payloads: PayloadStore, digest: str) -> Iterator[bytes]:
    """A body in pieces that overlap, verified before the last."""
    tail = b""
    for chunk in payloads.chunks(digest):
        yield tail + chunk
        tail = (tail + chunk)[-OVERLAP:]
