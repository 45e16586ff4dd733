"""Rows that were asked for: ranked search, exact events by seq, read-only SQL, and bodies."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from scroll_context.errors import BadInput, UnknownSeq
from scroll_context.events import Event
from scroll_context.kernel.results import CapabilityResult
from scroll_context.log.times import misdated
from scroll_context.recall.arguments import bindable, places_of, text_of, whole_number
from scroll_context.recall.reader import Answer, Reader, Row, event_row
from scroll_context.search.search import Hits
from scroll_context.sql.guard import GuardedSql
from scroll_context.work import check as check_work

MAX_HITS = 200
# Bytes of a body sent to the kernel at once.
PIECE = 4 << 20
# Bytes of memory for the texts that one call returns.
EXPAND_BYTES = 16 << 20
# Searches and verified bodies that a session remembers.
REMEMBERED = 1_000
_LIMIT = re.compile(
    r"\bLIMIT\s+(?P<count>\d{1,9}|\?)(?:\s+OFFSET\s+(?P<offset>\d+|\?))?\s*;?\s*\Z", re.IGNORECASE
)


class Lookup:
    """The methods that return the rows that a caller asked for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._store = reader.store
        self._sql: GuardedSql | None = None
        # How often the same search was made, by its hash.
        self._searches: dict[int, int] = {}
        # Digests of bodies that were intact.
        self._verified: dict[str, None] = {}

    # search ---------------------------------------------------------------------------------------

    def search(self, query: Any, k: Any = 10, per_session: Any = None, **filters: Any) -> Answer:
        """Ranked hits with complete text; `per_session` is the most that one session may have."""
        text_of(query, "the query of ms.search")
        count = whole_number(k, "k", 1, MAX_HITS)
        most = None if per_session is None else whole_number(per_session, "per_session", 1)
        selected = self._reader.filters("ms.search", filters, any_session=True)
        hits = self._store.index.search(
            query,
            k=count,
            grant=self._reader.grant,
            exclude=self._reader.running_seqs().union(self._reader.visible_seqs()),
            per_session=most,
            filters=selected,
        )
        arguments = sorted(str(argument) for argument in filters.items())
        notes = [_search_note(query, hits), self._repeated(query, count, most, arguments)]
        if selected.created_from is not None or selected.created_to is not None:
            notes.append(self._misdated())
        rows = [event_row(hit.event, score=hit.score, snippet=hit.snippet) for hit in hits]
        return Answer(rows, " ".join(filter(None, notes)))

    def _repeated(self, *search: object) -> str:
        key = hash(repr(search))
        times = self._searches.pop(key, 0) + 1
        _remember(self._searches, key, times)
        if times == 1:
            return ""
        return (
            f"This is call {times} of the same search in this session; "
            "other words will find other rows."
        )

    def _misdated(self) -> str:
        """A remark about sessions whose date contradicts the order in which they happened."""
        sessions = self._store.log.sessions(self._reader.grant)
        suspect = misdated([info.first_at for info in sessions])
        remarks = []
        for at, why in list(suspect.items())[:3]:
            remarks.append(f"session {sessions[at].session_id!r:.60} is {why}")
        return "; ".join(remarks) + "." if remarks else ""

    # exact events ---------------------------------------------------------------------------------

    def expand(self, *places: Any) -> Answer:
        """The exact events at one seq, at several, or from one to another."""
        listed, label = places_of(places)
        seqs = list(dict.fromkeys(listed))
        rows: list[Row] = []
        notes: list[str] = []
        room = EXPAND_BYTES
        for event in self._events_at(seqs):
            row = event_row(
                event,
                self._reader.text(event),
                tool_call_id=event.tool_call_id,
                reply_to=event.reply_to,
            )
            room -= row_bytes(row)
            if room < 0 and rows:
                notes.append(
                    f"only the first {len(rows):,} events are here: they are long. Continue from "
                    f"seq {event.seq}, or read a long text through `payload` of its row."
                )
                break
            rows.append(row)
        if not rows:
            raise UnknownSeq(self._unknown(label))
        is_cut = bool(notes)
        missing = sorted(set(seqs) - {row["seq"] for row in rows})
        if missing and not is_cut and len(seqs) < 100:
            notes.append(f"not within reach: {missing}")
        return Answer(rows, "; ".join(notes), truncated=is_cut)

    def _unknown(self, label: str) -> str:
        newest = self._store.log.tail(1, grant=self._reader.grant)
        end = f"; the newest event within reach has seq {newest[0].seq}" if newest else ""
        return (
            f"no event within reach at {label}{end}. "
            "Take seqs from ms.search, ms.index() or hist.conversation_history."
        )

    def _events_at(self, seqs: Sequence[int]) -> Iterator[Event]:
        """The events at these addresses within reach, read in pages: 5,000 of them can be large."""
        for page in self._reader.pages(seqs):
            check_work()
            yield from self._store.log.get_many(page, self._reader.grant)

    # SQL ------------------------------------------------------------------------------------------

    def sql_query(self, sql: Any, params: Any = ()) -> Answer:
        """Read-only SQL on hist.conversation_history and hist.events."""
        text_of(sql, "the SQL of ms.sql_query")
        if self._sql is None:
            self._sql = self._store.sql(self._reader.grant)
        values = bindable(params)
        result = self._sql.query(sql, values, hidden=self._reader.running_seqs())
        note = result.note
        limit = limit_of(sql, values)
        if not note and limit is not None and len(result.rows) == limit:
            note = f"LIMIT {limit:,} of your query was reached: there may be more rows."
        return Answer(
            result.rows, note, result.seqs or (), result.seqs is None, truncated=result.truncated
        )

    # bodies ---------------------------------------------------------------------------------------

    def read_payload(self, seq: Any, start: Any = 0) -> CapabilityResult:
        """A piece of the body of an event within reach, and whether more follows."""
        event = self._store.log.get(whole_number(seq, "seq", 1), self._reader.grant)
        if event.payload is None:
            raise BadInput(f"seq {event.seq} has no payload; its content is complete")
        at = whole_number(start, "start", 0)
        self._verify(event.payload.digest)
        piece = self._store.payloads.piece(event.payload.digest, at, PIECE)
        more = at + len(piece) < event.payload.size
        return CapabilityResult({"piece": piece, "more": more}, (event.seq,))

    def page(self, seq: int, start: int, count: int) -> tuple[str, bool]:
        """Some characters of a large text within reach, and whether more follow."""
        event = self._store.log.get(seq, self._reader.grant)
        if event.payload is None or not event.payload.is_text:
            return event.content[start : start + count], len(event.content) > start + count
        self._verify(event.payload.digest)
        text, at = "", 0
        for piece in self._store.payloads.text_pieces(event.payload.digest):
            text += piece[max(0, start - at) :]
            at += len(piece)
            if len(text) > count:
                break
        return text[:count], len(text) > count

    def _verify(self, digest: str) -> None:
        """Read a body for its digest, the first time that a piece of it is asked for."""
        if digest not in self._verified:
            self._store.payloads.check(digest)
            _remember(self._verified, digest, None)

    def close(self) -> None:
        if self._sql is not None:
            self._sql.close()


def _search_note(query: str, hits: Hits) -> str:
    if hits or hits.asked_nothing:
        return hits.note
    if hits.excluded:
        seqs = ", ".join(map(str, sorted(hits.excluded)[:20]))
        return (
            f"only events that the working view already shows match: seq {seqs}. Read them there."
        )
    nothing = (
        f"nothing within reach and within the filters matches {query!r:.200} "
        "(all words were tried, then any of them). Try other words, synonyms, or fewer filters."
    )
    return f"{hits.note} {nothing}".strip()


def limit_of(sql: str, values: Mapping[str, Any] | Sequence[Any]) -> int | None:
    """The number in the LIMIT at the end of a query, as far as it can be read from the text."""
    clause = _LIMIT.search(sql)
    if clause is None:
        return None
    count: Any = clause["count"]
    if count == "?":
        behind = 2 if clause["offset"] == "?" else 1
        if isinstance(values, Mapping) or len(values) < behind:
            return None
        count = values[-behind]
    return int(count) if isinstance(count, int) or str(count).isdigit() else None


def row_bytes(row: Row) -> int:
    """About how much memory a row takes on its way to a cell."""
    others = {name: value for name, value in row.items() if name != "content"}
    return sys.getsizeof(row["content"]) + len(msgspec.json.encode(others))


def _remember(entries: dict[Any, Any], key: Any, value: Any) -> None:
    """Add to a dict that forgets its oldest entry when it is full."""
    entries[key] = value
    if len(entries) > REMEMBERED:
        # Another thread may have removed it.
        entries.pop(next(iter(entries)), None)
