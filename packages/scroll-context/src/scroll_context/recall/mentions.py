"""Every mention: grep for a text, timeline for a subject or for several terms.

Search ranks and stops at k. These show that there is nothing more: the number of rows is the count,
or the note begins by saying that it is not.
"""

from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Event
from scroll_context.log.filters import NO_FILTERS, SearchFilters
from scroll_context.log.schema import marked_pages
from scroll_context.recall.arguments import text_of, texts, whole_number
from scroll_context.recall.lookup import EXPAND_BYTES, row_bytes
from scroll_context.recall.reader import Answer, Reader, Row, event_row
from scroll_context.search import query as language
from scroll_context.search.grep import GrepMatch, Scan
from scroll_context.search.grep_pattern import LONGEST_PATTERN, pattern
from scroll_context.search.snippet import Needle, snippet
from scroll_context.text.similar import Folder
from scroll_context.text.words import clip
from scroll_context.work import check as check_work

# Rows of one grep.
MOST_MATCHES = 5_000
# Characters to each side of a match.
MOST_WIDTH = 2_000
# Terms of one timeline.
MOST_TERMS = 100
# Characters of a mention in a timeline.
EXCERPT = 160


class Subject(msgspec.Struct, frozen=True):
    """The events that a query means, in order, and in words how it was read."""

    seqs: tuple[int, ...]
    note: str


def subject_of(reader: Reader, query: Any, filters: SearchFilters = NO_FILTERS) -> Subject:
    """Read a query as search does: the events with all of its words, or, if none has, with any."""
    text = text_of(query, "a query")
    if len(text) > LONGEST_PATTERN:
        raise BadInput(
            f"a query has at most {LONGEST_PATTERN:,} characters here, not {len(text):,}"
        )
    check_work()
    mentions = reader.store.index.mentions(
        text, grant=reader.grant, filters=filters, exclude=reader.running_seqs()
    )
    count = len(mentions.seqs)
    events = "1 event has" if count == 1 else f"{count:,} events have"
    label = repr(clip(text, 60))
    if mentions.words == 1:
        note = f"{events} {label}"
    elif mentions.has_all:
        note = f"{events} all words of {label}"
    else:
        note = f"no event has all words of {label}; {events} any of them"
    if mentions.behind:
        note += f"; the newest {mentions.behind:,} events are not searchable yet"
    return Subject(mentions.seqs, note)


class MentionMethods:
    """The methods of `ms` that find everything."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    # grep -----------------------------------------------------------------------------------------

    def grep(
        self,
        text: Any,
        regex: Any = False,
        case: Any = False,
        width: Any = 120,
        limit: Any = None,
        **filters: Any,
    ) -> Answer:
        """Every row whose text contains a text or matches a regular expression, in order of seq."""
        selected = self._reader.filters("ms.grep", filters)
        most = MOST_MATCHES
        if limit is not None:
            most = whole_number(limit, "limit", 1, MOST_MATCHES)
        sought = pattern(text, regex=bool(regex), case=bool(case))
        wide = min(whole_number(width, "width", 0), MOST_WIDTH)
        scan = Scan(self._reader.log, detailed=most, width=wide)
        running = self._reader.running_seqs()
        grant = self._reader.grant
        matches: list[GrepMatch] = []
        rest = 0
        for match in scan.rows(sought, grant=grant, exclude=running, filters=selected):
            if len(matches) == most:
                rest = 1 + scan.count_rest(sought, running)
                break
            matches.append(match)
        rows = self._match_rows(matches)
        repeats = sum("repeats" in row for row in rows)
        total = len(matches) + rest
        label = f"{clip(text, 80)!r} within reach"
        if selected != NO_FILTERS:
            label += " and these filters"
        last = rows[-1]["seq"] if rows else 0
        note = _grep_note(label, len(rows), total, repeats, last, scan)
        return Answer(rows, note, truncated=len(rows) < total)

    def _match_rows(self, matches: list[GrepMatch]) -> list[Row]:
        """Matches as rows, near-duplicates marked, as many as fit into one answer."""
        rows: list[Row] = []
        room = EXPAND_BYTES
        folder = Folder()
        firsts: list[int] = []
        matches_by_seq = {match.seq: match for match in matches}
        for page in self._reader.pages(list(matches_by_seq)):
            events = self._reader.log.get_many(page, self._reader.grant)
            by_seq = {event.seq: event for event in events}
            for seq in page:
                check_work()
                match, event = matches_by_seq[seq], by_seq.get(seq)
                if event is None:
                    continue
                row = event_row(event, match=match.excerpt, count=match.count)
                room -= row_bytes(row)
                if room < 0 and rows:
                    return rows
                group, is_first = folder.add(match.excerpt)
                if is_first:
                    firsts.append(match.seq)
                else:
                    row["repeats"] = firsts[group]
                rows.append(row)
        return rows

    # timeline -------------------------------------------------------------------------------------

    def timeline(self, query: Any, by: Any = "session", **filters: Any) -> Answer:
        """How often a subject came up, by session, day or month; or, for a list of terms, the first
        and the last mention of each.
        """
        selected = self._reader.filters("ms.timeline", filters)
        if isinstance(query, list | tuple):
            return self._terms(texts(query, "terms"), selected)
        if by not in ("session", "day", "month"):
            raise BadInput(f"by is 'session', 'day' or 'month', not {by!r:.80}")
        subject = subject_of(self._reader, query, selected)
        mentions = self._mentions(subject.seqs)
        rows = self._by_session(mentions) if by == "session" else _by_time(mentions, by)
        note = subject.note
        if mentions:
            note += f"; first mention seq {mentions[0].place()}, last {mentions[-1].place()}"
        return Answer(rows, note, subject.seqs)

    def _by_session(self, mentions: list["_Mention"]) -> list[Row]:
        numbers = {info.session_id: number for number, info in self._reader.sessions()}
        groups: dict[str, list[_Mention]] = {}
        for mention in mentions:
            groups.setdefault(mention.session_id, []).append(mention)
        return [
            {"n": numbers.get(session), "session_id": session, **_counts(group)}
            for session, group in groups.items()
        ]

    def _terms(self, terms: list[str], filters: SearchFilters) -> Answer:
        """The first and the last mention of each term, the term that came first first."""
        if not 1 <= len(terms) <= MOST_TERMS:
            raise BadInput(
                f"ms.timeline takes 1 to {MOST_TERMS} terms at once, not {len(terms)}; split them"
            )
        rows: list[Row] = []
        seqs: list[int] = []
        notes = []
        for term in dict.fromkeys(terms):
            check_work()
            subject = subject_of(self._reader, term, filters)
            row: Row = {"term": term, "hits": len(subject.seqs)}
            if subject.seqs:
                ends = [subject.seqs[0], subject.seqs[-1]]
                first, last = self._reader.log.get_many(ends, self._reader.grant)
                row |= self._mention("first", first, term)
                row |= self._mention("last", last, term)
                seqs += ends
            if not subject.seqs or subject.note.startswith("no event"):
                notes.append(subject.note)
            rows.append(row)
        rows.sort(key=lambda row: row.get("first_seq", 1 << 62))
        order = " < ".join(row["term"] for row in rows if row["hits"])
        if len(seqs) > 2:
            notes.insert(0, f"by first mention: {order}")
        return Answer(rows, "; ".join(notes), tuple(seqs))

    def _mention(self, place: str, event: Event, term: str) -> Row:
        needles = [Needle.of(word) for word in language.terms_of(language.parse(term))]
        excerpt = snippet(self._reader.text(event), needles)
        return {
            f"{place}_seq": event.seq,
            f"{place}_at": event.created_at[:10],
            f"{place}_match": around(excerpt, term, EXCERPT),
        }

    def _mentions(self, seqs: tuple[int, ...]) -> list["_Mention"]:
        mentions = []
        for page, _ in marked_pages(seqs):
            check_work()
            for event in self._reader.log.get_many(page, self._reader.grant):
                mentions.append(
                    _Mention(event.seq, event.session_id, event.created_at, event.is_from_user)
                )
        return mentions


class _Mention(msgspec.Struct, frozen=True):
    """The mentions of a subject: by whom, when and where, without the text."""

    seq: int
    session_id: str
    created_at: str
    is_from_user: bool

    def place(self) -> str:
        return f"{self.seq} ({self.created_at[:10]})"


def _by_time(mentions: list[_Mention], by: str) -> list[Row]:
    """A row per day or month, the earliest first."""
    length = len("2024-07-31") if by == "day" else len("2024-07")
    groups: dict[str, list[_Mention]] = {}
    for mention in mentions:
        groups.setdefault(mention.created_at[:length], []).append(mention)
    return [{by: date} | _counts(groups[date]) for date in sorted(groups)]


def _counts(mentions: list[_Mention]) -> Row:
    first, last = mentions[0], mentions[-1]
    return {
        "hits": len(mentions),
        "by_user": sum(mention.is_from_user for mention in mentions),
        "first_seq": first.seq,
        "first_at": first.created_at[:10],
        "last_seq": last.seq,
        "last_at": last.created_at[:10],
    }


def around(text: str, word: str, width: int) -> str:
    """About `width` characters of a text on one line, with a word in the middle if it is there."""
    line = " ".join(text.split())
    first_word = word.lower().split()[0] if word.split() else word
    at = max(0, line.lower().find(first_word))
    start = max(0, min(at - width // 3, len(line) - width))
    if start:
        # Begin with a complete word, if one begins soon.
        start = line.find(" ", start, start + 20) + 1 or start
    end = start + width
    before = "…" if start else ""
    after = "…" if end < len(line) else ""
    return before + line[start:end] + after


def _grep_note(label: str, here: int, total: int, repeats: int, last: int, scan: Scan) -> str:
    notes = []
    if not total:
        notes.append(f"no row contains {label}; every row was looked at")
    elif here < total:
        notes.append(
            f"only the first {here:,} of {total:,} rows that contain {label} are here: "
            f"continue with seq_range=({last + 1}, …)"
        )
    else:
        rows = "1 row contains" if total == 1 else f"{total:,} rows contain"
        notes.append(f"{rows} {label}")
    if repeats:
        verb = "nearly repeats" if repeats == 1 else "nearly repeat"
        notes.append(f"{repeats:,} of them {verb} an earlier row (its seq is in `repeats`)")
    if scan.stopped_at is not None:
        notes.insert(
            0,
            f"time ran out at seq {scan.stopped_at}: continue with "
            f"seq_range=({scan.stopped_at + 1}, …)",
        )
    if scan.unreadable:
        notes.append(
            f"the payloads of {scan.unreadable[:10]} cannot be read; only their previews were "
            "looked at"
        )
    return "; ".join(notes)
