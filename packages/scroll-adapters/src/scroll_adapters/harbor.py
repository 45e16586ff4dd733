"""Scroll's own agent as an agent of Harbor, which needs Python 3.12.

    harbor run --agent-import-path scroll_adapters.harbor:ScrollAgent --model openai/gpt-5 …

The loop, the kernel and the store are on the host. The tool `bash` runs its commands in the
environment of the task, so model-written Python runs in Scroll's jail and everything that changes
the task runs in Harbor's container. The store is a folder among the logs of the trial, where
`scroll` commands read it afterwards.
"""

import asyncio
from importlib.metadata import version
from typing import Any, ClassVar

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from scroll_context import Agent, Event, Model, Session, Store, tool
from scroll_context.errors import BadInput
from scroll_context.tools.tools import Tool

STORE = "work.scroll"
"""The folder of the store among the logs of a trial."""
SESSION = "trial"
COMMAND_SECONDS = 600


class ScrollAgent(BaseAgent):
    """Works on a task of Harbor in a session of its own."""

    bounds: ClassVar[bool] = True
    stores: ClassVar[bool] = True
    executes: ClassVar[bool] = True

    @staticmethod
    def name() -> str:
        return "scroll"

    def version(self) -> str:
        return version("scroll-context")

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing is installed in the environment."""

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        """Work on the instruction. The context is filled after each reply."""
        model = self.model()
        bash = command_tool(environment, asyncio.get_running_loop())
        with Store(self.logs_dir / STORE, create=True) as store:
            async with await Session.aopen(store, SESSION, tools=[bash]) as session:
                agent = Agent(session, model)
                session.subscribe(lambda event: _count(agent, event, context))
                run = await agent.arun(instruction)
                _fill(agent, context)
                context.metadata = {"state": run.state, "answer": run.answer}

    def model(self) -> Model | str:
        """The model that Harbor names as `provider/model`."""
        if not self.model_name:
            raise BadInput("name a model, as in --model openai/gpt-5")
        return str(self.model_name).replace("/", ":", 1)


def command_tool(environment: BaseEnvironment, loop: asyncio.AbstractEventLoop) -> Tool[..., Any]:
    """The tool that runs a command in the environment, on the event loop of Harbor."""

    def bash(command: str) -> dict[str, str | int]:
        """Run a shell command in the environment of the task."""
        running = environment.exec(command, timeout_sec=COMMAND_SECONDS)
        result = asyncio.run_coroutine_threadsafe(running, loop).result()
        return {
            "stdout": result.stdout or "",
            "stderr": result.stderr or "",
            "return_code": result.return_code,
        }

    return tool(bash, timeout=COMMAND_SECONDS + 5)


def _count(agent: Agent[Any], event: Event, context: AgentContext) -> None:
    if event.role == "assistant":
        _fill(agent, context)


def _fill(agent: Agent[Any], context: AgentContext) -> None:
    """Tell Harbor what the run has used so far, in case it is stopped."""
    totals = agent.totals
    context.n_input_tokens = totals.input_tokens
    context.n_output_tokens = totals.output_tokens
    context.n_cache_tokens = totals.cache_read_tokens
    context.cost_usd = totals.dollars or None
