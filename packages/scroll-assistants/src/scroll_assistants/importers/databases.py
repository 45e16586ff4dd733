"""Histories that assistants keep in SQLite: opencode, Cursor, QwenPaw.

A database is opened for reading only and may be in use. Each part of a message has a source key
made of the ids in it, so a history that has grown adds only new messages. A reply that is still
being written waits for the next import; it is the last one of its session and has no end. The line
of a fault is the number of the row in reading order.

A reader with a state reads the sessions that changed since the run that left the state, and during
the day before, since replies may end later than the change that their session records. The state
moves when everything was read.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from scroll_assistants.importers.records import Format, fields, identifier, objects, placed
from scroll_assistants.importers.shapes import call, result
from scroll_assistants.project import task_of
from scroll_context.errors import BadInput
from scroll_context.importing import records
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
# The key under which Cursor kept its chats before 2025.
_CHAT_TABS = "workbench.panel.aichat.view.aichat.chatdata"

# In milliseconds.
_MARGIN = 24 * 3600 * 1000
# QwenPaw may change its last rows, so these many are read again.
_ROWS = 1_000

# The bytes that may be read from a database: ROOM, and ROOM_A_BYTE for each byte of its file.
ROOM = 32 << 20
ROOM_A_BYTE = 16
# The most bytes of one value or row.
LONGEST_VALUE = 128 << 20
# The seconds that SQLite may work: SECONDS, and one for each BYTES_A_SECOND of the file.
SECONDS = 30.0
BYTES_A_SECOND = 1 << 20
# The bytes that count for a row besides its texts.
_ROW = 64

Row = dict[str, Any]
Keyed = tuple[str, Row]
"""A message with its key, or with the end of its key."""


class _Message(NamedTuple):
    """A message, its place in a session, and facts about it."""

    session: str
    key: str
    message: Row
    time: Any
    task: str
    about: Row


Rows = Iterator[tuple[str, Iterator[_Message]]]
"""A message or a chat, as its name for faults and the messages that it becomes."""


def read(
    layout: Format, path: Path, labels: Labels, state: Row | None = None
) -> Iterator[RawMessage | Fault]:
    """The messages of a history. A row that cannot be read is a fault."""
    with _opened(path) as database:
        rows = READERS[layout](database, {} if state is None else state, path)
        for number, (where, messages) in enumerate(rows, 1):
            record = RawMessage(number, None, labels, where)
            try:
                for item in messages:
                    yield placed(
                        record,
                        layout,
                        item.message,
                        session=item.session,
                        key=item.key,
                        task=item.task,
                        time=item.time,
                        about=item.about,
                    )
            except (sqlite3.Error, *MALFORMED) as error:
                yield record.fault(error)


def recognise(path: Path) -> Format:
    """The assistant that wrote a database. Raises BadInput if no known assistant did."""
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
    raise BadInput("it is an SQLite database, but not a history of opencode, Cursor or QwenPaw")


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
    """A database of another program, or of a stranger: the size of its file limits the cost of
    reading it.

    A generated column can make gigabytes of a row of a few bytes, and a query over crafted tables
    may not end.
    """

    # The bytes that may still be read, and the seconds that SQLite may still work.
    room = 0
    seconds = 0.0
    until = 0.0

    def limit(self, size: int) -> None:
        self.room = ROOM + ROOM_A_BYTE * size
        self.seconds = SECONDS + size / BYTES_A_SECOND
        self.until = monotonic() + self.seconds
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(LONGEST_VALUE, self.room))
        self.set_progress_handler(lambda: monotonic() > self.until, 10_000)
        self.execute("PRAGMA trusted_schema = OFF")

    def rows(self, sql: str, *values: Any) -> Iterator[Row]:
        """The rows of a query.

        Raises BadInput if they have more text than such a file can contain, or take too long. Only
        the time in which SQLite works counts: the caller does other things between two rows.
        """
        begun = monotonic()
        self.until = begun + self.seconds
        cursor = self.execute(sql, values)
        names = [column[0] for column in cursor.description]
        while (row := cursor.fetchone()) is not None:
            self.seconds -= monotonic() - begun
            self.room -= _ROW + sum(len(value) for value in row if isinstance(value, str | bytes))
            if self.room < 0:
                raise BadInput(
                    "it yields far more text than its file can contain, "
                    "which no history of an assistant does"
                )
            if self.seconds < 0:
                raise BadInput(
                    "it takes far longer to read than a file of its size, which no history does"
                )
            yield dict(zip(names, row, strict=True))
            begun = monotonic()
            self.until = begun + self.seconds


def _tables(database: _Database) -> set[str]:
    """The tables that store their rows: neither views nor virtual tables, whose rows are whatever
    their author computes, by parts of SQLite that seldom meet crafted data.
    """
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    return {name for (name,) in database.execute(sql)}


def _object(text: Any) -> Row:
    """The JSON object in a column. Raises BadInput for anything else."""
    try:
        value = bounded_loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("it is not a JSON object")
    return value


class _Changed:
    """The sessions that a run reads: all, or those that changed since the last run."""

    def __init__(self, state: Row) -> None:
        self._state = state
        self._newest = self._state.get("updated", 0)
        self._since = self._newest - _MARGIN

    def __contains__(self, updated: Any) -> bool:
        if not isinstance(updated, int | float):
            # The session has no time of its last change.
            return True
        self._newest = max(self._newest, updated)
        return bool(updated >= self._since)

    def done(self) -> None:
        self._state["updated"] = self._newest


# opencode -----------------------------------------------------------------------------------------


def _opencode(database: _Database, state: Row, _: Path) -> Rows:
    """Messages with parts, or in newer versions rows with a type and a sequence."""
    changed = _Changed(state)
    tables = _tables(database)
    sessions: dict[str, Row] = {}
    for table in ("session", "session_v2"):
        if table in tables:
            for row in database.rows(f"SELECT * FROM {table} ORDER BY rowid"):
                sessions[str(row["id"])] = row
    for session, about in sessions.items():
        if about.get("time_updated") not in changed:
            continue
        messages: list[Row] = []
        if "message" in tables:
            sql = "SELECT * FROM message WHERE session_id = ? ORDER BY time_created, id"
            messages = list(database.rows(sql, session))
        parts: dict[str, list[Row]] = {str(row["id"]): [] for row in messages}
        if messages and "part" in tables:
            for part in database.rows(_OPENCODE_PARTS, session):
                parts[str(part["message_id"])].append(part)
        for row in messages:
            turns = _opencode_message(row, parts[str(row["id"])], is_last=row is messages[-1])
            yield f"message {row['id']}", _opencode_placed(about, turns)
        if messages or "session_message" not in tables:
            continue
        sql = "SELECT * FROM session_message WHERE session_id = ? ORDER BY rowid"
        rows = list(database.rows(sql, session))
        rows.sort(key=lambda row: row.get("seq") or 0)
        for row in rows:
            turns = _opencode_entry(row, is_last=row is rows[-1])
            yield f"message {row['id']}", _opencode_placed(about, turns)
    changed.done()


_OPENCODE_PARTS = """
    SELECT * FROM part
    WHERE message_id IN (SELECT id FROM message WHERE session_id = ?) ORDER BY id"""


class _Turn(NamedTuple):
    """A message of a session, with its key, its time and facts about it."""

    key: str
    message: Row
    time: Any
    about: Row


def _opencode_placed(session: Row, turns: Iterator[_Turn]) -> Iterator[_Message]:
    """Messages with their place in a session."""
    session_id = str(session["id"])
    task = task_of(records.text(session, "directory"))
    about_session = fields(session, title="title", parent="parent_id")
    for turn in turns:
        key = identifier(turn.key)
        about = turn.about | about_session
        yield _Message(session_id, key, turn.message, turn.time, task, about)


def _opencode_message(row: Row, parts: list[Row], *, is_last: bool) -> Iterator[_Turn]:
    info = _object(row["data"])
    role = records.text(info, "role")
    time = _times(info)
    if is_last and role == "assistant" and not time.get("completed") and not info.get("error"):
        return
    about = fields(info, model="modelID", mode="mode")
    is_summary = info.get("summary") is True
    for part_row in parts:
        part = _object(part_row["data"])
        when = _times(part).get("start") or time.get("created") or row.get("time_created")
        name = str(part_row["id"])
        for key, message in _opencode_part(name, part, role, is_summary=is_summary):
            yield _Turn(key, message, when, about)


def _opencode_entry(row: Row, *, is_last: bool) -> Iterator[_Turn]:
    """A row of the newer table. The parts of a reply have no rows of their own."""
    data = _object(row["data"])
    kind = records.text(row, "type")
    time = _times(data)
    is_unfinished = is_last and not time.get("completed") and not data.get("error")
    if kind == "assistant" and is_unfinished:
        return
    created = time.get("created") or row.get("time_created")
    # If one part cannot be read, the row is a fault and none of its parts is imported.
    for key, message in list(_opencode_contents(str(row["id"]), kind, data)):
        yield _Turn(key, message, created, {})


def _opencode_contents(name: str, kind: str, data: Row) -> Iterator[Keyed]:
    """The messages of a row of the newer table."""
    if kind == "assistant":
        for number, part in enumerate(objects(data, "content")):
            yield from _opencode_part(f"{name}.{number}", part, "assistant", is_summary=False)
    elif kind == "shell":
        shell = records.text(data, "callID") or records.text(data, "shellID") or name
        yield f"{name}.call", call("shell", {"command": data.get("command")}, shell)
        yield f"{name}.result", result(shell, data.get("output"), False)
    elif kind == "compaction":
        summary = records.text(data, "summary")
        yield name, {"role": "system", "content": summary, "kind": COMPACTION}
    elif kind in ("user", "synthetic", "system"):
        message: Row = {"role": "user"} if kind == "user" else {"role": "system", "kind": META}
        message["content"] = records.text(data, "text")
        yield name, message
        for number, file in enumerate(objects(data, "files")):
            yield f"{name}.file.{number}", _file(file, "user")


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
        content = records.text(part, "prompt") or records.json_text(part)
        yield name, {"role": "system", "kind": META, "content": content}


def _opencode_tool(name: str, part: Row) -> Iterator[Keyed]:
    state = part["state"] if isinstance(part.get("state"), dict) else {}
    status = records.text(state, "status")
    if status in ("pending", "streaming"):
        return
    tool = records.text(part, "tool") or records.text(part, "name")
    call_id = records.text(part, "callID") or records.text(part, "id") or name
    yield f"{name}.call", call(tool, state.get("input") or {}, call_id)
    if status in ("completed", "error"):
        output = state.get("error")
        if status == "completed":
            output = state.get("output") or output
        content = state.get("content")
        if not output and isinstance(content, list):
            parts = [part for part in content if isinstance(part, dict)]
            output = [part if "type" in part else {"type": "text", **part} for part in parts]
        yield f"{name}.result", result(call_id, output, status == "error")


def _file(file: Row, role: str) -> Row:
    """A file that was attached to a message: its body if the record has it, else its name."""
    url = records.text(file, "url") or records.text(file, "uri")
    if url.startswith("data:"):
        return {"role": role, "content": [{"type": "image_url", "image_url": {"url": url}}]}
    name = records.text(file, "filename") or records.text(file, "name") or url
    return {"role": role, "content": f"[file: {name}]"}


# Cursor -------------------------------------------------------------------------------------------


def _cursor(database: _Database, state: Row, _: Path) -> Rows:
    """Chats, whose messages are called bubbles.

    A chat lists its bubbles; bubbles that it does not list come at its end.
    """
    changed = _Changed(state)
    tables = _tables(database)
    if "cursorDiskKV" in tables:
        sql = "SELECT key, value FROM cursorDiskKV WHERE key LIKE 'composerData:%'"
        for row in list(database.rows(sql)):
            if row["value"] is None or _updated(row["value"]) not in changed:
                continue
            name = str(row["key"]).removeprefix("composerData:")
            prefix = f"bubbleId:{name}:"
            sql = "SELECT key, value FROM cursorDiskKV WHERE key >= ? AND key < ? ORDER BY rowid"
            bubbles: Row = {}
            for bubble in database.rows(sql, prefix, prefix[:-1] + ";"):
                bubbles[str(bubble["key"]).removeprefix(prefix)] = bubble["value"]
            yield f"chat {name}", _cursor_chat(name, row["value"], bubbles)
    if "ItemTable" in tables:
        for row in database.rows("SELECT value FROM ItemTable WHERE key = ?", _CHAT_TABS):
            yield "chats of the window", _cursor_tabs(row["value"])
    changed.done()


def _updated(value: Any) -> Any:
    """The time of a chat's last change; None if the chat has none or cannot be read."""
    try:
        return _object(value).get("lastUpdatedAt")
    except BadInput:
        return None


def _cursor_chat(chat_id: str, value: Any, stored: Row) -> Iterator[_Message]:
    chat = _object(value)
    headers = objects(chat, "fullConversationHeadersOnly")
    listed = [records.text(header, "bubbleId") for header in headers]
    bubbles: dict[str, Row] = {}
    for bubble in objects(chat, "conversation"):
        bubbles[records.text(bubble, "bubbleId")] = bubble
    for bubble_id in [*listed, *stored]:
        if stored.get(bubble_id) is not None:
            bubbles[bubble_id] = _object(stored[bubble_id])
    order = [*dict.fromkeys([*listed, *bubbles])]
    if records.text(chat, "status") == "generating" and order:
        order.pop()
    folders = filter(None, map(_folder, bubbles.values()))
    task = task_of(next(folders, "") or _folder(chat))
    about = fields(chat, title="name")
    for bubble_id in order:
        if bubble_id in bubbles:
            bubble = bubbles[bubble_id]
            yield from _bubble(chat_id, bubble_id, bubble, chat.get("createdAt"), task, about)


def _cursor_tabs(value: Any) -> Iterator[_Message]:
    for tab in objects(_object(value), "tabs"):
        chat_id = records.text(tab, "tabId")
        if not chat_id:
            continue
        about = fields(tab, title="chatTitle")
        for number, bubble in enumerate(objects(tab, "bubbles")):
            bubble_id = records.text(bubble, "id") or str(number)
            yield from _bubble(chat_id, bubble_id, bubble, tab.get("lastSendTime"), "", about)


def _bubble(
    chat_id: str, bubble_id: str, bubble: Row, chat_time: Any, task: str, about: Row
) -> Iterator[_Message]:
    time = bubble.get("createdAt") or bubble.get("timestamp") or chat_time
    key = f"{identifier(chat_id)}:{identifier(bubble_id)}"
    # If one part cannot be read, the bubble is a fault and none of its parts is imported.
    for ending, message in list(_bubble_messages(bubble, bubble_id)):
        yield _Message(chat_id, key + ending, message, time, task, about)


def _bubble_messages(bubble: Row, bubble_id: str) -> Iterator[Keyed]:
    """The thought, the text, the tool call and its result of a bubble."""
    thinking = bubble.get("thinking")
    thought = records.text(thinking, "text") if isinstance(thinking, dict) else ""
    if thought:
        yield ".thinking", {"role": "assistant", "content": thought, "kind": THINKING}
    text = records.text(bubble, "text") or records.text(bubble, "rawText")
    if text:
        role = "user" if bubble.get("type") in (1, "user") else "assistant"
        yield "", {"role": role, "content": text}
    tool = bubble.get("toolFormerData")
    tool_name = records.text(tool, "name") if isinstance(tool, dict) else ""
    if isinstance(tool, dict) and tool_name:
        call_id = records.text(tool, "toolCallId") or bubble_id
        yield ".call", call(tool_name, tool.get("rawArgs") or tool.get("params") or {}, call_id)
        if tool.get("result") is not None:
            yield ".result", result(call_id, tool["result"], tool.get("status") == "error")


def _folder(value: Row) -> str:
    """The folder of a project that a chat or a message names."""
    folder = records.text(value, "workspaceProjectDir")
    if folder:
        return folder
    workspace = value.get("workspaceIdentifier")
    address = workspace.get("uri") if isinstance(workspace, dict) else None
    return records.text(address, "fsPath") if isinstance(address, dict) else ""


# QwenPaw ------------------------------------------------------------------------------------------


def _qwenpaw(database: _Database, state: Row, path: Path) -> Rows:
    """Rows with nearly the columns of Scroll's own."""
    last = state.get("seq", 0)
    task = task_of(str(path.absolute().parent))
    sql = "SELECT * FROM conversation_history WHERE seq > ? ORDER BY seq"
    for row in database.rows(sql, last - _ROWS):
        last = max(last, row["seq"])
        yield f"row {row.get('seq')}", _qwenpaw_row(row, task)
    state["seq"] = last


def _qwenpaw_row(row: Row, task: str) -> Iterator[_Message]:
    session = records.text(row, "session_id")
    own_key = row.get("dedup_key") or row.get("seq")
    # Each workspace has its own history, and two may have sessions of the same name. So the words
    # are part of the key.
    identity = fingerprint(
        [session, own_key, row.get("created_at"), row.get("kind"), row.get("content")]
    ).hex()[:32]
    about = fields(row, agent="agent_id")
    with contextlib.suppress(BadInput):
        about |= {"metadata": _object(row.get("metadata"))}
    if records.text(row, "kind") == "tool_result":
        failed = records.text(row, "tool_state") in ("error", "failed")
        message = result(row.get("tool_call_id") or "", row.get("content") or "", failed)
        message["name"] = row.get("name")
    else:
        message = _qwenpaw_turn(row, about.get("metadata", {}))
    message["headline"] = row.get("headline")
    yield _Message(session, identity, message, row.get("created_at"), task, about)


def _qwenpaw_turn(row: Row, metadata: Row) -> Row:
    """A row that is not a tool result, with its tool calls."""
    kind = records.text(row, "kind")
    calls = [
        {
            "id": block.get("id"),
            "function": {"name": block.get("name"), "arguments": block.get("input") or {}},
        }
        for block in _blocks(row.get("blocks"))
    ]
    message: Row = {
        "role": records.text(row, "role") or "system",
        "content": row.get("content") or "",
        "tool_calls": calls,
    }
    if kind not in ("context_msg", "model_turn", "conversation", ""):
        message["kind"] = f"qwenpaw_{kind}" if kind in RESERVED_KINDS else kind
    elif any("tag" in str(name) for name in metadata):
        # The program wrote it, not the user.
        message["kind"] = META
    return message


def _blocks(text: Any) -> list[Row]:
    """The tool calls in a row's blocks."""
    try:
        blocks = bounded_loads(text or "[]")
    except (ValueError, TypeError, RecursionError):
        return []
    if not isinstance(blocks, list):
        return []
    return [
        block
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "tool_call" and block.get("name")
    ]


READERS = {Format.OPENCODE: _opencode, Format.CURSOR: _cursor, Format.QWENPAW: _qwenpaw}
