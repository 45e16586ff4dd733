"""Transcripts of coding assistants as messages: Claude Code, Codex rollouts, sessions of the Gemini CLI.

Each reader takes the JSON values of a file, in order, and gives messages in the shape that `messages.pieces` reads,
each with a source key made of the ids that the assistant itself gave out. So a transcript that has grown adds what is
new, and a line that a resumed session repeats in a second file is recognised there too. What a reader must know of
earlier lines is a JSON object, its state; a later run goes on with it.

The assistant becomes the agent, the folder that it worked in becomes the task (project.py), its sessions keep their
ids. A sub-agent's transcript repeats the id of the session that started it, so its session is `SESSION/AGENT`. What
nobody said gets a kind of its own, so that it is not taken for the user's words: `compaction` (a boundary, or the
summary that replaced the past), `meta` (what the assistant's program told the model), `thinking`.

Lines that carry no message (snapshots of files, titles, token counts) are passed over; a message that cannot be read is
a Fault with its line.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scroll_context.errors import BadInput
from scroll_context.importers import fields
from scroll_context.importers.messages import COMPACTION, META, THINKING, Format, Found, fingerprint, placed
from scroll_context.importers.shapes import call, gemini_parts, response_item
from scroll_context.project import task_of

State = dict[str, Any]
LineReader = Callable[[Found], Iterator[Found]]

_CLAUDE_META = ("<command-name>", "<command-message>", "<local-command-", "<bash-", "<system-reminder>", "Caveat: The ")
_CODEX_META = ("<environment_context>", "<user_instructions>", "<permissions instructions>", "# AGENTS.md instructions")
_CODEX_LINES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})


def recognise(value: Any) -> Format | None:
    """Which assistant wrote a line; None when the line does not say."""
    if not isinstance(value, dict):
        return None
    if value.get("role") in ("user", "assistant") and "content" not in value and isinstance(value.get("message"), dict):
        return Format.CURSOR_AGENT
    if "role" in value:
        return None
    if value.get("type") in ("user", "assistant", "system") and "sessionId" in value and "uuid" in value:
        return Format.CLAUDE_CODE
    if value.get("type") in _CODEX_LINES and isinstance(value.get("payload"), dict) and "timestamp" in value:
        return Format.CODEX
    if "sessionId" in value and ("projectHash" in value or "startTime" in value):
        return Format.GEMINI
    return None


def line_reader(layout: Format, path: Path, state: State) -> LineReader:
    """What turns the lines of a transcript into messages. `state` is {} at the beginning of a file."""
    match layout:
        case Format.CLAUDE_CODE:
            return ClaudeCode(state).read
        case Format.CODEX:
            return Codex(state).read
        case _:
            return Gemini(state, path).read


# Claude Code ---------------------------------------------------------------------------------------------


class ClaudeCode:
    """The lines of one transcript. The first folder that a session names is its project, wherever it goes later."""

    def __init__(self, state: State) -> None:
        self._tasks: dict[str, str] = state.setdefault("tasks", {})

    def read(self, found: Found) -> Iterator[Found]:
        line = found.value
        kind = fields.text(line, "type")
        if kind in ("user", "assistant"):
            if not isinstance(line.get("message"), dict):
                raise BadInput(f"a line of type {kind} needs a message")
            message = self._said(kind, line)
        elif kind == "system" and isinstance(line.get("content"), str):
            is_boundary = line.get("subtype") == "compact_boundary"
            message = {"role": "system", "content": line["content"], "kind": COMPACTION if is_boundary else META}
        else:
            return
        if message is None:
            return
        if not (uuid := fields.identifier(line, "uuid")):
            raise BadInput(f"a line of type {kind} needs a uuid")
        session = fields.text(line, "sessionId") or found.labels.session_id
        if session not in self._tasks:
            self._tasks[session] = task_of(fields.text(line, "cwd"))
        agent = fields.text(line, "agentId")
        about = fields.kept(
            line, uuid="uuid", parent="parentUuid", logical_parent="logicalParentUuid", git_branch="gitBranch",
            version="version", compaction="compactMetadata", subagent="agentId", sidechain="isSidechain",
        ) | fields.kept(line.get("message") or {}, message_id="id", model="model")  # fmt: skip
        yield placed(
            found, Format.CLAUDE_CODE, message, session=f"{session}/{agent}" if agent else session, key=uuid,
            task=self._tasks[session], time=line.get("timestamp"), about=about,
        )  # fmt: skip

    def _said(self, kind: str, line: dict[str, Any]) -> dict[str, Any] | None:
        """The role, content and kind of a line; None for thinking of which only the signature is left."""
        content = line["message"].get("content")
        if content is None:
            raise BadInput(f"a line of type {kind} needs content")
        message: dict[str, Any] = {"role": kind, "content": content}
        if line.get("isCompactSummary"):
            message["kind"] = COMPACTION
        elif kind == "user" and (line.get("isMeta") or _opens_with(content, _CLAUDE_META)):
            message["kind"] = META
        parts = content if isinstance(content, list) else []
        thoughts = [p for p in parts if isinstance(p, dict) and p.get("type") in ("thinking", "redacted_thinking")]
        if not thoughts:
            return message
        said = [thought for p in thoughts if isinstance(thought := p.get("thinking"), str) and thought]
        if len(thoughts) == len(parts):
            return {"role": kind, "content": "\n".join(said), "kind": THINKING} if said else None
        kept = [{"type": "thinking", "thinking": thought} for thought in said]
        return {**message, "content": [*kept, *(p for p in parts if p not in thoughts)]}


def _opens_with(content: Any, openings: tuple[str, ...]) -> bool:
    """Whether all that a message says is written by the assistant's program."""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return bool(texts) and all(isinstance(text, str) and text.lstrip().startswith(openings) for text in texts)
    return isinstance(content, str) and content.lstrip().startswith(openings)


# Codex ---------------------------------------------------------------------------------------------------


class Codex:
    """The lines of one rollout. Items have no ids: a key is the session, the item's hash, and its repetition.

    The hash covers the item's time, so only items of the same time are counted.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def read(self, found: Found) -> Iterator[Found]:
        line, item = found.value, found.value.get("payload")
        kind = fields.text(line, "type")
        if kind not in _CODEX_LINES:
            return
        if not isinstance(item, dict):
            raise BadInput(f"a line of type {kind} needs a payload")
        if kind == "session_meta":
            self._begin(item)
            return
        if kind == "compacted":
            message: dict[str, Any] | None = {
                "role": "system",
                "content": item.get("message") or "",
                "kind": COMPACTION,
            }
        else:
            message = _codex_item(item) if kind == "response_item" else None
        if message is None:
            return
        session = self._state.get("session") or found.labels.session_id
        identity = fingerprint([line.get("timestamp"), item]).hex()[:32]
        if self._state.get("time") != line.get("timestamp"):
            self._state |= {"time": line.get("timestamp"), "seen": {}}
        seen: dict[str, int] = self._state.setdefault("seen", {})
        seen[identity] = seen.get(identity, 0) + 1
        yield placed(
            found, Format.CODEX, message, session=session, task=self._state.get("task", ""),
            time=line.get("timestamp"), about=self._state.get("about"),
            key=f"{fields.identifier({'id': session}, 'id')}:{identity}.{seen[identity]}",
        )  # fmt: skip

    def _begin(self, meta: dict[str, Any]) -> None:
        """A rollout that continues another repeats the other's first line behind its own: the first one counts."""
        if self._state.get("session"):
            return
        git = meta.get("git")
        self._state |= {
            "session": fields.text(meta, "id"),
            "task": task_of(fields.text(meta, "cwd")),
            "about": fields.kept(meta, version="cli_version", originator="originator")
            | (fields.kept(git, git_branch="branch") if isinstance(git, dict) else {}),
        }


def _codex_item(item: dict[str, Any]) -> dict[str, Any] | None:
    message = response_item(item)
    is_meta = item.get("role") == "developer" or _opens_with(item.get("content"), _CODEX_META)
    if message is not None and item.get("type") == "message" and is_meta:
        message["kind"] = META
    return message


# Gemini CLI ----------------------------------------------------------------------------------------------


class Gemini:
    """The lines of one session, or the one object of an older file.

    A message is written again under its id when its calls have ended, so each part has a key of its own: what is there
    already is recognised, what is new is added. Messages that the user took back (`$rewindTo`) stay, and an event says
    so where it happened.
    """

    def __init__(self, state: State, path: Path) -> None:
        self._state = state
        self._path = path

    def read(self, found: Found) -> Iterator[Found]:
        line = found.value
        changes = line.get("$set")
        if "sessionId" in line or isinstance(changes, dict):
            about: dict[str, Any] = line if "sessionId" in line else line["$set"]
            self._begin(about)
            for message in fields.objects(about, "messages"):
                yield from self._message(found, message)
        elif "$rewindTo" in line:
            back = fields.identifier(line, "$rewindTo")
            text = f"[the user went back to the message {back}: what came after it was taken back]"
            number = self._state["rewinds"] = self._state.get("rewinds", 0) + 1
            message = {"role": "system", "content": text, "kind": META}
            yield self._placed(found, message, f"{back}.rewound.{number}", None)
        elif "type" in line:
            yield from self._message(found, line)

    def _begin(self, about: dict[str, Any]) -> None:
        if session := fields.text(about, "sessionId"):
            self._state["session"] = session
            self._state.setdefault("task", self._task(about))

    def _task(self, about: dict[str, Any]) -> str:
        """The project: the folder that the file's own folder names, else the hash of it that Gemini keeps."""
        for parent in list(self._path.parents)[:4]:
            try:
                return task_of((parent / ".project_root").read_text().strip())
            except (OSError, ValueError):
                continue
        project = fields.text(about, "projectHash")
        return f"project-{project[:8]}" if project else ""

    def _message(self, found: Found, record: dict[str, Any]) -> Iterator[Found]:
        kind = fields.text(record, "type")
        time = record.get("timestamp")
        if not (name := fields.identifier(record, "id")):
            raise BadInput("a message of Gemini needs an id")
        if kind not in ("user", "gemini", "model"):
            content = gemini_parts(record.get("content"))
            yield self._placed(found, {"role": "system", "content": content, "kind": META}, name, time)
            return
        for thought in fields.objects(record, "thoughts"):
            if said := fields.text(thought, "description"):
                text = f"{subject}: {said}" if (subject := fields.text(thought, "subject")) else said
                key = f"{name}.{fingerprint(text).hex()[:12]}"
                yield self._placed(found, {"role": "assistant", "content": text, "kind": THINKING}, key, time)
        role = "user" if kind == "user" else "assistant"
        given = record.get("content")
        if isinstance(given, list):  # results of tools come once more in the user's name: the call has them
            given = [part for part in given if not (isinstance(part, dict) and "functionResponse" in part)]
        if content := gemini_parts(given):
            key = f"{name}.{fingerprint(content).hex()[:12]}"
            message: dict[str, Any] = {"role": role, "content": content}
            if role == "user" and isinstance(content, str) and content.startswith("<session_context>"):
                message["kind"] = META
            yield self._placed(found, message, key, time, fields.kept(record, model="model"))
        for one in fields.objects(record, "toolCalls"):
            if not fields.text(one, "name"):
                raise BadInput("a tool call of Gemini needs a name")
            call_id = fields.text(one, "id") or f"{name}.{fields.text(one, 'name')}"
            key = f"{name}.{fields.identifier({'id': call_id}, 'id')}"
            made = call(fields.text(one, "name"), one.get("args") or {}, call_id)
            yield self._placed(found, made, f"{key}.call", time)
            if one.get("result") is not None:
                state = "error" if one.get("status") == "error" else ""
                result = {"role": "tool", "content": gemini_parts(one["result"]), "tool_call_id": call_id,
                          "tool_state": state}  # fmt: skip
                yield self._placed(found, result, f"{key}.result", one.get("timestamp") or time)

    def _placed(
        self, found: Found, message: dict[str, Any], key: str, time: Any, about: dict[str, Any] | None = None
    ) -> Found:
        session = self._state.get("session") or found.labels.session_id
        whole = f"{fields.identifier({'id': session}, 'id')}:{key}"
        return placed(
            found, Format.GEMINI, message, session=session, key=whole, task=self._state.get("task", ""),
            time=time, about=about,
        )  # fmt: skip
