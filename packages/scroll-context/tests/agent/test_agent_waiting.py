"""Other ways to wait for a run: asyncio, streams of what happens, answers of a type."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable

import pytest

from scroll_context.agent.agent import Agent, RunEvent
from scroll_context.errors import BadInput
from scroll_context.events import Kind
from scroll_context.messages import ToolCall
from scroll_context.models import Reply, ScriptedModel, exec_cell
from scroll_context.session.session import Session
from scroll_context.tools.tools import tool

Opened = Callable[..., Session]


@tool
def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


SCRIPT = (
    exec_cell("print(double(21))", headline="sum | 42 | answer | ok"),
    "It is ⟦about⟧ 42.\n⟦ sum | 42 | nothing | done ⟧",
)


def test_a_stream_tells_what_happens_in_order_without_headlines(opened: Opened) -> None:
    agent = Agent(opened(tools=[double]), ScriptedModel(list(SCRIPT)))
    happened = list(agent.stream("What is twice 21?"))
    told = [one.kind for one in happened if one.kind != "text"]
    assert told == ["cell", "call", "result", "observation", "answer"]
    assert (
        "".join(one.text for one in happened if one.kind == "text").strip() == "It is ⟦about⟧ 42."
    )
    assert happened[-1].text == "It is ⟦about⟧ 42."
    assert happened[-1].run is not None and happened[-1].run.state == "answered"
    cell = next(one for one in happened if one.kind == "cell")
    assert (
        cell.event is not None and cell.event.kind == Kind.CELL and cell.text == "print(double(21))"
    )


def test_evictions_are_streamed(opened: Opened) -> None:
    steps = [exec_cell(f"print('line {n} ' * 100)") for n in range(20)]
    agent = Agent(opened(), ScriptedModel([*steps, "done"], window=4_000))
    assert {"eviction", "observation"} <= {one.kind for one in agent.stream("work")}


def test_closing_a_stream_stops_the_run(opened: Opened) -> None:
    session = opened()
    agent = Agent(session, ScriptedModel([exec_cell("while True:\n    pass"), "never"]))
    stream = agent.stream("work")
    assert next(stream).kind == "cell"
    stream.close()
    assert [event.tool_state for event in session.events() if event.kind == Kind.OBSERVATION] == [
        "interrupted"
    ]
    assert session.run("print(1)").content == "1"


def test_what_a_run_raises_a_stream_raises(opened: Opened) -> None:
    with pytest.raises(BadInput, match="empty"):
        list(Agent(opened(), ScriptedModel(["x"])).stream("  "))


def test_a_run_and_a_stream_for_asyncio(opened: Opened) -> None:
    session = opened(tools=[double])

    async def work() -> list[RunEvent]:
        run = await Agent(session, ScriptedModel(list(SCRIPT))).arun("What is twice 21?")
        assert run.answer == "It is ⟦about⟧ 42."
        return [one async for one in Agent(session, ScriptedModel(list(SCRIPT))).astream("Again?")]

    assert [one.kind for one in asyncio.run(work()) if one.kind != "text"] == [
        "cell",
        "call",
        "result",
        "observation",
        "answer",
    ]


def test_cancelling_a_run_stops_the_cell_and_keeps_the_variables(opened: Opened) -> None:
    begun = threading.Event()

    @tool
    def begin() -> None:
        """Say that the cell is at work."""
        begun.set()

    session = opened(tools=[begin])
    agent = Agent(
        session, ScriptedModel([exec_cell("kept = 7\nbegin()\nwhile True:\n    pass"), "never"])
    )

    async def cancelled() -> None:
        task = asyncio.create_task(agent.arun("work"))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert session.run("print(kept)").content == "7"


# answers of a type --------------------------------------------------------------------------------


@dataclasses.dataclass
class Offer:
    flight: str
    price: int


def giving(answer: object) -> Reply:
    return Reply(tool_calls=(ToolCall("a", "answer", {"answer": answer}),))


def test_an_answer_is_a_checked_value(opened: Opened) -> None:
    session = opened()
    wrong, text = giving({"flight": "LX1"}), "It is LX1."
    model = ScriptedModel([wrong, text, giving({"flight": "LX1", "price": "62"})])
    run = Agent(session, model, answer=Offer).run("find one")
    assert run.state == "answered" and run.value == Offer("LX1", 62)
    assert (
        "not taken" in model.requests[1].messages[-1].text
        and "price" in model.requests[1].messages[-1].text
    )
    assert "call answer with it" in model.requests[2].messages[-1].text
    assert model.requests[0].tools[-1].parameters["properties"]["answer"]["$ref"]
