"""What the log says about the calls of a session: those that a dead process left without a result,
and how many of a tool were started.

A call is recorded before its tool starts, so a call without a result was running when the process
ended. Whether it took effect is unknown. When a session is resumed, each such call gets a result
that says so, because a tool with effects must never be called again as if nothing had happened.

A call counts for the limit of its tool (`max_calls`) unless its recorded state is `refused`. The
toolbox counts the calls of a running session by the same rule.
"""

from scroll_context.events import Event, Kind, Scope
from scroll_context.log.journal import Journal
from scroll_context.log.log import EventLog


def unfinished_calls(log: EventLog, scope: Scope) -> list[Event]:
    """The tool calls of a session that were started here and have no result, oldest first.

    Imported calls never ran here and are left out.
    """
    rows = log.query(
        """SELECT seq FROM event
        WHERE session_id = :session AND agent_id = :agent AND kind = :call
        AND source_key IS NULL AND seq NOT IN (
            SELECT reply_to FROM event
            WHERE session_id = :session AND agent_id = :agent AND kind = :result
            AND reply_to IS NOT NULL
        ) ORDER BY seq""",
        _parameters(scope),
    )
    return [call for call in log.get_many([seq for (seq,) in rows]) if not call.is_foreign]


def close_unfinished_calls(journal: Journal) -> list[Event]:
    """Give every unfinished call a result of state "unknown", and return the calls."""
    calls = unfinished_calls(journal.log, journal.scope)
    journal.append_many(
        journal.draft(
            Kind.TOOL_RESULT,
            role="tool",
            name=call.name,
            tool_call_id=call.tool_call_id,
            reply_to=call.seq,
            tool_state="unknown",
            metadata=call.metadata,
            content=f"the process ended while {call.name} was running: whether it took effect is "
            "not known. Check before you call it again.",
        )
        for call in calls
    )
    return calls


def count_started_calls(journal: Journal, name: str) -> int:
    """How many calls of a tool this session has started. A refused call was not started."""
    ((count,),) = journal.log.query(
        """SELECT count(*) FROM event
        WHERE session_id = :session AND agent_id = :agent AND kind = :call
        AND name = :name AND source_key IS NULL AND seq NOT IN (
            SELECT reply_to FROM event
            WHERE session_id = :session AND agent_id = :agent AND kind = :result
            AND reply_to IS NOT NULL AND tool_state = 'refused'
        )""",
        {**_parameters(journal.scope), "name": name},
    )
    return int(count)


def _parameters(scope: Scope) -> dict[str, str]:
    return {
        "session": scope.session_id,
        "agent": scope.agent_id,
        "call": str(Kind.TOOL_CALL),
        "result": str(Kind.TOOL_RESULT),
    }
