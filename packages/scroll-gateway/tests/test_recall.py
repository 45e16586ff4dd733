"""Recall for programs without MCP: the gateway offers a tool, and answers it in the same reply."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateways import changes_between_evictions, events_of, gateway, sessions_of, talk
from scripted_upstream import Refusal, ScriptedUpstream, Turn
from scroll_context.events import Draft, Kind
from scroll_context.store import Store
from scroll_gateway.recall import NAME
from scroll_gateway.running import opened
from upstream_wire import Answer, Call

Json = dict[str, Any]

PROTOCOLS = ("chat", "messages", "responses")
WINDOW = 30_000


def recalling(turns: int) -> Callable[[Turn], Answer | Refusal]:
    """Read a file per turn; sometimes recall what was folded, alone or beside another call."""

    def script(turn: Turn) -> Answer:
        number = turn.number
        if number > turns:
            return Answer("All is read.", thinking=True)
        read = Call("read_file", {"path": f"part-{number:04d}"})
        folded = re.findall(r"folded seq (\d+)", turn.text)
        if not folded:
            return Answer(f"Step {number}.", (read,), thinking=True)
        look = Call(NAME, {"seq": int(folded[0])})
        if number % 5 == 0:
            return Answer("I look it up.", (look,), thinking=True)
        if number % 7 == 0:
            return Answer("Both at once.", (look, read), thinking=True)
        if number % 11 == 0:
            return Answer("", (look,), thinking=True)
        return Answer(f"Step {number}.", (read,), thinking=True)

    return script


def tools_of(body: bytes) -> list[str]:
    tools = json.loads(body)["tools"]
    return [tool.get("name") or tool["function"]["name"] for tool in tools]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_recalls_are_answered_inside_the_reply(name: str, stream: bool, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ScriptedUpstream(recalling(24), window=WINDOW) as upstream:
        with gateway(store, upstream, window=WINDOW) as running:
            listed = talk(name, running.url, stream=stream)
        assert upstream.broken_rules == []
        requests = upstream.accepted
    # The program saw one reply for each of its requests, and no call that is not its own.
    text = json.dumps(listed)
    assert NAME not in text
    assert text.count("All is read.") == 1
    assert "I look it up." in text and "Both at once." in text
    # The tool is the last one, in every request.
    assert {tuple(tools_of(request.body)) for request in requests} == {("read_file", NAME)}
    events = events_of(store)
    results = [event for event in events if event.kind == Kind.TOOL_RESULT]
    recalled = [event for event in results if event.name == NAME]
    assert len(recalled) >= 5
    assert all(event.is_echo for event in recalled)
    assert not any(event.is_echo for event in results if event.name != NAME)
    assert "déjà vu" in recalled[0].content
    assert len(sessions_of(store)) == 1
    assert changes_between_evictions(requests, events) == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_restart_keeps_the_provider_form_of_a_reply(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ScriptedUpstream(recalling(24), window=WINDOW) as upstream:
        with gateway(store, upstream, window=WINDOW) as running:
            listed = talk(name, running.url, stream=True, stop=14)
        with gateway(store, upstream, window=WINDOW) as running:
            talk(name, running.url, listed, stream=True)
        assert upstream.broken_rules == []
        requests = upstream.accepted
    events = events_of(store)
    assert len(sessions_of(store)) == 1
    assert not [event for event in events if event.kind == Kind.RETRACTION]
    assert changes_between_evictions(requests, events) == []


def test_an_erasure_takes_a_recalled_text_out_of_spliced_replies(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ScriptedUpstream(recalling(10), window=WINDOW) as upstream:
        with gateway(store, upstream, window=WINDOW) as running:
            listed = talk("messages", running.url, stream=True)
        recalled = next(
            event for event in events_of(store) if event.name == NAME and event.tool_state == "ok"
        )
        seq = int(recalled.content.partition("seq ")[2].split()[0])
        with Store(store) as opened:
            spliced = [event for event in events_of(store) if "splice" in event.metadata]
            assert any("part-0001, line 9" in opened.log.text(event) for event in spliced)
            opened.erase(seqs=[seq], copies=True)
            texts = map(opened.log.text, opened.log.iterate())
            assert not any("part-0001, line 9" in text for text in texts)
        # The conversation continues with the program's own form of the reply.
        listed.append({"role": "user", "content": "Go on."})
        with gateway(store, upstream, window=WINDOW) as running:
            talk("messages", running.url, listed, stream=True)
    assert not [event for event in events_of(store) if event.kind == Kind.RETRACTION]


def test_a_model_that_only_recalls_is_told_to_answer(tmp_path: Path) -> None:
    def script(turn: Turn) -> Answer:
        if "Answer with what you have." in turn.text:
            return Answer("Then this is my answer.")
        return Answer("Once more.", (Call(NAME, {"query": "files"}),))

    with ScriptedUpstream(script) as upstream, gateway(tmp_path, upstream) as running:
        listed = talk("messages", running.url, stream=True)
    assert "Then this is my answer." in json.dumps(listed[-1])


def test_a_wrong_call_gets_a_reason(tmp_path: Path) -> None:
    def script(turn: Turn) -> Answer:
        if turn.number == 1:
            return Answer("", (Call(NAME, {"seq": "none"}),))
        return Answer("I see.")

    with ScriptedUpstream(script) as upstream, gateway(tmp_path, upstream) as running:
        talk("chat", running.url)
        sent = json.loads(upstream.requests[-1].body)["messages"]
    assert sent[-1]["role"] == "tool"
    assert sent[-1]["content"].startswith(f"{NAME} failed: ")


def test_a_recall_reads_the_earlier_tasks_of_the_project(tmp_path: Path) -> None:
    def script(turn: Turn) -> Answer:
        if turn.number == 1:
            return Answer("", (Call(NAME, {"query": "kingfisher weir"}),))
        return Answer("I see.")

    with Store(tmp_path, create=True) as store:
        for task in ("subfolder", "elsewhere"):
            content = f"The kingfisher of {task} nests by the weir."
            store.append(Draft(session_id=task, task_id=task, role="user", content=content))
    with ScriptedUpstream(script) as upstream:
        with (
            opened(
                tmp_path, upstream.url, window=WINDOW, task_id="shop", earlier_tasks=("subfolder",)
            ) as running,
            running.serving(),
        ):
            talk("chat", running.url)
        sent = json.loads(upstream.requests[-1].body)["messages"]
    assert "The kingfisher of subfolder nests" in sent[-1]["content"]
    assert "elsewhere" not in sent[-1]["content"]
