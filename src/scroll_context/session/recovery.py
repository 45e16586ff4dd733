"""What a crash left open in a session, closed before the session goes on.

A cell without an observation and a tool call without a result were under way when the process ended. Each gets an
ending that says so, in the log, before the view is rebuilt: so a resumed view has no loose ends, and nothing that may
have had effects is done again without being reported.
"""

from scroll_context.events import Kind, Scope
from scroll_context.store.store import Store
from scroll_context.surface.toolbox import settle

_CUT_OFF = (
    "[the process ended while this cell was running. What it printed and bound is lost, unless a line above says "
    "otherwise; the calls that it had made are in the log.]"
)


def close_open_work(store: Store, scope: Scope) -> list[str]:
    """End what was under way; returns what the model should be told about it."""
    told = [
        f"The call {call.name} (seq {call.seq}) had not returned when the process ended."
        + (
            " It has effects: find out whether they happened before you call it again."
            if "effects" in call.metadata
            else ""
        )
        for call in settle(store.log, scope)
    ]
    rows = store.log.query(
        """SELECT seq FROM event WHERE session_id = :session AND kind = :cell AND seq NOT IN (SELECT reply_to
        FROM event WHERE session_id = :session AND kind = :end AND reply_to IS NOT NULL) ORDER BY seq""",
        {"session": scope.session_id, "cell": str(Kind.CELL), "end": str(Kind.OBSERVATION)},
    )
    for cell in store.log.get_many([row[0] for row in rows]):
        store.append(
            scope.draft(
                Kind.OBSERVATION, role="tool", name=cell.name, tool_call_id=cell.tool_call_id, reply_to=cell.seq,
                content=_CUT_OFF, tool_state="killed", metadata={"echo": True},
            )
        )  # fmt: skip
        told.append(f"The cell at seq {cell.seq} was running when the process ended.")
    return told
