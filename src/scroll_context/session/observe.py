"""Finding what a host's history has and the log lacks.

A framework that keeps its own list of messages hands over the whole list before each request. Most of it is recorded
already, by an earlier hand-over or as the reply and the results of this session's own turn. Messages that carry an id
of the host are known by it. All others are aligned with what was recorded, in order: the longest run of the list that
equals the end of the record is the part that both have, and what follows it is new. So the same prompt twice is two
events, the same list after a restart is none, and a list whose head the host has trimmed adds nothing.
"""

import hashlib
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import msgspec

from scroll_context.events import Event, Kind
from scroll_context.messages import Message, canonical
from scroll_context.view.entries import step


def source_key(session_id: str, host_id: str) -> str:
    """The key under which a message that a host gave an id is recorded, once."""
    return f"host:{session_id}:{host_id}"


def fields_of(message: Message, host_id: str) -> dict[str, Any]:
    """What a host's message becomes in the log."""
    fields: dict[str, Any] = {
        "kind": Kind.CONVERSATION,
        "role": message.role,
        "content": str(message.text),
        # The key is there without an id too: it says that a host brought the message (origin.py).
        "metadata": {"host_id": host_id},
    }
    if message.role == "tool":
        answers = {"name": message.name, "tool_call_id": message.tool_call_id, "tool_state": "ok"}
        return fields | answers | {"kind": Kind.TOOL_RESULT}
    if message.role == "assistant":
        said = {"tool_calls": message.tool_calls, "thinking": message.thinking}
        fields["metadata"] |= {name: msgspec.to_builtins(list(value)) for name, value in said.items() if value}
    return fields


class _Recorded(NamedTuple):
    mark: str
    host_id: str


class HostRecord:
    """What a session has recorded of the conversation, in the form in which a host's list can be compared with it."""

    def __init__(self) -> None:
        self._recorded: list[_Recorded] = []
        self._ids: set[str] = set()

    def add(self, event: Event) -> None:
        """Take in the next event of the session."""
        mark = _mark_of_event(event)
        if mark:
            host_id = str(event.metadata.get("host_id", ""))
            self._recorded.append(_Recorded(mark, host_id))
            self._ids.add(host_id)

    def missing(self, messages: Sequence[Message], ids: Sequence[str] = ()) -> list[int]:
        """The places in a host's list of the messages that are not recorded yet, in order."""
        named = [*ids, *([""] * (len(messages) - len(ids)))]
        places = [
            place
            for place, (message, host_id) in enumerate(zip(messages, named, strict=True))
            if message.role != "system" and not (host_id and host_id in self._ids)
        ]
        marks = [_mark(messages[place]) for place in places]
        # a message that was recorded under an id is accounted for by that id
        with_ids = any(named[place] for place in places)
        record = [one.mark for one in self._recorded if not (with_ids and one.host_id)]
        return [places[at] for at in _unmatched(marks, record)]


def _unmatched(marks: list[str], record: list[str]) -> list[int]:
    """The places in `marks` that the record does not have."""
    if not record:
        return list(range(len(marks)))
    for start in range(len(marks)):  # marks before `start` are the host's own additions at the head, such as a summary
        run = _overlap(marks[start:], record)
        if run:
            return [*range(start), *range(start + run, len(marks))]
    matched: set[int] = set()  # the record ends with something that the host has dropped, such as a cancelled reply
    for block in SequenceMatcher(None, marks, record, autojunk=False).get_matching_blocks():
        matched.update(range(block.a, block.a + block.size))
    return [at for at in range(len(marks)) if at not in matched]


def _overlap(marks: list[str], record: list[str]) -> int:
    """The length of the longest beginning of `marks` that is the end of the record."""
    for size in range(min(len(marks), len(record)), 0, -1):
        if marks[0] == record[-size] and marks[:size] == record[-size:]:
            return size
    return 0


def _mark_of_event(event: Event) -> str:
    """How a message that this event stands for would be marked; "" for what no host's list holds."""
    if "inside_cell" in event.metadata:
        return ""
    if event.kind in (Kind.TOOL_RESULT, Kind.OBSERVATION):
        return _digest("tool", event.tool_call_id)
    if event.kind == Kind.CONVERSATION and event.role in ("user", "assistant"):
        calls = step(event, 0, "").reply.calls  # which reads what imports bring without raising
        return _digest(event.role, event.content, [(call.id, call.name) for call in calls])
    return ""


def _mark(message: Message) -> str:
    if message.role == "tool":  # hosts wrap and shorten results, so only the call that is answered counts
        return _digest("tool", message.tool_call_id)
    return _digest(message.role, message.text, [(call.id, call.name) for call in message.tool_calls])


def _digest(role: str, text: str, calls: Sequence[tuple[str, str]] = ()) -> str:
    return hashlib.sha256(canonical([role, " ".join(text.split()), list(calls)])).hexdigest()
