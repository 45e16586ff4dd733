"""Whose events these are: the identity that a session gives to everything it records."""

from typing import Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Grant


class Scope(msgspec.Struct, frozen=True):
    """One session of one agent on one task."""

    session_id: str
    agent_id: str = ""
    task_id: str = ""

    def draft(self, kind: str, **fields: Any) -> Draft:
        """A draft that belongs to this session."""
        return Draft(kind=kind, session_id=self.session_id, agent_id=self.agent_id, task_id=self.task_id, **fields)

    def grant(self, reach: str) -> Grant:
        """The grant that a reach stands for: "session", "task", "agent" or "all"."""
        match reach:
            case "session":
                return Grant(session_id=self.session_id)
            case "task":
                return Grant(task_id=self.task_id)
            case "agent":
                return Grant(agent_id=self.agent_id)
            case "all":
                return Grant()
            case _:
                raise BadInput(f"a reach is session, task, agent or all, not {reach!r:.80}")
