"""The scripted upstream refuses what providers refuse. Without that, the tests of `wrap` prove
nothing.
"""

import json
from typing import Any

import httpx2
import pytest

from scripted_upstream import OVERLOADED, ScriptedUpstream, reading

CALL = {"type": "tool_use", "id": "c1", "name": "read_file", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "text"}
CHAT_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "r", "arguments": "{}"}}],
}
ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "r", "arguments": "{}"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
PATHS = {
    "messages": ("/v1/messages", "messages"),
    "chat": ("/v1/chat/completions", "messages"),
    "responses": ("/v1/responses", "input"),
}


def post(upstream: ScriptedUpstream, protocol: str, items: list[Any], **fields: Any) -> Any:
    path, field = PATHS[protocol]
    return httpx2.post(upstream.url + path, json={"model": "m", field: items, **fields})


def user(content: Any = "Hello") -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("protocol", "items", "words"),
    [
        ("messages", [user(), {"role": "assistant", "content": [CALL]}], "without `tool_result`"),
        ("messages", [user([RESULT])], "unexpected `tool_use_id`"),
        ("messages", [user([{"type": "text", "text": " "}])], "non-whitespace text"),
        (
            "messages",
            [user([{"type": "text", "text": "x", "cache_control": {}}] * 5)],
            "maximum of 4 blocks",
        ),
        ("chat", [user(), CHAT_CALL, user()], "must be followed by tool messages"),
        ("chat", [{"role": "tool", "tool_call_id": "c1", "content": "x"}], "preceeding message"),
        ("responses", [user(), ITEM_CALL], "No tool output found"),
        (
            "responses",
            [{"type": "function_call_output", "call_id": "c1", "output": "x"}],
            "No tool call found",
        ),
        ("responses", [REASONING, user()], "required following item"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(
    protocol: str, items: list[Any], words: str
) -> None:
    with ScriptedUpstream(reading(3)) as upstream:
        response = post(upstream, protocol, items)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
        assert len(upstream.broken_rules) == 1


@pytest.mark.parametrize("protocol", ["messages", "responses"])
def test_thinking_is_refused_when_its_prefix_has_changed(protocol: str) -> None:
    with ScriptedUpstream(reading(0)) as upstream:
        reply = post(upstream, protocol, [user()]).json()
        turn = reply.get("output") or [{"role": "assistant", "content": reply["content"]}]
        assert post(upstream, protocol, [user(), *turn, user("More")]).status_code == 200
        marked = user([{"type": "text", "text": "Hello"}])
        assert post(upstream, protocol, [marked, *turn, user("More")]).status_code == 200
        changed = post(upstream, protocol, [user("Hullo"), *turn, user("More")])
        assert changed.status_code == 400
        assert len(upstream.broken_rules) == 1


def test_an_item_is_refused_without_the_reasoning_that_it_belongs_to() -> None:
    with ScriptedUpstream(reading(0)) as upstream:
        output = post(upstream, "responses", [user()]).json()["output"]
        items = [item for item in output if item["type"] != "reasoning"]
        response = post(upstream, "responses", [user(), *items, user("More")])
        assert response.status_code == 400
        assert "without its required 'reasoning' item" in response.text


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("messages", "prompt is too long"),
        ("chat", "maximum context length"),
        ("responses", "exceeds the context window"),
    ],
)
def test_the_window_is_enforced_in_the_providers_words(protocol: str, words: str) -> None:
    with ScriptedUpstream(reading(0), window=100) as upstream:
        response = post(upstream, protocol, [user("word " * 100)])
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
        assert upstream.broken_rules == []


def test_a_request_is_compared_with_the_one_before() -> None:
    with ScriptedUpstream(reading(0, thinking=False)) as upstream:
        first = [user("word " * 100)]
        post(upstream, "chat", first)
        longer = [*first, {"role": "assistant", "content": "yes"}, user("More")]
        usage = post(upstream, "chat", longer).json()["usage"]
        post(upstream, "chat", [user("Other"), *longer])
        before, after, changed = upstream.requests
        assert before.repeated == 0
        assert after.extends
        assert not changed.extends
        assert usage["prompt_tokens_details"]["cached_tokens"] == after.repeated
        assert before.tokens - 2 <= after.repeated < after.tokens
        assert changed.repeated < before.repeated + 40


def test_a_message_that_grew_continues_the_request_before() -> None:
    call = {"role": "assistant", "content": [CALL]}
    other = {**RESULT, "content": "another text"}
    prompt = {"type": "text", "text": "More"}
    with ScriptedUpstream(reading(0, thinking=False)) as upstream:
        post(upstream, "messages", [user(), call, user([RESULT])])
        post(upstream, "messages", [user(), call, user([RESULT, prompt])])
        post(upstream, "messages", [user(), call, user([other, prompt])])
        assert [request.extends for request in upstream.requests] == [True, True, False]


def test_a_second_attempt_after_a_cut_reply_is_no_second_change() -> None:
    script = reading(5, thinking=False, events={2: "cut"})
    with ScriptedUpstream(script) as upstream:
        post(upstream, "messages", [user("Before")])
        with pytest.raises(httpx2.RemoteProtocolError):
            post(upstream, "messages", [user("After")], stream=True)
        post(upstream, "messages", [user("After")], stream=True)
        assert [request.extends for request in upstream.requests] == [True, False, True]
        assert upstream.prefix_changes == 1


def test_a_scripted_error_comes_once_and_a_cut_stream_ends_early() -> None:
    with ScriptedUpstream(reading(5, events={1: OVERLOADED, 2: "cut"})) as upstream:
        assert post(upstream, "messages", [user()]).status_code == 529
        assert post(upstream, "messages", [user()]).status_code == 200
        with pytest.raises(httpx2.RemoteProtocolError):
            post(upstream, "messages", [user()], stream=True)
        complete = post(upstream, "messages", [user()], stream=True)
        assert json.loads(complete.text.strip().rpartition("data: ")[2]) == {"type": "message_stop"}


def test_a_script_recalls_what_was_folded() -> None:
    tools = [{"name": "expand", "input_schema": {}}]
    with ScriptedUpstream(reading(5, recall_every=1)) as upstream:
        stub = user("[scroll: folded seq 7]")
        content = post(upstream, "messages", [stub], tools=tools).json()["content"]
        assert content[-1]["name"] == "expand"
        assert content[-1]["input"] == {"seq": 7}
