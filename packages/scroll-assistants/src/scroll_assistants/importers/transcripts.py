"""Transcripts of coding assistants as messages: Codex rollouts and sessions of the Gemini CLI.

Transcripts of Claude Code are read in claude_code.py, in the same way.

Each reader takes the JSON values of a file, in order, and gives messages in the shape that
`messages.pieces` reads, each with a source key made of the ids that the assistant itself gave out.
So a transcript that has grown adds what is new, and a line that a resumed session repeats in a
second file is recognised there too. What a reader must know of earlier lines is a JSON object, its
state; a later run goes on with it.

The assistant becomes the agent, the folder that it worked in becomes the task (project.py), its
sessions keep their ids. A sub-agent's transcript repeats the id of the session that started it, so
its session is `SESSION/AGENT`. What is no part of the conversation gets a kind of its own, so that
it is not taken for the user's words: `compaction` (a boundary, or the summary that replaced the
past), `meta` (what the assistant's program told the model, and what an assistant told its
sub-agent), `thinking`.

Lines that carry no message (snapshots of files, titles, token counts) are passed over; a message
that cannot be read is a Fault with its line.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from scroll_assistants.importers import claude_code
from scroll_assistants.importers.records import Format, placed
from scroll_assistants.project import task_of
from scroll_context.errors import BadInput
from scroll_context.importing import records
from scroll_context.importing.messages import call, response_item, result
from scroll_context.importing.plain_files import read_plain
from scroll_context.importing.records import (
    COMPACTION,
    META,
    THINKING,
    RawMessage,
    State,
    fingerprint,
)

LineReader = Callable[[RawMessage, State, Path], Iterator[RawMessage]]
"""The messages of a line, which may change the state; the state is {} at the beginning of a file.
"""

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
_LONGEST_PATH = 4_096  # bytes of the file in which Gemini keeps the folder of a project
_CODEX_LINES = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
)


def recognise(value: Any) -> Format | None:
    """Which assistant wrote a line; None when the line does not say."""
    if not isinstance(value, dict):
        return None
    if (
        value.get("role") in ("user", "assistant")
        and "content" not in value
        and isinstance(value.get("message"), dict)
    ):
        return Format.CURSOR_AGENT
    if "role" in value:
        return None
    if (
        value.get("type") in ("user", "assistant", "system")
        and "sessionId" in value
        and "uuid" in value
    ):
        return Format.CLAUDE_CODE
    if (
        value.get("type") in _CODEX_LINES
        and isinstance(value.get("payload"), dict)
        and "timestamp" in value
    ):
        return Format.CODEX
    if "sessionId" in value and ("projectHash" in value or "startTime" in value):
        return Format.GEMINI
    return None


# Codex ---------------------------------------------------------------------------------------------------


def _codex(found: RawMessage, state: State, _: Path) -> Iterator[RawMessage]:
    """A line of a rollout. Items have no ids: a key is the session, the item's hash, and its
    repetition.

    The hash covers the item's time, so only items of the same time are counted.
    """
    line, item = found.value, found.value.get("payload")
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
    session = state.get("session") or found.labels.session_id
    identity = fingerprint([line.get("timestamp"), item]).hex()[:32]
    if state.get("time") != line.get("timestamp"):
        state |= {"time": line.get("timestamp"), "seen": {}}
    seen: dict[str, int] = state.setdefault("seen", {})
    seen[identity] = seen.get(identity, 0) + 1
    yield placed(
        found,
        Format.CODEX,
        message,
        session=session,
        task=state.get("task", ""),
        time=line.get("timestamp"),
        about=state.get("about"),
        key=f"{records.identifier(session)}:{identity}.{seen[identity]}",
    )


def _is_codex_meta(item: dict[str, Any], state: State) -> bool:
    """Whether a message was written by the program, or by the assistant that started this
    sub-agent.
    """
    role = item.get("role")
    if role == "developer" or (role == "user" and state.get("is_subagent")):
        return True
    return _opens_with(item.get("content"), _CODEX_META)


def _opens_with(content: Any, openings: tuple[str, ...]) -> bool:
    """Whether all that a message says is written by the assistant's program."""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return bool(texts) and all(
            isinstance(text, str) and text.lstrip().startswith(openings) for text in texts
        )
    return isinstance(content, str) and content.lstrip().startswith(openings)


def _begin_rollout(meta: dict[str, Any], state: State) -> None:
    """A rollout that continues another repeats the other's first line behind its own: the first one
    counts.
    """
    if state.get("session"):
        return
    git, source = meta.get("git"), meta.get("source")
    state |= {
        "is_subagent": isinstance(source, dict) and "subagent" in source,
        "session": records.text(meta, "id"),
        "task": task_of(records.text(meta, "cwd")),
        "about": records.fields(meta, version="cli_version", originator="originator")
        | (records.fields(git, git_branch="branch") if isinstance(git, dict) else {}),
    }


# Gemini CLI ----------------------------------------------------------------------------------------------


GeminiPart = tuple[str, dict[str, Any], Any, dict[str, Any]]
"""A part of a message: the end of its key, the message that it becomes, its time, and what is kept
of it.
"""


def _gemini(found: RawMessage, state: State, path: Path) -> Iterator[RawMessage]:
    """A line of a session, or the one object of an older file.

    A message is written again under its id when its calls have ended, so each part has a key of its
    own: what is there already is recognised, what is new is added. Messages that the user took back
    (`$rewindTo`) stay, and an event says so where it happened.
    """
    line = found.value
    said: Iterable[GeminiPart] = ()
    if "sessionId" in line or isinstance(line.get("$set"), dict):
        about: dict[str, Any] = line if "sessionId" in line else line["$set"]
        if session := records.text(about, "sessionId"):
            state["session"] = session
            if "task" not in state:
                state["task"] = _gemini_task(about, path)
            state.setdefault("time", about.get("startTime"))
        said = itertools.chain.from_iterable(map(_gemini_said, records.objects(about, "messages")))
    elif "$rewindTo" in line:
        back = records.identifier(records.text(line, "$rewindTo"))
        text = f"[the user went back to the message {back}: what came after it was taken back]"
        number = state["rewinds"] = state.get("rewinds", 0) + 1
        # The line has no time of its own: it happened after the newest message before it.
        time = line.get("timestamp") or state.get("time")
        said = [
            (
                f"{back}.rewound.{number}",
                {"role": "system", "content": text, "kind": META},
                time,
                {},
            )
        ]
    elif "type" in line:
        said = _gemini_said(line)
    for key, message, time, kept in said:
        session = state.get("session") or found.labels.session_id
        state["time"] = time or state.get("time")
        yield placed(
            found,
            Format.GEMINI,
            message,
            session=session,
            key=f"{records.identifier(session)}:{key}",
            task=state.get("task", ""),
            time=time,
            about=kept,
        )


def _gemini_task(about: dict[str, Any], path: Path) -> str:
    """The project: the folder that the file's own folder names, else the hash of it that Gemini
    keeps.
    """
    for parent in list(path.parents)[:4]:
        folder = read_plain(parent, [".project_root"], _LONGEST_PATH)
        if folder is not None:
            return task_of(folder.decode("utf-8", "replace").strip())
    project = records.text(about, "projectHash")
    return f"project-{project[:8]}" if project else ""


def _gemini_said(record: dict[str, Any]) -> Iterator[GeminiPart]:
    kind, time = records.text(record, "type"), record.get("timestamp")
    if not (name := records.identifier(records.text(record, "id"))):
        raise BadInput("a message of Gemini needs an id")
    if kind not in ("user", "gemini", "model"):
        yield (
            name,
            {"role": "system", "content": _gemini_parts(record.get("content")), "kind": META},
            time,
            {},
        )
        return
    for thought in records.objects(record, "thoughts"):
        if said := records.text(thought, "description"):
            text = f"{subject}: {said}" if (subject := records.text(thought, "subject")) else said
            key = f"{name}.{fingerprint(text).hex()[:12]}"
            yield key, {"role": "assistant", "content": text, "kind": THINKING}, time, {}
    role = "user" if kind == "user" else "assistant"
    given = record.get("content")
    if isinstance(
        given, list
    ):  # results of tools come once more in the user's name: the call has them
        given = [
            part for part in given if not (isinstance(part, dict) and "functionResponse" in part)
        ]
    if content := _gemini_parts(given):
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "user" and isinstance(content, str) and content.startswith("<session_context>"):
            message["kind"] = META
        yield (
            f"{name}.{fingerprint(content).hex()[:12]}",
            message,
            time,
            records.fields(record, model="model"),
        )
    for one in records.objects(record, "toolCalls"):
        if not (tool := records.text(one, "name")):
            raise BadInput("a tool call of Gemini needs a name")
        call_id = records.text(one, "id") or f"{name}.{tool}"
        key = f"{name}.{records.identifier(call_id)}"
        yield f"{key}.call", call(tool, one.get("args") or {}, call_id), time, {}
        if one.get("result") is not None:
            brought = result(call_id, _gemini_parts(one["result"]), one.get("status") == "error")
            yield f"{key}.result", brought, one.get("timestamp") or time, {}


def _gemini_parts(content: Any) -> str | list[Any]:
    """The content of a message of Gemini: text, or parts of which the media stay media."""
    parts = content if isinstance(content, list) else [] if content is None else [content]
    found: list[Any] = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        elif not isinstance(part, dict):
            raise BadInput("a part of Gemini must be text or an object")
        elif isinstance(part.get("text"), str):
            found.append(part["text"])
        elif isinstance(media := part.get("inlineData"), dict):
            source = {
                "type": "base64",
                "media_type": media.get("mimeType"),
                "data": media.get("data"),
            }
            found.append({"type": "image", "source": source})
        elif isinstance(answer := part.get("functionResponse"), dict):
            response = answer.get("response")
            output = response.get("output", response) if isinstance(response, dict) else response
            found.append(output if isinstance(output, str) else records.json_text(output))
        elif part:
            found.append(records.json_text(part))
    return "\n".join(found) if all(isinstance(one, str) for one in found) else found


READERS: dict[Format, LineReader] = {
    Format.CLAUDE_CODE: claude_code.read_line,
    Format.CODEX: _codex,
    Format.GEMINI: _gemini,
}
