"""Reading BEAM's folder layout: the bundled sample, variants of it, and everything that can be
wrong with a copy.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scroll_evals import beam
from scroll_evals.beam import ABILITIES, SPLITS
from scroll_evals.tasks import DataFault, History, sample_folder

Edit = Callable[[Any], Any]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of the sample that a test may spoil."""
    return Path(shutil.copytree(sample_folder("beam"), tmp_path / "beam"))


def read(folder: Path, split: str) -> tuple[list[History], list[DataFault]]:
    found = list(beam.Beam(folder, split).histories())
    return [one for one in found if not isinstance(one, DataFault)], [
        one for one in found if isinstance(one, DataFault)
    ]


def rewrite(file: Path, edit: Edit) -> None:
    file.write_text(json.dumps(edit(json.loads(file.read_text()))))


def messages(document: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for batch in document for turn in batch["turns"] for message in turn]


def sources(history: History) -> list[str]:
    return [draft.metadata["source_id"] for draft in history.drafts()]


def test_a_batch_is_a_session_with_its_number_and_date_as_columns() -> None:
    (history,), faults = read(sample_folder("beam"), "128K")
    assert not faults
    assert history.history_id == "128K-1"
    drafts = list(history.drafts())
    assert len(drafts) == 32
    first, last = drafts[0], drafts[-1]
    assert first.content.startswith("I want to turn the empty lot")
    assert first.content.endswith("->-> 1,1"), "the text is stored as it is"
    assert last.content.startswith("Collect them")
    assert (last.kind, last.role, last.task_id) == ("conversation", "assistant", "128K-1")
    assert (last.step_index, last.msg_index, last.created_at) == (3, 31, "2024-05-13")
    assert last.metadata == {"source_id": "31", "date": "2024-05-13"}
    assert len({draft.session_id for draft in drafts}) == 3
    assert len({draft.source_key for draft in drafts}) == 32


def test_all_ten_abilities_are_read_whatever_their_fields_are_called() -> None:
    (history,), _ = read(sample_folder("beam"), "128K")
    questions = {question.ability: question for question in history.questions()}
    assert set(questions) == set(ABILITIES)
    assert all(question.answer and question.rubric for question in questions.values())
    assert questions["event_ordering"].evidence == ("4", "12", "16", "26"), (
        "a list of numbers and lists"
    )
    assert questions["knowledge_update"].evidence == ("10", "22"), "a dict of lists"
    assert questions["abstention"].evidence == ()
    assert questions["temporal_reasoning"].task_id == "beam/128K-1/temporal_reasoning/0"


def test_ids_count_through_the_plans_and_dates_order_nothing() -> None:
    (history,), faults = read(sample_folder("beam"), "10M")
    assert not faults
    assert sources(history) == [str(number) for number in range(24)]
    drafts = list(history.drafts())
    assert [draft.step_index for draft in drafts] == [1] * 6 + [2] * 6 + [3] * 6 + [4] * 6
    assert [draft.created_at for draft in drafts[::6]] == [
        "2024-01-15",
        "2024-02-12",
        "2024-04-22",
        "2024-03-25",
    ]
    asked = {question.ability: question for question in history.questions()}
    by_source = {draft.metadata["source_id"]: draft.content for draft in drafts}
    assert "launch" in by_source[asked["event_ordering"].evidence[-1]]


@pytest.mark.parametrize("cumulative", [True, False])
def test_the_combined_file_reads_like_the_plans(data: Path, cumulative: bool) -> None:
    home = data / "10M" / "1"
    (apart,), _ = read(data, "10M")
    wanted = [(draft.content, draft.metadata, draft.step_index) for draft in apart.drafts()]
    plans = [json.loads((home / f"plan-{number}" / "chat.json").read_text()) for number in (0, 1)]
    for message in messages(plans[1]) if cumulative else ():
        message["id"] += 12
    for number in (0, 1):
        shutil.rmtree(home / f"plan-{number}")
    combined = [{"plan-2": plans[1], "plan-1": None}, {"plan-1": plans[0], "plan-2": None}]
    (home / "chat.json").write_text(json.dumps(combined))
    (together,), faults = read(data, "10M")
    assert not faults
    assert [
        (draft.content, draft.metadata, draft.step_index) for draft in together.drafts()
    ] == wanted


def test_the_shortened_chat_is_preferred(data: Path) -> None:
    home = data / "100K" / "1"
    document = json.loads((home / "chat.json").read_text())
    (home / "chat_trunecated.json").write_text(json.dumps(document[:2]))
    (history,), faults = read(data, "128K")
    assert max(draft.step_index or 0 for draft in history.drafts()) == 2
    assert [fault.outcome for fault in faults] == ["missing-evidence"]
    update = next(one for one in history.questions() if one.ability == "knowledge_update")
    assert update.evidence == ("10",)
    assert update.metadata == {"missing_evidence": ["22"]}


def test_messages_are_ordered_by_id_within_a_batch_and_batches_by_their_first(data: Path) -> None:
    def shuffle(document: Any) -> Any:
        document.reverse()
        document[0]["turns"].reverse()
        return document

    rewrite(data / "100K" / "1" / "chat.json", shuffle)
    (history,), faults = read(data, "128K")
    assert not faults
    assert sources(history) == [str(number) for number in range(32)]


def test_a_date_is_carried_forward_and_the_beginning_may_have_none(data: Path) -> None:
    def undate(document: Any) -> Any:
        for message in messages(document):
            if message.get("time_anchor") in ("March-04-2024", "May-13-2024"):
                message["time_anchor"] = None if message["time_anchor"].startswith("Ma") else ""
        return document

    rewrite(data / "100K" / "1" / "chat.json", undate)
    (history,), faults = read(data, "128K")
    assert [fault.outcome for fault in faults] == ["no-date"]
    drafts = list(history.drafts())
    assert "date" not in drafts[0].metadata
    assert drafts[-1].created_at == "2024-04-08"


def test_a_batch_whose_ids_start_again_keeps_its_place_at_the_end(data: Path) -> None:
    def restart(document: Any) -> Any:
        for number, message in enumerate(messages(document[2:])):
            message["id"] = number
        return document

    rewrite(data / "100K" / "1" / "chat.json", restart)
    (history,), faults = read(data, "128K")
    assert ("duplicate-id", True) in {
        (fault.outcome, fault.text.startswith("10 ids")) for fault in faults
    }
    drafts = list(history.drafts())
    assert sources(history) == [
        *(str(number) for number in range(22)),
        *(f"{at}#{at + 1}" for at in range(10)),
    ]
    assert drafts[22].content.startswith("A correction")


def test_one_repeated_id_changes_nothing_else(data: Path) -> None:
    def repeat(document: Any) -> Any:
        messages(document)[7]["id"] = 6
        return document

    rewrite(data / "100K" / "1" / "chat.json", repeat)
    (history,), faults = read(data, "128K")
    assert [fault.outcome for fault in faults] == ["duplicate-id"]
    assert sources(history) == [str(number) if number != 7 else "6#1" for number in range(32)]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("spoil", "outcome"),
    [
        (lambda home: cut(home / "chat.json"), "bad-json"),
        (lambda home: (home / "chat.json").unlink(), "missing-file"),
        (lambda home: (home / "chat.json").write_text('{"turns": 3}'), "bad-data"),
        (lambda home: (home / "chat.json").write_text("[1, 2]"), "bad-data"),
        (lambda home: (home / "chat.json").write_text("7"), "bad-data"),
        (lambda home: (home / "chat.json").write_bytes(b'["\xff"]'), "bad-json"),
        (lambda home: (home / "chat.json").write_text("[" * 200_000), "bad-json"),
    ],
)
def test_a_chat_that_cannot_be_read_is_named_and_the_others_go_on(
    data: Path, spoil: Callable[[Path], None], outcome: str
) -> None:
    shutil.copytree(data / "100K" / "1", data / "100K" / "2")
    spoil(data / "100K" / "1")
    histories, faults = read(data, "128K")
    assert [history.history_id for history in histories] == ["128K-2"]
    assert [fault.outcome for fault in faults] == [outcome]
    assert "/1" in faults[0].where


@pytest.mark.parametrize(
    ("spoil", "outcome", "kept"),
    [
        (lambda home: shutil.rmtree(home / "plan-1"), "missing-evidence", 12),
        (lambda home: (home / "plan-1" / "chat.json").unlink(), "missing-file", 12),
        (lambda home: cut(home / "plan-1" / "chat.json"), "bad-json", 12),
        (lambda home: (home / "plan-1").rename(home / "plan-2"), "missing-plan", 12),
    ],
)
def test_plans_behind_a_gap_are_left_out_because_their_ids_are_unknown(
    data: Path, spoil: Callable[[Path], None], outcome: str, kept: int
) -> None:
    spoil(data / "10M" / "1")
    (history,), faults = read(data, "10M")
    assert len(sources(history)) == kept
    assert faults[0].outcome == outcome


@pytest.mark.parametrize(
    ("spoil", "outcome", "questions"),
    [
        (lambda file: file.unlink(), "no-questions", 0),
        (lambda file: cut(file), "bad-json", 0),
        (
            lambda file: rewrite(file, lambda found: found | {"telepathy": [{"question": "?"}]}),
            "bad-question",
            10,
        ),
        (
            lambda file: rewrite(file, lambda found: found | {"abstention": [{"rubric": ["x"]}]}),
            "bad-question",
            9,
        ),
        (
            lambda file: rewrite(file, lambda found: found | {"abstention": [{"question": "?"}]}),
            "bad-question",
            9,
        ),
    ],
)
def test_questions_that_cannot_be_asked_are_named(
    data: Path, spoil: Callable[[Path], None], outcome: str, questions: int
) -> None:
    spoil(data / "100K" / "1" / "probing_questions" / "probing_questions.json")
    (history,), faults = read(data, "128K")
    assert [fault.outcome for fault in faults] == [outcome]
    assert len(list(history.questions())) == questions


def test_missing_folders_and_unknown_splits_are_outcomes_not_errors(tmp_path: Path) -> None:
    for split in SPLITS:
        assert [fault.outcome for fault in read(tmp_path / "nothing", split)[1]] == [
            "missing-folder"
        ]
    assert [fault.outcome for fault in read(sample_folder("beam"), "7M")[1]] == ["unknown-split"]


def test_the_rubric_says_what_the_data_look_like() -> None:
    said = beam.Beam(sample_folder("beam"), "128K").rubric_prompt()
    for word in (
        "`step_index`",
        "`content` is the turn alone",
        "kind='conversation'",
        "submit_answer",
        "all_agents=True",
    ):
        assert word in said
