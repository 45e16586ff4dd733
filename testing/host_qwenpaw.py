"""The scenario's program on QwenPaw: its agent, which is an AgentScope agent, without its own
context strategy.
"""

import os
from pathlib import Path
from tempfile import mkdtemp

# QwenPaw reads and writes there, from its import on. It must not be the user's own folder.
os.environ["QWENPAW_WORKING_DIR"] = mkdtemp(prefix="qwenpaw-")

from agentscope.agent import ReActConfig
from agentscope.tool import FunctionTool, Toolkit
from qwenpaw.agents.react_agent import QwenPawAgent
from qwenpaw.config.config import AgentProfileConfig

import host_agentscope
from host_agentscope import ALLOWED, FakeModel
from host_scenario import Mode, read_report


class Host(host_agentscope.Host):
    heading = "QwenPaw"

    def _agent(self, mode: Mode) -> QwenPawAgent:
        tools = [FunctionTool(read_report, permission=ALLOWED)]
        agent = QwenPawAgent(
            name="reader",
            model=FakeModel(self, stream=mode == "stream"),
            system_prompt="You read reports.",
            toolkit=Toolkit(tools=[*tools, *(self.adapter.tools if self.adapter else ())]),
            middlewares=[self.adapter] if self.adapter else [],
            react_config=ReActConfig(max_iters=50),
            agent_config=AgentProfileConfig(id="default", name="reader"),
            workspace_dir=Path(os.environ["QWENPAW_WORKING_DIR"]),
        )
        agent.state.context = list(self.messages)
        return agent
