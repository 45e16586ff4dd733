"""Dumps of LangChain and OpenAI: every way in which they write messages and conversations."""

import json
from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import UnreadableMessages
from scroll_context.importing.run import import_file
from scroll_context.store import Store


def imported(store: Store, path: Path, value: Any) -> list[tuple[str, str, str, str]]:
    path.write_text(json.dumps(value))
    import_file(store, path)
    return [(event.kind, event.role, event.name, event.content) for event in store.log.iterate()]


CALLED = [
    ("conversation", "system", "", "Be kind."),
    ("conversation", "user", "", "Count"),
    ("conversation", "assistant", "", "I look."),
    ("tool_call", "assistant", "ls", '{"a": 1}'),
    ("tool_result", "tool", "ls", "3"),
]
CALL = {"name": "ls", "args": {"a": 1}, "id": "t1", "type": "tool_call"}
PARTS = [
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "t1", "name": "ls", "input": {"a": 1}},
]
LANGCHAIN: list[tuple[str, dict[str, Any]]] = [
    ("system", {"content": "Be kind."}),
    ("human", {"content": "Count", "id": "h1", "response_metadata": {}}),
    (
        "ai",
        {
            "content": PARTS,
            "tool_calls": [CALL],
            "invalid_tool_calls": [],
            "usage_metadata": {"total_tokens": 3},
        },
    ),
    ("tool", {"content": "3", "tool_call_id": "t1", "status": "error"}),
]
CLASSES = {
    "system": "SystemMessage",
    "human": "HumanMessage",
    "ai": "AIMessageChunk",
    "tool": "ToolMessage",
}


@pytest.mark.parametrize(
    "written",
    [
        [{"type": kind, "data": {**fields, "type": kind}} for kind, fields in LANGCHAIN],
        [{**fields, "type": kind} for kind, fields in LANGCHAIN],
        [
            {
                "lc": 1,
                "type": "constructor",
                "id": ["langchain", "schema", "messages", CLASSES[kind]],
                "kwargs": fields,
            }
            for kind, fields in LANGCHAIN
        ],
        {"messages": [{**fields, "type": kind} for kind, fields in LANGCHAIN]},
        {
            "values": {"messages": [{**fields, "type": kind} for kind, fields in LANGCHAIN]},
            "next": [],
        },
    ],
    ids=["messages_to_dict", "model_dump", "dumpd", "state", "checkpoint"],
)
def test_messages_of_langchain(store: Store, tmp_path: Path, written: Any) -> None:
    assert imported(store, tmp_path / "chain.json", written) == CALLED
    result = list(store.log.iterate())[-1]
    assert (result.tool_call_id, result.tool_state) == ("t1", "error")
    assert import_file(store, tmp_path / "chain.json").format == "JSON, messages of LangChain"


def test_pieces_and_removals_of_langchain(store: Store, tmp_path: Path) -> None:
    pieces = [
        {"type": "AIMessageChunk", "data": {"content": "Three."}},
        {"type": "remove", "content": "", "id": "h1"},
    ]
    assert imported(store, tmp_path / "c.json", pieces) == [
        ("conversation", "assistant", "", "Three."),
        ("meta", "system", "", "[the message h1 was removed]"),
    ]


def test_calls_that_langchain_keeps_beside_the_message(store: Store, tmp_path: Path) -> None:
    calls = [{"id": "t1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}}]
    value = [{"type": "ai", "content": "", "additional_kwargs": {"tool_calls": calls}}]
    assert imported(store, tmp_path / "c.json", value) == [
        ("tool_call", "assistant", "ls", '{"a": 1}')
    ]


ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "look"}]},
    {"type": "function_call", "call_id": "t1", "name": "ls", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "t1", "output": "3"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Three."}],
    },
]
ANSWERED = [
    ("thinking", "assistant", "", "look"),
    ("tool_call", "assistant", "ls", '{"a": 1}'),
    ("tool_result", "tool", "ls", "3"),
    ("conversation", "assistant", "", "Three."),
]
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1772356200,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Three."}}],
}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (ITEMS, ANSWERED),
        (
            {"id": "resp_1", "object": "response", "created_at": 1772356200, "output": ITEMS},
            ANSWERED,
        ),
        (COMPLETION, ANSWERED[-1:]),
    ],
    ids=["items", "response", "completion"],
)
def test_dumps_of_openai(store: Store, tmp_path: Path, written: Any, expected: list[Any]) -> None:
    assert imported(store, tmp_path / "dump.json", written) == expected
    assert import_file(store, tmp_path / "dump.json").added == 0


def test_a_shape_that_is_not_whole_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(
        '[{"type": "human", "content": "hi"},\n{"type": "ai", "content": "", "tool_calls": 7}]'
    )
    with pytest.raises(
        UnreadableMessages, match=r"bad\.json:2: message 2: tool_calls must be a list"
    ):
        import_file(store, tmp_path / "bad.json")
