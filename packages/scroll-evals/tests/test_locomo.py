"""Reading LoCoMo, on conversations made up here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scroll_evals import judge
from scroll_evals.judge import yes_no_prompt
from scroll_evals.locomo import Conversation, Locomo
from scroll_evals.memory import summarize
from scroll_evals.retrieval import benchmarks_in, measure
from scroll_evals.tasks import DataFault


def made_conversation() -> dict[str, Any]:
    def said(turn_id: str, speaker: str, text: str, **more: str) -> dict[str, str]:
        return {"dia_id": turn_id, "speaker": speaker, "text": text, **more}

    return {
        "sample_id": "conv/1",
        "conversation": {
            "speaker_a": "Ada",
            "speaker_b": "Bo",
            "session_2_date_time": "9:05 am on 12 June, 2023",
            "session_2": [
                said("D2:1", "Ada", "The kayak trip was last Saturday."),
                said("D2:2", "Bo", "I adopted a cat named Miso.", blip_caption="a grey cat"),
            ],
            "session_1_date_time": "12:30 am on 8 May, 2023",
            "session_1": [
                said("D1:1", "Ada", "Hello! I bought a kayak."),
                said("D1:2", "Bo", "How nice, I bake bread these days."),
            ],
            "session_3_date_time": "1:00 pm on 9 July, 2023",
        },
        "qa": [
            {"question": "When was the kayak trip?", "answer": 2023, "category": 2,
             "evidence": ["D2:1"]},
            {"question": "What did Ada buy and Bo bake?", "answer": "a kayak, bread",
             "category": 1, "evidence": ["D1:1; D1:2", "D:9:9"]},
            {"question": "What is the name of the cat?", "answer": "Mochi", "category": 4,
             "evidence": ["D1:2"]},
            {"question": "Which cat did Ada adopt?", "adversarial_answer": "Miso", "category": 5,
             "evidence": ["D2:2"]},
            {"question": "Did Ada adopt a cat?", "adversarial_answer": "Yes", "answer": "No",
             "category": 5, "evidence": ["D2:2"]},
        ],
    }  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path, [made_conversation()])
    return tmp_path


def write(folder: Path, conversations: list[Any], name: str = "locomo10.json") -> None:
    (folder / name).write_text(json.dumps(conversations))


def read(folder: Path, split: str = "people") -> tuple[list[Conversation], list[DataFault]]:
    histories = list(Locomo(folder, split).histories())
    conversations = [one for one in histories if isinstance(one, Conversation)]
    return conversations, [one for one in histories if isinstance(one, DataFault)]


def test_turns_come_in_order_of_sessions_with_their_speaker_and_date(data: Path) -> None:
    ((conversation,), _) = read(data)
    drafts = list(conversation.drafts())
    assert [draft.metadata["source_id"] for draft in drafts] == ["D1:1", "D1:2", "D2:1", "D2:2"]
    assert [draft.role for draft in drafts] == ["user", "speaker", "user", "speaker"]
    assert [draft.created_at for draft in drafts[1:3]] == ["2023-05-08T00:30", "2023-06-12T09:05"]
    assert drafts[0].content.endswith("Ada: Hello! I bought a kayak.")
    expected = "Bo: I adopted a cat named Miso. [shares a picture: a grey cat]"
    assert drafts[3].content.endswith(expected)
    assert {draft.task_id for draft in drafts} == {"conv_1"}


def test_the_second_speaker_can_be_recorded_as_the_assistant(data: Path) -> None:
    ((conversation,), _) = read(data, "assistant")
    assert [draft.role for draft in conversation.drafts()][:2] == ["user", "assistant"]


def test_evidence_is_read_in_the_forms_that_the_file_has(data: Path) -> None:
    ((conversation,), faults) = read(data)
    questions = list(conversation.questions())
    assert questions[1].evidence == ("D1:1", "D1:2")
    assert [question.ability for question in questions] == [
        "temporal",
        "multi-hop",
        "single-hop",
        "adversarial",
        "adversarial",
    ]
    assert questions[0].answer == "2023"
    assert [fault.outcome for fault in faults] == ["missing-evidence"], "D9:9 is not there"


def test_adversarial_questions_are_judged_by_whether_the_answer_abstains(data: Path) -> None:
    ((conversation,), _) = read(data)
    *_, invented, denied = conversation.questions()
    assert invented.metadata["abstention"] and "Miso" in invented.answer
    assert judge.criteria()["abstention"] in yes_no_prompt(invented, "I do not know")
    assert not denied.metadata["abstention"] and denied.answer == "No"
    verdict = judge.judge("locomo", invented, "I do not know", lambda *_: "yes")
    wrong = judge.judge("locomo", denied, "Yes", lambda *_: "no")
    right = [(question, verdict) for question in conversation.probes[:3]]
    scores = summarize("locomo", [*right, (invented, verdict), (denied, wrong)])
    assert scores.overall == pytest.approx(0.8)
    assert scores.extra["without_adversarial"] == 1.0
    assert scores.by_ability["adversarial"] == 0.5
    assert scores.extra["abstention"] == 1.0


def test_corrections_beside_the_file_replace_answers_and_evidence(data: Path) -> None:
    correction = {
        "question": "What is the name of the cat?",
        "category": 4,
        "error_type": "WRONG_CITATION",
        "correct_answer": "Miso",
        "correct_evidence": ["D2:2"],
    }
    write(data, [correction], "errors.json")
    ((conversation,), faults) = read(data)
    question = conversation.probes[2]
    assert (question.answer, question.evidence) == ("Miso", ("D2:2",))
    assert question.metadata["corrected"] == "WRONG_CITATION"
    assert "corrected" not in conversation.probes[0].metadata
    assert "corrected" in {fault.outcome for fault in faults}


@pytest.mark.parametrize(
    ("edit", "outcome"),
    [
        (lambda one: one.pop("sample_id"), "bad-data"),
        (lambda one: one["conversation"].update(session_1=[{"text": "?"}]), "bad-data"),
        (lambda one: one.update(conversation={"speaker_a": "Ada"}), "bad-data"),
        (lambda one: one["conversation"].update(session_1_date_time="31 June"), "bad-date"),
    ],
)
def test_a_conversation_that_is_wrong_is_named_and_the_others_remain(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], outcome: str
) -> None:
    broken, sound = made_conversation(), made_conversation() | {"sample_id": "conv-2"}
    edit(broken)
    write(tmp_path, [broken, sound])
    conversations, faults = read(tmp_path)
    assert outcome in {fault.outcome for fault in faults}
    assert "conv-2" in {conversation.history_id for conversation in conversations}


def test_files_that_are_missing_or_unreadable_are_outcomes(tmp_path: Path) -> None:
    assert read(tmp_path)[1][0].outcome == "missing-file"
    assert read(tmp_path / "nothing")[1][0].outcome == "missing-folder"
    assert read(tmp_path, "both")[1][0].outcome == "unknown-split"
    write(tmp_path, [made_conversation(), made_conversation()])
    assert "duplicate-id" in {fault.outcome for fault in read(tmp_path)[1]}
    (tmp_path / "errors.json").write_text("{}")
    assert "bad-json" in {fault.outcome for fault in read(tmp_path)[1]}
    (tmp_path / "locomo10.json").write_text("[1")
    assert [fault.outcome for fault in read(tmp_path)[1]] == ["bad-json"]


def test_retrieval_finds_the_benchmark_by_its_file_and_measures_places(data: Path) -> None:
    (benchmark,) = benchmarks_in(data)
    assert (benchmark.name, benchmark.split) == ("locomo", "people")
    report = measure([benchmark])
    assert report.overall.questions == 5, "adversarial questions have evidence too"
    temporal = report.by_ability["temporal"]
    assert (temporal.hit_1, temporal.mrr, temporal.session_hit_1) == (1.0, 1.0, 1.0)
    # The published evidence for the cat's name is a turn that does not name it.
    assert report.by_ability["single-hop"].mrr < 1.0
