"""LoCoMo: long conversations between two people, in the benchmark's own JSON schema.

A file is a list of conversations. Each has numbered sessions with a date, turns with ids such as
`D3:12`, and questions of five categories that name the turns which hold their answer. The last
category, adversarial, asks about something that was never said, or that the other person said: the
right answer is to abstain. The turns that such a question names mislead, and finding them is still
what retrieval has to do.

Who speaks is the subject of most questions, so each turn begins with the speaker's name. The split
says what the second person is: `people` records them as a person in a chat, which is what they are;
`assistant` records them as the assistant, as most programs for this benchmark do.

An audit of the published answers is used where it lies beside the file, as `errors.json`: a list
with `question`, `correct_answer`, `correct_evidence` and `error_type`. Its answers and evidence
replace those that were published, and a fault with the outcome `corrected` says how many.
"""

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.events import Draft
from scroll_context.origin import SPEAKER
from scroll_evals.tasks import DataFault, History, Question, rubric, turn_draft

SPLITS = {"people": SPEAKER, "assistant": "assistant"}
"""The splits, and the role of the second person in each."""

ABILITIES = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
"""The benchmark numbers its categories; these are the names in its paper."""

ERRORS = "errors.json"

_DATE = re.compile(r"(\d{1,2}):(\d{2}) (am|pm) on (\d{1,2}) (\w+),? (\d{4})", re.IGNORECASE)
_MONTHS = (
    "january february march april may june july august september october november december"
).split()
_TURN_ID = re.compile(r"D:?(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")


class Locomo(msgspec.Struct, frozen=True):
    """The conversations in a folder or a file; `histories()` reports what is wrong with them."""

    path: Path
    split: str = "people"
    name: str = "locomo"

    def histories(self) -> Iterator[History | DataFault]:
        """Every conversation, in the order of the file."""
        if self.split not in SPLITS:
            yield DataFault(
                self.split, "unknown-split", f"LoCoMo has the splits {', '.join(SPLITS)}"
            )
            return
        file = locomo_file(self.path)
        if file is None:
            outcome = "missing-file" if self.path.is_dir() else "missing-folder"
            yield DataFault(
                str(self.path), outcome, "there is no locomo.json or locomo10.json here"
            )
            return
        try:
            samples = msgspec.json.decode(file.read_bytes(), type=list[Any])
        except (OSError, msgspec.MsgspecError) as error:
            yield DataFault(str(file), "bad-json", f"it is not a list of conversations: {error}")
            return
        corrections, faults = _corrections(file.with_name(ERRORS))
        yield from faults
        yield from self._conversations(file, samples, corrections)

    def _conversations(
        self, file: Path, samples: list[Any], corrections: "_Corrections"
    ) -> Iterator[History | DataFault]:
        seen: set[str] = set()
        for number, sample in enumerate(samples):
            where = f"{file} conversation {number}"
            conversation = _conversation(sample, SPLITS[self.split], corrections)
            if isinstance(conversation, str):
                yield DataFault(where, "bad-data", conversation)
            elif conversation.history_id in seen:
                text = f"{conversation.history_id} was there before; this one is left out"
                yield DataFault(where, "duplicate-id", text)
            else:
                seen.add(conversation.history_id)
                yield from _shortcomings(conversation, where)
                yield conversation

    def rubric_prompt(self) -> str:
        return rubric("locomo")


def locomo_file(path: Path) -> Path | None:
    """The file with the conversations, where there is one."""
    if path.is_file():
        return path
    return next(iter(sorted(path.glob("locomo*.json"))), None)


class Conversation(msgspec.Struct, frozen=True):
    """One conversation. They are small, so it holds its turns."""

    history_id: str
    turns: tuple["_Turn", ...]
    probes: tuple[Question, ...]
    undated: int  # sessions

    def drafts(self) -> Iterator[Draft]:
        for position, turn in enumerate(self.turns):
            yield turn_draft(
                "locomo",
                self.history_id,
                session=turn.session,
                position=position,
                moment=turn.moment,
                role=turn.role,
                text=turn.text,
                source_id=turn.turn_id,
            )

    def questions(self) -> Iterable[Question]:
        return self.probes


class _Turn(msgspec.Struct, frozen=True):
    turn_id: str
    session: int
    moment: str
    role: str
    text: str


# reading ------------------------------------------------------------------------------------------


class _Said(msgspec.Struct):
    speaker: str
    dia_id: str
    text: str = ""
    blip_caption: str = ""


class _Probe(msgspec.Struct):
    question: str
    category: int
    answer: Any = ""  # a number for some questions
    adversarial_answer: Any = ""
    evidence: list[str] = []


class _Sample(msgspec.Struct):
    conversation: dict[str, Any]
    qa: list[_Probe]
    sample_id: str


class _Correction(msgspec.Struct):
    question: str
    category: int
    error_type: str
    correct_answer: Any = ""
    correct_evidence: list[str] = []


_Corrections = dict[tuple[str, int], _Correction]


def _corrections(file: Path) -> tuple[_Corrections, list[DataFault]]:
    """The audit beside the conversations, by question and category."""
    if not file.is_file():
        return {}, []
    try:
        rows = msgspec.json.decode(file.read_bytes(), type=list[_Correction])
    except (OSError, msgspec.MsgspecError) as error:
        fault = DataFault(str(file), "bad-json", f"the corrections cannot be used: {error}")
        return {}, [fault]
    text = f"{len(rows)} published answers or their evidence are replaced by those of this file"
    corrections = {(row.question, row.category): row for row in rows}
    return corrections, [DataFault(str(file), "corrected", text)]


def _conversation(
    element: object, second_role: str, corrections: _Corrections
) -> Conversation | str:
    """The conversation in an element, or what is wrong with it."""
    try:
        sample = msgspec.convert(element, _Sample)
        first_speaker = str(sample.conversation.get("speaker_a", ""))
        turns: list[_Turn] = []
        undated = 0
        for number in _session_numbers(sample.conversation):
            moment = _moment(str(sample.conversation.get(f"session_{number}_date_time", "")))
            undated += not moment
            for said in msgspec.convert(sample.conversation[f"session_{number}"], list[_Said]):
                role = "user" if said.speaker == first_speaker else second_role
                turns.append(_Turn(said.dia_id, number, moment, role, _text_of(said)))
    except msgspec.ValidationError as error:
        return f"it is not a conversation of LoCoMo: {error}"
    if not turns:
        return "the conversation has no turns"
    history_id = re.sub(r"[^\w.-]", "_", sample.sample_id).lstrip(".")[:120] or "_"
    turn_ids = {turn.turn_id for turn in turns}
    probes = tuple(
        _question(number, probe, history_id, turn_ids, corrections)
        for number, probe in enumerate(sample.qa)
        if probe.category in ABILITIES
    )
    return Conversation(history_id, tuple(turns), probes, undated)


def _session_numbers(conversation: dict[str, Any]) -> list[int]:
    names = (_SESSION.fullmatch(name) for name in conversation)
    return sorted(int(name[1]) for name in names if name is not None)


def _text_of(said: _Said) -> str:
    """Who said what; a shared picture is known by its caption."""
    picture = f" [shares a picture: {said.blip_caption}]" if said.blip_caption else ""
    return f"{said.speaker}: {said.text}{picture}"


def _question(
    number: int, probe: _Probe, history_id: str, turn_ids: set[str], corrections: _Corrections
) -> Question:
    answer, evidence = str(probe.answer), probe.evidence
    metadata: dict[str, Any] = {}
    if correction := corrections.get((probe.question, probe.category)):
        answer, evidence = str(correction.correct_answer), correction.correct_evidence
        metadata["corrected"] = correction.error_type
    # A few adversarial questions have an answer of their own, such as "No".
    abstention = ABILITIES[probe.category] == "adversarial" and not answer
    if abstention:
        answer = f"Nobody said so. A wrong answer would be: {probe.adversarial_answer}"
    named = [f"D{session}:{turn}" for session, turn in _TURN_ID.findall(" ".join(evidence))]
    return Question(
        task_id=f"locomo/{history_id}/{number}",
        history_id=history_id,
        ability=ABILITIES[probe.category],
        text=probe.question,
        answer=answer,
        evidence=tuple(turn_id for turn_id in dict.fromkeys(named) if turn_id in turn_ids),
        metadata=metadata
        | {
            "abstention": abstention,
            "missing": sum(turn_id not in turn_ids for turn_id in named),
        },
    )


def _shortcomings(conversation: Conversation, where: str) -> Iterator[DataFault]:
    if conversation.undated:
        text = f"{conversation.undated} sessions have no date like 1:56 pm on 8 May, 2023"
        yield DataFault(where, "bad-date", text)
    missing = sum(question.metadata["missing"] for question in conversation.probes)
    if missing:
        text = f"{missing} turns that questions rest on are not in this copy"
        yield DataFault(where, "missing-evidence", text)


def _moment(date: str) -> str:
    """The ISO form of a date such as "1:56 pm on 8 May, 2023"; empty if it is not one."""
    match = _DATE.fullmatch(date.strip())
    if match is None:
        return ""
    hour, minute, half, day, month, year = match.groups()
    if month.lower() not in _MONTHS:
        return ""
    afternoon = 12 * (half.lower() == "pm")
    try:
        moment = dt.datetime(
            int(year),
            _MONTHS.index(month.lower()) + 1,
            int(day),
            int(hour) % 12 + afternoon,
            int(minute),
        )
    except ValueError:
        return ""
    return moment.isoformat(timespec="minutes")
