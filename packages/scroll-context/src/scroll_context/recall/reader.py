"""The reader of recall: a store, the scope of its session, a grant, and the visible events.

Nothing outside the grant is read. What calls hide within it is listed in the package's docstring;
events of the running task, for one, are not evidence about the past.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import Event, Grant, Kind, Scope
from scroll_context.log.filters import SearchFilters
from scroll_context.log.log import SessionInfo
from scroll_context.origin import SPEAKER
from scroll_context.recall.arguments import filters_of
from scroll_context.store import Store

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
