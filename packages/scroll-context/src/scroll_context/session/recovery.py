"""The start of a resumed session: its settings, its variables, and an ending for open work.

Every call ends once, and one place records the ending:

* a call of a tool: the toolbox, with a `tool_result`;
* a cell: `Session.run`, with an `observation`;
* a call that neither of them carries out, because it is refused, unknown, or made after the
  answer: the driver of the session, with `Session.answer`;
* a host's own tool: the host, whose list brings the result.

If the process ends in between, a call is left open. `close_open_work` ends it when the session is
resumed, so a resumed view has no loose ends, and nothing that may have had effects is done again
without being reported.

Only events that were recorded here count: an imported setting widens nothing, and an imported
snapshot is never unpickled, not even inside a jail.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scroll_context.events import Event, Kind
from scroll_context.kernel.results import RestoreReport, restored
from scroll_context.log.journal import Journal
from scroll_context.session.past import segments
from scroll_context.session.variables import SessionVariables
from scroll_context.store import Store
from scroll_context.text.printable import printable
from scroll_context.tools.recorder import close_unfinished_calls

CUT_OFF = (
    "[the process ended while this cell was running. What it printed and bound is lost, unless a "
    "line above says otherwise; the calls that it had made are in the log.]"
)
CALL_CHARS = 200
"""Characters of a completed call's arguments that a resumed model is shown."""
LISTED_CALLS = 40
"""Completed calls that a resumed model is shown; of more, the first and the last."""


def recorded_settings(store: Store, session_id: str) -> dict[str, Any]:
    """The settings that a session last worked under, by itself or before it was forked.

    Empty where none are known.
    """
    settings: dict[str, Any] = {}
    for segment in segments(store, session_id):
        for event in store.log.iterate(
            session_id=segment.session_id, until=segment.until, kind=Kind.SESSION
        ):
            if event.is_foreign:
                continue
            context = event.metadata.get("context")
            if isinstance(context, str):
                # Sessions of earlier versions name nothing else.
                settings["context"] = context
            recorded = event.metadata.get("settings")
            if isinstance(recorded, dict):
                settings |= recorded
    return settings


# variables --------------------------------------------------------------------------------------


class Recovery(NamedTuple):
    """The variables of a resumed session: those restored, those lost, and those never saved."""

    report: RestoreReport
    unsaved: list[str]
    had_snapshots: bool

    @property
    def lost(self) -> list[str]:
        """The names that do not have the values which the model knows."""
        losses = (*self.report.lost, *self.report.stale)
        return sorted({*(loss.name for loss in losses), *self.unsaved})

    def notice(self, incidents: Sequence[str]) -> str:
        """The notice to the model about the resume."""
        lines = ["The session was resumed in a new process."]
        if self.had_snapshots:
            lines.append(restored(self.report))
        lines += incidents
        if self.unsaved:
            names = ", ".join(self.unsaved)
            lines.append(f"Not saved before the process ended, so lost or out of date: {names}.")
        return "\n".join(lines)


def restore_variables(variables: SessionVariables, events: Sequence[Event]) -> Recovery:
    """Bring back the variables that the events of a session lead to."""
    snapshots = [
        event
        for event in events
        if event.kind == Kind.SNAPSHOT and not (event.is_foreign or event.is_erased)
    ]
    report = variables.restore(snapshots) if snapshots else RestoreReport()
    saved_cell = (snapshots[-1].reply_to or 0) if snapshots else 0
    return Recovery(report, _bound_after(saved_cell, events), bool(snapshots))


def _bound_after(cell: int, events: Iterable[Event]) -> list[str]:
    """The variables that cells bound after the one at this seq."""
    names: dict[str, None] = {}
    for event in events:
        is_own = event.kind == Kind.OBSERVATION and not event.is_foreign
        if is_own and (event.reply_to or 0) > cell:
            bound = event.metadata.get("bound", ())
            names |= dict.fromkeys(name for name in bound if str(name).isidentifier())
    return list(names)


def lost_before(events: Sequence[Event]) -> set[str]:
    """The variables that were lost when the session was last resumed, if no cell has run since.

    The model knows of them already.
    """
    for event in reversed(events):
        if event.kind == Kind.CELL:
            break
        if event.kind == Kind.SESSION and not event.is_foreign:
            names = event.metadata.get("lost")
            if isinstance(names, list):
                return set(map(str, names))
    return set()


# calls and cells --------------------------------------------------------------------------------


def close_open_work(journal: Journal) -> list[str]:
    """End what a crash left open, before the view is rebuilt.

    Returns what the model should know about it, one text for each call and cell.
    """
    incidents = []
    for call in close_unfinished_calls(journal):
        text = f"The call {call.name} (seq {call.seq}) had not returned when the process ended."
        if "effects" in call.metadata:
            text += " It has effects: find out whether they happened before you call it again."
        incidents.append(text)
    for cell in _unfinished_cells(journal):
        journal.append(
            journal.draft(
                Kind.OBSERVATION,
                role="tool",
                name=cell.name,
                tool_call_id=cell.tool_call_id,
                reply_to=cell.seq,
                content=CUT_OFF,
                tool_state="killed",
                metadata={"echo": True},
            )
        )
        text = f"The cell at seq {cell.seq} was running when the process ended."
        incidents.append(text + _completed_inside(journal, cell))
    return incidents


def _unfinished_cells(journal: Journal) -> list[Event]:
    """The cells of a session that have no observation, oldest first."""
    rows = journal.log.query(
        """SELECT seq FROM event WHERE session_id = :session AND kind = :cell
        AND seq NOT IN (SELECT reply_to FROM event
                        WHERE session_id = :session AND kind = :end AND reply_to IS NOT NULL)
        ORDER BY seq""",
        {"session": journal.session_id, "cell": str(Kind.CELL), "end": str(Kind.OBSERVATION)},
    )
    cells = journal.log.get_many([seq for (seq,) in rows])
    return [cell for cell in cells if not cell.is_foreign]


def _completed_inside(journal: Journal, cell: Event) -> str:
    """The calls with effects that a cell had completed: the model must not repeat them with it."""
    rows = journal.log.query(
        """SELECT c.seq, r.seq FROM event c
        JOIN event r ON r.reply_to = c.seq AND r.session_id = c.session_id
        WHERE c.session_id = :session AND c.kind = :call AND r.kind = :result AND c.seq > :cell
        AND c.source_key IS NULL AND r.tool_state NOT IN ('unknown', 'refused') ORDER BY c.seq""",
        {
            "session": journal.session_id,
            "call": str(Kind.TOOL_CALL),
            "result": str(Kind.TOOL_RESULT),
            "cell": cell.seq,
        },
    )
    result_seqs = dict(rows)
    lines = []
    for call in journal.log.get_many(list(result_seqs)):
        if call.metadata.get("inside_cell") == cell.seq and call.metadata.get("effects"):
            arguments = printable(call.content[:CALL_CHARS])
            result = f"result at seq {result_seqs[call.seq]}"
            lines.append(f"- seq {call.seq}: {call.name}({arguments}), {result}")
    if not lines:
        return ""
    text = f" Before that it completed {len(lines)} tool calls with effects; do not repeat them:\n"
    if len(lines) == 1:
        text = " Before that it completed this tool call with effects; do not repeat it:\n"
    if len(lines) > LISTED_CALLS:
        first, last = lines[: LISTED_CALLS // 2], lines[-LISTED_CALLS // 2 :]
        between = f"- {len(lines) - LISTED_CALLS} more between them: ms.expand their seqs"
        lines = [*first, between, *last]
    return text + "\n".join(lines)
