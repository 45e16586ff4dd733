"""Files of messages: layouts, encodings, faults with their line, names of sessions."""

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

from scroll_assistants.importers.records import Format
from scroll_context.importing.layouts import detect, layout_named, read
from scroll_context.importing.records import Fault, Imported, Labels

USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "hello"}


def load(
    path: Path, labels: Labels | None = None, layout: Format | None = None
) -> list[Imported | Fault]:
    known = layout_named(layout) if layout else detect(path, path.suffix)
    return list(read(path, known, labels or Labels(session_id=path.stem)))


def drafts(found: list[Imported | Fault]) -> list[Any]:
    assert not [item for item in found if isinstance(item, Fault)]
    return [piece.draft for item in found if isinstance(item, Imported) for piece in item.pieces]


def faults(found: list[Imported | Fault]) -> list[tuple[int, str]]:
    return [(item.line, item.reason) for item in found if isinstance(item, Fault)]


def jsonl(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", jsonl(USER, REPLY), Format.JSONL),
        ("a.jsonl", jsonl(USER), Format.JSONL),
        ("a.json", jsonl(USER), Format.JSON),
        ("a.json", json.dumps([USER, REPLY]), Format.JSON),
        ("a.json", json.dumps([USER, REPLY], indent=2), Format.JSON),
        ("a.txt", json.dumps({"messages": [USER]}, indent=1), Format.JSON),
        ("a.json", jsonl({"messages": [USER]}, {"messages": [REPLY]}), Format.JSONL),
        ("a.jsonl", '{"role": "user", "conte\n' + jsonl(USER), Format.JSONL),
        ("a.jsonl", '\n\n{"scroll_export": 1}\n', Format.EXPORT),
        ("a.jsonl", "", Format.JSONL),
    ],
)
def test_layout_is_detected(tmp_path: Path, name: str, text: str, expected: Format) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert detect(path, path.suffix).name == expected


def test_a_message_with_a_field_named_messages_is_the_same_one_in_either_layout(
    tmp_path: Path,
) -> None:
    message = {**USER, "messages": [{"role": "user"}]}
    (tmp_path / "a.json").write_text(json.dumps(message))
    (tmp_path / "a.jsonl").write_text(jsonl(message))
    one, other = (drafts(load(tmp_path / name)) for name in ("a.json", "a.jsonl"))
    assert one == other
    assert one[0].metadata == {"messages": [{"role": "user"}]}


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: {"messages": m}], ids=["list", "object"])
def test_a_document_is_one_session_named_after_the_file(
    tmp_path: Path, indent: int | None, wrap: Any
) -> None:
    path = tmp_path / "trip.json"
    path.write_text(json.dumps(wrap([USER, REPLY]), indent=indent))
    found = drafts(load(path))
    assert [(draft.session_id, draft.role, draft.content) for draft in found] == [
        ("trip", "user", "hi"),
        ("trip", "assistant", "hello"),
    ]


def test_lines_of_messages_name_their_session_or_take_the_label(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(jsonl({**USER, "session_id": "s1", "agent_id": "a", "task_id": 7}, REPLY))
    first, second = drafts(
        load(path, Labels(session_id="mine", agent_id="b", task_id="t", kind="memo"))
    )
    assert (first.session_id, first.agent_id, first.task_id, first.kind) == ("s1", "a", "7", "memo")
    assert (second.session_id, second.agent_id, second.task_id, second.kind) == (
        "mine",
        "b",
        "t",
        "memo",
    )


def test_each_line_of_conversations_is_a_session_that_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    prompt = {"role": "system", "content": "be brief"}
    one, two = (
        {"messages": [prompt, USER, REPLY]},
        {"messages": [prompt, {"role": "user", "content": "bye"}]},
    )
    path.write_text(jsonl(one, two, two, {"id": "named", "messages": [USER]}))
    sessions = [draft.session_id for draft in drafts(load(path))]
    first, second, again, named = sessions[0], sessions[3], sessions[5], sessions[7]
    assert sessions == [first] * 3 + [second] * 2 + [again] * 2 + [named]
    assert len({first, second, again, named}) == 4
    assert first.startswith("many-")
    assert named == "named"
    path.write_text(jsonl(two, {"messages": [prompt, USER, REPLY, USER]}))
    assert [draft.session_id for draft in drafts(load(path))] == [second] * 2 + [first] * 4


def test_a_conversation_brings_its_system_prompt_labels_and_facts(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    about = {
        "session_id": "s",
        "agent_id": "a",
        "created_at": "2026-03-01",
        "model": "m",
        "system": "be brief",
    }
    path.write_text(json.dumps({"messages": [USER], **about}, indent=2))
    system, user = drafts(load(path))
    assert (system.role, system.content, system.agent_id, system.session_id) == (
        "system",
        "be brief",
        "a",
        "s",
    )
    assert system.metadata["conversation"]["model"] == "m"
    assert user.created_at == "2026-03-01"
    assert user.metadata == {}


def test_a_list_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps([{"messages": [USER]}, [REPLY]], indent=2))
    found = drafts(load(path))
    assert [draft.content for draft in found] == ["hi", "hello"]
    assert len({draft.session_id for draft in found}) == 2


@pytest.mark.parametrize(
    "encoding",
    ["utf-8-sig", "utf-16", "utf-32", "utf-16-le-mark", "utf-16-be-mark"],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_byte_order_marks_are_understood(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    messages = [{"role": "user", "content": "Zürich 東京"}, REPLY]
    text = json.dumps(messages, ensure_ascii=False, indent=1)
    if name.endswith("l"):
        text = "\n".join(json.dumps(message, ensure_ascii=False) for message in messages)
    marks = {"utf-16-le-mark": codecs.BOM_UTF16_LE, "utf-16-be-mark": codecs.BOM_UTF16_BE}
    path.write_bytes(marks.get(encoding, b"") + text.encode(encoding.removesuffix("-mark")))
    assert [draft.content for draft in drafts(load(path))] == ["Zürich 東京", "hello"]


def test_other_encodings_are_faults_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        jsonl(USER).encode() + '{"role": "user", "content": "Zürich"}\n'.encode("latin-1")
    )
    ((line, reason),) = faults(load(path))
    assert line == 2
    assert "not UTF-8" in reason
    assert "0xfc" in reason
    path.write_bytes(b'[\n{"role": "user",\n "content": "Z\xfcrich"}]')
    ((line, reason),) = faults(load(path, layout=Format.JSON))
    assert line == 3
    path.write_bytes(codecs.BOM_UTF16_LE + jsonl(USER).encode("utf-16-le") + b"\x00\xd8x")
    assert [line for line, _ in faults(load(path, layout=Format.JSONL))] == [2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"role": "user", "content": "cut', "not JSON"),
        ("hello", "not JSON"),
        ("17", "expected a message"),
        ("null", "expected a message"),
        ("{}", "needs a role"),
        ('{"role": "", "content": "x"}', "needs a role"),
        ('{"role": "user"}', "needs content"),
        ('{"role": "user", "content": 5}', "content must be text"),
        ('{"role": "user", "content": {"text": "x"}}', "content must be text"),
        ('{"role": "user", "content": [5]}', "part must be"),
        ('{"role": "user", "content": [{"text": "x"}]}', "part must be"),
        ('{"role": "user", "content": [{"type": "text"}]}', "must hold text"),
        ('{"role": "user", "content": "x", "created_at": "yesterday"}', "is not a time"),
        ('{"role": "user", "content": "x", "timestamp": -5}', "is not a time"),
        ('{"role": "user", "content": "x", "timestamp": Infinity}', "is not a time"),
        ('{"role": "user", "content": "x", "timestamp": true}', "is not a time"),
        ('{"role": "user", "content": "x", "session_id": ["s"]}', "session_id must be text"),
        ('{"role": "user", "content": "x", "session_id": "\\ud800"}', "surrogate"),
        ('{"role": "user", "content": "x", "extra": "\\ud800"}', "cannot be stored"),
        ('{"role": "user", "content": "x", "step_index": "two"}', "whole number"),
        ('{"role": "user", "content": "x", "msg_index": 9223372036854775808}', "whole number"),
        ('{"role": "user", "content": "x", "metadata": []}', "metadata must be"),
        ('{"role": "user", "content": "x", "kind": "salvage"}', "reserved"),
        ('{"role": "assistant", "tool_calls": {"id": 1}}', "must be a list"),
        ('{"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}', "name of its tool"),
        ('{"role": "assistant", "tool_calls": ["c"]}', "must be an object"),
        (
            '{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "%%%"}}]}',
            "base64 data is",
        ),
        (
            '{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "AA=="}}]}',
            "media",
        ),
        ('{"role": "user", "content": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (
            '{"messages": [{"role": "user", "content": "ok"}, {"role": "user"}]}',
            "message 2: a message needs content",
        ),
        ('{"messages": [{"role": "user", "content": "ok"}], "timestamp": "soon"}', "is not a time"),
    ],
)
def test_a_malformed_line_is_named_and_the_others_are_read(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(USER) + "\n" + line + "\n" + jsonl(REPLY))
    found = load(path, layout=Format.JSONL)
    ((number, said),) = faults(found)
    assert number == 3
    assert reason in said
    good = [
        piece.draft.content for item in found if isinstance(item, Imported) for piece in item.pieces
    ]
    assert good[0] == "hi"
    assert good[-1] == "hello"


@pytest.mark.parametrize(
    "wrap", [lambda m: m, lambda m: {"title": "x", "messages": m}], ids=["list", "object"]
)
def test_a_bad_message_of_a_document_is_named_by_its_line(tmp_path: Path, wrap: Any) -> None:
    path = tmp_path / "a.json"
    text = json.dumps(wrap([USER, {"role": "user", "body": "x"}, REPLY]), indent=2)
    path.write_text(text)
    lines = text.split("\n")
    opening = (
        next(n for n in range(len(lines)) if '"body"' in lines[n]) - 1
    )  # the brace is two lines above
    assert faults(load(path)) == [(opening, "message 2: a message needs content or tool calls")]


@pytest.mark.parametrize(
    "text",
    [
        "[\n{},\n",
        "[\n{},\n}",
        '{\n"messages": [],\n}',
        '{\n"messages" [], "a": 1}',
        "[\n]\nx",
        '{\n"a": 1,\n',
        "[\n,]",
    ],
)
def test_a_broken_document_is_one_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    ((line, reason),) = faults(load(path, layout=Format.JSON))
    assert "not JSON" in reason
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads(text)
    assert line in {
        error.value.lineno,
        text.count("\n") + 1,
    }  # from 3.13 a comma too many is found on its own line


def test_blank_files_and_empty_lists_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in ("", " \n\n", "[]", '{"messages": []}'):
        path.write_text(text)
        assert load(path) == []
        assert load(path, layout=Format.JSON) == []
