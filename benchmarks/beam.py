"""Reads chats of the BEAM benchmark in its own folder layout, for measuring search.

    DIR/<size>/<chat>/chat.json                    or chat_trunecated.json (sic), which is preferred
    DIR/<size>/<chat>/plan-<n>/chat.json           the longest chats come in several plans
    DIR/<size>/<chat>/probing_questions/probing_questions.json

A chat is a list of batches of turns of messages. The evidence of a question names messages by their position in the
chat, counted through all of its plans (the ids inside the files start again in every plan).
"""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.events import Draft


class Question(msgspec.Struct, frozen=True):
    ability: str
    text: str
    evidence: frozenset[int]  # positions in the chat


class Chat(msgspec.Struct, frozen=True):
    name: str
    messages: list[Draft]
    questions: list[Question]


def read(folder: Path) -> Iterator[Chat]:
    """Every chat below a folder, in a fixed order."""
    for questions in sorted(folder.glob("*/*/probing_questions/probing_questions.json")):
        home = questions.parent.parent
        name = str(home.relative_to(folder))
        messages = list(_messages(home, name))
        yield Chat(name, messages, list(_questions(questions, len(messages))))


Search = Callable[[str, str], Iterable[int]]
"""The seqs that a ranking finds for a question within a chat, best first."""


def recall(chats: list[Chat], first_seqs: list[int], search: Search) -> dict[str, list[float]]:
    """By ability, the part of each question's evidence that the search finds within its chat."""
    found: dict[str, list[float]] = {}
    for chat, first in zip(chats, first_seqs, strict=True):
        for question in chat.questions:
            places = {seq - first for seq in search(question.text, chat.name)}
            share = len(places & question.evidence) / len(question.evidence)
            found.setdefault(question.ability, []).append(share)
    return dict(sorted(found.items()))


def _messages(home: Path, name: str) -> Iterator[Draft]:
    plans = sorted(home.glob("plan-*"), key=lambda plan: int(plan.name.removeprefix("plan-"))) or [home]
    position, created_at = 0, "2024-01-01"
    for plan in plans:
        file = plan / "chat_trunecated.json"
        batches = json.loads((file if file.exists() else plan / "chat.json").read_bytes())
        for step, batch in enumerate(batches):
            for message in (message for turn in batch["turns"] for message in turn):
                created_at = _date(message.get("time_anchor")) or created_at
                yield Draft(
                    session_id=name,
                    role=message["role"],
                    content=message["content"],
                    step_index=step,
                    msg_index=position,
                    created_at=created_at,
                )
                position += 1


def _questions(file: Path, messages: int) -> Iterator[Question]:
    """The questions whose evidence is in the chat; evidence in plans that are not on disk does not count."""
    for ability, questions in json.loads(file.read_bytes()).items():
        for question in questions:
            named = frozenset(_flat(question.get("source_chat_ids")))
            if evidence := frozenset(place for place in named if place < messages):
                yield Question(ability, question["question"], evidence)


def _flat(ids: Any) -> Iterator[int]:
    match ids:
        case dict():
            for part in ids.values():
                yield from _flat(part)
        case list():
            for part in ids:
                yield from _flat(part)
        case int():
            yield ids


def _date(anchor: str | None) -> str:
    try:
        return dt.datetime.strptime(anchor or "", "%B-%d-%Y").date().isoformat()
    except ValueError:
        return ""
