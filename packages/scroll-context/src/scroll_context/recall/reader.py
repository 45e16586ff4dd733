"""What the calls of `ms` read through, and the rows that they return.

A `Reader` has a store, the scope of its session, a grant, and the visible events. Nothing outside
the grant is read. What calls hide within it is listed in the package's docstring; events of the
running task, for one, are not evidence about the past. A `ReadOnce` keeps in memory what it made of
messages, so that each is read once. After an erasure everything is read again: nothing of erased
events stays in memory.

A row always has `seq, session_id, role, kind, created_at, content`. Calls that select events by a
part of their text add that part as `match` (search calls it `snippet`). Remarks about rows go into
the note beside them, never among them: a row of another shape breaks the model's loop.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import msgspec
from msgspec.structs import replace

from scroll_context.contents import MediaFacts, media_of
from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import Event, Grant, Kind, Scope
from scroll_context.kernel.results import CapabilityResult
from scroll_context.log.filters import SearchFilters
from scroll_context.log.log import SessionInfo
from scroll_context.origin import SPEAKER
from scroll_context.recall.arguments import filters_of
from scroll_context.store import Store
from scroll_context.tools.handles import ResultRef, ref_of

# Bytes of a body that is returned as text. A larger one stays behind its handle.
WHOLE_TEXT = 1 << 20
# Events, and bytes of their rows, that are read at once.
PAGE_EVENTS = 100
PAGE_BYTES = 16 << 20
# This many events are read without asking for their sizes.
FEW_EVENTS = 4
_SPEAKERS = ("user", "assistant", SPEAKER)
_WORK_KINDS = frozenset({Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.CELL, Kind.OBSERVATION})
_TASK_KINDS = (Kind.CONVERSATION, Kind.TOOL_CALL, Kind.CELL, Kind.OBSERVATION)


class Reader:
    """The events that a session may recall. Calls may come from several threads at once."""

    def __init__(
        self,
        store: Store,
        scope: Scope,
        grant: Grant,
        visible_seqs: Callable[[], Collection[int]],
    ) -> None:
        self.store = store
        self.log = store.log
        self.scope = scope
        self.grant = grant
        # The seqs that the working view shows now.
        self.visible_seqs = visible_seqs

    # the running task -----------------------------------------------------------------------------

    def running_seqs(self) -> frozenset[int]:
        """The events of the running task that the view shows, or will show next.

        These are the newest request of the user, the replies to it, and their calls and cells. A
        folded or evicted event is not among them, nor is the result of a tool that was called
        inside a cell: the view shows neither. Before the first request to the model, the view shows
        nothing, and there is no running task.
        """
        visible = self.visible_seqs()
        session = self.scope.session_id
        if not visible:
            return frozenset()
        requests = self.log.tail(1, session_id=session, role="user", kind=Kind.CONVERSATION)
        if not requests:
            return frozenset()
        first = requests[0].seq
        marks = ", ".join("?" * len(_TASK_KINDS))
        not_yet_shown = self.log.query(
            f"SELECT seq FROM event WHERE session_id = ? AND seq > ? AND kind IN ({marks})",
            [session, max(first - 1, *visible), *_TASK_KINDS],
        )
        running = {seq for seq in visible if seq >= first}
        running.update(seq for (seq,) in not_yet_shown)
        return frozenset(running)

    def last_before_running(self) -> int:
        """The last seq before the running task."""
        running = self.running_seqs()
        return min(running) - 1 if running else self.log.last_seq()

    # sessions -------------------------------------------------------------------------------------

    def sessions(self) -> list[tuple[int, SessionInfo]]:
        """The sessions within the grant by number, without what belongs to the running task.

        Numbers follow the log, so they stay the same while sessions are added.
        """
        numbered = enumerate(self.log.sessions(self.grant), 1)
        running = self.running_seqs()
        if not running:
            return list(numbered)
        sessions = []
        for number, info in numbered:
            is_own = info.session_id == self.scope.session_id
            earlier = self._before(info, min(running)) if is_own else info
            if earlier is not None:
                sessions.append((number, earlier))
        return sessions

    def _before(self, info: SessionInfo, seq: int) -> SessionInfo | None:
        """The running session as it was before its running task; None if that is its first."""
        earlier = self.log.tail(
            1,
            grant=self.grant,
            session_id=info.session_id,
            seq_range=(0, seq - 1),
            kind=[*_TASK_KINDS, Kind.TOOL_RESULT],
        )
        if not earlier:
            return None
        return replace(info, last_seq=earlier[0].seq, last_at=earlier[0].created_at)

    def session_id(self, value: Any) -> str:
        """The id of a session that is given by its id, or by its number in the outline."""
        sessions = self.log.sessions(self.grant)
        if isinstance(value, str) and any(info.session_id == value for info in sessions):
            return value
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = 0
        if 1 <= number <= len(sessions):
            return sessions[number - 1].session_id
        raise BadInput(
            f"there is no session {value!r:.80} within reach; "
            "ms.outline() lists them by number and id, and query= looks for a subject"
        )

    def filters(
        self, method: str, arguments: Mapping[str, Any], *, any_session: bool = False
    ) -> SearchFilters:
        """The filters that the arguments of a call mean: the one way in which recall makes them.

        A session may be given by its number in the outline. One that does not exist within reach is
        refused, or, with `any_session`, is a filter that no event passes.
        """
        fields = {name: value for name, value in arguments.items() if value is not None}
        session = fields.get("session_id")
        is_list = isinstance(session, list | tuple)
        if session is not None and not is_list:
            try:
                fields["session_id"] = self.session_id(session)
            except BadInput:
                if not (any_session and isinstance(session, str)):
                    raise
        return filters_of(method, fields, self.scope)

    # messages -------------------------------------------------------------------------------------

    def messages(self, filters: SearchFilters) -> Iterator[Event]:
        """The messages of these roles or, without a role, of any speaker."""
        running = self.running_seqs()
        for event in self.log.iterate(grant=self.grant, filters=filters):
            if filters.role is None and event.role not in _SPEAKERS:
                continue
            if event.seq in running or event.kind in _WORK_KINDS:
                continue
            if event.is_searchable and event.content:
                yield event

    def messages_from_people(self, after: int, until: int) -> Iterator[Event]:
        """People's messages after a seq and up to another, also in imported conversations."""
        for event in self.messages(SearchFilters.of(seq_range=(after + 1, until))):
            if event.is_from_person:
                yield event

    def messages_from_user(self, after: int, until: int) -> Iterator[Event]:
        """The messages of this store's user after a seq and up to another."""
        return self.messages(SearchFilters.of(seq_range=(after + 1, until), role="user"))

    def pages(self, seqs: Sequence[int]) -> Iterator[list[int]]:
        """The seqs in pages of at most `PAGE_EVENTS` events with about `PAGE_BYTES` in their rows.

        The metadata of one event may take 8 MiB, so a hundred events of an import took 800 MiB
        before the first of them was read.
        """
        page: list[int] = []
        room = PAGE_BYTES
        for start in range(0, len(seqs), PAGE_EVENTS):
            part = seqs[start : start + PAGE_EVENTS]
            sizes: dict[int, int] = {}
            if len(part) > FEW_EVENTS:
                sizes = self.log.column("length(metadata) + length(content)", part)
            for seq in part:
                size = sizes.get(seq) or 0
                if page and (size > room or len(page) == PAGE_EVENTS):
                    yield page
                    page, room = [], PAGE_BYTES
                page.append(seq)
                room -= size
        if page:
            yield page

    def text(self, event: Event) -> str:
        """The text of an event; for a body above `WHOLE_TEXT`, or no text, what the log has.

        The same if the body is lost: one such event must not make a search or a range fail. Its
        handle says what is wrong when it is read.
        """
        body = event.payload
        if body is None or not body.is_text or body.size > WHOLE_TEXT:
            return event.content
        try:
            return self.log.text(event)
        except (PayloadMissing, PayloadDamaged):
            return event.content


# rows ---------------------------------------------------------------------------------------------

# Bytes of the metadata in one row, as JSON.
METADATA_BYTES = 16 << 10
ROW_KEYS = ("seq", "session_id", "role", "kind", "created_at", "content")

Row = dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """The answer of a method of `ms`: rows, a note, and the events that they were made from."""

    rows: list[Row]
    note: str = ""
    # The events that it was made from; None for those in the rows.
    seqs: tuple[int, ...] | None = None
    # Whether it was made from more events than `seqs` names.
    is_unknown: bool = False
    # Whether rows were left out.
    truncated: bool = False

    def result(self) -> CapabilityResult:
        """The same for the kernel, with the provenance that the host records."""
        seqs: Sequence[int] = self.seqs or ()
        if self.seqs is None:
            seqs = [row["seq"] for row in self.rows]
        value = {"rows": self.rows, "note": self.note, "truncated": self.truncated}
        return CapabilityResult(value, tuple(dict.fromkeys(seqs)), self.is_unknown)


def event_row(event: Event, content: str | None = None, **more: Any) -> Row:
    """The row of an event, with another text than the one in the log if `content` is given."""
    row: Row = {
        "seq": event.seq,
        "session_id": event.session_id,
        "role": event.role,
        "kind": event.kind,
        "created_at": event.created_at,
        "content": event.content if content is None else content,
        "name": event.name,
        "agent_id": event.agent_id,
        "task_id": event.task_id,
        "step_index": event.step_index,
        "msg_index": event.msg_index,
        "headline": event.headline,
        "metadata": _short_metadata(event),
    }
    body = ref_of(event)
    if body is not None:
        row["payload"] = msgspec.to_builtins(body)
    media = [media_row(facts) for facts in media_of(event)]
    if media:
        row["media"] = media
    return row | more


def media_row(facts: MediaFacts) -> Row:
    """An image or a file of a message: a handle for its bytes, where they are recorded."""
    described: Row = {"seq": facts.seq, "media_type": facts.media_type, "name": facts.name}
    if facts.url:
        described["url"] = facts.url
    if facts.digest:
        ref = ResultRef(facts.seq, facts.size, facts.media_type, False, facts.label)
        described["payload"] = msgspec.to_builtins(ref)
    return described


def _short_metadata(event: Event) -> dict[str, Any]:
    """The metadata of an event, or where to read it: an import may bring megabytes of it."""
    size = len(msgspec.json.encode(event.metadata))
    if size <= METADATA_BYTES:
        return event.metadata
    query = f"SELECT substr(metadata, 1, 20000) AS part FROM hist.events WHERE seq = {event.seq}"
    return {"too_long": size, "read_with": f'ms.sql_query("{query}")'}


# messages that are read once ----------------------------------------------------------------------


class ReadOnce:
    """Reads the messages within the grant of a reader; a subclass keeps what it makes of them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = Lock()
        # The seq of the newest erasure that is known here.
        self._erasure = 0
        self._restart()

    def _restart(self) -> None:
        """Forget everything, so that the next reading begins with the first message."""
        # The seq up to which messages were read.
        self._upto = 0

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """Keep other threads out and forget erased events; yields the seq up to which to read."""
        erasure = self._reader.log.newest_erasure()
        upto = self._reader.last_before_running()
        with self._lock:
            if erasure != self._erasure:
                self._erasure = erasure
                self._restart()
            yield upto
