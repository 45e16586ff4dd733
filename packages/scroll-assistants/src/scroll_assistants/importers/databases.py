"""Histories that assistants keep in SQLite: opencode, Cursor, QwenPaw.

A database is opened for reading only and may be in use. Each part of a message has a source key
made of the ids in it, so a history that has grown adds what is new. A reply that is still being
written waits for the next import; it is known by being the last of its session without an end. The
line of a fault is the number of the row as it was read.

A reader that is given a state reads what was changed since the run that left it there, and a day
before that, since replies may end later than the change that their session records. The state moves
when everything was read.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from scroll_assistants.importers.records import Format, placed
from scroll_assistants.project import task_of
from scroll_context.errors import BadInput
from scroll_context.importing import records
from scroll_context.importing.messages import call, result
from scroll_context.importing.records import (
    COMPACTION,
    MALFORMED,
    META,
    THINKING,
    Fault,
    Labels,
    RawMessage,
    fingerprint,
)
from scroll_context.log.foreign import RESERVED_KINDS
from scroll_context.text.json_bounds import bounded_loads

MAGIC = b"SQLite format 3\x00"
_CHAT_TABS = (
    "workbench.panel.aichat.view.aichat.chatdata"  # where Cursor kept its chats before 2025
)

_MARGIN = 24 * 3600 * 1000  # milliseconds
_ROWS = 1_000  # of QwenPaw's rows, the last of which may have been changed

ROOM, ROOM_A_BYTE = (
    32 << 20,
    16,
)  # bytes that may be read of a database: so many, and so many per byte of its file
LONGEST_VALUE = 128 << 20  # bytes of one value or row
SECONDS, BYTES_A_SECOND = (
    30.0,
    1 << 20,
)  # that SQLite may work: so many, and one for so many bytes of the file
_ROW = 64  # bytes that a row takes besides its texts

Row = dict[str, Any]
Keyed = tuple[str, Row]
"""A message, behind its key or the end of it."""


class _Said(NamedTuple):
    """A message, the session that it belongs to, and what is kept about it."""

    session: str
    key: str
    message: Row
    time: Any
    task: str
    about: Row


Rows = Iterator[tuple[str, Iterator[_Said]]]
"""What is read at a time, by a name for faults: a message or a whole chat, as the messages that it
becomes.
"""


def read(
    layout: Format, path: Path, labels: Labels, state: Row | None = None
) -> Iterator[RawMessage | Fault]:
    """The messages of a history. What is wrong with a row is a fault."""
    with _opened(path) as database:
        for number, (where, messages) in enumerate(
            READERS[layout](database, {} if state is None else state, path), 1
        ):
            found = RawMessage(number, None, labels, where)
            try:
                for session, key, message, time, task, about in messages:
                    yield placed(
                        found,
                        layout,
                        message,
                        session=session,
                        key=key,
                        task=task,
                        time=time,
                        about=about,
                    )
            except (sqlite3.Error, *MALFORMED) as error:
                yield found.fault(error)


def recognise(path: Path) -> Format:
    """Whose database it is; BadInput when it is none that can be read."""
    try:
        with _opened(path) as database:
            tables = _tables(database)
    except sqlite3.Error as error:
        raise BadInput(f"it is an SQLite database that cannot be read: {error}") from error
    if "cursorDiskKV" in tables or "ItemTable" in tables:
        return Format.CURSOR
    if "session_message" in tables or {"session", "message", "part"} <= tables:
        return Format.OPENCODE
    if "conversation_history" in tables:
        return Format.QWENPAW
    raise BadInput("it is an SQLite database, and no history of opencode, Cursor or QwenPaw")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator["_Database"]:
    address = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=5.0, factory=_Database)
    with contextlib.closing(connection) as database:
        database.limit(sum(_size(path.with_name(path.name + ending)) for ending in ("", "-wal")))
        yield database


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _Database(sqlite3.Connection):
    """A database of another program, or of a stranger: what reading it may cost depends on the size
    of its file.

    A generated column can make gigabytes of a row of a few bytes, and a query over crafted tables
    may not end.
    """

    room = 0  # bytes that may still be read
    seconds = 0.0  # that SQLite may still work
    until = 0.0

    def limit(self, size: int) -> None:
        self.room = ROOM + ROOM_A_BYTE * size
        self.seconds = SECONDS + size / BYTES_A_SECOND
        self.until = monotonic() + self.seconds
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(LONGEST_VALUE, self.room))
        self.set_progress_handler(lambda: monotonic() > self.until, 10_000)
        self.execute("PRAGMA trusted_schema = OFF")

    def rows(self, sql: str, *values: Any) -> Iterator[Row]:
        """The rows of a query; BadInput when they are more than such a file can hold, or take too
        long.

        Only the time in which SQLite works counts: the caller does other things between two rows.
        """
        begun = monotonic()
        self.until = begun + self.seconds
        found = self.execute(sql, values)
        names = [column[0] for column in found.description]
        while (row := found.fetchone()) is not None:
            self.seconds -= monotonic() - begun
            self.room -= _ROW + sum(len(value) for value in row if isinstance(value, str | bytes))
            if self.room < 0:
                raise BadInput(
                    "it yields far more text than its file can hold, as no history of an assistant does"
                )
            if self.seconds < 0:
                raise BadInput(
                    "it takes far longer to read than a file of its size, as no history does"
                )
            yield dict(zip(names, row, strict=True))
            begun = monotonic()
            self.until = begun + self.seconds


def _tables(database: _Database) -> set[str]:
    """The tables that hold rows of their own: neither views nor virtual tables, whose rows are
    whatever their maker computes, by code of SQLite that seldom meets crafted data.
    """
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    return {name for (name,) in database.execute(sql)}


def _object(text: Any) -> Row:
    """A JSON object in a column; BadInput when it is none."""
    try:
        value = bounded_loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("it is not a JSON object")
    return value


class _Changed:
    """Which sessions a run reads: all, or those that were changed since the last run."""

    def __init__(self, state: Row) -> None:
        self._state = state
        self._newest = self._state.get("updated", 0)
        self._since = self._newest - _MARGIN

    def __contains__(self, updated: Any) -> bool:
        if not isinstance(updated, int | float):  # it does not say
            return True
        self._newest = max(self._newest, updated)
        return bool(updated >= self._since)

    def done(self) -> None:
        self._state["updated"] = self._newest


# opencode ------------------------------------------------------------------------------------------------


def _opencode(database: _Database, state: Row, _: Path) -> Rows:
    """Messages with parts, or in newer versions rows with a type and a sequence."""
    changed = _Changed(state)
    tables = _tables(database)
    sessions: dict[str, Row] = {}
    for table in ("session", "session_v2"):
        if table in tables:
            sessions |= {
                str(row["id"]): row
                for row in database.rows(f"SELECT * FROM {table} ORDER BY rowid")
            }
    for session, about in sessions.items():
        if about.get("time_updated") not in changed:
            continue
        messages: list[Row] = []
        if "message" in tables:
            sql = "SELECT * FROM message WHERE session_id = ? ORDER BY time_created, id"
            messages = list(database.rows(sql, session))
        parts: dict[str, list[Row]] = {str(row["id"]): [] for row in messages}
        sql = "SELECT * FROM part WHERE message_id IN (SELECT id FROM message WHERE session_id = ?) ORDER BY id"
        for part in database.rows(sql, session) if messages and "part" in tables else ():
            parts[str(part["message_id"])].append(part)
        for row in messages:
            said = _opencode_message(row, parts[str(row["id"])], is_last=row is messages[-1])
            yield f"message {row['id']}", _opencode_said(about, said)
        if messages or "session_message" not in tables:
            continue
        rows = list(
            database.rows(
                "SELECT * FROM session_message WHERE session_id = ? ORDER BY rowid", session
            )
        )
        rows.sort(key=lambda row: row.get("seq") or 0)
        for row in rows:
            yield (
                f"message {row['id']}",
                _opencode_said(about, _opencode_entry(row, is_last=row is rows[-1])),
            )
    changed.done()


def _opencode_said(about: Row, said: Iterator[tuple[str, Row, Any, Row]]) -> Iterator[_Said]:
    """Messages of a session, each with its key, its time and what is kept of it."""
    task = task_of(records.text(about, "directory"))
    named = records.fields(about, title="title", parent="parent_id")
    for key, message, time, kept in said:
        yield _Said(str(about["id"]), records.identifier(key), message, time, task, kept | named)


def _opencode_message(
    row: Row, parts: list[Row], *, is_last: bool
) -> Iterator[tuple[str, Row, Any, Row]]:
    info = _object(row["data"])
    role = records.text(info, "role")
    time = _times(info)
    if is_last and role == "assistant" and not time.get("completed") and not info.get("error"):
        return
    kept = records.fields(info, model="modelID", mode="mode")
    for part_row in parts:
        part = _object(part_row["data"])
        when = _times(part).get("start") or time.get("created") or row.get("time_created")
        for key, message in _opencode_part(
            str(part_row["id"]), part, role, is_summary=info.get("summary") is True
        ):
            yield key, message, when, kept


def _opencode_entry(row: Row, *, is_last: bool) -> Iterator[tuple[str, Row, Any, Row]]:
    """A row of the newer table. The parts of a reply have no rows of their own."""
    data, kind, name = _object(row["data"]), records.text(row, "type"), str(row["id"])
    time = _times(data)
    said: list[Keyed] = []
    if kind == "assistant":
        if is_last and not time.get("completed") and not data.get("error"):
            return
        for number, part in enumerate(records.objects(data, "content")):
            said += _opencode_part(f"{name}.{number}", part, "assistant", is_summary=False)
    elif kind == "shell":
        shell = records.text(data, "callID") or records.text(data, "shellID") or name
        said.append((f"{name}.call", call("shell", {"command": data.get("command")}, shell)))
        said.append((f"{name}.result", result(shell, data.get("output"), False)))
    elif kind == "compaction":
        said.append(
            (name, {"role": "system", "content": records.text(data, "summary"), "kind": COMPACTION})
        )
    elif kind in ("user", "synthetic", "system"):
        about = {"role": "user"} if kind == "user" else {"role": "system", "kind": META}
        said.append((name, {**about, "content": records.text(data, "text")}))
        for number, file in enumerate(records.objects(data, "files")):
            said.append((f"{name}.file.{number}", _file(file, "user")))
    for key, message in said:
        yield key, message, time.get("created") or row.get("time_created"), {}


def _times(value: Row) -> Row:
    return value["time"] if isinstance(value.get("time"), dict) else {}


def _opencode_part(name: str, part: Row, role: str, *, is_summary: bool) -> Iterator[Keyed]:
    kind = records.text(part, "type")
    if kind == "text" and records.text(part, "text"):
        message: Row = {"role": role, "content": part["text"]}
        if is_summary or part.get("synthetic") or part.get("ignored"):
            message["kind"] = COMPACTION if is_summary else META
        yield name, message
    elif kind == "reasoning" and records.text(part, "text"):
        yield name, {"role": "assistant", "content": part["text"], "kind": THINKING}
    elif kind == "tool":
        yield from _opencode_tool(name, part)
    elif kind == "file":
        yield name, _file(part, role)
    elif kind in ("subtask", "retry"):
        yield (
            name,
            {
                "role": "system",
                "kind": META,
                "content": records.text(part, "prompt") or records.json_text(part),
            },
        )


def _opencode_tool(name: str, part: Row) -> Iterator[Keyed]:
    state = part["state"] if isinstance(part.get("state"), dict) else {}
    status = records.text(state, "status")
    if status in ("pending", "streaming"):
        return
    tool = records.text(part, "tool") or records.text(part, "name")
    call_id = records.text(part, "callID") or records.text(part, "id") or name
    yield f"{name}.call", call(tool, state.get("input") or {}, call_id)
    if status in ("completed", "error"):
        output = (
            state.get("output") or state.get("error")
            if status == "completed"
            else state.get("error")
        )
        if not output and isinstance(content := state.get("content"), list):
            output = [
                one if "type" in one else {"type": "text", **one}
                for one in content
                if isinstance(one, dict)
            ]
        yield f"{name}.result", result(call_id, output, status == "error")


def _file(file: Row, role: str) -> Row:
    """A file that was given with a message: its body when that is there, else its name."""
    url = records.text(file, "url") or records.text(file, "uri")
    if url.startswith("data:"):
        return {"role": role, "content": [{"type": "image_url", "image_url": {"url": url}}]}
    return {
        "role": role,
        "content": f"[file: {records.text(file, 'filename') or records.text(file, 'name') or url}]",
    }


# Cursor --------------------------------------------------------------------------------------------------


def _cursor(database: _Database, state: Row, _: Path) -> Rows:
    """Chats, each message a bubble.

    A chat lists its bubbles; those that it lost come at its end.
    """
    changed = _Changed(state)
    tables = _tables(database)
    if "cursorDiskKV" in tables:
        talks = list(
            database.rows("SELECT key, value FROM cursorDiskKV WHERE key LIKE 'composerData:%'")
        )
        for row in talks:
            if row["value"] is None or _updated(row["value"]) not in changed:
                continue
            name = str(row["key"]).removeprefix("composerData:")
            sql = "SELECT key, value FROM cursorDiskKV WHERE key >= ? AND key < ? ORDER BY rowid"
            start = f"bubbleId:{name}:"
            found = database.rows(sql, start, start[:-1] + ";")
            bubbles = {str(one["key"]).removeprefix(start): one["value"] for one in found}
            yield f"chat {name}", _cursor_talk(name, row["value"], bubbles)
    if "ItemTable" in tables:
        for row in database.rows("SELECT value FROM ItemTable WHERE key = ?", _CHAT_TABS):
            yield "chats of the window", _cursor_tabs(row["value"])
    changed.done()


def _updated(value: Any) -> Any:
    """When a chat was changed; None when it does not say, or cannot be read."""
    try:
        return _object(value).get("lastUpdatedAt")
    except BadInput:
        return None


def _cursor_talk(name: str, value: Any, stored: Row) -> Iterator[_Said]:
    talk = _object(value)
    listed = [
        records.text(one, "bubbleId")
        for one in records.objects(talk, "fullConversationHeadersOnly")
    ]
    bubbles = {records.text(one, "bubbleId"): one for one in records.objects(talk, "conversation")}
    bubbles |= {
        one: _object(stored[one]) for one in [*listed, *stored] if stored.get(one) is not None
    }
    order = [*dict.fromkeys([*listed, *bubbles])]
    if records.text(talk, "status") == "generating" and order:
        order.pop()
    folder = next((found for one in bubbles.values() if (found := _folder(one))), "") or _folder(
        talk
    )
    task, about = task_of(folder), records.fields(talk, title="name")
    for one in order:
        if one in bubbles:
            yield from _bubble(name, one, bubbles[one], talk.get("createdAt"), task, about)


def _cursor_tabs(value: Any) -> Iterator[_Said]:
    for tab in records.objects(_object(value), "tabs"):
        name = records.text(tab, "tabId")
        for number, bubble in enumerate(records.objects(tab, "bubbles") if name else ()):
            own = records.text(bubble, "id") or str(number)
            yield from _bubble(
                name,
                own,
                bubble,
                tab.get("lastSendTime"),
                "",
                records.fields(tab, title="chatTitle"),
            )


def _bubble(
    talk: str, name: str, bubble: Row, begun: Any, task: str, about: Row
) -> Iterator[_Said]:
    time = bubble.get("createdAt") or bubble.get("timestamp") or begun
    key = f"{records.identifier(talk)}:{records.identifier(name)}"
    role = "user" if bubble.get("type") in (1, "user") else "assistant"
    found: list[Keyed] = []
    thinking = bubble.get("thinking")
    if isinstance(thinking, dict) and (thought := records.text(thinking, "text")):
        found.append((".thinking", {"role": "assistant", "content": thought, "kind": THINKING}))
    if text := records.text(bubble, "text") or records.text(bubble, "rawText"):
        found.append(("", {"role": role, "content": text}))
    tool = bubble.get("toolFormerData")
    if isinstance(tool, dict) and (called := records.text(tool, "name")):
        call_id = records.text(tool, "toolCallId") or name
        found.append(
            (".call", call(called, tool.get("rawArgs") or tool.get("params") or {}, call_id))
        )
        if tool.get("result") is not None:
            found.append(
                (".result", result(call_id, tool["result"], tool.get("status") == "error"))
            )
    for ending, message in found:
        yield _Said(talk, key + ending, message, time, task, about)


def _folder(value: Row) -> str:
    """The folder of a project that a chat or a message names."""
    if folder := records.text(value, "workspaceProjectDir"):
        return folder
    workspace = value.get("workspaceIdentifier")
    address = workspace.get("uri") if isinstance(workspace, dict) else None
    return records.text(address, "fsPath") if isinstance(address, dict) else ""


# QwenPaw -------------------------------------------------------------------------------------------------


def _qwenpaw(database: _Database, state: Row, path: Path) -> Rows:
    """Rows with nearly the columns of Scroll's own."""
    last = state.get("seq", 0)
    task = task_of(str(path.absolute().parent))
    for row in database.rows(
        "SELECT * FROM conversation_history WHERE seq > ? ORDER BY seq", last - _ROWS
    ):
        last = max(last, row["seq"])
        yield f"row {row.get('seq')}", _qwenpaw_row(row, task)
    state["seq"] = last


def _qwenpaw_row(row: Row, task: str) -> Iterator[_Said]:
    session = records.text(row, "session_id")
    own = row.get("dedup_key") or row.get("seq")
    # Every workspace has a history of its own, and sessions of the same name: the words are part of
    # the key.
    identity = fingerprint(
        [session, own, row.get("created_at"), row.get("kind"), row.get("content")]
    ).hex()[:32]
    kind = records.text(row, "kind")
    about = records.fields(row, agent="agent_id")
    with contextlib.suppress(BadInput):
        about |= {"metadata": _object(row.get("metadata"))}
    content = row.get("content") or ""
    if kind == "tool_result":
        failed = records.text(row, "tool_state") in ("error", "failed")
        message = result(row.get("tool_call_id") or "", content, failed) | {"name": row.get("name")}
    else:
        message = {"role": records.text(row, "role") or "system", "content": content}
        message["tool_calls"] = [
            {
                "id": block.get("id"),
                "function": {"name": block.get("name"), "arguments": block.get("input") or {}},
            }
            for block in _blocks(row.get("blocks"))
        ]
        if kind not in ("context_msg", "model_turn", "conversation", ""):
            message["kind"] = f"qwenpaw_{kind}" if kind in RESERVED_KINDS else kind
        elif any(
            "tag" in str(name) for name in about.get("metadata", ())
        ):  # said by the program, not by the user
            message["kind"] = META
    message["headline"] = row.get("headline")
    yield _Said(session, identity, message, row.get("created_at"), task, about)


def _blocks(text: Any) -> list[Row]:
    """The tool calls in a row's blocks."""
    try:
        found = bounded_loads(text or "[]")
    except (ValueError, TypeError, RecursionError):
        return []
    blocks = found if isinstance(found, list) else []
    return [
        one
        for one in blocks
        if isinstance(one, dict) and one.get("type") == "tool_call" and one.get("name")
    ]


READERS = {Format.OPENCODE: _opencode, Format.CURSOR: _cursor, Format.QWENPAW: _qwenpaw}
