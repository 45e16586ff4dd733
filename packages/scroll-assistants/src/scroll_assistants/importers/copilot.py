"""Sessions of the GitHub Copilot CLI as messages (`~/.copilot/session-state/*/events.jsonl`).

Each line is an event with a type, its data, an id and a time. Calls are read from the reply that
makes them, and results from the event that ends a call. The work of a sub-agent is in the same
file; its events name the sub-agent, so its session is `SESSION/AGENT`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scroll_assistants.importers.records import Format, State, fields, identifier, objects, placed
from scroll_assistants.importers.shapes import call, result
from scroll_assistants.project import task_of
from scroll_context.errors import BadInput
from scroll_context.importing import records
from scroll_context.importing.records import COMPACTION, META, THINKING, RawMessage

Message = dict[str, Any]


def is_line(value: dict[str, Any]) -> bool:
    """Whether a line begins a session."""
    data = value.get("data")
    is_start = value.get("type") in ("session.start", "session.resume")
    return is_start and isinstance(data, dict) and "id" in value and "timestamp" in value


def read_line(record: RawMessage, state: State, _: Path) -> Iterator[RawMessage]:
    line = record.value
    kind = records.text(line, "type")
    data = line.get("data")
    if not isinstance(data, dict):
        raise BadInput("an event of Copilot needs its data")
    if kind in ("session.start", "session.resume"):
        _begin(data, state)
        return
    agent = records.text(line, "agentId") or records.text(data, "parentToolCallId")
    messages = _messages(kind, data, is_subagent=bool(agent))
    if not messages:
        return
    identity = identifier(records.text(line, "id"))
    if not identity:
        raise BadInput(f"an event of type {kind} needs an id")
    session = state.get("session") or record.labels.session_id
    for number, message in enumerate(messages):
        yield placed(
            record,
            Format.COPILOT,
            message,
            session=f"{session}/{agent}" if agent else session,
            key=f"{identity}.{number}" if number else identity,
            task=state.get("task", ""),
            time=line.get("timestamp"),
            about=state.get("about", {}) | fields(data, model="model"),
            reply_id=data.get("messageId") if kind == "assistant.message" else None,
        )


def _begin(data: dict[str, Any], state: State) -> None:
    """Read the session from its first line. The first folder that it names is its project."""
    context = data.get("context")
    session = records.text(data, "sessionId")
    if session:
        state["session"] = session
        state["about"] = fields(data, version="copilotVersion")
    if isinstance(context, dict) and "task" not in state:
        state["task"] = task_of(records.text(context, "cwd"))


def _messages(kind: str, data: dict[str, Any], *, is_subagent: bool) -> list[Message]:
    """The messages of an event; none for an event that carries no message."""
    if kind == "user.message":
        return [_user(data, is_subagent)]
    if kind == "assistant.message":
        return _assistant(data)
    if kind == "tool.execution_complete":
        return [_result(data)]
    if kind == "system.message":
        return [{"role": "system", "content": data.get("content") or "", "kind": META}]
    if kind == "session.compaction_complete":
        summary = data.get("summaryContent") or "[the conversation was compacted]"
        return [{"role": "system", "content": summary, "kind": COMPACTION}]
    return []


def _user(data: dict[str, Any], is_subagent: bool) -> Message:
    """A message in the user's turn. The program and other agents write some of them: those name
    their source.
    """
    message = {"role": "user", "content": data.get("content") or ""}
    is_injected = data.get("source") not in (None, "", "user")
    is_typed = not (is_injected or is_subagent or data.get("isAutopilotContinuation"))
    return message if is_typed else {**message, "kind": META}


def _assistant(data: dict[str, Any]) -> list[Message]:
    messages: list[Message] = []
    thought = data.get("reasoningText")
    if thought:
        messages.append({"role": "assistant", "content": thought, "kind": THINKING})
    if data.get("content"):
        messages.append({"role": "assistant", "content": data["content"]})
    for request in objects(data, "toolRequests"):
        name, call_id = records.text(request, "name"), records.text(request, "toolCallId")
        messages.append(call(name, request.get("arguments") or {}, call_id))
    return messages


def _result(data: dict[str, Any]) -> Message:
    """The result of a call. A command that ends with a status other than 0 has failed."""
    output = data.get("result")
    error = data.get("error")
    shell = data.get("shellExecution")
    status = shell.get("exitCode") if isinstance(shell, dict) else 0
    text: Any = ""
    if isinstance(output, dict):
        text = output.get("content") or ""
    elif isinstance(error, dict):
        text = error.get("message") or records.json_text(error)
    has_failed = data.get("success") is False or status not in (None, 0)
    return result(records.text(data, "toolCallId"), text, has_failed)
