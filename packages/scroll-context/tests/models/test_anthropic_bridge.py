"""The bridge to Anthropic, against a real HTTP server: cache marks, signed thinking, faults."""

import json
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the models extra is not installed")

from anthropic_server import error, streamed
from provider_server import ProviderServer, fault
from scroll_context.errors import ContextOverflow, ModelError, ModelRefused, ModelUnavailable
from scroll_context.messages import Message, Thinking, ToolCall, ToolSpec
from scroll_context.models import Model, Request, Settings, connect

KEY = "sk-ant-test-1234567890"
MARK = {"type": "ephemeral", "ttl": "5m"}
EXEC = ToolSpec(
    "exec", "Run a cell.", {"type": "object", "properties": {"source": {"type": "string"}}}
)
SYSTEM = Message(role="system", text="Be brief.")
ASK = Message(role="user", text="What is in x?")
OK = streamed({"type": "text", "text": "ok"})


def model_at(server: ProviderServer, **options: Any) -> Model:
    return connect(
        "anthropic:claude-sonnet-5", base_url=server.url, api_key=KEY, retries=0, **options
    )


def blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Every content block of the conversation, in order."""
    return [block for message in body["messages"] for block in message["content"]]


def test_a_reply_is_read_and_measured() -> None:
    plays = streamed(
        {"type": "thinking", "thinking": "look at x", "signature": "signed"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "a", "name": "exec", "input": '{"source": "print(x)"}'},
        stop="tool_use",
    )
    with ProviderServer(plays) as server:
        pieces: list[str] = []
        reply = model_at(server).reply(Request((SYSTEM, ASK), (EXEC,)), on_text=pieces.append)
    assert (reply.text, "".join(pieces)) == ("Let me look.", "Let me look.")
    assert reply.tool_calls == (ToolCall("a", "exec", {"source": "print(x)"}),)
    assert reply.thinking == (Thinking(text="look at x", signature="signed", provider="anthropic"),)
    assert reply.finish_reason == "tool_call"
    usage = reply.usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (100, 70, 10)
    assert usage.output_tokens == 9


def test_cache_marks_are_where_they_were_asked_for_and_nowhere_else() -> None:
    history = (
        SYSTEM,
        Message(role="user", text="The index of what came before.", cache_mark=True),
        ASK,
        Message(
            role="assistant", text="Looking.", tool_calls=(ToolCall("a", "exec", {"source": "x"}),)
        ),
        Message(role="tool", text="x is 4", tool_call_id="a", name="exec", cache_mark=True),
        Message(role="user", text="variables: x"),
    )
    with ProviderServer(OK) as server:
        model_at(server).reply(Request(history, (EXEC,)))
    (body,) = server.bodies
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": MARK}]
    assert [tool["name"] for tool in body["tools"] if "cache_control" not in tool] == ["exec"]
    assert body["tools"][0]["input_schema"] == EXEC.parameters
    marked = [block for block in blocks(body) if "cache_control" in block]
    assert [block["type"] for block in marked] == ["text", "tool_result"]
    assert marked[0]["text"] == "The index of what came before."
    assert marked[1]["tool_use_id"] == "a"
    assert all(block["cache_control"] == MARK for block in marked)
    assert "cache_control" not in body


def test_a_tail_follows_its_message_behind_the_mark() -> None:
    call = Message(role="assistant", tool_calls=(ToolCall("a", "exec", {"source": "x"}),))
    result = Message(
        role="tool",
        text="x is 4",
        tool_call_id="a",
        name="exec",
        cache_mark=True,
        tail="variables: x",
    )
    asked = Message(role="user", text="Go on.", cache_mark=True, tail="variables: x")
    with ProviderServer(OK) as server:
        model_at(server).reply(Request((SYSTEM, ASK, call, result), (EXEC,)))
        model_at(server).reply(Request((SYSTEM, asked), (EXEC,)))
    for body, marked in zip(server.bodies, ("tool_result", "text"), strict=True):
        *_, before, tail = blocks(body)
        assert (before["type"], before["cache_control"]) == (marked, MARK)
        assert tail == {"type": "text", "text": "variables: x"}


def test_more_marks_than_the_provider_allows_keep_the_newest() -> None:
    history = [SYSTEM]
    for number in range(6):
        history.append(Message(role="user", text=f"question {number}", cache_mark=True))
        history.append(Message(role="assistant", text=f"answer {number}"))
    with ProviderServer(OK) as server:
        model_at(server).reply(Request((*history, ASK)))
    marked = [block["text"] for block in blocks(server.bodies[0]) if "cache_control" in block]
    assert marked == ["question 3", "question 4", "question 5"]


def test_signed_thinking_makes_the_round_trip_and_unsigned_does_not() -> None:
    plays = streamed(
        {"type": "thinking", "thinking": "look at x", "signature": "signed"},
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "tool_use", "id": "a", "name": "exec", "input": '{"source": "print(x)"}'},
        stop="tool_use",
    )
    with ProviderServer(plays, OK) as server:
        model = model_at(server, settings=Settings(max_tokens=4000, thinking=True))
        reply = model.reply(Request((SYSTEM, ASK), (EXEC,)))
        result = Message(role="tool", text="4", tool_call_id="a", name="exec")
        stray = (
            Thinking(text="unsigned", provider="anthropic"),
            Thinking(text="other", signature="s", provider="openai"),
        )
        history = (
            SYSTEM,
            ASK,
            reply.message(),
            result,
            Message(role="assistant", text="It is 4.", thinking=stray),
            ASK,
        )
        model.reply(Request(history, (EXEC,)))
    assert server.bodies[0]["thinking"]["type"] in ("enabled", "adaptive")
    sent = server.bodies[1]["messages"]
    assert [message["role"] for message in sent] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert sent[1]["content"] == [
        {"type": "thinking", "thinking": "look at x", "signature": "signed"},
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "tool_use", "id": "a", "name": "exec", "input": {"source": "print(x)"}},
    ]
    assert sent[3]["content"] == [{"type": "text", "text": "It is 4."}]


def test_thinking_that_the_view_dropped_is_not_sent() -> None:
    history = (SYSTEM, ASK, Message(role="assistant", text="It is 4."), ASK)
    with ProviderServer(OK) as server:
        model_at(server).reply(Request(history))
    assert {block["type"] for block in blocks(server.bodies[0])} == {"text"}


def test_nothing_empty_and_nothing_orphaned_is_sent() -> None:
    history = (
        SYSTEM,
        Message(role="tool", text="lost", tool_call_id="gone", name="exec"),
        ASK,
        Message(role="user", text=" "),
        Message(
            role="assistant",
            text="\n",
            tool_calls=(ToolCall("a", "exec", {}), ToolCall("b", "exec", "{bad")),
        ),
        Message(role="tool", text="", tool_call_id="a", name="exec"),
        ASK,
    )
    with ProviderServer(OK) as server:
        model_at(server).reply(Request(history, (EXEC,)))
    sent = blocks(server.bodies[0])
    assert [block["type"] for block in sent] == [
        "text",
        "tool_use",
        "tool_use",
        "tool_result",
        "tool_result",
        "text",
    ]
    assert [block["tool_use_id"] for block in sent[3:5]] == ["a", "b"]
    assert "{bad" in sent[2]["input"].values()
    for block in sent:
        texts = [block] if block["type"] == "text" else block.get("content", [])
        assert all(text["text"].strip() for text in texts)


@pytest.mark.parametrize(
    ("message", "tokens", "limit"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", 210000, 200000),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease",
            190000,
            200000,
        ),
    ],
)
def test_overflow_is_recognised_with_the_counts(message: str, tokens: int, limit: int) -> None:
    body = error("invalid_request_error", message)
    with ProviderServer(fault(400, body)) as server, pytest.raises(ContextOverflow) as caught:
        model_at(server).reply(Request((SYSTEM, ASK)))
    assert (caught.value.tokens, caught.value.limit) == (tokens, limit)


def test_a_body_that_is_too_large_is_an_overflow() -> None:
    body = error("request_too_large", "Request exceeds the maximum size")
    with ProviderServer(fault(413, body)) as server, pytest.raises(ContextOverflow):
        model_at(server).reply(Request((SYSTEM, ASK)))


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (529, "overloaded_error", ModelUnavailable),
        (429, "rate_limit_error", ModelUnavailable),
        (500, "api_error", ModelUnavailable),
        (401, "authentication_error", ModelRefused),
        (400, "invalid_request_error", ModelRefused),
        (404, "not_found_error", ModelRefused),
    ],
)
def test_faults_have_a_kind(status: int, kind: str, expected: type[ModelError]) -> None:
    body = error(kind, f"no: {KEY}")
    with ProviderServer(fault(status, body)) as server, pytest.raises(expected) as caught:
        model_at(server).reply(Request((SYSTEM, ASK)))
    assert KEY not in str(caught.value)
    assert len(server.bodies) == 1, "the client library retried on its own"


def test_a_cut_stream_is_a_fault_and_not_a_short_answer() -> None:
    with ProviderServer(streamed({"type": "text", "text": "The answer"}, stop=None)) as server:
        pieces: list[str] = []
        with pytest.raises(ModelUnavailable, match="cut off"):
            model_at(server).reply(Request((SYSTEM, ASK)), on_text=pieces.append)
    assert pieces == ["The answer"]


def test_arguments_that_are_not_json_are_kept() -> None:
    play = streamed(
        {"type": "tool_use", "id": "a", "name": "exec", "input": '{"source": '}, stop="tool_use"
    )
    with ProviderServer(play) as server:
        (call,) = model_at(server).reply(Request((SYSTEM, ASK), (EXEC,))).tool_calls
    assert isinstance(call.arguments, str)
    assert json.loads(json.dumps(call.arguments)) == '{"source": '


def test_the_window_is_known_or_given() -> None:
    with ProviderServer(OK) as server:
        assert model_at(server).window >= 200_000
        assert model_at(server, window=50_000).window == 50_000
