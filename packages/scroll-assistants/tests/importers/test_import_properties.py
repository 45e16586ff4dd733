"""Whatever a file holds, reading it never raises, what is whole in it is imported, and nothing is
imported twice.
"""

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forms import form
from samples import OPENCODE, QWENPAW, QWENPAW_ROW, database
from scroll_assistants.importers.records import Format
from scroll_context.errors import BadInput
from scroll_context.importing.layouts import JSON, JSONL, detect, layout_named, read
from scroll_context.importing.records import Fault, Imported, Labels
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.rows import prepare

text = st.text(st.characters(), max_size=8)  # lone surrogates included
scalar = st.none() | st.booleans() | st.integers() | st.floats() | text
anything = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
base64_text = st.sampled_from(["", "AAAA", "AA==", "A", "%%", "QUJD\nREVG"])
source = st.fixed_dictionaries(
    {"type": st.sampled_from(["base64", "url", "text"])},
    optional={
        "data": base64_text | anything,
        "media_type": st.sampled_from(["image/png", "png"]) | anything,
        "url": text,
    },
)
part = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "image", "image_url", "tool_use", "tool_result", "thinking", "new"]
        )
        | anything
    },
    optional={
        "text": text | anything,
        "source": source,
        "image_url": st.sampled_from(["data:image/png;base64,AAAA", "data:,x", "https://e.org"])
        | anything,
        "name": text | anything,
        "id": text | anything,
        "tool_use_id": text | anything,
        "input": anything,
        "content": anything,
        "is_error": anything,
    },
)
call = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": text}, optional={"arguments": anything})}
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | anything},
    optional={
        "content": text | st.lists(part | text, max_size=3) | anything,
        "tool_calls": st.lists(call, max_size=2) | anything,
        "created_at": st.sampled_from(
            ["2026-03-01", 1e9, 1e300, "24:00", "0001-01-01T00:00:00+14:00"]
        )
        | anything,
        "session_id": text | anything,
        "kind": st.sampled_from(["memo", "salvage"]) | anything,
        "step_index": st.integers() | anything,
        "headline": anything,
        "metadata": anything,
        "extra": anything,
    },
)
value = (
    message
    | anything
    | st.fixed_dictionaries({"messages": st.lists(message, max_size=3) | anything})
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import")


def check(path: Path, place: Path, layout: Format) -> None:
    payloads = PayloadStore(place / "payloads")
    for item in read(path, layout_named(layout), Labels(session_id="name")):
        if isinstance(item, Fault):
            assert item.reason
            continue
        assert item.pieces
        for piece in item.pieces:
            assert piece.draft.source_key
            prepare(piece.draft, "2026-01-01", payloads)


@settings(max_examples=form(100, 300), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(value, max_size=4), st.booleans())
@example([{"role": "user", "content": [{"type": "tool_use", "name": "\ud800"}]}], True)
def test_any_values(place: Path, values: list[Any], as_lines: bool) -> None:
    path = place / "any.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, values)) if as_lines else json.dumps(values, indent=1)
    )
    check(path, place, Format.JSONL if as_lines else Format.JSON)


@settings(max_examples=form(70, 200))
@given(st.binary(max_size=60))
@example(b"\xff\xfe[\x00")
@example(b"\xff\xfe\x00\x00{")
@example(b"SQLite format 3\x00")
def test_any_bytes(place: Path, data: bytes) -> None:
    path = place / "bytes.json"
    path.write_bytes(data)
    for layout in Format:
        if layout is not Format.EXPORT:
            check(path, place, layout)
    with contextlib.suppress(BadInput):  # the head of a database without the rest
        assert detect(path, ".json").name in list(Format)


# damage around whole messages ---------------------------------------------------------------------------

spoken = st.builds(
    lambda role, words, parts, when: {
        "role": role,
        "content": [{"type": "text", "text": words}] if parts else words,
        **({"created_at": when} if when else {}),
    },
    st.sampled_from(["user", "assistant", "system"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip),
    st.booleans(),
    st.sampled_from(["", "2026-03-01T10:00:00", "2020-01-01"]),
)
junk = st.sampled_from(
    [
        b"",
        b"   ",
        b"not json",
        b"{",
        b"]",
        b"null",
        b"7",
        b'"text"',
        b'{"role": ',
        b"\xfa\xff\xfe",
        b"[1, 2",
        b"[" * 3_000,
        b'{"role": "user", "content": "cut',
        b'{"role": "user", "content": {"a": 1e99999}, "metadata": 3',
    ]
)


def imported(path: Path, log: EventLog) -> list[int]:
    """The seqs of everything that a file holds, whether it was new or known."""
    whole = [
        item for item in read(path, JSONL, Labels(session_id="name")) if isinstance(item, Imported)
    ]
    return log.append_many(piece.draft for item in whole for piece in item.pieces)


@settings(max_examples=form(25, 60))
@given(
    st.lists(st.tuples(spoken, st.lists(junk, max_size=2)), min_size=1, max_size=8),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.integers(0, 40),
)
def test_damage_loses_no_whole_message_and_a_second_import_adds_none(
    said: list[tuple[dict[str, Any], list[bytes]]], ending: bytes, mark: bytes, cut: int
) -> None:
    lines = [
        line
        for message, around in said
        for line in (*around, json.dumps(message, ensure_ascii=False).encode())
    ]
    whole = mark + ending.join(lines)
    contents = [message["content"] for message, _ in said]
    with tempfile.TemporaryDirectory() as name:
        path, store = Path(name) / "chat.jsonl", Path(name) / "store"
        log = EventLog(FileBackend(store, create=True))
        path.write_bytes(whole[: len(whole) - cut])  # as it is while somebody writes it
        begun = imported(path, log)
        path.write_bytes(whole + ending)
        seqs = imported(path, log)

        assert seqs[: len(begun)] == begun
        assert seqs == list(range(1, len(said) + 1)), "each whole message once, in order"
        texts = [one if isinstance(one, str) else one[0]["text"] for one in contents]
        assert [event.content for event in log.iterate()] == texts
        assert imported(path, log) == seqs
        assert log.last_seq() == len(said)
        log.close()


@given(st.lists(spoken, min_size=1, max_size=4), st.data())
def test_half_a_document_is_a_fault_and_no_message(
    place: Path, given: list[dict[str, Any]], data: st.DataObject
) -> None:
    whole = json.dumps(given)
    path = place / "half.json"
    path.write_text(whole[: data.draw(st.integers(1, len(whole) - 1))])
    assert [type(item) for item in read(path, JSON, Labels(session_id="name"))] == [Fault]


# histories of assistants in which any value may be any other -------------------------------------------------


def positions(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where values stand in a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(position for name, one in inner for position in positions(one, (*at, name)))]


def with_change(value: Any, at: tuple[Any, ...], other: Any) -> Any:
    if not at:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = with_change(value[at[0]], at[1:], other)
    return copy


PICTURE = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
TIME = "2026-03-01T09:30:00Z"
CALLED = {
    "id": "c",
    "name": "ls",
    "args": {},
    "result": [{"functionResponse": {"response": {"output": "x"}}}],
}
SAID = {
    "author": {"role": "user"},
    "create_time": 1.5,
    "recipient": "all",
    "metadata": {},
    "content": {"content_type": "text", "parts": ["x", {"asset_pointer": "f"}]},
}
USED = [
    {"type": "thinking", "thinking": "t"},
    {"type": "tool_use", "id": "t", "name": "Read", "input": {}},
]
ANSWER = [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]}]
CHOICES = {"choices": [{"message": {"role": "user", "content": "x"}}]}
HISTORIES: dict[Format, list[Any]] = {
    Format.CLAUDE_CODE: [
        {
            "type": "assistant",
            "uuid": "u",
            "sessionId": "s",
            "cwd": "/a",
            "timestamp": TIME,
            "agentId": "x",
            "message": {"role": "assistant", "id": "m", "content": USED},
        },
        {"type": "user", "uuid": "v", "sessionId": "s", "message": {"content": ANSWER}},
        {
            "type": "system",
            "subtype": "compact_boundary",
            "content": "c",
            "uuid": "w",
            "compactMetadata": {},
        },
    ],
    Format.CODEX: [
        {"timestamp": TIME, "type": "session_meta", "payload": {"id": "c", "cwd": "/a", "git": {}}},
        {
            "timestamp": TIME,
            "type": "response_item",
            "payload": {"type": "reasoning", "summary": [{"text": "t"}], "content": []},
        },
        {
            "timestamp": TIME,
            "type": "response_item",
            "payload": {
                "type": "function_call_output",
                "call_id": "k",
                "output": {"content": "x", "success": False},
            },
        },
        {"timestamp": TIME, "type": "compacted", "payload": {"message": "c"}},
    ],
    Format.GEMINI: [
        {
            "sessionId": "g",
            "projectHash": "h",
            "messages": [{"id": "a", "type": "user", "content": "x"}],
        },
        {
            "id": "m",
            "timestamp": TIME,
            "type": "gemini",
            "content": [{"text": "x"}, PICTURE],
            "thoughts": [{"subject": "s", "description": "d"}],
            "toolCalls": [CALLED],
        },
        {"$set": {"messages": []}},
        {"$rewindTo": "m"},
    ],
    Format.CHATGPT: [
        {
            "id": "g",
            "title": "t",
            "current_node": "b",
            "mapping": {
                "a": {"parent": None, "message": None},
                "b": {"parent": "a", "message": SAID},
            },
        }
    ],
    Format.JSONL: [
        {
            "lc": 1,
            "id": ["AIMessage"],
            "kwargs": {"content": USED, "tool_calls": [{"name": "l", "args": {}}]},
        },
        {"type": "human", "data": {"content": "x", "additional_kwargs": {"tool_calls": []}}},
        {"request": {"messages": []}, "response": {"body": CHOICES}},
        {
            "object": "response",
            "id": "r",
            "output": [{"type": "function_call", "call_id": "c", "name": "l"}],
        },
    ],
    Format.SLACK: [
        {
            "type": "message",
            "user": "U",
            "text": "<@U> x",
            "ts": "1772356200.1",
            "files": [{"name": "f"}],
            "attachments": [{"text": "a"}],
        }
    ],
}


@pytest.mark.fuzz
@pytest.mark.parametrize("layout", HISTORIES)
def test_any_value_in_a_history(place: Path, layout: Format) -> None:
    spots = [
        (number, at) for number, line in enumerate(HISTORIES[layout]) for at in positions(line)
    ]

    @settings(max_examples=form(50, 150), suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(spots), anything)
    def changed(spot: tuple[int, tuple[Any, ...]], other: Any) -> None:
        lines = list(HISTORIES[layout])
        lines[spot[0]] = with_change(lines[spot[0]], spot[1], other)
        path = place / "history.jsonl"
        is_list = layout in (Format.CHATGPT, Format.SLACK)
        path.write_text(
            json.dumps(lines) if is_list else "".join(json.dumps(line) + "\n" for line in lines)
        )
        check(path, place, layout)

    changed()


RAN = {"status": "completed", "input": {}, "output": "x"}
BROKE = {"status": "error", "input": {}, "content": [{"text": "x"}]}
TALK = {
    "name": "n",
    "fullConversationHeadersOnly": [{"bubbleId": "b"}],
    "conversation": [{"bubbleId": "c", "type": 1, "text": "x"}],
    "workspaceIdentifier": {"uri": {"fsPath": "/a"}},
}
BUBBLE = {
    "type": 2,
    "text": "x",
    "createdAt": 1,
    "thinking": {"text": "t"},
    "toolFormerData": {"name": "l", "toolCallId": "c", "rawArgs": "{}", "result": "r"},
}
ENTRY = [{"type": "text", "text": "x"}, {"type": "tool", "id": "c", "name": "sh", "state": BROKE}]
COLUMNS: list[tuple[Format, str, Any]] = [
    (
        Format.OPENCODE,
        "message",
        {"role": "user", "time": {"created": 1, "completed": 2}, "modelID": "m"},
    ),
    (Format.OPENCODE, "part", {"type": "text", "text": "x", "time": {"start": 1}}),
    (Format.OPENCODE, "part", {"type": "tool", "tool": "sh", "callID": "c", "state": RAN}),
    (Format.OPENCODE, "part", {"type": "file", "url": "data:image/png;base64,AAAA"}),
    (Format.OPENCODE, "assistant", {"content": ENTRY, "time": {"completed": 1}}),
    (Format.OPENCODE, "user", {"text": "x", "files": [{"uri": "file:///a", "name": "a"}]}),
    (Format.OPENCODE, "shell", {"callID": "c", "command": "ls", "output": "x"}),
    (Format.CURSOR, "composerData:t", TALK),
    (Format.CURSOR, "bubbleId:t:b", BUBBLE),
    (Format.QWENPAW, "blocks", [{"type": "tool_call", "id": "c", "name": "l", "input": {}}]),
    (Format.QWENPAW, "metadata", {"tag": "x"}),
]


@pytest.mark.fuzz
@pytest.mark.parametrize("number", range(len(COLUMNS)))
def test_any_value_in_a_database(place: Path, number: int) -> None:
    layout, column, original = COLUMNS[number]
    path = place / f"{number}.db"

    @settings(
        max_examples=form(15, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(st.sampled_from(positions(original)), anything)
    def changed(at: tuple[Any, ...], other: Any) -> None:
        data = json.dumps(with_change(original, at, other))
        schemas = {Format.OPENCODE: OPENCODE, Format.QWENPAW: QWENPAW}
        schema = schemas.get(layout, "CREATE TABLE cursorDiskKV (key, value)")
        with (
            contextlib.closing(database(path, f"PRAGMA synchronous = OFF; {schema}")) as made,
            made,
        ):
            if layout is Format.CURSOR:
                talk = json.dumps({"fullConversationHeadersOnly": [{"bubbleId": "b"}]})
                pairs = {
                    "composerData:t": talk,
                    "bubbleId:t:b": '{"type": 1, "text": "x"}',
                    column: data,
                }
                made.executemany("INSERT INTO cursorDiskKV VALUES (?, ?)", list(pairs.items()))
            elif layout is Format.QWENPAW:
                values = {"blocks": "[]", "metadata": "{}", column: data}
                row = [
                    "s",
                    "model_turn",
                    "assistant",
                    None,
                    "x",
                    None,
                    None,
                    None,
                    values["blocks"],
                    values["metadata"],
                ]
                made.execute(QWENPAW_ROW, [*row, "2026-03-01", "k"])
            else:
                made.execute("INSERT INTO session VALUES ('s', 'p', NULL, '/a', 't', 0, 0)")
                if column in ("message", "part"):
                    rows = {
                        "message": '{"role": "user"}',
                        "part": '{"type": "text", "text": "x"}',
                        column: data,
                    }
                    made.execute(
                        "INSERT INTO message VALUES ('m', 's', 0, 0, ?)", [rows["message"]]
                    )
                    made.execute("INSERT INTO part VALUES ('p', 'm', 's', 0, ?)", [rows["part"]])
                else:
                    made.execute(
                        "INSERT INTO session_message VALUES ('m', 's', ?, 0, 0, ?)", [column, data]
                    )
        check(path, place, layout)

    changed()
