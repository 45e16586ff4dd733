"""Histories of Gemini, opencode, Cursor and QwenPaw: every oddity of them that is known."""

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from samples import (
    CWD,
    EPOCH,
    GEMINI_HEAD,
    OPENCODE,
    QWENPAW,
    QWENPAW_ROW,
    at,
    cursor_agent,
    database,
    lines,
)
from scroll_assistants.importers.capture import capture
from scroll_assistants.project import project_task
from scroll_context.errors import BadInput, UnreadableMessages
from scroll_context.importing.run import import_file
from scroll_context.store import Store

TASK = project_task(Path(CWD))
PIXEL = "iVBORw0KGgo="


def shown(store: Store, after: int = 0) -> list[tuple[str, str, str, str]]:
    return [
        (event.kind, event.role, event.name, event.content)
        for event in store.log.iterate(after=after)
    ]


# Gemini -------------------------------------------------------------------------------------------------


def gemini(number: int, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": f"m{number}", "timestamp": at(number), "type": kind, "content": content, **more}


ANSWER = [
    {"functionResponse": {"id": "r1", "name": "read_file", "response": {"output": "a red barrier"}}}
]
CALL = {
    "id": "r1",
    "name": "read_file",
    "args": {"path": "barrier.py"},
    "status": "success",
    "timestamp": at(4),
}


def test_a_gemini_session_with_calls_thoughts_and_a_rewind(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "tmp" / "abc" / "chats" / "session-1.jsonl"
    picture = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    lines(
        path,
        [
            GEMINI_HEAD,
            gemini(0, "info", "Update available"),
            gemini(1, "user", [{"text": "Look at the barrier"}, picture]),
            gemini(
                2,
                "gemini",
                "",
                thoughts=[{"subject": "Plan", "description": "read it", "timestamp": at(2)}],
            ),
            gemini(
                2,
                "gemini",
                "",
                thoughts=[{"subject": "Plan", "description": "read it", "timestamp": at(2)}],
                toolCalls=[CALL],
            ),
            gemini(2, "gemini", "", toolCalls=[CALL | {"result": ANSWER}], tokens={"input": 1}),
            gemini(3, "gemini", [{"text": "It is red."}], model="gemini-x"),
            {"$set": {"lastUpdated": at(9)}},
            {"$rewindTo": "m3"},
            gemini(4, "model", "It is blue."),
            {
                "$set": {
                    "messages": [gemini(4, "model", "It is blue."), gemini(5, "user", "Thanks")]
                }
            },
        ],
    )
    (path.parent.parent / ".project_root").write_text(f"{CWD}\n")
    report = import_file(store, path, mine=True)
    assert (report.format, report.bad) == ("Gemini CLI session", 0)
    assert report.added == store.log.last_seq(), "parts that are written again are counted once"
    rewound = next(event for event in store.log.iterate() if "went back" in event.content)
    assert rewound.created_at == "2026-03-01T09:00:03+00:00", "it has no time of its own"
    assert shown(store) == [
        ("meta", "system", "", "Update available"),
        ("conversation", "user", "", "Look at the barrier"),
        ("conversation", "user", "", "[image/png, 8 bytes]"),
        ("thinking", "assistant", "", "Plan: read it"),
        ("tool_call", "assistant", "read_file", '{"path": "barrier.py"}'),
        ("tool_result", "tool", "read_file", "a red barrier"),
        ("conversation", "assistant", "", "It is red."),
        (
            "meta",
            "system",
            "",
            "[the user went back to the message m3: what came after it was taken back]",
        ),
        ("conversation", "assistant", "", "It is blue."),
        ("conversation", "user", "", "Thanks"),
    ]
    assert {(event.session_id, event.agent_id, event.task_id) for event in store.log.iterate()} == {
        ("gem-1", "gemini", TASK)
    }
    whole = tmp_path / "session-0.json"  # the older layout of the same session
    whole.write_text(
        json.dumps({**GEMINI_HEAD, "messages": [gemini(5, "user", "Thanks")]}, indent=1)
    )
    assert import_file(store, whole).added == 0


def test_a_gemini_line_that_cannot_be_read_is_named(store: Store, tmp_path: Path) -> None:
    bad = [
        GEMINI_HEAD,
        gemini(1, "user", "hi"),
        {"type": "user", "content": "no id"},
        gemini(2, "user", {"a": 1}),
    ]
    with pytest.raises(UnreadableMessages) as raised:
        import_file(store, lines(tmp_path / "s.jsonl", [*bad, gemini(3, "user", [7])]))
    assert [line for line, _ in raised.value.faults] == [3, 5]


# opencode -----------------------------------------------------------------------------------------------


def opencode(path: Path, messages: list[tuple[str, dict[str, Any], list[dict[str, Any]]]]) -> Path:
    with sqlite3.connect(path) if path.exists() else database(path, OPENCODE) as store:
        store.execute(
            "INSERT OR IGNORE INTO session VALUES ('ses_1', 'p', NULL, ?, 'Booths', 0, 0)", [CWD]
        )
        for name, info, parts in messages:
            store.execute(
                "INSERT OR REPLACE INTO message VALUES (?, 'ses_1', ?, 0, ?)",
                [name, EPOCH + int(name[-1]), json.dumps(info)],
            )
            for number, part in enumerate(parts):
                values = [f"p_{name}_{number}", name, json.dumps(part)]
                store.execute("INSERT OR REPLACE INTO part VALUES (?, ?, 'ses_1', 0, ?)", values)
    store.close()
    return path


DONE = {"created": EPOCH, "completed": EPOCH + 5}


def tool(status: str, **state: Any) -> dict[str, Any]:
    return {
        "type": "tool",
        "tool": "bash",
        "callID": "call_1",
        "state": {"status": status, "input": {"x": 1}, **state},
    }


def test_an_opencode_database_with_every_kind_of_part(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    asked = (
        "m_1",
        {"role": "user", "time": {"created": EPOCH}},
        [
            {"type": "text", "text": "Count the lamps"},
            {"type": "text", "text": "<file>", "synthetic": True},
            {"type": "file", "mime": "image/png", "url": f"data:image/png;base64,{PIXEL}"},
            {
                "type": "file",
                "mime": "text/plain",
                "filename": "lamps.txt",
                "url": "file:///lamps.txt",
            },
        ],
    )
    running = ("m_2", {"role": "assistant", "time": {"created": EPOCH}}, [tool("running")])
    opencode(path, [asked, running])
    assert import_file(store, path, mine=True).added == 4  # the reply is being written, and waits
    reply = (
        "m_2",
        {"role": "assistant", "time": DONE, "modelID": "m"},
        [
            tool("completed", output="3 lamps"),
            {"type": "step-start"},
            {"type": "reasoning", "text": "simple"},
            {"type": "text", "text": "Three."},
            {"type": "tool", "tool": "edit", "callID": "c2", "state": {"status": "pending"}},
            {
                "type": "tool",
                "tool": "edit",
                "callID": "c3",
                "state": {"status": "error", "input": {}, "error": "no"},
            },
            {"type": "patch", "files": []},
        ],
    )
    summary = (
        "m_3",
        {"role": "assistant", "time": DONE, "summary": True},
        [{"type": "text", "text": "Lamps: 3"}],
    )
    cut = (
        "m_4",
        {"role": "assistant", "time": {"created": EPOCH}},
        [{"type": "text", "text": "I was inter"}],
    )
    opencode(
        path,
        [
            reply,
            summary,
            cut,
            ("m_5", {"role": "user", "time": {}}, [{"type": "text", "text": "Go on"}]),
        ],
    )
    report = import_file(store, path, mine=True)
    assert (report.format, report.known, report.bad) == ("opencode database", 4, 0)
    assert shown(store) == [
        ("conversation", "user", "", "Count the lamps"),
        ("meta", "system", "", "<file>"),
        ("conversation", "user", "", "[image/png, 8 bytes]"),
        ("conversation", "user", "", "[file: lamps.txt]"),
        ("tool_call", "assistant", "bash", '{"x": 1}'),
        ("tool_result", "tool", "bash", "3 lamps"),
        ("thinking", "assistant", "", "simple"),
        ("conversation", "assistant", "", "Three."),
        ("tool_call", "assistant", "edit", "{}"),
        ("tool_result", "tool", "edit", "no"),
        ("compaction", "assistant", "", "Lamps: 3"),
        ("conversation", "assistant", "", "I was inter"),
        ("conversation", "user", "", "Go on"),
    ]
    assert {event.task_id for event in store.log.iterate()} == {TASK}
    assert store.log.get(10).tool_state == "error" and store.log.get(1).created_at.startswith(
        "2026-03-01"
    )


def test_the_newer_table_of_opencode(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    with database(path, OPENCODE) as base:
        base.execute("INSERT INTO session VALUES ('ses_2', 'p', NULL, ?, 'Booths', 0, 0)", [CWD])
        state = {
            "status": "completed",
            "input": {"a": 1},
            "content": [{"type": "text", "text": "out"}],
        }
        rows: list[tuple[str, dict[str, Any]]] = [
            ("model-switched", {"model": "m"}),
            (
                "user",
                {
                    "text": "Count",
                    "time": {"created": EPOCH},
                    "files": [{"uri": "file:///a", "name": "a.txt"}],
                },
            ),
            (
                "assistant",
                {
                    "time": DONE,
                    "content": [
                        {"type": "reasoning", "id": "r", "text": "hm"},
                        {"type": "tool", "id": "t1", "name": "read", "state": state},
                        {"type": "text", "text": "3"},
                    ],
                },
            ),
            ("shell", {"callID": "s1", "command": "ls", "output": "lamps"}),
            ("synthetic", {"text": "The file changed."}),
            ("compaction", {"summary": "All counted.", "reason": "auto"}),
            (
                "assistant",
                {"time": {"created": EPOCH}, "content": [{"type": "text", "text": "I am sti"}]},
            ),
        ]
        for number, (kind, data) in enumerate(rows):
            values = [
                f"x{9 - number}",
                kind,
                number,
                json.dumps(data),
            ]  # ids do not say the order: seq does
            base.execute("INSERT INTO session_message VALUES (?, 'ses_2', ?, ?, 0, ?)", values)
    base.close()
    import_file(store, path)
    assert [one[0] + " " + one[3] for one in shown(store)] == [
        "conversation Count",
        "conversation [file: a.txt]",
        "thinking hm",
        'tool_call {"a": 1}',
        "tool_result out",
        "conversation 3",
        'tool_call {"command": "ls"}',
        "tool_result lamps",
        "meta The file changed.",
        "compaction All counted.",
    ]


def test_a_damaged_row_is_named_and_the_others_are_read(store: Store, tmp_path: Path) -> None:
    path = opencode(
        tmp_path / "o.db",
        [(f"m_{n}", {"role": "user"}, [{"type": "text", "text": f"t{n}"}]) for n in (1, 2)],
    )
    with sqlite3.connect(path) as base:
        base.execute("UPDATE message SET data = '{torn' WHERE id = 'm_1'")
    base.close()
    with pytest.raises(UnreadableMessages, match=r"o\.db:1: message m_1: it is not a JSON object"):
        import_file(store, path)
    assert import_file(store, path, skip_bad=True).added == 1


def test_of_a_database_only_the_sessions_that_changed_are_read_again(
    store: Store, tmp_path: Path
) -> None:
    path = opencode(
        tmp_path / "o.db", [("m_1", {"role": "user"}, [{"type": "text", "text": "old"}])]
    )
    day = 24 * 3600 * 1000
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE session SET time_updated = ?", [EPOCH])
        base.execute(
            "INSERT INTO session VALUES ('ses_2', 'p', NULL, ?, 'New', 0, ?)",
            [CWD, EPOCH + 2 * day],
        )
    assert capture(store, path).added == 1
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE message SET data = '{torn'")  # nobody looks
        base.execute("INSERT INTO message VALUES ('m_2', 'ses_2', 1, 0, '{\"role\": \"user\"}')")
        base.execute(
            "INSERT INTO part VALUES ('p_2', 'm_2', 'ses_2', 0, '{\"type\": \"text\", \"text\": \"new\"}')"
        )
        base.execute(
            "UPDATE session SET time_updated = ? WHERE id = 'ses_2'", [EPOCH + 2 * day + 1]
        )
    report = capture(store, path)
    assert (report.added, report.known, report.bad) == (1, 0, 0)
    shutil.copy(path, tmp_path / "copy.db")
    (tmp_path / "copy.db").replace(path)  # another file of the same name is read from its beginning
    assert (report := capture(store, path)).bad == 1 and report.known == 1


# Cursor -------------------------------------------------------------------------------------------------


def test_a_cursor_database_old_and_new(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "state.vscdb"
    call = {
        "name": "read_file",
        "toolCallId": "k1",
        "rawArgs": '{"f": 1}',
        "result": "text",
        "status": "completed",
    }
    bubbles = {
        "b1": {
            "type": 1,
            "text": "Why is it stale?",
            "createdAt": at(1),
            "workspaceProjectDir": CWD,
        },
        "b2": {"type": 2, "text": "", "thinking": {"text": "cache"}, "toolFormerData": call},
        "b3": {"type": 2, "rawText": "The key lacks the locale.", "timestamp": EPOCH},
        "lost": {"type": 1, "text": "a bubble that its chat has lost"},
    }
    new = {
        "composerId": "c-1",
        "name": "Cache",
        "createdAt": EPOCH,
        "fullConversationHeadersOnly": [{"bubbleId": one} for one in ("b1", "b2", "b3", "gone")],
    }
    old = {
        "composerId": "c-0",
        "conversation": [
            {"bubbleId": "i1", "type": 1, "text": "inline"},
            {"bubbleId": "i2", "type": 2, "text": "being writ"},
        ],
        "status": "generating",
        "workspaceIdentifier": {"uri": {"fsPath": CWD}},
    }
    tabs = {
        "tabs": [
            {
                "tabId": "t-1",
                "chatTitle": "Older",
                "bubbles": [
                    {"type": "user", "id": "x", "text": "Oldest"},
                    {"type": "ai", "rawText": "Yes"},
                ],
            }
        ]
    }
    with database(
        path,
        "CREATE TABLE cursorDiskKV (key TEXT, value BLOB); CREATE TABLE ItemTable (key, value)",
    ) as base:
        pairs = [
            ("composerData:c-0", json.dumps(old)),
            ("composerData:c-1", json.dumps(new).encode()),
            ("composerData:none", None),
            ("bubbleId:c-1:null", None),
            ("other", "{"),
        ]
        base.executemany("INSERT INTO cursorDiskKV VALUES (?, ?)", pairs)
        for name, bubble in bubbles.items():
            base.execute(
                "INSERT INTO cursorDiskKV VALUES (?, ?)",
                [f"bubbleId:c-1:{name}", json.dumps(bubble)],
            )
        key = "workbench.panel.aichat.view.aichat.chatdata"
        base.execute("INSERT INTO ItemTable VALUES (?, ?)", [key, json.dumps(tabs)])
    base.close()
    assert import_file(store, path, mine=True).bad == 0
    assert [(event.session_id, event.role, event.content) for event in store.log.iterate()] == [
        ("c-0", "user", "inline"),
        ("c-1", "user", "Why is it stale?"),
        ("c-1", "assistant", "cache"),
        ("c-1", "assistant", '{"f": 1}'),
        ("c-1", "tool", "text"),
        ("c-1", "assistant", "The key lacks the locale."),
        ("c-1", "user", "a bubble that its chat has lost"),
        ("t-1", "user", "Oldest"),
        ("t-1", "assistant", "Yes"),
    ]
    assert {event.task_id for event in store.log.iterate() if event.session_id != "t-1"} == {TASK}


def test_a_transcript_of_cursors_command_line_belongs_to_its_project(
    store: Store, tmp_path: Path
) -> None:
    path = cursor_agent(tmp_path / "usr-lib", 1)
    import_file(store, path, mine=True)
    gone = cursor_agent(tmp_path / "no-such-project", 2)
    import_file(store, gone, session_id="gone", mine=True)
    assert [event.task_id for event in store.log.iterate()] == [
        project_task(Path("/usr/lib"))
    ] * 2 + ["no-such-project"] * 4


# QwenPaw ------------------------------------------------------------------------------------------------


def test_a_qwenpaw_history_and_another_of_the_same_names(store: Store, tmp_path: Path) -> None:
    blocks = json.dumps(
        [
            {"type": "thinking", "thinking": "hm"},
            {"type": "tool_call", "id": "t1", "name": "sh", "input": "{}"},
            {"type": "tool_call", "id": "t2", "name": "ls", "input": {"a": 1}},
        ]
    )
    rows: list[list[Any]] = [
        ["d", "context_msg", "user", None, "Count", None, None, None, None, "{}", at(1), "k1"],
        [
            "d",
            "context_msg",
            "user",
            None,
            "[folded]",
            None,
            None,
            None,
            None,
            '{"message_tag": "stub"}',
            at(1),
            "k2",
        ],
        [
            "d",
            "model_turn",
            "assistant",
            "ls",
            "I look.",
            "t2",
            None,
            "counting lamps",
            blocks,
            None,
            at(2),
            "k3",
        ],
        ["d", "tool_result", "assistant", "sh", "3", "t1", "error", None, "[]", "{}", at(3), None],
        ["d", "snapshot", "system", None, "theirs", None, None, None, None, "{}", at(4), None],
    ]
    for name, count in (("one", 5), ("two", 1)):
        with database(tmp_path / name / "history.db", QWENPAW) as base:
            base.executemany(
                QWENPAW_ROW, [[*row[:4], f"{row[4]} {name}", *row[5:]] for row in rows[:count]]
            )
        base.close()
    import_file(store, tmp_path / "one" / "history.db")
    assert shown(store) == [
        ("conversation", "user", "", "Count one"),
        ("meta", "system", "", "[folded] one"),
        ("conversation", "assistant", "", "I look. one"),
        ("tool_call", "assistant", "sh", "{}"),
        ("tool_call", "assistant", "ls", '{"a": 1}'),
        ("tool_result", "tool", "sh", "3 one"),
        ("qwenpaw_snapshot", "system", "", "theirs one"),
    ]
    assert store.log.get(3).headline == "counting lamps" and store.log.get(6).tool_state == "error"
    assert (
        import_file(store, tmp_path / "two" / "history.db").added == 1
    )  # the same session and key, other words


def test_a_database_of_another_program_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    database(tmp_path / "x.db", "CREATE TABLE songs (id)").close()
    with pytest.raises(BadInput, match="not a history of opencode, Cursor or QwenPaw"):
        import_file(store, tmp_path / "x.db")
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\x00" + b"\x07" * 4_000)
    with pytest.raises(BadInput, match="cannot be read"):
        import_file(store, tmp_path / "torn.db")
