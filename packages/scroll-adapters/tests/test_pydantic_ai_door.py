"""A pydantic-ai agent whose context is a session: the shared scenario of all doors, with the real
framework.
"""

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from scroll_adapters.pydantic_ai import ScrollCapability
from scroll_context.events import Kind
from scroll_context.session.explain import explain
from scroll_context.session.session import Session
from scroll_context.store import Store

WINDOW = 7_000
Play = Callable[[list[ModelMessage], AgentInfo], ModelResponse]


def call(name: str, **arguments: Any) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(name, arguments)])


def says(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def shown(messages: list[ModelMessage]) -> str:
    """Everything that the model is sent, as one text."""
    return "\n".join(
        str(getattr(part, "content", part)) for message in messages for part in message.parts
    )


def agent_of(session: Session, play: Play, **options: Any) -> Agent[None, str]:
    return Agent(
        FunctionModel(play), capabilities=[ScrollCapability(session, window=WINDOW)], **options
    )


def test_fourteen_large_results_in_a_small_window_then_a_fact_from_an_evicted_one(
    store: Store,
) -> None:
    asked = itertools.count()

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = next(asked)
        if step < 14:
            return call("read_report", number=step)
        if step == 14:
            assert "code 4711-3" not in shown(messages), "report 3 has left the view"
            return call(
                "exec",
                source="print(ms.search('report 3 code')[0]['content'][1600:1700])",
                headline="a | b | c | d",
            )
        assert "code 4711-3" in shown(messages)
        return says("The code of report 3 is 4711-3.")

    with Session.open(store, session_id="door", agent_id="me") as session:
        agent = agent_of(session, play)

        @agent.tool_plain
        def read_report(number: int) -> str:
            """One report."""
            # The code stands where no stub shows it.
            filler = "filler words of the report " * 60
            return f"report {number}: {filler}code 4711-{number} {filler}"

        result = agent.run_sync("Read all reports, then tell me the code of report 3.")
        assert result.output == "The code of report 3 is 4711-3."
        replies = [
            event
            for event in session.events()
            if event.role == "assistant" and event.kind == Kind.CONVERSATION
        ]
        counted = [event.metadata["usage"]["input_tokens"] for event in replies]
        assert len(counted) == 16 and max(counted) <= WINDOW, "as the model itself counts"
        own = result.all_messages()
        assert (
            sum(isinstance(part, ToolReturnPart) for message in own for part in message.parts) == 15
        )
        assert "4711-3 filler" in shown(own), "the history that the framework keeps is whole"
        kinds = [event.kind for event in session.events()]
        assert kinds.count(Kind.TOOL_RESULT) == 14 and kinds.count(Kind.OBSERVATION) == 1
        assert kinds.count(Kind.EVICTION) >= 1
        for event in session.events():
            if event.kind == Kind.REQUEST:
                assert explain(store, event.seq).verified, event.seq


def test_the_same_prompt_twice_and_a_history_from_disk(store: Store) -> None:
    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return says(f"{shown(messages).count('hello')} greetings")

    with Session.open(store, session_id="door") as session:
        agent = agent_of(session, play)
        first = agent.run_sync("hello")
        second = agent.run_sync("hello", message_history=first.all_messages())
        assert (first.output, second.output) == ("1 greetings", "2 greetings")
        on_disk = ModelMessagesTypeAdapter.dump_json(second.all_messages())
    with Session.resume(store, "door") as session:
        loaded = ModelMessagesTypeAdapter.validate_json(on_disk)
        third = agent_of(session, play).run_sync("hello", message_history=loaded)
        assert third.output == "3 greetings"
    said = [
        event.content
        for event in store.log.iterate(session_id="door", kind=Kind.CONVERSATION, role="user")
    ]
    assert said == ["hello"] * 3


def test_parallel_calls_of_the_hosts_tools(store: Store) -> None:
    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts):
            return says(shown(messages))
        return ModelResponse(parts=[ToolCallPart("double", {"n": n}) for n in (1, 2, 3)])

    with Session.open(store, session_id="door") as session:
        agent = agent_of(session, play)

        @agent.tool_plain
        async def double(n: int) -> str:
            """Twice."""
            return f"twice {n} is {2 * n}"

        answer = agent.run_sync("go").output
        assert all(f"twice {n} is {2 * n}" in answer for n in (1, 2, 3))
        results = [event for event in session.events() if event.kind == Kind.TOOL_RESULT]
        assert len({event.tool_call_id for event in results}) == 3


def test_a_request_that_is_too_long_is_made_smaller_and_sent_again_once(store: Store) -> None:
    lengths: list[int] = []
    refused = threading.Event()

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        lengths.append(len(shown(messages)))
        if len(lengths) == 6 and not refused.is_set():
            refused.set()
            raise ModelContextWindowExceededError("function", "too long")
        return says("words " * 200)

    with Session.open(store, session_id="door") as session:
        agent = agent_of(session, play)
        history: list[ModelMessage] = []
        for n in range(6):
            history = agent.run_sync(
                f"question {n} " + "and more " * 60, message_history=history
            ).all_messages()
        assert refused.is_set() and lengths[6] < lengths[5]
        plans = [event for event in session.events() if event.kind == Kind.EVICTION]
        assert "refused" in plans[-1].content


def test_cancelling_a_run_interrupts_the_cell_and_the_variables_stay(store: Store) -> None:
    begun = threading.Event()

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if "go on" in shown(messages[-1:]):
            return call("exec", source="print('kept', kept)")
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return says(shown(messages[-1:]))
        return call("exec", source="kept = 7\nbegin()\nwhile True:\n    pass")

    def begin() -> None:
        """Say that the cell is at work."""
        begun.set()

    with Session.open(store, session_id="door", tools=[begin]) as session:
        agent = agent_of(session, play)

        async def cancelled() -> None:
            task = asyncio.create_task(agent.run("work"))
            await asyncio.to_thread(begun.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert "kept 7" in agent.run_sync("go on").output


def test_system_prompts_of_a_history_come_first(store: Store) -> None:
    seen: list[list[ModelMessage]] = []

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(messages)
        return says("ok")

    with Session.open(store, session_id="door") as session:
        agent_of(session, play, system_prompt="You are kind.").run_sync("look at this")
    first = seen[0][0]
    assert isinstance(first, ModelRequest) and first.parts[0].content == "You are kind."
    assert isinstance(first.parts[1], UserPromptPart)
    assert "look at this" in shown(seen[0])


# what used to be lost ------------------------------------------------------------------------------


def test_an_image_in_a_prompt_is_sent_as_it_is(store: Store) -> None:
    prompts: list[Any] = []

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts.append(messages[-1].parts[-1].content)
        return says("a cat")

    image = BinaryContent(b"\x89PNG", media_type="image/png")
    with Session.open(store) as session:
        agent = agent_of(session, play)
        first = agent.run_sync(["What is this?", ImageUrl("https://example.com/cat.png")])
        agent.run_sync(["And this?", image], message_history=first.all_messages())
    assert prompts[0] == ["What is this?", ImageUrl("https://example.com/cat.png")]
    assert prompts[1] == ["And this?", image]


def test_structured_output_over_twenty_turns_records_each_message_once(store: Store) -> None:
    questions: list[int] = []

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts = [
            part.content
            for message in messages
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]
        questions.append(int(str(prompts[-1]).removeprefix("How many? ")))
        return call(info.output_tools[0].name, response=questions[-1])

    with Session.open(store, session_id="door") as session:
        agent = agent_of(session, play, output_type=int)
        history: list[ModelMessage] = []
        for number in range(20):
            run = agent.run_sync(f"How many? {number}", message_history=history)
            assert run.output == number
            history = run.all_messages()
        users = [event for event in session.events() if event.is_from_user]
        assert len(users) == 20 and questions == list(range(20))
        for event in session.events():
            if event.kind == Kind.REQUEST:
                assert explain(store, event.seq).verified


def test_a_prompt_that_was_edited_and_turns_that_were_rewound_are_not_sent(store: Store) -> None:
    requests: list[str] = []

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        requests.append(shown(messages))
        return says(f"answer {len(requests)}")

    with Session.open(store, session_id="door") as session:
        agent = agent_of(session, play)
        first = agent.run_sync("the first question").all_messages()
        agent.run_sync("a question with a typo", message_history=first)
        agent.run_sync("a corrected question", message_history=first)
        assert "typo" not in requests[-1] and "answer 1" in requests[-1]
        texts = [event.content for event in session.events()]
        assert "a question with a typo" in texts, "the log keeps everything"


def test_a_streamed_run_is_followed_and_recorded(store: Store) -> None:
    async def play(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for piece in ("a ", "streamed ", "answer"):
            yield piece

    async def run(session: Session) -> str:
        capability = ScrollCapability(session, window=WINDOW)
        agent = Agent(FunctionModel(stream_function=play), capabilities=[capability])
        async with agent.run_stream("hello") as stream:
            return await stream.get_output()

    with Session.open(store, session_id="door") as session:
        assert asyncio.run(run(session)) == "a streamed answer"
        texts = [event.content for event in session.events() if event.kind == Kind.CONVERSATION]
        assert texts == ["hello", "a streamed answer"]


KILLED = """
import os, sys
from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from scroll_context import Session, Store
from scroll_adapters.pydantic_ai import ScrollCapability

def play(messages, info):
    return ModelResponse(parts=[ToolCallPart("stop", {})])

with Store(sys.argv[1], create=True) as store, Session.open(store, session_id="door") as session:
    capability = ScrollCapability(session, window=7_000)
    agent = Agent(FunctionModel(play), capabilities=[capability])

    @agent.tool_plain
    def stop() -> str:
        os.kill(os.getpid(), 9)
        return ""

    agent.run_sync("a question that is never answered")
"""


def test_a_run_that_was_killed_continues_with_the_same_history(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "store"], timeout=120)
    assert killed.returncode == -9

    def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return says("yes" if "never answered" not in shown(messages) else "no")

    with Store(tmp_path / "store") as store, Session.resume(store, "door") as session:
        assert agent_of(session, play).run_sync("are you there?").output == "yes"
        texts = [event.content for event in session.events() if event.is_from_user]
        assert texts == ["a question that is never answered", "are you there?"]
        for event in session.events():
            if event.kind == Kind.REQUEST:
                assert explain(store, event.seq).verified
