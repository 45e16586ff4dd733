"""A pydantic-ai agent in a window of 7,000 tokens that reads fourteen long reports and still
recalls the third.

The capability keeps the agent's context in a session: the model is sent a bounded view, the log has
everything, and `exec` gives the model cells with `ms`. A scripted model plays the part of a real
one.
"""

import itertools
import tempfile

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from scroll_adapters.pydantic_ai import ScrollCapability
from scroll_context import Session, Store

steps = itertools.count()


def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    step = next(steps)
    if step < 14:
        return ModelResponse(parts=[ToolCallPart("read_report", {"number": step})])
    if step == 14:
        look = "print(ms.search('report 3 code')[0]['content'][:24])"
        return ModelResponse(parts=[ToolCallPart("exec", {"source": look})])
    last = str(messages[-1].parts[0].content)  # type: ignore[union-attr]
    return ModelResponse(parts=[TextPart(f"The code of report 3 is {last.split()[3]}.")])


with (
    tempfile.TemporaryDirectory() as folder,
    Store(folder, create=True) as store,
    Session.open(store) as session,
):
    agent = Agent(FunctionModel(play), capabilities=[ScrollCapability(session, window=7_000)])

    @agent.tool_plain
    def read_report(number: int) -> str:
        """One report."""
        return f"report {number} code 4711-{number} " + "filler words of the report " * 120

    print(agent.run_sync("Read all reports, then tell me the code of report 3.").output)
