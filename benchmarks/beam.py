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
    # Only questions that have evidence.
    questions: list[Question]


def read(folder: Path) -> Iterator[Chat]:
    """Every chat below a folder, in a fixed order."""
    for split in SPLITS:
        for history in Beam(folder, split).histories():
            if isinstance(history, DataFault):
                print(f"{history.where}: {history.outcome}: {history.text}", file=sys.stderr)
                continue
            messages = [replace(draft, session_id=history.history_id) for draft in history.drafts()]
            yield Chat(
                history.history_id,
                messages,
                [question for question in history.questions() if question.evidence],
            )


Search = Callable[[str, str], Iterable[int]]
"""The seqs that a ranking finds for a question within a chat, best first."""


def recall(chats: list[Chat], first_seqs: list[int], search: Search) -> dict[str, list[float]]:
    """By ability, the part of each question's evidence that the search finds within its chat."""
    scores: dict[str, list[float]] = {}
    for chat, first in zip(chats, first_seqs, strict=True):
        for question in chat.questions:
            turns = {
                chat.messages[seq - first].metadata["source_id"]
                for seq in search(question.text, chat.name)
            }
            share = len(turns.intersection(question.evidence)) / len(question.evidence)
            scores.setdefault(question.ability, []).append(share)
    return dict(sorted(scores.items()))
