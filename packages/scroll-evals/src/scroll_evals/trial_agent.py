"""The agent of a trial: the tools have the names that the paper gave them, and a named tool ends
the run.

A product needs neither: its one tool for cells is `exec`, and `Agent(answer=...)` ends a run with a
checked value.
"""

from scroll_context.agent.agent import Agent, Limits
from scroll_context.messages import ToolSpec
from scroll_context.models import Model, Settings
from scroll_context.session.session import Session


class TrialAgent(Agent[None]):
    """An agent whose cells run under `cell_tools`, and whose run ends with a call of `finish_tool`."""

    def __init__(
        self,
        session: Session,
        model: Model,
        *,
        cell_tools: tuple[str, ...],
        finish_tool: ToolSpec,
        limits: Limits | None = None,
        settings: Settings | None = None,
        instructions: str = "",
    ) -> None:
        super().__init__(
            session, model, limits=limits, settings=settings, instructions=instructions
        )
        self._cell_tools = cell_tools
        self._finish_tool = finish_tool
