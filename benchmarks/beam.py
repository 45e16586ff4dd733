"""Evidence recall on BEAM: its chats as the evaluations read them, and how much evidence a ranking
finds.

The folder is the benchmark's own (its layout is in scroll_evals/beam.py). A chat is one session
here, so that any ranking can be asked within it.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scroll_context.events import Draft
from scroll_evals.beam import SPLITS, Beam
from scroll_evals.tasks import DataFault, Question


class Chat(msgspec.Struct, frozen=True):
    name: str
    messages: list[Draft]
    questions: list[Question]  # those that have evidence


def read(folder: Path) -> Iterator[Chat]:
    """Every chat below a folder, in a fixed order."""
    for split in SPLITS:
        for found in Beam(folder, split).histories():
            if isinstance(found, DataFault):
                print(f"{found.where}: {found.outcome}: {found.text}", file=sys.stderr)
                continue
            messages = [replace(draft, session_id=found.history_id) for draft in found.drafts()]
            yield Chat(
                found.history_id, messages, [one for one in found.questions() if one.evidence]
            )


Search = Callable[[str, str], Iterable[int]]
"""The seqs that a ranking finds for a question within a chat, best first."""


def recall(chats: list[Chat], first_seqs: list[int], search: Search) -> dict[str, list[float]]:
    """By ability, the part of each question's evidence that the search finds within its chat."""
    found: dict[str, list[float]] = {}
    for chat, first in zip(chats, first_seqs, strict=True):
        for question in chat.questions:
            turns = {
                chat.messages[seq - first].metadata["source_id"]
                for seq in search(question.text, chat.name)
            }
            share = len(turns.intersection(question.evidence)) / len(question.evidence)
            found.setdefault(question.ability, []).append(share)
    return dict(sorted(found.items()))
