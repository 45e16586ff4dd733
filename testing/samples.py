"""A sample of every format that is imported, written as its program writes it: synthetic, and as
long as asked for.

`SAMPLES` maps the name of a format to a function that writes `turns` turns (a question and its
answer, numbered) below a folder and returns the path to import. Asked again with more turns, it
writes the same file, grown.
"""

import csv
import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Writer = Callable[[Path, int], Path]
CWD = "/home/ada/api"


def lines(path: Path, values: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def at(number: int) -> str:
    return f"2026-03-01T{9 + number // 3600 % 12:02}:{number // 60 % 60:02}:{number % 60:02}.000Z"


def asked(number: int) -> str:
    return f"How high is booth {number}?"


def answered(number: int) -> str:
    return f"Booth {number} is {number} metres high."


def claude_code(folder: Path, turns: int) -> Path:
    def line(number: int, kind: str, text: str) -> dict[str, Any]:
        return {
            "type": kind,
            "uuid": f"u-{number}-{kind}",
            "sessionId": "s-1",
            "cwd": CWD,
            "timestamp": at(number),
            "message": {"role": kind, "content": text},
        }

    return lines(
        folder / "s-1.jsonl",
        [
            line(n, kind, text(n))
            for n in range(turns)
            for kind, text in (("user", asked), ("assistant", answered))
        ],
    )


def codex(folder: Path, turns: int) -> Path:
    def item(number: int, role: str, text: str) -> dict[str, Any]:
        payload = {
            "type": "message",
            "role": role,
            "content": [{"type": "input_text", "text": text}],
        }
        return {"timestamp": at(number), "type": "response_item", "payload": payload}

    meta = {"timestamp": at(0), "type": "session_meta", "payload": {"id": "c-1", "cwd": CWD}}
    return lines(
        folder / "rollout-2026-03-01-c-1.jsonl",
        [
            meta,
            *(
                item(n, role, text(n))
                for n in range(turns)
                for role, text in (("user", asked), ("assistant", answered))
            ),
        ],
    )


def gemini_messages(turns: int) -> list[dict[str, Any]]:
    return [
        message
        for n in range(turns)
        for message in (
            {"id": f"q{n}", "timestamp": at(n), "type": "user", "content": [{"text": asked(n)}]},
            {
                "id": f"a{n}",
                "timestamp": at(n),
                "type": "gemini",
                "content": answered(n),
                "model": "gemini-x",
            },
        )
    ]


GEMINI_HEAD = {
    "sessionId": "gem-1",
    "projectHash": "ab" * 32,
    "startTime": at(0),
    "lastUpdated": at(0),
    "kind": "main",
}


def gemini(folder: Path, turns: int) -> Path:
    return lines(
        folder / "tmp" / "api" / "chats" / "session-1.jsonl", [GEMINI_HEAD, *gemini_messages(turns)]
    )


def gemini_json(folder: Path, turns: int) -> Path:
    path = folder / "tmp" / "api" / "chats" / "session-0.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**GEMINI_HEAD, "messages": gemini_messages(turns)}, indent=2))
    return path


def qwen_code(folder: Path, turns: int) -> Path:
    def line(number: int, kind: str, text: str) -> dict[str, Any]:
        return {
            "type": kind,
            "uuid": f"u-{number}-{kind}",
            "sessionId": "q-1",
            "cwd": CWD,
            "timestamp": at(number),
            "message": {
                "role": "user" if kind == "user" else "model",
                "parts": [{"text": text}],
            },
        }

    return lines(
        folder / "projects" / "-home-ada-api" / "chats" / "q-1.jsonl",
        [
            line(n, kind, text(n))
            for n in range(turns)
            for kind, text in (("user", asked), ("assistant", answered))
        ],
    )


def pi(folder: Path, turns: int) -> Path:
    def entry(number: int, role: str, text: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": f"{number:04}{role[:4]}",
            "timestamp": at(number),
            "message": {"role": role, "content": [{"type": "text", "text": text}]},
        }

    head = {"type": "session", "version": 3, "id": "p-1", "timestamp": at(0), "cwd": CWD}
    return lines(
        folder / "sessions" / "--home-ada-api--" / "2026-03-01_p-1.jsonl",
        [
            head,
            *(
                entry(n, role, text(n))
                for n in range(turns)
                for role, text in (("user", asked), ("assistant", answered))
            ),
        ],
    )


def copilot(folder: Path, turns: int) -> Path:
    def event(number: int, kind: str, **data: Any) -> dict[str, Any]:
        return {"type": kind, "data": data, "id": f"{number}-{kind}", "timestamp": at(number)}

    start = event(0, "session.start", sessionId="g-1", context={"cwd": CWD})
    return lines(
        folder / "session-state" / "g-1" / "events.jsonl",
        [
            start,
            *(
                event(n, kind, content=text(n))
                for n in range(turns)
                for kind, text in (("user.message", asked), ("assistant.message", answered))
            ),
        ],
    )


def database(path: Path, schema: str) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(schema)
    return connection


OPENCODE = """
CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, directory TEXT,
    title TEXT, time_created INTEGER, time_updated INTEGER);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
    time_updated INTEGER, data TEXT);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER,
    data TEXT);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
CREATE TABLE session_message (id TEXT PRIMARY KEY, session_id TEXT, type TEXT, seq INTEGER,
    time_created INTEGER, data TEXT);
"""
EPOCH = 1_772_356_200_000


def opencode(folder: Path, turns: int) -> Path:
    path = folder / "opencode.db"
    store = database(path, OPENCODE)
    store.execute(
        "INSERT INTO session VALUES ('ses_1', 'p', NULL, ?, 'Booths', ?, ?)", [CWD, EPOCH, EPOCH]
    )
    for n in range(turns):
        for number, (role, text) in enumerate((("user", asked(n)), ("assistant", answered(n)))):
            name = f"{n:06}{number}"
            info = {
                "role": role,
                "time": {"created": EPOCH + n, "completed": EPOCH + n},
                "modelID": "m",
            }
            store.execute(
                "INSERT INTO message VALUES (?, 'ses_1', ?, 0, ?)",
                [f"msg_{name}", EPOCH + n, json.dumps(info)],
            )
            part = json.dumps({"type": "text", "text": text})
            store.execute(
                "INSERT INTO part VALUES (?, ?, 'ses_1', 0, ?)",
                [f"prt_{name}", f"msg_{name}", part],
            )
    store.commit()
    store.close()
    return path


def opencode_v2(folder: Path, turns: int) -> Path:
    path = folder / "opencode.db"
    store = database(path, OPENCODE)
    store.execute(
        "INSERT INTO session VALUES ('ses_2', 'p', NULL, ?, 'Booths', ?, ?)", [CWD, EPOCH, EPOCH]
    )
    for n in range(turns):
        rows = [
            ("user", {"text": asked(n), "time": {"created": EPOCH + n}}),
            (
                "assistant",
                {
                    "content": [{"type": "text", "text": answered(n)}],
                    "time": {"created": EPOCH + n, "completed": EPOCH + n},
                },
            ),
        ]
        for number, (kind, data) in enumerate(rows):
            values = [f"m_{n:06}_{number}", kind, 2 * n + number, EPOCH + n, json.dumps(data)]
            store.execute("INSERT INTO session_message VALUES (?, 'ses_2', ?, ?, ?, ?)", values)
    store.commit()
    store.close()
    return path


def cursor(folder: Path, turns: int) -> Path:
    path = folder / "globalStorage" / "state.vscdb"
    store = database(
        path,
        (
            "CREATE TABLE cursorDiskKV (key TEXT UNIQUE, value BLOB); CREATE TABLE ItemTable "
            "(key, value)"
        ),
    )
    headers = []
    for n in range(turns):
        for kind, text in ((1, asked(n)), (2, answered(n))):
            headers.append({"bubbleId": f"b-{n}-{kind}", "type": kind})
            bubble = {
                "type": kind,
                "bubbleId": f"b-{n}-{kind}",
                "text": text,
                "timestamp": EPOCH + n,
                "workspaceProjectDir": CWD,
            }
            store.execute(
                "INSERT INTO cursorDiskKV VALUES (?, ?)",
                [f"bubbleId:t-1:b-{n}-{kind}", json.dumps(bubble)],
            )
    talk = {
        "composerId": "t-1",
        "name": "Booths",
        "createdAt": EPOCH,
        "fullConversationHeadersOnly": headers,
    }
    store.execute(
        "INSERT INTO cursorDiskKV VALUES ('composerData:t-1', ?)", [json.dumps(talk).encode()]
    )
    store.commit()
    store.close()
    return path


def cursor_agent(folder: Path, turns: int) -> Path:
    return lines(
        folder / "agent-transcripts" / "chat-7.jsonl",
        [
            value
            for n in range(turns)
            for value in (
                {"role": "user", "message": {"content": [{"type": "text", "text": asked(n)}]}},
                {
                    "role": "assistant",
                    "message": {"content": [{"type": "text", "text": answered(n)}]},
                },
                {"type": "turn_ended", "status": "success"},
            )
        ],
    )


QWENPAW = """CREATE TABLE conversation_history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, agent_id TEXT,
    kind TEXT NOT NULL, role TEXT, name TEXT, content TEXT, tool_call_id TEXT, tool_input TEXT,
    tool_state TEXT, headline TEXT, blocks TEXT, metadata TEXT, created_at TEXT, dedup_key TEXT)"""
QWENPAW_ROW = """INSERT INTO conversation_history (
    session_id, agent_id, kind, role, name, content, tool_call_id, tool_state, headline, blocks,
    metadata, created_at, dedup_key
    ) VALUES (?, 'paw', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def qwenpaw(folder: Path, turns: int) -> Path:
    path = folder / "history.db"
    store = database(path, QWENPAW)
    for n in range(turns):
        for kind, role, text in (
            ("context_msg", "user", asked(n)),
            ("model_turn", "assistant", answered(n)),
        ):
            values = [
                "w-1",
                kind,
                role,
                None,
                text,
                None,
                None,
                None,
                None,
                "{}",
                at(n),
                f"{role}-{n}",
            ]
            store.execute(QWENPAW_ROW, values)
    store.commit()
    store.close()
    return path


def chatgpt(folder: Path, turns: int) -> Path:
    nodes: dict[str, Any] = {
        "root": {"id": "root", "parent": None, "children": [], "message": None}
    }
    last = "root"
    for n in range(turns):
        for role, text in (("user", asked(n)), ("assistant", answered(n))):
            name = f"{role}-{n}"
            content = {"content_type": "text", "parts": [text]}
            message = {
                "id": name,
                "author": {"role": role},
                "create_time": EPOCH / 1000 + n,
                "content": content,
            }
            nodes[name] = {"id": name, "parent": last, "children": [], "message": message}
            last = name
    path = folder / "conversations.json"
    path.write_text(
        json.dumps(
            [{"title": "Booths", "conversation_id": "g-1", "mapping": nodes, "current_node": last}]
        )
    )
    return path


def slack(folder: Path, turns: int) -> Path:
    root = folder / "team export"
    (root / "general").mkdir(parents=True, exist_ok=True)
    users = [
        {"id": "U1", "name": "ada", "profile": {"display_name": "Ada"}},
        {"id": "U2", "name": "bo", "profile": {}},
    ]
    (root / "users.json").write_text(json.dumps(users))
    (root / "channels.json").write_text(json.dumps([{"id": "C1", "name": "general"}]))
    messages = [
        {"type": "message", "user": user, "text": text, "ts": f"{EPOCH // 1000 + n}.00{user[1]}"}
        for n in range(turns)
        for user, text in (("U1", asked(n)), ("U2", answered(n)))
    ]
    half = len(messages) // 4 * 2
    (root / "general" / "2026-03-01.json").write_text(json.dumps(messages[:half]))
    (root / "general" / "2026-03-02.json").write_text(json.dumps(messages[half:]))
    return root


def whatsapp(folder: Path, turns: int) -> Path:
    path = folder / "WhatsApp Chat with Bo.txt"
    path.write_text(
        "".join(
            f"{13 + n // 40000}/03/26, {n // 3600 % 24:02}:{n // 60 % 60:02} - Ada: {asked(n)}\n"
            f"13/03/26, {n // 3600 % 24:02}:{n // 60 % 60:02} - Bo: {answered(n)}\nand it is red\n"
            for n in range(turns)
        )
    )
    return path


def markdown(folder: Path, turns: int) -> Path:
    path = folder / "booths.md"
    path.write_text(
        "# Booths\n\n"
        + "".join(f"## User\n{asked(n)}\n\n**Assistant:** {answered(n)}\n\n" for n in range(turns))
    )
    return path


def plain_text(folder: Path, turns: int) -> Path:
    path = folder / "booths.txt"
    path.write_text(
        "".join(f"{asked(n)}\nSomebody asked.\n\n{answered(n)}\n\n" for n in range(turns))
    )
    return path


def table(folder: Path, turns: int) -> Path:
    path = folder / "booths.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["Role", "Content", "Timestamp", "colour"])
        for n in range(turns):
            rows.writerow(["human", asked(n), at(n), "red, or\nblue"])
            rows.writerow(["assistant", answered(n), at(n), ""])
    return path


def langchain(folder: Path, turns: int) -> Path:
    path = folder / "chain.json"
    path.write_text(
        json.dumps(
            [
                {
                    "type": kind,
                    "data": {"content": text(n), "id": f"{kind}-{n}", "additional_kwargs": {}},
                }
                for n in range(turns)
                for kind, text in (("human", asked), ("ai", answered))
            ]
        )
    )
    return path


def openai_responses(folder: Path, turns: int) -> Path:
    return lines(
        folder / "items.jsonl",
        [
            {"type": "message", "role": role, "content": [{"type": kind, "text": text(n)}]}
            for n in range(turns)
            for role, kind, text in (
                ("user", "input_text", asked),
                ("assistant", "output_text", answered),
            )
        ],
    )


def messages(folder: Path, turns: int) -> Path:
    return lines(
        folder / "chat.jsonl",
        [
            {"role": role, "content": text(n)}
            for n in range(turns)
            for role, text in (("user", asked), ("assistant", answered))
        ],
    )


def zipped(write: Writer) -> Writer:
    """The same in a zip archive."""

    def write_zip(folder: Path, turns: int) -> Path:
        inner = (
            write(folder / "inner", turns)
            if (folder / "inner").mkdir(exist_ok=True) is None
            else folder
        )
        path = folder / f"{inner.stem}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted([inner] if inner.is_file() else inner.rglob("*.json")):
                archive.write(file, file.relative_to(inner.parent))
        return path

    return write_zip


SAMPLES: dict[str, tuple[Writer, str]] = {
    "messages": (messages, "JSON Lines"),
    "claude-code": (claude_code, "Claude Code transcript"),
    "codex": (codex, "Codex rollout"),
    "gemini": (gemini, "Gemini CLI session"),
    "gemini-json": (gemini_json, "Gemini CLI session"),
    "qwen-code": (qwen_code, "Qwen Code session"),
    "pi": (pi, "Pi session"),
    "copilot": (copilot, "Copilot CLI session"),
    "opencode": (opencode, "opencode database"),
    "opencode-v2": (opencode_v2, "opencode database"),
    "cursor": (cursor, "Cursor database"),
    "cursor-agent": (cursor_agent, "Cursor agent transcript, messages of Cursor"),
    "qwenpaw": (qwenpaw, "QwenPaw history"),
    "chatgpt": (chatgpt, "ChatGPT export"),
    "slack": (slack, "Slack export"),
    "whatsapp": (whatsapp, "WhatsApp chat"),
    "markdown": (markdown, "Markdown"),
    "text": (plain_text, "plain text"),
    "csv": (table, "CSV"),
    "langchain": (langchain, "JSON, messages of LangChain"),
    "openai": (openai_responses, "JSON Lines"),
    "slack.zip": (zipped(slack), "archive: Slack export"),
    "chatgpt.zip": (zipped(chatgpt), "archive: ChatGPT export"),
    "csv.zip": (zipped(table), "archive: CSV"),
}
