"""LongMemEval: reads questions and their haystacks in the official JSON schema, one history for
each question.

A file is one JSON array, gigabytes long for the largest split, so a history keeps only its place in
the file. Sessions are ordered by their dates, as the benchmark means them to be. User turns have
the kind `context_msg` and assistant turns `model_turn`. What cannot be read becomes a `DataFault`;
nothing here raises on account of data.
"""

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.events import Draft
from scroll_evals.json_array import Place, element_at, elements
from scroll_evals.tasks import DataFault, History, Question, rubric, turn_draft

SPLITS = ("oracle", "s", "m")
TYPES = (
    "single-session-user",
    "single-session-assistant",
    "single-session-preference",
    "multi-session",
    "temporal-reasoning",
    "knowledge-update",
)
KINDS = {"user": "context_msg", "assistant": "model_turn"}

_DATE = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})(?:\s*\(\w+\))?(?:\s+(\d{1,2}):(\d{2}))?")


class LongMemEval(msgspec.Struct, frozen=True):
    """One split of LongMemEval, in a folder or in one file; what is wrong with it, `histories()`
    says.
    """

    path: Path
    split: str
    name: str = "longmemeval"

    def histories(self) -> Iterator[History | DataFault]:
        """Every question with its haystack, in the order of the file."""
        if self.split not in SPLITS:
            yield DataFault(
                self.split, "unknown-split", f"LongMemEval has the splits {', '.join(SPLITS)}"
            )
            return
        file = self._file()
        if file is None:
            outcome = "missing-file" if self.path.is_dir() else "missing-folder"
            yield DataFault(
                str(self.path),
                outcome,
                f"there is no longmemeval_{self.split}.json or _cleaned.json here",
            )
            return
        try:
            yield from _histories(file)
        except (ValueError, OSError, RecursionError) as error:
            yield DataFault(
                str(file), "bad-json", f"damaged or only half there, the rest is left out: {error}"
            )

    def rubric_prompt(self) -> str:
        return rubric("longmemeval")

    def _file(self) -> Path | None:
        if self.path.is_file():
            return self.path
        names = [f"longmemeval_{self.split}_cleaned.json", f"longmemeval_{self.split}.json"]
        others = sorted(one.name for one in self.path.glob(f"longmemeval_{self.split}*.json"))
        return next(
            (file for name in (*names, *others) if (file := self.path / name).is_file()), None
        )


def _histories(file: Path) -> Iterator[History | DataFault]:
    seen: set[str] = set()
    for number, (place, element) in enumerate(elements(file)):
        where = f"{file} question {number}"
        found = _haystack(element, file, place)
        if isinstance(found, str):
            yield DataFault(where, "bad-data", found)
        elif found.history_id in seen:
            yield DataFault(
                where, "duplicate-id", f"{found.history_id} was there before; this one is left out"
            )
        else:
            seen.add(found.history_id)
            yield from _shortcomings(found, where)
            yield found


class Haystack(msgspec.Struct, frozen=True):
    """One question and its history, which stays in the file."""

    history_id: str
    file: Path
    place: Place
    question: Question
    undated: int  # sessions

    def drafts(self) -> Iterator[Draft]:
        instance = msgspec.convert(element_at(self.file, self.place), _Instance)
        position = 0
        for number, (moment, at) in enumerate(_ordered(instance), 1):
            for turn_at, said in enumerate(instance.haystack_sessions[at]):
                yield turn_draft(
                    "longmemeval",
                    self.history_id,
                    session=number,
                    position=position,
                    moment=moment,
                    role=said.role,
                    text=said.content,
                    source_id=_source_id(instance, at, turn_at),
                    kind=KINDS.get(said.role, "context_msg"),
                )
                position += 1

    def questions(self) -> Iterable[Question]:
        return (self.question,)


# elements -----------------------------------------------------------------------------------------


class _SessionTurn(msgspec.Struct):
    role: str
    content: str
    has_answer: bool | None = None


class _Instance(msgspec.Struct):
    question_id: str
    question_type: str
    question: str
    answer: Any = ""  # a number for some questions
    question_date: str = ""
    haystack_session_ids: list[str] = []
    haystack_dates: list[str] = []
    haystack_sessions: list[list[_SessionTurn]] = []
    answer_session_ids: list[str] = []


def _haystack(element: object, file: Path, place: Place) -> Haystack | str:
    """The history in an element, or what is wrong with it."""
    try:
        instance = msgspec.convert(element, _Instance)
    except msgspec.ValidationError as error:
        return f"it is not a question of LongMemEval: {error}"
    sessions = len(instance.haystack_sessions)
    if {len(instance.haystack_session_ids), len(instance.haystack_dates)} != {sessions}:
        return f"{sessions} sessions do not match their ids and dates in number"
    if not any(instance.haystack_sessions):
        return "the haystack is empty"
    if instance.question_type not in TYPES or not instance.question.strip():
        return f"there is no question, or its type {instance.question_type!r:.60} is unknown"
    history_id = re.sub(r"[^\w.-]", "_", instance.question_id).lstrip(".")[:120] or "_"
    undated = sum(not _moment(date) for date in instance.haystack_dates)
    return Haystack(history_id, file, place, _question(instance, history_id), undated)


def _question(instance: _Instance, history_id: str) -> Question:
    abstention = instance.question_id.endswith("_abs")
    evidence = tuple(
        _source_id(instance, at, turn_at)
        for at, session in enumerate(instance.haystack_sessions)
        for turn_at, turn in enumerate(session)
        if turn.has_answer and not abstention
    )
    sessions = () if abstention else tuple(instance.answer_session_ids)
    return Question(
        task_id=f"longmemeval/{history_id}",
        history_id=history_id,
        ability=instance.question_type,
        text=instance.question,
        answer=str(instance.answer),
        evidence=evidence,
        asked_at=_moment(instance.question_date),
        metadata={"abstention": abstention, "answer_session_ids": sessions},
    )


def _shortcomings(found: Haystack, where: str) -> Iterator[DataFault]:
    if found.undated:
        yield DataFault(
            where,
            "bad-date",
            f"{found.undated} sessions have no date like 2023/05/20 (Sat) 02:21; they go first",
        )
    sessions = found.question.metadata["answer_session_ids"]
    if sessions and not found.question.evidence:
        yield DataFault(
            where, "missing-evidence", "no turn is marked has_answer, so recall cannot be measured"
        )


def _ordered(instance: _Instance) -> list[tuple[str, int]]:
    """The sessions by date; those of one date in the order of the file."""
    return sorted((_moment(date), at) for at, date in enumerate(instance.haystack_dates))


def _source_id(instance: _Instance, at: int, turn_at: int) -> str:
    """Session id, place of the session in the file (ids can repeat) and place of the turn in it."""
    return f"{instance.haystack_session_ids[at]}@{at}#{turn_at}"


def _moment(date: str) -> str:
    """ISO form of a date such as "2023/05/20 (Sat) 02:21"; empty if it is none.

    Weekdays depend on no locale.
    """
    found = _DATE.fullmatch(date.strip())
    if found is None:
        return ""
    year, month, day, hour, minute = (int(part or 0) for part in found.groups())
    try:
        return dt.datetime(year, month, day, hour, minute).isoformat(timespec="minutes")
    except ValueError:
        return ""
