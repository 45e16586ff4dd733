"""Scroll under the OpenAI Agents SDK: the shared scenario, and what only this SDK has."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("agents", reason="openai-agents is not installed: make test-hosts")

from agents import Agent, RunConfig, Runner, SQLiteSession, UserError
from agents.testing import ModelStep, ScriptedModel, assistant_message

from host_openai_agents import Host, read_report
from host_scenario import Says, ScenarioTests, reading
from scroll_adapters.openai_agents import ScrollFilter
from scroll_context.events import Kind


class TestScenario(ScenarioTests):
    host = Host


def test_a_session_of_the_sdk_keeps_the_complete_history(folder: Path) -> None:
    host, memory = Host.open(folder), SQLiteSession("t")
    with host.adapter as scroll:
        config = RunConfig(call_model_input_filter=scroll)
        for number in range(20):
            host._plays.extend([reading(number), reading(100 + number), Says(f"Done {number}.")])
            agent = Agent(name="reader", model=host.fake_model(), tools=[read_report])
            prompt = f"Read report {number}."
            # Without hooks, and without tools of Scroll: replies are recorded from the list.
            Runner.run_sync(agent, prompt, session=memory, run_config=config)
        kinds = [event.kind for event in scroll.session.events()]
        assert kinds.count(Kind.EVICTION) >= 1 and kinds.count(Kind.TOOL_RESULT) == 40
        assert "ms.search" not in host.requests[-1][0].text, "no cells are offered"
    items = asyncio.run(memory.get_items())
    assert len(items) == 120 and items[2]["output"].startswith("report 0 code 4711-0 ")


@pytest.mark.parametrize("held", [{"conversation_id": "c"}, {"previous_response_id": "r"}])
def test_a_conversation_that_the_provider_keeps_is_refused(folder: Path, held: dict) -> None:
    model = ScriptedModel([ModelStep(output=[assistant_message("Hello.")])])
    with ScrollFilter(folder, "trip") as scroll:
        agent = Agent(name="guide", model=scroll.model(model))
        config = RunConfig(call_model_input_filter=scroll)
        with pytest.raises(UserError, match="to_input_list"):
            Runner.run_sync(agent, "Hi.", run_config=config, **held)
    assert not model.calls, "nothing was sent"


def test_reasoning_is_sent_back_with_the_items_of_its_reply(folder: Path) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    call = {"type": "function_call", "call_id": "c", "name": "read_report", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "a report"}
    items = [{"role": "user", "content": "Read."}, thought, call, output]
    model = ScriptedModel([ModelStep(output=[assistant_message("Done.")])])
    with ScrollFilter(folder, "trip") as scroll:
        config = RunConfig(call_model_input_filter=scroll)
        Runner.run_sync(Agent(name="guide", model=model), items, run_config=config, hooks=scroll)
    assert model.calls[0].input == items
