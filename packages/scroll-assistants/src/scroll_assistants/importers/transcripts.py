"""Transcripts of coding assistants as messages: Codex rollouts, and sessions of the Gemini CLI and
of Qwen Code, which writes Gemini's parts.

claude_code.py, pi.py and copilot.py read those of other assistants, in the same way.

Each reader takes the JSON values of a file, in order, and yields messages in the shape that
`messages.pieces` reads, each with a source key made of the ids that the assistant itself issued. So
a transcript that has grown adds only new messages, and a line that a resumed session repeats in a
second file is recognised there too. A reader keeps what it must remember of earlier lines in its
state, a JSON object; a later run resumes with it.

The assistant becomes the agent, its working folder becomes the task (project.py), and its sessions
keep their ids. A sub-agent's transcript repeats the id of the session that started it, so its
session is `SESSION/AGENT`. Text outside the conversation gets its own kind, so that it does not
count as the user's words: `compaction` (a boundary, or the summary that replaced the past), `meta`
(messages of the program to the model, and of an assistant to its sub-agent), `thinking`.

Lines without a message (snapshots of files, titles, token counts) are skipped. A message that
cannot be read is a Fault with its line.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scroll_assistants.importers import claude_code, copilot, pi
from scroll_assistants.importers.read_plain import read_plain
from scroll_assistants.importers.records import Format, State, fields, identifier, objects, placed
from scroll_assistants.importers.shapes import call, response_item, result
from scroll_assistants.project import task_of
from scroll_context.errors import BadInput
from scroll_context.importing import records
from scroll_context.importing.records import COMPACTION, META, THINKING, RawMessage, fingerprint

LineReader = Callable[[RawMessage, State, Path], Iterator[RawMessage]]
"""Yields the messages of a line and may change the state, which is {} before the first line."""

_CODEX_META = (
    "<environment_context>",
    "<user_instructions>",
    "<permissions instructions>",
    "# AGENTS.md instructions",
    "<turn_aborted>",
    "<subagent_notification>",
    "<user_shell_command>",
    "<skill>",
)
# The most bytes of the file in which Gemini records the folder of a project.
_LONGEST_PATH = 4_096
_CODEX_LINES = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
)


def recognise(value: Any) -> Format | None:
    """The assistant that wrote a line; None if the line does not show it."""
    if not isinstance(value, dict):
        return None
    if "role" in value:
        is_speaker = value["role"] in ("user", "assistant")
        has_envelope = "content" not in value and isinstance(value.get("message"), dict)
        return Format.CURSOR_AGENT if is_speaker and has_envelope else None
    kind = value.get("type")
    if "sessionId" in value and "uuid" in value:
        if _is_qwen(value):
            return Format.QWEN_CODE
        if kind in ("user", "assistant", "system"):
            return Format.CLAUDE_CODE
    if pi.is_line(value):
        return Format.PI
    if copilot.is_line(value):
        return Format.COPILOT
    if kind in _CODEX_LINES and isinstance(value.get("payload"), dict) and "timestamp" in value:
        return Format.CODEX
    if "sessionId" in value and ("projectHash" in value or "startTime" in value):
        return Format.GEMINI
    return None


# Codex --------------------------------------------------------------------------------------------


def _codex(record: RawMessage, state: State, _: Path) -> Iterator[RawMessage]:
    """The message of a line in a rollout.

    Items have no ids, so a key consists of the session, the item's hash, and a number for
    repetitions. The hash covers the item's time, so only items of the same time are counted.
    """
    line = record.value
    item = line.get("payload")
    kind = records.text(line, "type")
    if kind not in _CODEX_LINES:
        return
    if not isinstance(item, dict):
        raise BadInput(f"a line of type {kind} needs a payload")
    if kind == "session_meta":
        _begin_rollout(item, state)
        return
    message = response_item(item) if kind == "response_item" else None
    if message is not None and item.get("type") == "message" and _is_codex_meta(item, state):
        message["kind"] = META
    if kind == "compacted":
        message = {"role": "system", "content": item.get("message") or "", "kind": COMPACTION}
    if message is None:
        return
    session = state.get("session") or record.labels.session_id
    identity = fingerprint([line.get("timestamp"), item]).hex()[:32]
    if state.get("time") != line.get("timestamp"):
        state |= {"time": line.get("timestamp"), "seen": {}}
    seen: dict[str, int] = state.setdefault("seen", {})
    seen[identity] = seen.get(identity, 0) + 1
    yield placed(
        record,
        Format.CODEX,
        message,
        session=session,
        task=state.get("task", ""),
        time=line.get("timestamp"),
        about=state.get("about"),
        key=f"{identifier(session)}:{identity}.{seen[identity]}",
    )


def _is_codex_meta(item: dict[str, Any], state: State) -> bool:
    """Whether the program, or the assistant that started this sub-agent, wrote a message."""
    role = item.get("role")
    if role == "developer" or (role == "user" and state.get("is_subagent")):
        return True
    return _opens_with(item.get("content"), _CODEX_META)


def _opens_with(content: Any, openings: tuple[str, ...]) -> bool:
    """Whether every part of a message begins with words of the assistant's program."""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str) or not text.lstrip().startswith(openings):
            return False
    return bool(parts)


def _begin_rollout(meta: dict[str, Any], state: State) -> None:
    """Read the session from the first line of a rollout.

    A rollout that continues another one repeats the other's first line after its own, so only the
    first such line counts.
    """
    if state.get("session"):
        return
    source = meta.get("source")
    git = meta.get("git")
    about = fields(meta, version="cli_version", originator="originator")
    if isinstance(git, dict):
        about |= fields(git, git_branch="branch")
    state |= {
        "is_subagent": isinstance(source, dict) and "subagent" in source,
        "session": records.text(meta, "id"),
        "task": task_of(records.text(meta, "cwd")),
        "about": about,
    }


# Gemini CLI ---------------------------------------------------------------------------------------


class _GeminiPart(NamedTuple):
    """A part of a message: the end of its key, the message that it becomes, and facts about it."""

    key: str
    message: dict[str, Any]
    time: Any
    about: dict[str, Any] | None = None


def _gemini(record: RawMessage, state: State, path: Path) -> Iterator[RawMessage]:
    """The messages of a line of a session, or of the one object of an older file.

    A message is written again under its id when its calls have ended, so each part has a key of its
    own: existing parts are recognised, and new ones are added. Messages that the user took back
    (`$rewindTo`) remain, and an event records the rewind.
    """
    for part in _gemini_parts_of_line(record.value, state, path):
        session = state.get("session") or record.labels.session_id
        state["time"] = part.time or state.get("time")
        yield placed(
            record,
            Format.GEMINI,
            part.message,
            session=session,
            key=f"{identifier(session)}:{part.key}",
            task=state.get("task", ""),
            time=part.time,
            about=part.about,
        )


def _gemini_parts_of_line(line: dict[str, Any], state: State, path: Path) -> Iterator[_GeminiPart]:
    if "sessionId" in line or isinstance(line.get("$set"), dict):
        about: dict[str, Any] = line if "sessionId" in line else line["$set"]
        session = records.text(about, "sessionId")
        if session:
            state["session"] = session
            if "task" not in state:
                state["task"] = _gemini_task(about, path)
            state.setdefault("time", about.get("startTime"))
        for message in objects(about, "messages"):
            yield from _gemini_message(message)
    elif "$rewindTo" in line:
        target = identifier(records.text(line, "$rewindTo"))
        text = f"[the user went back to the message {target}: what came after it was taken back]"
        number = state["rewinds"] = state.get("rewinds", 0) + 1
        message = {"role": "system", "content": text, "kind": META}
        # If the line has no time of its own, it happened after the newest message before it.
        time = line.get("timestamp") or state.get("time")
        yield _GeminiPart(f"{target}.rewound.{number}", message, time)
    elif "type" in line:
        yield from _gemini_message(line)


def _gemini_task(about: dict[str, Any], path: Path) -> str:
    """The project: the folder that a file beside the session names, or Gemini's hash of it."""
    for parent in list(path.parents)[:4]:
        folder = read_plain(parent, [".project_root"], _LONGEST_PATH)
        if folder is not None:
            return task_of(folder.decode("utf-8", "replace").strip())
    project = records.text(about, "projectHash")
    return f"project-{project[:8]}" if project else ""


def _gemini_message(message: dict[str, Any]) -> Iterator[_GeminiPart]:
    """The thoughts, the text, and the calls with their results of a message."""
    kind = records.text(message, "type")
    time = message.get("timestamp")
    name = identifier(records.text(message, "id"))
    if not name:
        raise BadInput("a message of Gemini needs an id")
    if kind not in ("user", "gemini", "model"):
        content = _gemini_content(message.get("content"))
        yield _GeminiPart(name, {"role": "system", "content": content, "kind": META}, time)
        return
    for thought in objects(message, "thoughts"):
        text = records.text(thought, "description")
        if text:
            subject = records.text(thought, "subject")
            text = f"{subject}: {text}" if subject else text
            key = f"{name}.{fingerprint(text).hex()[:12]}"
            yield _GeminiPart(key, {"role": "assistant", "content": text, "kind": THINKING}, time)
    content = _gemini_content(_without_responses(message.get("content")))
    if content:
        role = "user" if kind == "user" else "assistant"
        turn: dict[str, Any] = {"role": role, "content": content}
        if role == "user" and isinstance(content, str) and content.startswith("<session_context>"):
            turn["kind"] = META
        key = f"{name}.{fingerprint(content).hex()[:12]}"
        yield _GeminiPart(key, turn, time, fields(message, model="model"))
    for tool_call in objects(message, "toolCalls"):
        yield from _gemini_call(tool_call, name, time)


def _without_responses(content: Any) -> Any:
    """The content without tool results, which come in the user's name. The calls have them too."""
    if not isinstance(content, list):
        return content
    return [part for part in content if not (isinstance(part, dict) and "functionResponse" in part)]


def _gemini_call(tool_call: dict[str, Any], name: str, time: Any) -> Iterator[_GeminiPart]:
    """A tool call of a message, and its result if there is one."""
    tool = records.text(tool_call, "name")
    if not tool:
        raise BadInput("a tool call of Gemini needs a name")
    call_id = records.text(tool_call, "id") or f"{name}.{tool}"
    key = f"{name}.{identifier(call_id)}"
    yield _GeminiPart(f"{key}.call", call(tool, tool_call.get("args") or {}, call_id), time)
    if tool_call.get("result") is not None:
        output = _gemini_content(tool_call["result"])
        message = result(call_id, output, tool_call.get("status") == "error")
        yield _GeminiPart(f"{key}.result", message, tool_call.get("timestamp") or time)


def _gemini_content(content: Any) -> str | list[Any]:
    """The content of a message of Gemini: text, or parts if some of them are media."""
    if content is None:
        return ""
    parts: list[Any] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            parts.append(part)
        elif not isinstance(part, dict):
            raise BadInput("a part of Gemini must be text or an object")
        elif part:
            parts.append(_gemini_part(part))
    if all(isinstance(part, str) for part in parts):
        return "\n".join(parts)
    return parts


def _gemini_part(part: dict[str, Any]) -> Any:
    if isinstance(part.get("text"), str):
        return part["text"]
    media = part.get("inlineData")
    if isinstance(media, dict):
        source = {
            "type": "base64",
            "media_type": media.get("mimeType"),
            "data": media.get("data"),
        }
        return {"type": "image", "source": source}
    answer = part.get("functionResponse")
    if isinstance(answer, dict):
        response = answer.get("response")
        output = response.get("output", response) if isinstance(response, dict) else response
        return output if isinstance(output, str) else records.json_text(output)
    return records.json_text(part)


# Qwen Code ----------------------------------------------------------------------------------------


def _is_qwen(line: dict[str, Any]) -> bool:
    """Whether a line that could be one of Claude Code is one of Qwen Code."""
    message = line.get("message")
    return "systemPayload" in line or (isinstance(message, dict) and "parts" in message)


def _qwen_code(record: RawMessage, state: State, _: Path) -> Iterator[RawMessage]:
    """The messages of a line. The first folder that a session names is its project."""
    line = record.value
    messages = _qwen_messages(line)
    if not messages:
        return
    uuid = identifier(records.text(line, "uuid"))
    if not uuid:
        raise BadInput("a line of Qwen Code needs a uuid")
    state.setdefault("task", task_of(records.text(line, "cwd")))
    about = fields(line, uuid="uuid", parent="parentUuid", version="version", model="model")
    for number, message in enumerate(messages):
        yield placed(
            record,
            Format.QWEN_CODE,
            message,
            session=records.text(line, "sessionId") or record.labels.session_id,
            key=f"{uuid}.{number}" if number else uuid,
            task=state["task"],
            time=line.get("timestamp"),
            about=about,
        )


def _qwen_messages(line: dict[str, Any]) -> list[dict[str, Any]]:
    kind = records.text(line, "type")
    if kind == "system" and line.get("subtype") == "chat_compression":
        text = "[the conversation was compressed]"
        return [{"role": "system", "content": text, "kind": COMPACTION}]
    message = line.get("message")
    if kind not in ("user", "assistant", "tool_result") or not isinstance(message, dict):
        return []
    messages: list[dict[str, Any]] = []
    spoken: list[dict[str, Any]] = []
    for part in objects(message, "parts"):
        tool_call = part.get("functionCall")
        response = part.get("functionResponse")
        if part.get("thought"):
            thought = records.text(part, "text")
            messages.append({"role": "assistant", "content": thought, "kind": THINKING})
        elif isinstance(tool_call, dict):
            call_id = records.text(tool_call, "id")
            name = records.text(tool_call, "name")
            messages.append(call(name, tool_call.get("args") or {}, call_id))
        elif isinstance(response, dict):
            messages.append(_qwen_result(response, part, line))
        else:
            spoken.append(part)
    content = _gemini_content(spoken)
    if content:
        turn: dict[str, Any] = {"role": "assistant" if kind == "assistant" else "user"}
        turn["content"] = content
        # The program writes some messages in the user's turn, and says so in a subtype.
        if kind == "tool_result" or (kind == "user" and line.get("subtype")):
            turn["kind"] = META
        thoughts = [message for message in messages if message.get("kind") == THINKING]
        messages.insert(len(thoughts), turn)
    return messages


def _qwen_result(
    response: dict[str, Any], part: dict[str, Any], line: dict[str, Any]
) -> dict[str, Any]:
    outcome = line.get("toolCallResult")
    status = outcome.get("status") if isinstance(outcome, dict) else ""
    output = response.get("response")
    has_failed = status == "error" or (isinstance(output, dict) and "error" in output)
    return result(records.text(response, "id"), _gemini_content([part]), has_failed)


READERS: dict[Format, LineReader] = {
    Format.CLAUDE_CODE: claude_code.read_line,
    Format.CODEX: _codex,
    Format.GEMINI: _gemini,
    Format.QWEN_CODE: _qwen_code,
    Format.PI: pi.read_line,
    Format.COPILOT: copilot.read_line,
}
