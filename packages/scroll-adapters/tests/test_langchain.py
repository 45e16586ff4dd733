"""Scroll under LangChain: the shared scenario, and what only LangChain has."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="langchain is not installed: make test-hosts")

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

import host_scenario as scenario
from host_langchain import FakeModel, Host
from host_scenario import Says, ScenarioTests, read_report, reading
from scroll_adapters.langchain import ScrollMiddleware
from scroll_context import SessionOptions
from scroll_context.errors import BadInput
from scroll_context.events import Kind


class TestScenario(ScenarioTests):
    host = Host


def test_a_checkpointer_keeps_the_complete_state(folder: Path) -> None:
    host = Host.open(folder)
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "t"}}
    with host.adapter as middleware:
        agent = create_agent(
            FakeModel(answer=host._answer),
            [read_report],
            middleware=[middleware],
            checkpointer=saver,
        )
        for number in range(20):
            host._plays.extend([reading(number), reading(100 + number), Says(f"Done {number}.")])
            state = agent.invoke({"messages": [("user", f"Read report {number}.")]}, config)
        kinds = [event.kind for event in middleware.session.events()]
        assert kinds.count(Kind.EVICTION) >= 1 and kinds.count(Kind.TOOL_RESULT) == 40
    stored = agent.get_state(config).values["messages"]
    assert stored == state["messages"] and len(stored) == 120
    assert "report 0 code 4711-0 " in stored[2].content


def test_under_deepagents_scroll_takes_the_place_of_summarization(folder: Path) -> None:
    deepagents = pytest.importorskip("deepagents", reason="deepagents is not installed")
    window = 16_000

    class ScrollSummarization(ScrollMiddleware):
        # deepagents replaces its own middleware by one of the same name.
        name = "SummarizationMiddleware"

    class DeepHost(Host):
        def _agent(self, *_: object) -> Any:
            model = FakeModel(answer=self._answer, profile={"max_input_tokens": window})
            return deepagents.create_deep_agent(model, [read_report], middleware=[self.adapter])

    host = DeepHost(ScrollSummarization(folder, scenario.SESSION, window=window))
    with host.adapter as middleware:
        # Turns that count as steps of the model only: a summary would be a step more.
        for turn in range(24):
            scenario.work(host, 1, first=turn)
        kinds = [event.kind for event in middleware.session.events()]
        assert kinds.count(Kind.EVICTION) >= 1 and kinds.count(Kind.TOOL_RESULT) == 96
        assert max(map(scenario.text_tokens, host.requests)) <= window
    assert "report 0 code 4711-0 " in scenario.shown(host.sent(host.messages))


def test_without_cells_the_model_recalls_by_plain_tools(folder: Path) -> None:
    host = Host.open(folder, options=SessionOptions(context="plain"))
    with host.adapter as middleware:
        assert [tool.name for tool in middleware.tools] == ["search", "expand"]
        scenario.work(host, 12)
        scenario.recall_tool(host)
        scenario.check(host)


def test_a_session_needs_a_name(folder: Path) -> None:
    with pytest.raises(BadInput, match="session='trip'"):
        ScrollMiddleware(folder)
