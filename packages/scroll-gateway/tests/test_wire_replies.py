"""Replies of the three protocols, streamed and not, and what requests say about their session."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.contents import Usage
from scroll_context.messages import Thinking, ToolCall
from scroll_context.models.overflow import is_overflow
from scroll_context.models.protocol import Reply
from scroll_gateway.wire.chat import Chat
from scroll_gateway.wire.messages import Messages
from scroll_gateway.wire.protocol import Protocol, WireReply
from scroll_gateway.wire.replies import ReplyReader, ServerSentEvents
from scroll_gateway.wire.responses import Responses
from scroll_gateway.wire.session_hints import SessionHints, session_hints

CALL = ToolCall("c1", "read", {"path": "a"})

MESSAGES_REPLY = {
    "id": "msg_1",
    "model": "claude-x",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
    ],
    "stop_reason": "tool_use",
    "usage": {
        "input_tokens": 5,
        "cache_read_input_tokens": 70,
        "cache_creation_input_tokens": 20,
        "output_tokens": 9,
    },
}
MESSAGES_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGES_REPLY, "content": [], "stop_reason": None}},
    {"type": "ping"},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "hm"},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "s"},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "of_a_later_version"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "look."}},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "c1", "name": "read", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"path":'},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": ' "a"}'},
    },
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]
CHAT_USAGE = {
    "prompt_tokens": 95,
    "completion_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 70},
}
FUNCTION = {"name": "read", "arguments": '{"path": "a"}'}
CHAT_REPLY = {
    "id": "chat_1",
    "model": "gpt-x",
    "choices": [
        {
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}],
            },
        }
    ],
    "usage": CHAT_USAGE,
}


def _delta(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chat_1", "model": "gpt-x", "choices": [choice], "usage": None}


CHAT_EVENTS: list[dict[str, Any]] = [
    _delta(role="assistant", content=""),
    _delta(reasoning_content="hm"),
    _delta(content="I "),
    _delta(content="look."),
    _delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "read", "arguments": ""}}]),
    _delta(tool_calls=[{"index": 0, "function": {"arguments": '{"path": '}}]),
    _delta(tool_calls=[{"index": 0, "function": {"arguments": '"a"}'}}]),
    _delta("tool_calls"),
    {"id": "chat_1", "model": "gpt-x", "choices": [], "usage": CHAT_USAGE},
]
RESPONSES_ITEMS: list[dict[str, Any]] = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "s",
    },
    {
        "type": "message",
        "id": "m_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"type": "function_call", "id": "f_1", "call_id": "c1", **FUNCTION},
]
RESPONSES_REPLY = {
    "id": "resp_1",
    "model": "gpt-x",
    "status": "completed",
    "output": RESPONSES_ITEMS,
    "usage": {
        "input_tokens": 95,
        "input_tokens_details": {"cached_tokens": 70},
        "output_tokens": 9,
    },
}
RESPONSES_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {**RESPONSES_REPLY, "output": []}},
    *(
        {"type": "response.output_item.done", "output_index": place, "item": item}
        for place, item in enumerate(RESPONSES_ITEMS)
    ),
    {"type": "response.of_a_later_version"},
    {"type": "response.completed", "response": {**RESPONSES_REPLY, "output": []}},
]


def expected(provider: str, signature: str, model: str, written: int) -> Reply:
    return Reply(
        text="I look.",
        tool_calls=(CALL,),
        thinking=(Thinking(text="hm", signature=signature, provider=provider),),
        usage=Usage(
            input_tokens=95, output_tokens=9, cache_read_tokens=70, cache_write_tokens=written
        ),
        finish_reason="tool_call",
        model=model,
    )


CASES = [
    pytest.param(
        Messages(),
        MESSAGES_REPLY,
        MESSAGES_EVENTS,
        WireReply(expected("anthropic", "s", "claude-x", 20), "msg_1", MESSAGES_REPLY),
        id="messages",
    ),
    pytest.param(
        Chat(),
        CHAT_REPLY,
        CHAT_EVENTS,
        WireReply(expected("openai", "", "gpt-x", 0), "chat_1", CHAT_REPLY),
        id="chat",
    ),
    pytest.param(
        Responses(),
        RESPONSES_REPLY,
        RESPONSES_EVENTS,
        WireReply(expected("openai", "s", "gpt-x", 0), "resp_1", RESPONSES_REPLY),
        id="responses",
    ),
]


def stream(events: list[dict[str, Any]], *, done: bool) -> bytes:
    pieces = [f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n" for event in events]
    return "".join([*pieces, "data: [DONE]\n\n" if done else ""]).encode()


@pytest.mark.parametrize(("protocol", "reply", "events", "result"), CASES)
def test_a_streamed_reply_is_recorded_like_one_that_is_not(
    protocol: Protocol, reply: dict[str, Any], events: list[dict[str, Any]], result: WireReply
) -> None:
    complete = ReplyReader(protocol, "application/json")
    complete.feed(json.dumps(reply).encode())
    assert complete.reply() == result

    content = stream(events, done=isinstance(protocol, Chat))
    for size in (1, 7, len(content)):
        streamed = ReplyReader(protocol, "text/event-stream; charset=utf-8")
        for start in range(0, len(content), size):
            assert not streamed.has_ended
            streamed.feed(content[start : start + size])
            if streamed.has_ended:
                break
        assert streamed.has_ended
        assert streamed.reply() == result


@pytest.mark.parametrize(("protocol", "reply", "events", "result"), CASES)
def test_a_cut_or_failed_stream_gives_no_reply(
    protocol: Protocol, reply: dict[str, Any], events: list[dict[str, Any]], result: WireReply
) -> None:
    for cut in range(3):
        reader = ReplyReader(protocol, "text/event-stream")
        reader.feed(stream(events[:cut], done=False))
        assert reader.reply() is None
    reader = ReplyReader(protocol, "text/event-stream")
    failure = {"type": "error", "error": {"message": "overloaded"}}
    reader.feed(stream([*events[:-1], failure, events[-1]], done=True))
    assert reader.reply() is None


@given(st.lists(st.text("ab\n", max_size=5), max_size=5), st.integers(1, 7), st.booleans())
def test_events_do_not_depend_on_how_the_stream_is_cut(
    texts: list[str], size: int, is_crlf: bool
) -> None:
    """Data of several lines, comments, and both line endings."""
    content = ": a comment\n\n"
    for text in texts:
        content += "event: x\n" + "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"
    data = content.replace("\n", "\r\n" if is_crlf else "\n").encode()
    splitter = ServerSentEvents()
    events = [
        event
        for start in range(0, len(data), size)
        for event in splitter.feed(data[start : start + size])
    ]
    assert events == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("headers", "fields", "hints"),
    [
        ({}, {}, SessionHints()),
        (
            {"x-claude-code-session-id": "abc", "x-claude-code-agent-id": "sub"},
            {"metadata": b'{"user_id":"other"}'},
            SessionHints(session="abc", program="claude-code", agent="sub"),
        ),
        (
            {},
            {"metadata": b'{"user_id":"{\\"session_id\\":\\"abc-123\\"}"}'},
            SessionHints(session="abc-123"),
        ),
        (
            {},
            {"metadata": b'{"user_id":"user_1_account__session_0b9e5f0a-11"}'},
            SessionHints(session="0b9e5f0a-11"),
        ),
        (
            {"session-id": "s1", "x-codex-turn-metadata": '{"request_kind":"compaction"}'},
            {"prompt_cache_key": b'"key"', "previous_response_id": b'"resp_1"'},
            SessionHints(session="s1", program="codex", previous="resp_1", kind="compaction"),
        ),
        ({}, {"prompt_cache_key": b'"key"'}, SessionHints(session="key")),
        ({}, {"metadata": b"3", "prompt_cache_key": b"{}"}, SessionHints()),
    ],
)
def test_the_session_of_a_request_is_read_where_clients_name_it(
    headers: dict[str, str], fields: dict[str, bytes], hints: SessionHints
) -> None:
    assert session_hints(headers, fields) == hints


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error":{"message":"prompt is too long: 21 tokens > 20 maximum"}}', True),
        (400, b'{"error":{"code":"context_length_exceeded"}}', True),
        (413, b"", True),
        (429, b'{"error":{"message":"input token count of this minute"}}', False),
        (400, b'{"error":{"message":"unknown model"}}', False),
        (500, b'{"error":{"message":"prompt is too long"}}', False),
    ],
)
def test_a_request_that_is_too_long_is_known_by_the_providers_words(
    status: int, body: bytes, expected: bool
) -> None:
    assert is_overflow(status, body) is expected
