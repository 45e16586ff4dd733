"""The host half of `ms`: searching, expanding and querying the log on behalf of a cell.

Every method checks its arguments (they come from model code, or from frames that model code
forged), stays inside the grant that the session was opened with, and says which seqs it gave away,
which is what provenance rests on. A scope that a caller names can only narrow the grant. Rows go
back as plain dicts; what is said about them goes beside them in a note, never among them. The
methods that cover rather than rank are in `recall`.

Models send whole numbers as text, dates as date objects, and one text where several are allowed;
all of these work. Everything else is refused with a sentence that says what is expected.
"""

import datetime as dt
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol, cast

import msgspec

from scroll_context.errors import BadInput, UnknownSeq
from scroll_context.events import Event, Kind, Scope
from scroll_context.kernel.protocol import Prelude
from scroll_context.kernel.results import CapabilityCall, CapabilityResult
from scroll_context.log import times
from scroll_context.log.filters import LABELS, FilterFields, SearchFilters
from scroll_context.search.search import Hit
from scroll_context.sql.guard import GuardedSql
from scroll_context.store import Store
from scroll_context.text.dates import misdated
from scroll_context.work import Places
from scroll_context.work import check as check_work

MAX_HITS = 200
MAX_NOTES = 5
WHOLE_TEXT = 1 << 20  # bytes; a larger body stays behind its handle
PIECE = 4 << 20  # bytes of a body sent to the kernel at once
EXPAND_BYTES = 16 << 20  # of memory for the texts that one expand returns
EXPAND_PAGE = 100  # events that it reads at once
METADATA_BYTES = 16 << 10  # of the metadata in one row, as JSON
MAX_TEXT = 100_000  # characters in all arguments of one call together
MAX_VALUES = 20_000  # in all arguments of one call together
MAX_CALLS = 4  # that are answered at once for one kernel; others wait
FUSED = 50  # hits by words and by meaning that are joined
MOST_NAMED = 20_000  # events that the answer of one call names; an answer made of more names none
REMEMBERED = 1_000  # searches and verified bodies that a session remembers
_OWN_METHODS = ("search", "expand", "sql_query", "index", "provenance")
_RECALL_METHODS = ("grep", "outline", "timeline", "turns", "gist", "standing")  # methods of Recall
_OWN_WORDS = ", ".join(
    f"'{kind}'" for kind in (Kind.CONVERSATION, Kind.TOOL_CALL, Kind.CELL, Kind.OBSERVATION)
)


class SessionFacts(Protocol):
    """What the memory surface asks of the session that it belongs to."""

    def visible_seqs(self) -> Collection[int]: ...

    def index_lines(self) -> list[dict[str, Any]]: ...

    def provenance(self, name: str) -> dict[str, Any]: ...


class MemorySurface:
    """`ms` as the host sees it. Calls may come from several threads at once."""

    def __init__(self, store: Store, scope: Scope, reach: str, facts: SessionFacts) -> None:
        self.store = store
        self.scope = scope
        self.grant = scope.widest(reach)
        self.facts = facts
        self.calls = 0  # in the running cell
        self.empty_searches = 0  # of them, searches that found nothing
        self.notes: list[
            str
        ] = []  # what a reader of its output must know, such as that rows were left out
        self._sql: GuardedSql | None = None
        self._asked: dict[int, int] = {}  # how often the same search was asked, by its hash
        self._verified: dict[str, None] = {}  # digests of bodies that were as they should be
        self.places = Places(MAX_CALLS)
        from scroll_context.recall.recall import Recall  # late, since it builds on this module

        self.recall = Recall(self)
        self._methods: dict[str, Callable[..., CapabilityResult]] = {
            f"ms.{name}": getattr(owner, name)
            for owner, names in ((self, _OWN_METHODS), (self.recall, _RECALL_METHODS))
            for name in names
        }
        self._methods["payload.read"] = self.read_payload

    def begin_cell(self) -> None:
        """A new cell: its calls are counted from here."""
        self.calls = self.empty_searches = 0
        self.notes = []

    def answer(self, call: CapabilityCall) -> CapabilityResult:
        """Answer a call of a cell, of which everything may be forged.

        A few calls run at once, each until its answer has been sent, so that no number of threads
        in a cell takes the memory of the host; and all of them end with the cell.
        """
        with call.work.in_this_thread():
            call.work.until_sent.enter_context(self.places.place())
            call.work.check()
            return self.call(call.capability, *call.args, **call.kwargs)

    def call(self, capability: str, /, *args: Any, **kwargs: Any) -> CapabilityResult:
        """Call a method by the name under which a model knows it: the border that every argument
        passes.
        """
        method = self._methods.get(capability)
        if method is None:
            raise NameError(f"the host offers no capability {capability!r:.80}")
        self.calls += 1
        check_size(capability, args, kwargs)
        return method(*args, **kwargs)

    def search(
        self, query: str, k: Any = 10, per_session: Any = None, by: Any = "words", **filters: Any
    ) -> CapabilityResult:
        """Ranked hits, each with its address and whole text; `per_session` is the most that one
        session may have.

        With by="meaning", turns that say it in other words are joined in, where the store has an
        embedder.
        """
        if not isinstance(query, str):
            raise BadInput(f"ms.search takes a text as query, not {type(query).__name__}")
        count = whole_number(k, "k", 1, MAX_HITS)
        most = None if per_session is None else whole_number(per_session, "per_session", 1)
        wanted = filters_of("ms.search", filters, self.scope)
        if by not in ("words", "meaning"):
            raise BadInput(f"by is 'words' or 'meaning', not {by!r:.80}")
        found = self.store.index.search(
            query,
            k=count if by == "words" else max(count, FUSED),
            grant=self.grant,
            exclude=self.running_seqs().union(self.facts.visible_seqs()),
            per_session=most,
            filters=wanted,
        )
        notes = [
            found.note,
            self._repeated(
                query, count, most, by, sorted(filters.items(), key=lambda item: item[0])
            ),
        ]
        hits: Sequence[Hit] = found
        if by == "meaning":
            hits, said = self.recall.with_meaning(query, count, found, most, wanted)
            notes.append(said)
        rows = [_common(hit.event) | {"score": hit.score, "snippet": hit.snippet} for hit in hits]
        if wanted.created_from is not None or wanted.created_to is not None:
            notes.append(self._misdated())
        if not rows and found.excluded:
            shown = ", ".join(map(str, sorted(found.excluded)[:20]))
            notes[0] = (
                f"only events that the working view already shows match: seq {shown}. Read them there."
            )
        self.note(f"ms.search({query!r:.60}): ", *notes)
        if not rows and not found.excluded:
            self.empty_searches += 1
            if not found.asked_nothing:
                notes.append(
                    f"nothing within reach and within the filters matches {query!r:.200} (all words were tried, then "
                    "any of them). Try other words, synonyms, or fewer filters."
                )
        return CapabilityResult(
            {"rows": rows, "note": " ".join(filter(None, notes))}, tuple(row["seq"] for row in rows)
        )

    def running_seqs(self) -> frozenset[int]:
        """The events of the running task that the view shows, or will show next: no evidence about
        the past.

        These are the newest request of the user, the replies to it, and their calls and cells. What
        was folded or evicted is not among them, nor is the result of a tool that was called inside
        a cell: the view shows neither.
        """
        visible, session = self.facts.visible_seqs(), self.scope.session_id
        request = (
            self.store.log.tail(1, session_id=session, role="user", kind=Kind.CONVERSATION)
            if visible
            else []
        )
        if not request:
            return frozenset()
        first = request[0].seq
        not_yet_shown = self.store.log.query(
            f"SELECT seq FROM event WHERE session_id = ? AND seq > ? AND kind IN ({_OWN_WORDS})",
            [session, max(first - 1, *visible)],
        )
        return frozenset(
            [*(seq for seq in visible if seq >= first), *(row[0] for row in not_yet_shown)]
        )

    def expand(self, *places: Any) -> CapabilityResult:
        """The exact events at one seq, at several, or from one to another."""
        asked_seqs, asked = places_of(places)
        seqs = list(dict.fromkeys(asked_seqs))
        rows: list[dict[str, Any]] = []
        notes: list[str] = []
        left = EXPAND_BYTES
        for event in self._events_at(seqs):
            row = _common(event) | {
                "content": self.whole_text(event),
                "name": event.name,
                "tool_call_id": event.tool_call_id,
                "reply_to": event.reply_to,
            }
            others = {name: value for name, value in row.items() if name != "content"}
            left -= sys.getsizeof(row["content"]) + len(msgspec.json.encode(others))
            if left < 0 and rows:
                notes.append(
                    f"only the first {len(rows):,} events are here: they are long. Go on from seq {event.seq}, or "
                    "read a long text by its row's `payload`."
                )
                break
            rows.append(row)
        if not rows:
            newest = self.store.log.tail(1, grant=self.grant)
            end = f"; the newest event within reach has seq {newest[0].seq}" if newest else ""
            raise UnknownSeq(
                f"no event within reach at {asked}{end}. "
                "Take seqs from ms.search, ms.index() or hist.conversation_history."
            )
        is_cut = bool(notes)
        missing = sorted(set(seqs) - {row["seq"] for row in rows})
        if missing and not is_cut and len(seqs) < 100:
            notes.append(f"not within reach: {missing}")
        note = "; ".join(notes)
        self.note("ms.expand: ", note)
        answer = {"rows": rows, "note": note, "truncated": is_cut}
        return CapabilityResult(answer, tuple(row["seq"] for row in rows))

    def _events_at(self, seqs: Sequence[int]) -> Iterator[Event]:
        """The events at these addresses within reach, read in pages: 5,000 of them can be large."""
        for at in range(0, len(seqs), EXPAND_PAGE):
            check_work()
            yield from self.store.log.get_many(seqs[at : at + EXPAND_PAGE], self.grant)

    def sql_query(self, sql: str, params: Any = ()) -> CapabilityResult:
        """Read-only SQL on hist.conversation_history and hist.events."""
        if not isinstance(sql, str):
            raise BadInput(f"ms.sql_query takes SQL as text, not {type(sql).__name__}")
        if self._sql is None:
            self._sql = self.store.sql(self.grant)
        bound = params if isinstance(params, Mapping | list | tuple) else (params,)
        result = self._sql.query(sql, bindable(bound), hidden=self.running_seqs())
        self.note("ms.sql_query: ", result.note)
        answer = {"rows": result.rows, "note": result.note, "truncated": result.truncated}
        return CapabilityResult(answer, result.seqs or (), unknown=result.seqs is None)

    def index(self) -> CapabilityResult:
        """The eviction index as data: headlines and the seq spans they stand for."""
        rows = self.facts.index_lines()
        spans = [span for row in rows for span in row["seqs"]]
        few = sum(hi - lo + 1 for lo, hi in spans) <= MOST_NAMED
        seqs = [seq for lo, hi in spans for seq in range(lo, hi + 1)] if few else []
        return CapabilityResult({"rows": rows, "note": ""}, tuple(seqs), unknown=not few)

    def provenance(self, name: str) -> CapabilityResult:
        """Where a variable comes from."""
        if not isinstance(name, str):
            raise BadInput("ms.provenance takes the name of a variable as text")
        known = self.facts.provenance(name)
        return CapabilityResult(known, tuple(known["seqs"]), unknown=known["unknown"])

    def read_payload(self, seq: Any, start: Any = 0) -> CapabilityResult:
        """A piece of the body of an event within reach, and whether more follows."""
        event = self.store.log.get(whole_number(seq, "seq", 1), self.grant)
        if event.payload is None:
            raise BadInput(f"seq {event.seq} has no payload; its whole text is its content")
        at = whole_number(start, "start", 0)
        self._verify(event.payload.digest)
        piece = self.store.payloads.piece(event.payload.digest, at, PIECE)
        return CapabilityResult(
            {"piece": piece, "more": at + len(piece) < event.payload.size}, (event.seq,)
        )

    def page(self, seq: int, start: int, count: int) -> tuple[str, bool]:
        """Some characters of a large text within reach, and whether more follow."""
        event = self.store.log.get(seq, self.grant)
        if event.payload is None or not event.payload.is_text:
            return event.content[start : start + count], len(event.content) > start + count
        self._verify(event.payload.digest)
        held, at = "", 0
        for piece in self.store.payloads.text_pieces(event.payload.digest):
            held += piece[max(0, start - at) :]
            at += len(piece)
            if len(held) > count:
                break
        return held[:count], len(held) > count

    def close(self) -> None:
        if self._sql is not None:
            self._sql.close()

    def _misdated(self) -> str:
        """What to say about sessions whose date contradicts the order in which they happened."""
        sessions = self.store.log.sessions(self.grant)
        suspect = misdated([info.first_at for info in sessions])
        said = [
            f"session {sessions[at].session_id!r:.60} is {why}"
            for at, why in list(suspect.items())[:3]
        ]
        return "; ".join(said) + "." if said else ""

    def _verify(self, digest: str) -> None:
        """Read a body for its digest, the first time that a piece of it is wanted."""
        if digest not in self._verified:
            self.store.payloads.check(digest)
            _remember(self._verified, digest, None)

    def note(self, where: str, *notes: str) -> None:
        for note in filter(None, notes):
            if len(self.notes) < MAX_NOTES and where + note not in self.notes:
                self.notes.append(where + note)

    def _repeated(self, *search: object) -> str:
        key = hash(repr(search))
        times = self._asked.pop(key, 0) + 1
        _remember(self._asked, key, times)
        if times == 1:
            return ""
        return f"this is call {times} of the same search in this session; other words will find other rows."

    def whole_text(self, event: Event) -> str:
        """The text of an event; of a body that is larger than `WHOLE_TEXT`, or no text, what stands
        in the log.
        """
        if event.payload is not None and event.payload.is_text and event.payload.size <= WHOLE_TEXT:
            return self.store.log.text(event)
        return event.content


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Add to a dict that forgets its oldest entry when it is full."""
    known[key] = value
    if len(known) > REMEMBERED:
        known.pop(next(iter(known)), None)  # another thread may have done it


class NoSession:
    """The facts of a session that is not there: no view, no index, no cells on record."""

    def visible_seqs(self) -> Collection[int]:
        return ()

    def index_lines(self) -> list[dict[str, Any]]:
        return []

    def provenance(self, name: str) -> dict[str, Any]:
        raise BadInput(
            f"there is no session here, so nothing is known about {name!r}; :names lists your variables"
        )


def reading_surface(store: Store) -> MemorySurface:
    """`ms` on a whole store, without a session: for a person who looks around in it."""
    return MemorySurface(store, Scope(""), "all", NoSession())


def handles_prelude() -> Prelude:
    """Lazy handles inside the kernel, for `ms` and for tools."""
    return Prelude("handles", prelude_source("handles_prelude"))


def memory_prelude() -> Prelude:
    """`ms` inside the kernel; it needs the handles before it."""
    return Prelude("ms", prelude_source("ms_prelude"), ("ms",))


def prelude_source(name: str, package: str = "scroll_context.recall") -> str:
    """The source of a file that runs inside the kernel before the first cell."""
    return resources.files(package).joinpath(f"{name}.py").read_text("utf-8")


# rows -------------------------------------------------------------------------------------------------------


def _common(event: Event) -> dict[str, Any]:
    row: dict[str, Any] = {
        "seq": event.seq,
        "session_id": event.session_id,
        "agent_id": event.agent_id,
        "task_id": event.task_id,
        "kind": event.kind,
        "role": event.role,
        "created_at": event.created_at,
        "step_index": event.step_index,
        "msg_index": event.msg_index,
        "headline": event.headline,
        "content": event.content,
        "metadata": _short_metadata(event),
    }
    if (body := ref_of(event)) is not None:
        row["payload"] = msgspec.to_builtins(body)
    return row


def _short_metadata(event: Event) -> dict[str, Any]:
    """The metadata of an event, or where to read it: an import may bring megabytes of it."""
    size = len(msgspec.json.encode(event.metadata))
    if size <= METADATA_BYTES:
        return event.metadata
    query = f"SELECT substr(metadata, 1, 20000) AS part FROM hist.events WHERE seq = {event.seq}"
    return {"too_long": size, "read_with": f'ms.sql_query("{query}")'}


class ResultRef(msgspec.Struct, frozen=True):
    """Where a body is in the store, and what is known of it without loading it."""

    seq: int
    size: int
    media_type: str
    text: bool  # whether it reads as text (JSON included) or only as bytes
    preview: str


def ref_of(event: Event) -> ResultRef | None:
    """Where the body of an event is; None when its content is all there is."""
    body = event.payload
    return (
        ResultRef(event.seq, body.size, body.media_type, body.is_text, event.content)
        if body
        else None
    )


# arguments --------------------------------------------------------------------------------------------------


def check_size(capability: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that are larger than a question is.

    What is under the limit costs linear time everywhere.
    """
    characters = values = 0
    waiting: list[Any] = [args, kwargs]
    while waiting:
        value = waiting.pop()
        values += 1
        if isinstance(value, str | bytes | bytearray | memoryview):
            characters += len(value)
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, int):
            characters += value.bit_length() // 64
        if characters > MAX_TEXT or values + len(waiting) > MAX_VALUES:
            raise BadInput(
                f"the arguments of {capability} are too large: together they may have {MAX_TEXT:,} characters in "
                f"{MAX_VALUES:,} values. Ask for less at once, or filter the rows in your own code."
            )


MAX_EXPAND = 5_000  # rows of one expand; more is asked for in pieces
FILTER_ARGUMENTS = {
    *SearchFilters.__struct_fields__,
    "scope",
    "all_agents",
    "created_on",
} - {"task_id"}
"""What `ms` filters by: every field of the filters but the task, which `scope` names, and three
arguments that stand for several fields.
"""


def filters_of(method: str, arguments: Mapping[str, Any], scope: Scope) -> SearchFilters:
    """The filters that the arguments of a call ask for. A scope can only narrow the grant.

    `all_agents=True` takes the narrowing of `scope` away; the grant holds in any case.
    """
    unknown = sorted(arguments.keys() - FILTER_ARGUMENTS)
    if unknown:
        offered = ", ".join(sorted(FILTER_ARGUMENTS))
        raise BadInput(f"{method} has no argument {unknown[0]!r}; it filters by {offered}")
    fields: FilterFields = {}
    scope_name = arguments.get("scope")
    if scope_name is not None and not arguments.get("all_agents"):
        grant = scope.grant(scope_name)
        fields = {
            "session_id": grant.session_id,
            "task_id": grant.task_id,
            "agent_id": grant.agent_id,
        }
    filters = SearchFilters.of(**fields)
    # A session named beside scope="session" is the one that is meant.
    labels = {
        name: texts(arguments[name], name) for name in LABELS if arguments.get(name) is not None
    }
    filters = filters.narrowed(**cast(FilterFields, labels))
    if arguments.get("seq_range") is not None:
        filters = filters.narrowed(seq_range=bounds(arguments["seq_range"]))
    created_on = arguments.get("created_on")
    first = created_on if arguments.get("created_from") is None else arguments["created_from"]
    last = created_on if arguments.get("created_to") is None else arguments["created_to"]
    if first is not None:
        filters = filters.narrowed(created_from=moment(first, upper=False))
    if last is not None:
        filters = filters.narrowed(created_to=moment(last, upper=True))
    return filters


def whole_number(value: Any, name: str, least: int, most: int = (1 << 63) - 1) -> int:
    """A whole number, also when it was sent as text; too large ones are brought down to the most."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be a whole number, not {value!r:.80}") from None
    if number < least:
        raise BadInput(f"{name} must be at least {least}, not {number}")
    return min(number, most)


def texts(value: Any, name: str) -> list[str]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(one, str) for one in several):
        raise BadInput(f"{name} is a text or a list of texts, not {value!r:.80}")
    return list(several)


def bounds(pair: Any) -> tuple[int, int]:
    """The first and the last seq of a range."""
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise BadInput(f"seq_range is a pair (first, last), not {pair!r:.80}")
    return whole_number(pair[0], "first seq", 0), whole_number(pair[1], "last seq", 0)


def places_of(places: tuple[Any, ...]) -> tuple[list[int], str]:
    """The seqs meant by expand(7), expand([7, 9]) and expand(7, 9), which is a range; expand((7,
    9)) is the list.
    """
    if len(places) == 2 and not any(isinstance(place, list | tuple) for place in places):
        lo, hi = bounds(places)
        asked = f"{lo}-{hi}"
        if hi - lo >= MAX_EXPAND:
            raise BadInput(
                f"expand gives at most {MAX_EXPAND:,} events at once; {asked} has {hi - lo + 1:,}. Take parts."
            )
        return list(range(max(lo, 1), hi + 1)), asked
    flat = [
        one for place in places for one in (place if isinstance(place, list | tuple) else [place])
    ]
    if not flat:
        raise BadInput("ms.expand needs a seq, a list of seqs, or a first and a last seq")
    if len(flat) > MAX_EXPAND:
        raise BadInput(f"expand gives at most {MAX_EXPAND:,} events at once, not {len(flat):,}")
    return [whole_number(one, "seq", 0) for one in flat], f"seq {', '.join(map(str, flat[:10]))}"


def moment(value: Any, *, upper: bool) -> str:
    """The first or last moment that a date, a datetime or a text means, in UTC."""
    if not isinstance(value, str | dt.date):
        raise BadInput(
            f"{value!r:.80} is not a date: give one such as '2024-07-31', or an ISO time, as text"
        )
    return times.bound(value, upper=upper)


def bindable(params: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any] | Sequence[Any]:
    def plain(value: Any) -> Any:
        return value.isoformat() if isinstance(value, dt.date) else value

    if isinstance(params, Mapping):
        return {name: plain(value) for name, value in params.items()}
    return [plain(value) for value in params]
