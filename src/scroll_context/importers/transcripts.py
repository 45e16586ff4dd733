"""Transcripts of assistants as messages: Claude Code, Codex rollouts, exports of ChatGPT.

Each reader takes the JSON values of a file, in order, and gives messages in the shape that `messages.pieces` reads,
each with a source key made of the ids that the assistant itself gave out. So a transcript that has grown adds what is
new, and a line that a resumed session repeats in a second file is recognised there too.

The assistant becomes the agent, the folder that it worked in becomes the task (project.py), its sessions keep their
ids. A sub-agent's transcript repeats the id of the session that started it, so its session is `SESSION/AGENT`. What
nobody said gets a kind of its own, so that it is not taken for the user's words: `compaction` (a boundary, or the
summary that replaced the past), `meta` (what the assistant's program told the model), `thinking`, and `branch` (turns
of ChatGPT that the user edited or generated again). Calls of Scroll's own MCP tools, and their results, are marked as
echoes: they repeat history that is in the store already.

This module reads no file. Lines that carry no message (snapshots of files, titles, token counts) are passed over;
a message that cannot be read is a Fault with its line.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

from msgspec.structs import replace

from scroll_context.errors import BadInput
from scroll_context.events import IMPORTED
from scroll_context.importers import fields
from scroll_context.importers.messages import Fault, Format, Found, Piece, fingerprint
from scroll_context.project import project_task

THINKING, META, COMPACTION, BRANCH = "thinking", "meta", "compaction", "branch"

_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_OWN_TOOL = re.compile(r"(?:mcp__)?(?:plugin_)?(?:\w+_)?scroll(?:-context)?(?:__|\.|/)(?:search|expand|exec|note)")
_CLAUDE_META = ("<command-name>", "<command-message>", "<local-command-", "<bash-", "<system-reminder>", "Caveat: The ")
_CODEX_META = ("<environment_context>", "<user_instructions>", "<permissions instructions>", "# AGENTS.md instructions")
_CODEX_LINES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})

State = dict[str, Any]
"""What a reader knows of the lines that it has read, as a JSON object; a later run can go on with it."""


def recognise(value: Any) -> Format | None:
    """Which assistant wrote a line; None when the line does not say."""
    if not isinstance(value, dict) or "role" in value:
        return None
    if value.get("type") in ("user", "assistant", "system") and "sessionId" in value and "uuid" in value:
        return Format.CLAUDE_CODE
    if value.get("type") in _CODEX_LINES and isinstance(value.get("payload"), dict) and "timestamp" in value:
        return Format.CODEX
    return None


def messages_of(layout: Format, values: Iterable[Found | Fault], state: State) -> Iterator[Found | Fault]:
    """The messages in the lines of a transcript, or in the conversations of an export; the rest is left out.

    `state` is what a reader must know of the lines before these: {} at the beginning of a file.
    """
    readers: dict[Format, Callable[[Found], Iterator[Found]]] = {
        Format.CLAUDE_CODE: _ClaudeCode(state).read,
        Format.CODEX: _Codex(state).read,
        Format.CHATGPT: _chatgpt,
    }
    for value in values:
        if isinstance(value, Fault):
            yield value
            continue
        try:
            if not isinstance(value.value, dict):
                raise BadInput(f"expected a JSON object, found {type(value.value).__name__}")
            yield from readers[layout](value)
        except (BadInput, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            yield Fault(value.line, f"{value.where}: {reason}" if value.where else reason, value.offset)


def marked(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The events with calls of Scroll's own tools, and their results, marked as echoes."""
    return tuple(
        replace(piece, draft=replace(piece.draft, metadata={**piece.draft.metadata, "echo": True}))
        if piece.draft.tool_call_id and _OWN_TOOL.fullmatch(piece.draft.name)
        else piece
        for piece in pieces
    )


def _identifier(value: dict[str, Any], field: str) -> str:
    """An id that can be part of a source key. One of another shape is replaced by its hash."""
    found = fields.text(value, field)
    return found if not found or _ID.fullmatch(found) else hashlib.sha256(found.encode()).hexdigest()[:32]


@functools.lru_cache(maxsize=256)
def _task_of(folder: str) -> str:
    """The task of a working folder; one of another system is named without asking this one's disk."""
    try:
        if Path(folder).is_absolute():
            return project_task(Path(folder))
    except (OSError, ValueError, RuntimeError):
        pass
    name = re.sub(r"[^\w.-]+", "-", PureWindowsPath(folder).name).strip("-") or "root"
    return f"{name}-{hashlib.sha256(folder.encode('utf-8', 'replace')).hexdigest()[:8]}" if folder else ""


def _kept(value: dict[str, Any], **names: str) -> dict[str, Any]:
    """The fields of a line that are worth keeping, under plain names, without those that say nothing."""
    return {name: value[field] for name, field in names.items() if value.get(field) not in (None, "", False)}


# Claude Code ---------------------------------------------------------------------------------------------


class _ClaudeCode:
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
        if not (uuid := _identifier(line, "uuid")):
            raise BadInput(f"a line of type {kind} needs a uuid")
        session = fields.text(line, "sessionId") or found.labels.session_id
        if session not in self._tasks:
            self._tasks[session] = _task_of(fields.text(line, "cwd"))
        agent = fields.text(line, "agentId")
        about = _kept(
            line, uuid="uuid", parent="parentUuid", logical_parent="logicalParentUuid", git_branch="gitBranch",
            version="version", compaction="compactMetadata", subagent="agentId", sidechain="isSidechain",
        ) | _kept(line.get("message") or {}, message_id="id", model="model")  # fmt: skip
        message |= {
            "session_id": f"{session}/{agent}" if agent else session,
            "agent_id": found.labels.agent_id or "claude-code",
            "task_id": found.labels.task_id or self._tasks[session],
            "timestamp": line.get("timestamp"),
            "metadata": {"claude_code": about},
        }
        yield replace(found, value=message, key=f"{IMPORTED}{Format.CLAUDE_CODE}:{uuid}")

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


class _Codex:
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
        message |= {
            "session_id": session,
            "agent_id": found.labels.agent_id or "codex",
            "task_id": found.labels.task_id or self._state.get("task", ""),
            "timestamp": line.get("timestamp"),
        }
        if about := self._state.get("about"):
            message["metadata"] = {"codex": about}
        name = _identifier({"id": session}, "id")
        key = f"{IMPORTED}{Format.CODEX}:{name}:{identity}.{seen[identity]}"
        yield replace(found, value=message, key=key)

    def _begin(self, meta: dict[str, Any]) -> None:
        """A rollout that continues another repeats the other's first line behind its own: the first one counts."""
        if self._state.get("session"):
            return
        git = meta.get("git")
        self._state |= {
            "session": fields.text(meta, "id"),
            "task": _task_of(fields.text(meta, "cwd")),
            "about": _kept(meta, version="cli_version", originator="originator")
            | (_kept(git, git_branch="branch") if isinstance(git, dict) else {}),
        }


def _codex_item(item: dict[str, Any]) -> dict[str, Any] | None:
    """The message of a response item; None for one that says nothing that can be read."""
    kind = fields.text(item, "type")
    call_id = fields.text(item, "call_id") or fields.text(item, "id")
    if kind == "message":
        content = item.get("content")
        message: dict[str, Any] = {"role": fields.text(item, "role"), "content": content}
        if _opens_with(content, _CODEX_META):
            message["kind"] = META
        return message
    if kind == "reasoning":
        parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
        said = [text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str)]
        return {"role": "assistant", "content": "\n".join(said), "kind": THINKING} if said else None
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") if kind == "function_call" else item.get("input")
        name, space = fields.text(item, "name"), fields.text(item, "namespace")
        return _call(f"{space.removesuffix('__')}__{name}" if space else name, arguments or "", call_id)
    if kind.endswith("_output"):
        output = item.get("output")
        state = ""
        if isinstance(output, dict):
            state = "error" if output.get("success") is False else ""
            output = output.get("content", output)
        return {"role": "tool", "content": output, "tool_call_id": call_id, "tool_state": state}
    if kind.endswith("_call"):  # local_shell_call, web_search_call
        return _call(kind.removesuffix("_call"), item.get("action") or {}, call_id)
    return None


def _call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "function": {"name": name, "arguments": arguments}}],
    }


# ChatGPT -------------------------------------------------------------------------------------------------


def _chatgpt(found: Found) -> Iterator[Found]:
    """The messages of a conversation: the current turns, each followed by the branches that were left there."""
    talk = found.value
    nodes = talk.get("mapping")
    session = fields.text(talk, "conversation_id") or fields.text(talk, "id")
    if not isinstance(nodes, dict) or not session:
        raise BadInput("a conversation of ChatGPT needs an id and a mapping")
    title = fields.text(talk, "title")
    prefix = f"{IMPORTED}{Format.CHATGPT}:{_identifier({'id': session}, 'id')}"
    for name, branch in _in_order(nodes, talk.get("current_node")):
        node = nodes[name]
        message = node.get("message") if isinstance(node, dict) else None
        if not isinstance(message, dict) or (said := _chatgpt_message(message)) is None:
            continue
        if branch and said.get("tool_calls") is None and said["role"] != "tool":
            said["kind"] = BRANCH
        about = {"title": title, "node": name, "parent": node.get("parent"), "branch": branch}
        extra = message.get("metadata")
        said |= {
            "session_id": session,
            "agent_id": found.labels.agent_id or "chatgpt",
            "task_id": found.labels.task_id,
            "timestamp": message.get("create_time") or talk.get("create_time"),
            "metadata": {
                "chatgpt": {field: value for field, value in about.items() if value}
                | (_kept(extra, model="model_slug") if isinstance(extra, dict) else {})
            },
        }
        yield replace(found, value=said, key=f"{prefix}:{_identifier({'id': name}, 'id')}")


def _in_order(nodes: dict[str, Any], current: Any) -> Iterator[tuple[str, str]]:
    """The ids of all nodes, each with the id of the node at which its branch left the current turns (or nothing)."""
    children: dict[str, list[str]] = {name: [] for name in nodes}
    parents: dict[str, str] = {}
    for name, node in nodes.items():
        parent = node.get("parent") if isinstance(node, dict) else None
        if isinstance(parent, str) and parent in nodes:
            parents[name] = parent
            children[parent].append(name)
    if not isinstance(current, str) or current not in nodes:
        current = next(reversed(nodes), "")
    path: list[str] = []
    seen: set[str] = set()
    while current and current not in seen:
        seen.add(current)
        path.append(current)
        current = parents.get(current, "")
    for turn in reversed(path):
        yield turn, ""
        yield from _subtrees([name for name in children[turn] if name not in seen], children, seen)
    yield from _subtrees([name for name in nodes if name not in seen], children, seen)


def _subtrees(tops: list[str], children: dict[str, list[str]], seen: set[str]) -> Iterator[tuple[str, str]]:
    for top in tops:
        waiting = [top]
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                yield name, top
                waiting += reversed(children[name])


def _chatgpt_message(message: dict[str, Any]) -> dict[str, Any] | None:
    """The role, content and kind of a message; None for one that says nothing."""
    author, content = message.get("author"), message.get("content")
    role = fields.text(author, "role") if isinstance(author, dict) else ""
    if not role or not isinstance(author, dict):
        raise BadInput("a message of ChatGPT needs an author with a role")
    if not isinstance(content, dict) or not (said := _chatgpt_text(content)).strip():
        return None
    recipient = fields.text(message, "recipient")
    if role == "assistant" and recipient not in ("", "all"):
        return _call(recipient, said, "")
    found: dict[str, Any] = {"role": role, "content": said}
    if role == "tool":
        found["name"] = fields.text(author, "name")
    kind = content.get("content_type")
    if kind in ("thoughts", "reasoning_recap"):
        found["kind"] = THINKING
    elif kind in ("user_editable_context", "model_editable_context"):
        found["kind"] = META
    return found


def _chatgpt_text(content: dict[str, Any]) -> str:
    parts = content.get("parts")
    if not isinstance(parts, list):
        parts = content.get("thoughts") if isinstance(content.get("thoughts"), list) else [content]
    return "\n".join(text for part in parts or () if (text := _part_text(part)))


def _part_text(part: Any) -> str:
    """What a part says; of an image or a file, where it lies in the export; of an unknown one, its JSON."""
    if isinstance(part, str) or not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    if pointer := part.get("asset_pointer"):
        size = part.get("size_bytes")
        kind = str(part.get("content_type") or "file").removesuffix("_asset_pointer")
        return f"[{kind}: {pointer}, {size:,} bytes]" if isinstance(size, int) else f"[{kind}: {pointer}]"
    texts = [part[field] for field in ("summary", "title", "text", "result", "content") if part.get(field)]
    if texts and all(isinstance(text, str) for text in texts):
        return "\n".join(texts)
    rest = {field: value for field, value in part.items() if field not in ("content_type", "text") and value}
    return json.dumps(rest, ensure_ascii=False) if rest and not {"language"} >= set(rest) else ""
