"""One message, as the events that happened."""

import base64
from typing import Any

import pytest

from scroll_context.importing.messages import pieces as pieces_of
from scroll_context.importing.records import Labels, Piece, RawMessage

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
ENCODED = base64.b64encode(PNG).decode()


def pieces(
    message: dict[str, Any],
    tools: dict[str, str] | None = None,
    shared: dict[str, Any] | None = None,
) -> tuple[Piece, ...]:
    return pieces_of(
        RawMessage(1, message, Labels("s"), shared=shared or {}),
        "key",
        {} if tools is None else tools,
    )


def events(
    message: dict[str, Any], tools: dict[str, str] | None = None
) -> list[tuple[str, str, str, str, str]]:
    found = pieces(message, tools)
    return [
        (p.draft.kind, p.draft.role, p.draft.name, p.draft.content, p.draft.tool_call_id)
        for p in found
    ]


def test_openai_calls_and_results_are_events_of_their_own() -> None:
    tools: dict[str, str] = {}
    call = {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "find", "arguments": '{"q": "x"}'},
            },
            {"id": "c2", "type": "function", "function": {"name": "book", "arguments": "not json"}},
        ],
    }
    assert events(call, tools) == [
        ("conversation", "assistant", "", "Let me look.", ""),
        ("tool_call", "assistant", "find", '{"q": "x"}', "c1"),
        ("tool_call", "assistant", "book", "not json", "c2"),
    ]
    assert events({"role": "tool", "tool_call_id": "c2", "content": "done"}, tools) == [
        ("tool_result", "tool", "book", "done", "c2")
    ]
    assert events(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    ) == [("tool_call", "assistant", "f", "{}", "")]
    assert len(events({**call, "content": ""})) == 2
    assert events({"role": "assistant", "content": ""}) == [
        ("conversation", "assistant", "", "", "")
    ]
    assert events({"role": "function", "name": "f", "content": "[1]"}) == [
        ("tool_result", "function", "f", "[1]", "")
    ]


def test_anthropic_blocks_keep_their_order() -> None:
    tools: dict[str, str] = {}
    reply = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "text", "text": "First"},
            {"type": "text", "text": "this."},
            {"type": "tool_use", "id": "t1", "name": "find", "input": {"städte": ["Köln"]}},
            {"type": "text", "text": "Then that."},
            {"type": "server_tool_use", "id": "t2", "name": "web", "input": {}},
        ],
    }
    assert events(reply, tools) == [
        ("thinking", "assistant", "", "hm", ""),
        ("conversation", "assistant", "", "First\nthis.", ""),
        ("tool_call", "assistant", "find", '{"städte": ["Köln"]}', "t1"),
        ("conversation", "assistant", "", "Then that.", ""),
        ("tool_call", "assistant", "web", "{}", "t2"),
    ]
    sealed = {"type": "redacted_thinking", "data": "c2VhbGVk"}
    thought, first, *_ = pieces({**reply, "content": [*reply["content"], sealed]}, tools)
    assert (thought.draft.metadata, first.draft.metadata) == ({}, {"thinking": [sealed]})
    answer = {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "42"}],
            },
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": "boom"},
            {"type": "text", "text": "go on"},
        ],
    }
    assert events(answer, tools) == [
        ("tool_result", "tool", "find", "42", "t1"),
        ("tool_result", "tool", "web", "boom", "t2"),
        ("conversation", "user", "", "go on", ""),
    ]
    assert [p.draft.tool_state for p in pieces(answer, tools)] == ["", "error", ""]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{ENCODED}"},
        {
            "type": "file",
            "file": {"file_data": f"data:image/png;base64,{ENCODED}", "filename": "x.png"},
        },
        {"type": "image_url", "image_url": f"data:image/png;base64,{ENCODED[:76]}\n{ENCODED[76:]}"},
    ],
)
def test_base64_media_become_attachments_in_their_place(part: dict[str, Any]) -> None:
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, part, {"type": "text", "text": "?"}],
    }
    before, image, after = pieces(message)
    assert (before.draft.content, after.draft.content) == ("see", "?")
    assert image.attachment is not None
    assert (image.attachment.body, image.attachment.media_type) == (PNG, "image/png")
    assert image.draft.content == f"[image/png, {len(PNG)} bytes]"
    assert image.draft.role == "user"


def test_media_in_a_tool_result_belong_to_the_result() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": ENCODED},
    }
    block = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": "shot"}, image],
    }
    text, shot = pieces({"role": "user", "content": [block]}, {"t": "screen"})
    assert (text.draft.content, text.attachment) == ("shot", None)
    assert shot.attachment is not None
    assert (shot.draft.kind, shot.draft.name, shot.draft.tool_call_id) == (
        "tool_result",
        "screen",
        "t",
    )


def test_audio_and_addresses_and_text_documents() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": ENCODED, "format": "mp3"}}
    (piece,) = pieces({"role": "user", "content": [audio]})
    assert piece.attachment is not None
    assert piece.attachment.media_type == "audio/mp3"
    url = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert (
        events({"role": "user", "content": [url]})[0][3] == "[image_url: https://example.org/a.png]"
    )
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "the text"},
    }
    assert events({"role": "user", "content": [document]})[0][3] == "the text"


def test_nothing_is_dropped() -> None:
    message = {
        "role": "assistant",
        "content": [{"type": "hologram", "depth": 3}],
        "model": "m",
        "usage": {"total": 5},
        "metadata": {"mood": "good"},
        "reasoning_content": "because",
        "headline": "state: done",
        "step_index": "4",
        "msg_index": 2,
        "name": "ann",
    }
    (piece,) = pieces(message, shared={"title": "t"})
    draft = piece.draft
    assert draft.metadata == {
        "model": "m",
        "usage": {"total": 5},
        "mood": "good",
        "reasoning_content": "because",
        "parts": [{"type": "hologram", "depth": 3}],
        "conversation": {"title": "t"},
    }
    assert (draft.headline, draft.step_index, draft.msg_index, draft.name) == (
        "state: done",
        4,
        2,
        "ann",
    )


def test_structured_results_are_kept_as_json() -> None:
    assert events({"role": "tool", "content": {"a": 1}, "tool_call_id": "c"})[0][3] == '{"a": 1}'
    block = {
        "type": "web_search_tool_result",
        "tool_use_id": "t",
        "content": [{"type": "web_search_result", "url": "u"}],
    }
    assert (
        events({"role": "user", "content": [block]})[0][3]
        == '{"type": "web_search_result", "url": "u"}'
    )


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("2026-03-01T09:30:00Z", "2026-03-01T09:30:00+00:00"),
        ("2026-03-01T09:30:00+02:00", "2026-03-01T07:30:00+00:00"),
        ("2026-03-01 09:30:00.25", "2026-03-01T09:30:00.250000"),
        ("2026-03-01", "2026-03-01"),
        (1772357400, "2026-03-01T09:30:00+00:00"),
        (1772357400.5, "2026-03-01T09:30:00.500000+00:00"),
        (1772357400000, "2026-03-01T09:30:00+00:00"),
        (1772357400000000, "2026-03-01T09:30:00+00:00"),
        ("1772357400", "2026-03-01T09:30:00+00:00"),
        ("1772357400000", "2026-03-01T09:30:00+00:00"),
        (0, "1970-01-01T00:00:00+00:00"),
        ("", ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("field", ["created_at", "timestamp"])
def test_times(field: str, given: Any, stored: str) -> None:
    (piece,) = pieces({"role": "user", "content": "x", field: given})
    assert piece.draft.created_at == stored
