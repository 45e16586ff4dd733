"""BEAM: reads chats and probing questions in the benchmark's own folder layout.

    DIR/<size>/<chat>/chat_trunecated.json (sic)   when it exists, else chat.json
    DIR/10M/<chat>/plan-<k>/chat.json              the longest chats come in plans; or in one file, under "plan-1", …
    DIR/<size>/<chat>/probing_questions/probing_questions.json

A chat is a list of batches of turns of messages; a batch is a session. Messages are ordered by
their ids, which count through all plans of a chat; dates run backwards in real chats and order
nothing. What cannot be read becomes a `DataFault` and everything else goes on. Nothing here raises
on account of data.
"""

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.events import Draft
from scroll_evals.tasks import DataFault, History, Question, rubric, turn_draft

SPLITS = {"128K": "100K", "500K": "500K", "1M": "1M", "10M": "10M"}
"""The paper's names of the sizes, and the folders."""

ABILITIES = (
    "abstention",
    "contradiction_resolution",
    "event_ordering",
    "information_extraction",
    "instruction_following",
    "knowledge_update",
    "multi_session_reasoning",
    "preference_following",
    "summarization",
    "temporal_reasoning",
)

_REFERENCES = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")
_CHATS = ("chat_trunecated.json", "chat.json")


class Beam(msgspec.Struct, frozen=True):
    """One size of BEAM, below a folder; what is wrong with it, `histories()` says."""

    folder: Path
    split: str
    name: str = "beam"

    def histories(self) -> Iterator[History | DataFault]:
        """Every chat, by number."""
        if self.split not in SPLITS:
            yield DataFault(self.split, "unknown-split", f"BEAM has the splits {', '.join(SPLITS)}")
            return
        home = next(
            (
                home
                for name in (SPLITS[self.split], self.split)
                if (home := self.folder / name).is_dir()
            ),
            None,
        )
        chats = (
            sorted((chat for chat in home.iterdir() if chat.is_dir()), key=_number) if home else []
        )
        if not chats:
            where = home or self.folder / SPLITS[self.split]
            yield DataFault(
                str(where),
                "missing-folder",
                "there are no chats here; download the benchmark again",
            )
        for chat in chats:
            yield from _history(chat, f"{self.split}-{chat.name}")

    def rubric_prompt(self) -> str:
        return rubric("beam")


class BeamChat(msgspec.Struct, frozen=True):
    """One chat, found to be readable. The turns stay in its files until they are asked for."""

    history_id: str
    home: Path
    probes: tuple[Question, ...]

    def drafts(self) -> Iterator[Draft]:
        for position, said in enumerate(_read_chat(self.home).turns):
            yield turn_draft(
                "beam",
                self.history_id,
                session=said.session,
                position=position,
                moment=said.date,
                role=said.role,
                text=said.text,
                source_id=said.id,
            )

    def questions(self) -> Iterable[Question]:
        return self.probes


# chats --------------------------------------------------------------------------------------------


class _BeamMessage(msgspec.Struct):
    role: str
    content: str
    id: int | None = None
    time_anchor: str | None = None


class _Batch(msgspec.Struct):
    turns: list[list[_BeamMessage]]
    time_anchor: str | None = None


_Plans = list[list[_Batch]]


class _Session(msgspec.Struct, frozen=True):
    """A batch, and its messages by their names in the whole chat."""

    batch: _Batch
    messages: list[tuple[str, _BeamMessage]]


class _BeamTurn(msgspec.Struct, frozen=True):
    id: str
    session: int
    date: str
    role: str
    text: str


class _Read(msgspec.Struct):
    """The readable part of a chat, in order."""

    turns: list[_BeamTurn] = []
    faults: list[DataFault] = []


def _history(home: Path, history_id: str) -> Iterator[History | DataFault]:
    chat = _read_chat(home)
    yield from chat.faults
    if not chat.turns:
        return
    probes = list(_questions(home, history_id, {turn.id for turn in chat.turns}))
    yield from (probe for probe in probes if isinstance(probe, DataFault))
    yield BeamChat(
        history_id, home, tuple(probe for probe in probes if isinstance(probe, Question))
    )


def _read_chat(home: Path) -> _Read:
    chat = _Read()
    plans = _plans(home, chat.faults)
    date = ""
    for number, session in enumerate(_numbered(plans, home, chat.faults), 1):
        date = _date(session.batch, home, chat.faults) or date
        chat.turns += (
            _BeamTurn(id, number, date, said.role, said.content) for id, said in session.messages
        )
    if chat.turns and not chat.turns[0].date:
        chat.faults.append(
            DataFault(str(home), "no-date", "the first sessions have no time anchor and no date")
        )
    return chat


def _plans(home: Path, faults: list[DataFault]) -> _Plans:
    """The batches of a chat, by plan; a chat without plans is one plan."""
    folders = sorted((one for one in home.glob("plan-*") if one.is_dir()), key=_number)
    whole = next((file for name in _CHATS if (file := home / name).is_file()), None)
    if whole is not None and (not folders or whole.name == _CHATS[0]):
        return _decoded(whole, faults)
    if not folders:
        faults.append(
            DataFault(str(home), "missing-file", f"there is neither {_CHATS[0]} nor {_CHATS[1]}")
        )
    plans: _Plans = []
    for expected, folder in enumerate(folders):
        file = next(
            (file for name in _CHATS if (file := folder / name).is_file()), folder / _CHATS[1]
        )
        if _number(folder)[0] != expected or not file.is_file():
            missing = file if file.parent.name == f"plan-{expected}" else home / f"plan-{expected}"
            outcome = "missing-file" if file.parent.name == f"plan-{expected}" else "missing-plan"
            faults.append(
                DataFault(
                    str(missing),
                    outcome,
                    "this plan and later ones are left out: their ids build on it",
                )
            )
            break
        batches = _decoded(file, faults)
        if not batches:
            break
        plans += batches
    return plans


def _decoded(file: Path, faults: list[DataFault]) -> _Plans:
    try:
        body = file.read_bytes()
        document = msgspec.json.decode(body)
        if isinstance(document, dict):
            document = [document]
        if document and isinstance(document[0], dict) and "turns" not in document[0]:
            named = [
                (key, plan) for part in document for key, plan in part.items() if plan is not None
            ]
            return msgspec.convert(
                [plan for _, plan in sorted(named, key=lambda one: _number(one[0]))], _Plans
            )
        return [msgspec.convert(document, list[_Batch])]
    except OSError as error:
        faults.append(DataFault(str(file), "missing-file", f"it cannot be read: {error.strerror}"))
    except (msgspec.ValidationError, AttributeError, TypeError) as error:
        faults.append(DataFault(str(file), "bad-data", f"it is not a chat of BEAM: {error}"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        faults.append(
            DataFault(str(file), "bad-json", f"it is damaged or only half there: {error}")
        )
    return []


def _numbered(plans: _Plans, home: Path, faults: list[DataFault]) -> list[_Session]:
    """The sessions in order, each with its messages in order.

    Ids start again in each plan's own file, so a plan whose first id is taken goes on where the
    last one ended. In one published chat a batch does the same by mistake. It keeps its place
    behind the others, and its messages get names of their own, since evidence that names such an id
    means the message that had it first.
    """
    sessions: list[tuple[int, _Session]] = []
    taken: set[int] = set()
    repeated = 0
    for plan in plans:
        batches = [batch for batch in plan if any(batch.turns)]
        base = max(taken) + 1 if batches and _first_id(batches[0]) in taken else 0
        for batch in batches:
            free = max(taken, default=-1) + 1
            messages: list[tuple[int, str, _BeamMessage]] = []
            for number, message in enumerate(message for turn in batch.turns for message in turn):
                id = free + number if message.id is None else base + message.id
                again = id in taken
                repeated += again
                taken.add(id)
                messages.append((id, f"{id}#{repeated}" if again else str(id), message))
            place = free if "#" in messages[0][1] else min(id for id, _, _ in messages)
            messages.sort(key=lambda one: one[0])
            sessions.append(
                (place, _Session(batch, [(source, message) for _, source, message in messages]))
            )
    if repeated:
        faults.append(
            DataFault(
                str(home),
                "duplicate-id",
                f"{repeated} ids were given twice; evidence means the first of each",
            )
        )
    return [session for _, session in sorted(sessions, key=lambda one: one[0])]


def _first_id(batch: _Batch) -> int | None:
    return next(message.id for turn in batch.turns for message in turn)


def _date(batch: _Batch, home: Path, faults: list[DataFault]) -> str:
    messages = (message.time_anchor for turn in batch.turns for message in turn)
    anchor = next(filter(None, messages), batch.time_anchor)
    if not anchor:
        return ""
    try:
        return dt.datetime.strptime(anchor, "%B-%d-%Y").date().isoformat()
    except ValueError:
        faults.append(
            DataFault(
                str(home), "bad-date", f"the time anchor {anchor!r:.60} is not like March-15-2024"
            )
        )
        return ""


# questions ----------------------------------------------------------------------------------------


def _questions(home: Path, history_id: str, ids: set[str]) -> Iterator[Question | DataFault]:
    file = home / "probing_questions" / "probing_questions.json"
    try:
        probes = msgspec.json.decode(file.read_bytes(), type=dict[str, list[dict[str, Any]]])
    except OSError as error:
        yield DataFault(str(file), "no-questions", f"it cannot be read: {error.strerror}")
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield DataFault(str(file), "bad-json", f"it is damaged or only half there: {error}")
        return
    absent = 0
    for ability, asked in probes.items():
        for number, probe in enumerate(asked):
            found = _question(probe, ability, number, history_id, ids)
            if isinstance(found, str):
                yield DataFault(f"{file} {ability} {number}", "bad-question", found)
                continue
            absent += len(found.metadata.get("missing_evidence", ()))
            yield found
    if absent:
        yield DataFault(
            str(file),
            "missing-evidence",
            f"{absent} turns that questions rest on are not in this copy",
        )


def _question(
    probe: Mapping[str, Any], ability: str, number: int, history_id: str, ids: set[str]
) -> Question | str:
    text, items = probe.get("question"), probe.get("rubric")
    if ability not in ABILITIES:
        return f"BEAM has no ability {ability!r:.60}"
    if not isinstance(text, str) or not text.strip():
        return "there is no question"
    if not isinstance(items, list) or not (
        rubric_items := tuple(str(item) for item in items if str(item).strip())
    ):
        return "there is no rubric, so no answer can be judged"
    named = list(dict.fromkeys(_flat(probe.get("source_chat_ids"))))
    missing = [id for id in named if id not in ids]
    return Question(
        task_id=f"beam/{history_id}/{ability}/{number}",
        history_id=history_id,
        ability=ability,
        text=text,
        answer=next((str(probe[name]) for name in _REFERENCES if probe.get(name)), ""),
        rubric=rubric_items,
        evidence=tuple(id for id in named if id in ids),
        metadata={"missing_evidence": missing} if missing else {},
    )


def _flat(ids: object) -> Iterator[str]:
    """The ids in a list, a list of lists or a dict of lists."""
    match ids:
        case Mapping():
            for part in ids.values():
                yield from _flat(part)
        case list():
            for part in ids:
                yield from _flat(part)
        case bool():
            return
        case int() | str():
            yield str(ids).strip()


def _number(path: Path | str) -> tuple[int, str]:
    """Chats and plans in the order of the number that their name ends with."""
    name = path if isinstance(path, str) else path.name
    found = re.search(r"(\d+)$", name)
    return (int(found.group(1)) if found else -1, name)
