"""Histories that assistants keep in SQLite: opencode, Cursor, QwenPaw.

A database is opened for reading only and may be in use. Each part of a message has a source key made of the ids in it,
so a history that has grown adds what is new. A reply that is still being written waits for the next import; it is known
by being the last of its session without an end. The line of a fault is the number of the row as it was read.

A reader that is given a state reads what was changed since the run that left it there, and a day before that, since
replies may end later than the change that their session records. The state moves when everything was read.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scroll_context.errors import BadInput
from scroll_context.importers import fields
from scroll_context.importers.messages import (
    COMPACTION,
    META,
    RESERVED,
    THINKING,
    Fault,
    Format,
    Found,
    Labels,
    fingerprint,
    placed,
)
from scroll_context.importers.shapes import call
from scroll_context.project import task_of

MAGIC = b"SQLite format 3\x00"
_CHAT_TABS = "workbench.panel.aichat.view.aichat.chatdata"  # where Cursor kept its chats before 2025

_MARGIN = 24 * 3600 * 1000  # milliseconds
_ROWS = 1_000  # of QwenPaw's rows, the last of which may have been changed

Row = dict[str, Any]


def recognise(path: Path) -> Format:
    """Whose database it is; BadInput when it is nobody's that can be read."""
    try:
        with _opened(path) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
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
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    address = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=5.0)) as database:
        yield database


def _rows(database: sqlite3.Connection, sql: str, *values: Any) -> Iterator[Row]:
    found = database.execute(sql, values)
    names = [column[0] for column in found.description]
    for row in found:
        yield dict(zip(names, row, strict=True))


def _object(text: Any) -> dict[str, Any]:
    """A JSON object in a column; BadInput when it is none."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("it is not a JSON object")
    return value


class _Changed:
    """Which sessions a run reads: all, or those that were changed since the last run."""

    def __init__(self, state: Row | None) -> None:
        self._state = {} if state is None else state
        self._since = self._state.get("updated", 0) - _MARGIN
        self._newest = self._state.get("updated", 0)

    def __contains__(self, updated: Any) -> bool:
        if not isinstance(updated, int | float):  # nothing is known of it
            return True
        self._newest = max(self._newest, updated)
        return bool(updated >= self._since)

    def done(self) -> None:
        self._state["updated"] = self._newest


class _Reader:
    """One pass over a database: numbers the rows, and turns what is wrong with one into a fault."""

    def __init__(self, layout: Format, labels: Labels) -> None:
        self.layout = layout
        self.labels = labels
        self.number = 0

    def guarded(self, where: str, messages: Iterator[Found]) -> Iterator[Found | Fault]:
        self.number += 1
        try:
            yield from messages
        except (BadInput, RecursionError, sqlite3.Error) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            yield Fault(self.number, f"{where}: {reason}")

    def placed(self, message: Row, *, session: str, key: str, **more: Any) -> Found:
        return placed(Found(self.number, None, self.labels), self.layout, message, session=session, key=key, **more)


def _result(call_id: str, output: Any, is_error: bool) -> Row:
    state = "error" if is_error else ""
    return {"role": "tool", "content": "" if output is None else output, "tool_call_id": call_id, "tool_state": state}


# opencode ------------------------------------------------------------------------------------------------


def opencode(path: Path, labels: Labels, state: Row | None = None) -> Iterator[Found | Fault]:
    """The sessions of opencode: messages with parts, or in newer versions rows with a type and a sequence."""
    reader, changed = _Opencode(Format.OPENCODE, labels), _Changed(state)
    with _opened(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        sessions: dict[str, Row] = {}
        for table in ("session", "session_v2"):
            if table in tables:
                sessions |= {str(row["id"]): row for row in _rows(database, f"SELECT * FROM {table} ORDER BY rowid")}
        for session, about in sessions.items():
            if about.get("time_updated") not in changed:
                continue
            messages: list[Row] = []
            if "message" in tables:
                sql = "SELECT * FROM message WHERE session_id = ? ORDER BY time_created, id"
                messages = list(_rows(database, sql, session))
            parts: dict[str, list[Row]] = {str(row["id"]): [] for row in messages}
            sql = "SELECT * FROM part WHERE message_id IN (SELECT id FROM message WHERE session_id = ?) ORDER BY id"
            for part in _rows(database, sql, session) if messages else ():
                parts[str(part["message_id"])].append(part)
            for row in messages:
                found = reader.message(row, about, parts[str(row["id"])], is_last=row is messages[-1])
                yield from reader.guarded(f"message {row['id']}", found)
            if messages or "session_message" not in tables:
                continue
            rows = list(_rows(database, "SELECT * FROM session_message WHERE session_id = ? ORDER BY rowid", session))
            rows.sort(key=lambda row: row.get("seq") or 0)
            for row in rows:
                is_last = row is rows[-1]
                yield from reader.guarded(f"message {row['id']}", reader.entry(row, about, is_last=is_last))
    changed.done()


class _Opencode(_Reader):
    def message(self, row: Row, about: Row, parts: list[Row], *, is_last: bool) -> Iterator[Found]:
        info = _object(row["data"])
        role = fields.text(info, "role")
        time = info["time"] if isinstance(info.get("time"), dict) else {}
        if is_last and role == "assistant" and not time.get("completed") and not info.get("error"):
            return
        for part_row in parts:
            part = _object(part_row["data"])
            own = part["time"] if isinstance(part.get("time"), dict) else {}
            when = own.get("start") or time.get("created") or row.get("time_created")
            kept = fields.kept(info, model="modelID", mode="mode")
            kind = COMPACTION if info.get("summary") is True else ""
            yield from self.part(str(part_row["id"]), part, role, about, when, kept, kind)

    def entry(self, row: Row, about: Row, *, is_last: bool) -> Iterator[Found]:
        """A row of the newer table. The parts of a reply have no rows of their own."""
        data, kind, name = _object(row["data"]), fields.text(row, "type"), str(row["id"])
        time = data["time"] if isinstance(data.get("time"), dict) else {}
        when = time.get("created") or row.get("time_created")
        if kind == "assistant":
            if is_last and not time.get("completed") and not data.get("error"):
                return
            for number, part in enumerate(fields.objects(data, "content")):
                yield from self.part(f"{name}.{number}", part, "assistant", about, when, {}, "")
        elif kind == "shell":
            shell = fields.text(data, "callID") or fields.text(data, "shellID") or name
            yield self._said(call("shell", {"command": data.get("command")}, shell), f"{name}.call", about, when)
            yield self._said(_result(shell, data.get("output"), False), f"{name}.result", about, when)
        elif kind == "compaction":
            message = {"role": "system", "content": fields.text(data, "summary"), "kind": COMPACTION}
            yield self._said(message, name, about, when)
        elif kind in ("user", "synthetic", "system"):
            message = {"role": "user" if kind == "user" else "system", "content": fields.text(data, "text")}
            yield self._said(message if kind == "user" else message | {"kind": META}, name, about, when)
            for number, file in enumerate(fields.objects(data, "files")):
                yield self._said(_file(file, "user"), f"{name}.file.{number}", about, when)

    def part(self, name: str, part: Row, role: str, about: Row, when: Any, kept: Row, kind: str) -> Iterator[Found]:
        type_ = fields.text(part, "type")
        if type_ == "text" and fields.text(part, "text"):
            message: Row = {"role": role, "content": part["text"]}
            if kind or part.get("synthetic") or part.get("ignored"):
                message["kind"] = kind or META
            yield self._said(message, name, about, when, kept)
        elif type_ == "reasoning" and fields.text(part, "text"):
            yield self._said({"role": "assistant", "content": part["text"], "kind": THINKING}, name, about, when, kept)
        elif type_ == "tool":
            yield from self._tool(name, part, about, when, kept)
        elif type_ == "file":
            yield self._said(_file(part, role), name, about, when, kept)
        elif type_ in ("subtask", "retry"):
            message = {"role": "system", "kind": META, "content": fields.text(part, "prompt") or fields.json_text(part)}
            yield self._said(message, name, about, when, kept)

    def _tool(self, name: str, part: Row, about: Row, when: Any, kept: Row) -> Iterator[Found]:
        state = part["state"] if isinstance(part.get("state"), dict) else {}
        status = fields.text(state, "status")
        if status in ("pending", "streaming"):
            return
        tool = fields.text(part, "tool") or fields.text(part, "name")
        call_id = fields.text(part, "callID") or fields.text(part, "id") or name
        yield self._said(call(tool, state.get("input") or {}, call_id), f"{name}.call", about, when, kept)
        if status in ("completed", "error"):
            output = state.get("output") or state.get("error") if status == "completed" else state.get("error")
            if not output and isinstance(content := state.get("content"), list):
                output = [one if "type" in one else {"type": "text", **one} for one in content if isinstance(one, dict)]
            result = _result(call_id, output, status == "error")
            yield self._said(result, f"{name}.result", about, when, kept)

    def _said(self, message: Row, key: str, about: Row, when: Any, kept: Row | None = None) -> Found:
        key = fields.identifier({"id": key}, "id")
        task = task_of(fields.text(about, "directory"))
        named = (kept or {}) | fields.kept(about, title="title", parent="parent_id")
        return self.placed(message, session=str(about["id"]), key=key, task=task, time=when, about=named)


def _file(file: Row, role: str) -> Row:
    """A file that was given with a message: its body when that is there, else its name."""
    url = fields.text(file, "url") or fields.text(file, "uri")
    if url.startswith("data:"):
        return {"role": role, "content": [{"type": "image_url", "image_url": {"url": url}}]}
    return {"role": role, "content": f"[file: {fields.text(file, 'filename') or fields.text(file, 'name') or url}]"}


# Cursor --------------------------------------------------------------------------------------------------


def cursor(path: Path, labels: Labels, state: Row | None = None) -> Iterator[Found | Fault]:
    """The chats of Cursor, each message a bubble. A chat lists its bubbles; those that it lost come at its end."""
    reader, changed = _Cursor(Format.CURSOR, labels), _Changed(state)
    with _opened(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "cursorDiskKV" in tables:
            talks = list(_rows(database, "SELECT key, value FROM cursorDiskKV WHERE key LIKE 'composerData:%'"))
            for row in talks:
                if row["value"] is None or _updated(row["value"]) not in changed:
                    continue
                name = str(row["key"]).removeprefix("composerData:")
                sql = "SELECT key, value FROM cursorDiskKV WHERE key >= ? AND key < ? ORDER BY rowid"
                start = f"bubbleId:{name}:"
                bubbles = {str(one["key"]).removeprefix(start): one["value"]
                           for one in _rows(database, sql, start, start[:-1] + ";")}  # fmt: skip
                yield from reader.guarded(f"chat {name}", reader.talk(name, row["value"], bubbles))
        if "ItemTable" in tables:
            for row in _rows(database, "SELECT value FROM ItemTable WHERE key = ?", _CHAT_TABS):
                yield from reader.guarded("chats of the window", reader.tabs(row["value"]))
    changed.done()


def _updated(value: Any) -> Any:
    """When a chat was changed; None when it does not say, or cannot be read."""
    try:
        return _object(value).get("lastUpdatedAt")
    except BadInput:
        return None


class _Cursor(_Reader):
    def talk(self, name: str, value: Any, stored: dict[str, Any]) -> Iterator[Found]:
        talk = _object(value)
        listed = [fields.text(one, "bubbleId") for one in fields.objects(talk, "fullConversationHeadersOnly")]
        bubbles = {fields.text(one, "bubbleId"): one for one in fields.objects(talk, "conversation")}
        bubbles |= {one: _object(stored[one]) for one in [*listed, *stored] if stored.get(one) is not None}
        order = [*dict.fromkeys([*listed, *bubbles])]
        if fields.text(talk, "status") == "generating" and order:
            order.pop()
        task = next((found for one in bubbles.values() if (found := _folder(one))), "") or _folder(talk)
        about = fields.kept(talk, title="name")
        for one in order:
            if one in bubbles:
                yield from self._bubble(name, one, bubbles[one], talk.get("createdAt"), task_of(task), about)

    def _bubble(self, talk: str, name: str, bubble: Row, begun: Any, task: str, about: Row) -> Iterator[Found]:
        time = bubble.get("createdAt") or bubble.get("timestamp") or begun
        key = f"{fields.identifier({'id': talk}, 'id')}:{fields.identifier({'id': name}, 'id')}"
        role = "user" if bubble.get("type") in (1, "user") else "assistant"
        found: list[tuple[str, Row]] = []
        thinking = bubble.get("thinking")
        if isinstance(thinking, dict) and (thought := fields.text(thinking, "text")):
            found.append((".thinking", {"role": "assistant", "content": thought, "kind": THINKING}))
        if text := fields.text(bubble, "text") or fields.text(bubble, "rawText"):
            found.append(("", {"role": role, "content": text}))
        tool = bubble.get("toolFormerData")
        if isinstance(tool, dict) and (called := fields.text(tool, "name")):
            call_id = fields.text(tool, "toolCallId") or name
            found.append((".call", call(called, tool.get("rawArgs") or tool.get("params") or {}, call_id)))
            if tool.get("result") is not None:
                found.append((".result", _result(call_id, tool["result"], tool.get("status") == "error")))
        for ending, message in found:
            yield self.placed(message, session=talk, key=key + ending, task=task, time=time, about=about)

    def tabs(self, value: Any) -> Iterator[Found]:
        for tab in fields.objects(_object(value), "tabs"):
            name = fields.text(tab, "tabId")
            for number, bubble in enumerate(fields.objects(tab, "bubbles") if name else ()):
                about = fields.kept(tab, title="chatTitle")
                own = fields.text(bubble, "id") or str(number)
                yield from self._bubble(name, own, bubble, tab.get("lastSendTime"), "", about)


def _folder(value: Row) -> str:
    """The folder of a project that a chat or a message names."""
    if folder := fields.text(value, "workspaceProjectDir"):
        return folder
    workspace = value.get("workspaceIdentifier")
    address = workspace.get("uri") if isinstance(workspace, dict) else None
    return fields.text(address, "fsPath") if isinstance(address, dict) else ""


# QwenPaw -------------------------------------------------------------------------------------------------


def qwenpaw(path: Path, labels: Labels, state: Row | None = None) -> Iterator[Found | Fault]:
    """The rows of QwenPaw's history, which has nearly the columns of Scroll's own."""
    reader = _Qwenpaw(Format.QWENPAW, labels)
    state = {} if state is None else state
    last = state.get("seq", 0)
    with _opened(path) as database:
        for row in _rows(database, "SELECT * FROM conversation_history WHERE seq > ? ORDER BY seq", last - _ROWS):
            last = max(last, row["seq"])
            yield from reader.guarded(f"row {row.get('seq')}", reader.row(row, path.absolute().parent))
    state["seq"] = last


READERS = {Format.OPENCODE: opencode, Format.CURSOR: cursor, Format.QWENPAW: qwenpaw}


class _Qwenpaw(_Reader):
    def row(self, row: Row, workspace: Path) -> Iterator[Found]:
        session = fields.text(row, "session_id")
        own = row.get("dedup_key") or row.get("seq")
        # Every workspace has a history of its own, and sessions of the same name: the words are part of the key.
        identity = fingerprint([session, own, row.get("created_at"), row.get("kind"), row.get("content")]).hex()[:32]
        kind = fields.text(row, "kind")
        is_result = kind == "tool_result"
        message: Row = {
            "role": "tool" if is_result else fields.text(row, "role") or "system",
            "content": row.get("content") or "",
            "headline": row.get("headline"),
        }
        about = fields.kept(row, agent="agent_id")
        with contextlib.suppress(BadInput):
            about |= {"metadata": _object(row.get("metadata"))}
        if is_result:
            state = fields.text(row, "tool_state")
            message |= {"name": row.get("name"), "tool_call_id": row.get("tool_call_id")}
            message["tool_state"] = "error" if state in ("error", "failed") else ""
        else:
            message["tool_calls"] = [
                {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input") or {}}}
                for block in _blocks(row.get("blocks"))
            ]
            if kind not in ("context_msg", "model_turn", "conversation", ""):
                message["kind"] = f"qwenpaw_{kind}" if kind in RESERVED else kind
            elif any("tag" in str(name) for name in about.get("metadata", ())):  # said by the program, not by the user
                message["kind"] = META
        yield self.placed(
            message, session=session, key=identity, task=task_of(str(workspace)), time=row.get("created_at"),
            about=about,
        )  # fmt: skip


def _blocks(text: Any) -> list[Row]:
    """The tool calls in a row's blocks."""
    try:
        found = json.loads(text or "[]")
    except (ValueError, TypeError, RecursionError):
        return []
    blocks = found if isinstance(found, list) else []
    return [one for one in blocks if isinstance(one, dict) and one.get("type") == "tool_call" and one.get("name")]
