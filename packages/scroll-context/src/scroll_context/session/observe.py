"""Finding what a host's history has and the log lacks.

A framework that keeps its own list of messages hands over the whole list before each request. Most
of it is recorded already, by an earlier hand-over or as the reply and the results of this session's
own turn. Messages that carry an id of the host are known by it. All others are aligned with what
was recorded, in order, so that as many as possible are the same: the longest run of the list that
equals the end of the record is the part that both have, and what follows it is new. If more agree
without the end of the record, the host has dropped that end. So the same prompt twice is two
events, the same list after a restart is none, and a list whose head the host has trimmed adds
nothing.

Messages are compared by fingerprints of their complete text, wherever the log keeps it.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import msgspec

from scroll_context.events import Event, Kind
from scroll_context.ids import id_of
from scroll_context.log.rows import without_surrogates
from scroll_context.messages import Message, canonical
from scroll_context.view.entries import step
from scroll_context.view.headline import without_headline


def source_key(session_id: str, host_id: str) -> str:
    """The key under which a message that a host gave an id is recorded, once."""
    return f"host:{id_of(session_id, host_id)}"


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
        fields["metadata"] |= {
            name: msgspec.to_builtins(list(value)) for name, value in said.items() if value
        }
    return fields


class _Recorded(NamedTuple):
    mark: str
    host_id: str


class HostRecord:
    """What a session has recorded of the conversation, in the form in which a host's list can be
    compared with it.

    `text` gives the complete text of an event.
    """

    def __init__(self, text: Callable[[Event], str]) -> None:
        self._text = text
        self._recorded: list[_Recorded] = []
        self._ids: set[str] = set()

    def add(self, event: Event) -> None:
        """Take in the next event of the session."""
        mark = self._mark_of_event(event)
        if mark:
            host_id = str(event.metadata.get("host_id", ""))
            self._recorded.append(_Recorded(mark, host_id))
            self._ids.add(host_id)

    def _mark_of_event(self, event: Event) -> str:
        """How a message that this event stands for would be marked; "" for what no host's list
        holds.
        """
        if "inside_cell" in event.metadata:
            return ""
        if event.kind in (Kind.TOOL_RESULT, Kind.OBSERVATION):
            return _digest("tool", "", (), event.tool_call_id)
        if event.kind == Kind.CONVERSATION and event.role in ("user", "assistant"):
            calls = step(event, 0, "").reply.calls  # which reads what imports bring without raising
            return _digest(
                event.role, self._text(event), [(call.id, call.name) for call in calls], ""
            )
        return ""

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
    start, end = _longest_run(marks, record)
    # What comes before the run are the host's own additions at the head, such as a summary.
    places = [*range(start), *range(end, len(marks))]
    most_in_common = (Counter(marks) & Counter(record)).total()
    if most_in_common <= end - start:
        return places
    # Perhaps the record ends with something that the host has dropped, such as a cancelled reply or
    # a short prompt.
    blocks = SequenceMatcher(None, marks, record, autojunk=False).get_matching_blocks()
    if sum(block.size for block in blocks) <= end - start:
        return places
    matched = {place for block in blocks for place in range(block.a, block.a + block.size)}
    return [place for place in range(len(marks)) if place not in matched]


def _longest_run(marks: list[str], record: list[str]) -> tuple[int, int]:
    """Where the longest part of `marks` that equals the end of the record begins and ends; the
    first, if several do.
    """
    longest = (0, 0)
    for end in range(1, len(marks) + 1):
        size = 0
        while size < min(end, len(record)) and marks[end - 1 - size] == record[-1 - size]:
            size += 1
        if size > longest[1] - longest[0]:
            longest = (end - size, end)
    return longest


def _mark(message: Message) -> str:
    calls = [(call.id, call.name) for call in message.tool_calls]
    return _digest(message.role, message.text, calls, message.tool_call_id)


def _digest(role: str, text: str, calls: Sequence[tuple[str, str]], answers: str) -> str:
    """The fingerprint of a message: equal for all forms that a host and the log may have of the
    same one.
    """
    if role == "tool":  # hosts wrap and shorten results, so only the call that is answered counts
        return _hashed(role, answers)
    if (
        role == "assistant"
    ):  # users are not shown the headline, so a host may keep the reply without it
        text = without_headline(text)
    return _hashed(role, " ".join(without_surrogates(text).split()), list(calls))


def _hashed(*parts: object) -> str:
    return hashlib.sha256(canonical(parts)).hexdigest()
