"""Evidence recall without a model: on the bundled sample, on made-up LongMemEval data, and on real
BEAM where it is.
"""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from scroll_context.errors import BadInput
from scroll_evals import beam, longmemeval, retrieval
from scroll_evals.lme_generator import generate
from scroll_evals.retrieval import (
    RetrievalReport,
    SearchedQuestion,
    benchmarks_in,
    choose,
    compare,
    measure,
    report_of,
)
from scroll_evals.tasks import sample_folder

REAL = Path(os.environ.get("SCROLL_BEAM_DATA", "no-folder"))


def test_the_sample_is_searched_ability_by_ability() -> None:
    report = measure(benchmarks_in(sample_folder("beam")))
    assert not report.faults
    assert report.overall.questions == 13, "abstention has no evidence and is not asked"
    assert "abstention" not in report.by_ability
    for ability in (
        "contradiction_resolution",
        "information_extraction",
        "knowledge_update",
        "temporal_reasoning",
    ):
        assert report.by_ability[ability].recall_10 == 1.0
    assert 0.5 < report.overall.recall_10 <= report.overall.recall_50 < 1.0


def test_the_report_as_json_has_the_promised_names() -> None:
    found = msgspec.to_builtins(measure([beam.Beam(sample_folder("beam"), "10M")]))
    assert set(found) == {"overall", "by_ability", "faults", "questions"}
    names = {
        "questions",
        *(f"{name}@{cut}" for name in ("recall", "session_coverage") for cut in (5, 10, 50)),
        *(f"{name}@{cut}" for name in ("hit", "session_hit") for cut in (1, 5)),
        "mrr",
        "session_mrr",
    }
    assert set(found["overall"]) == set(found["by_ability"]["knowledge_update"]) == names
    assert found["by_ability"]["event_ordering"]["session_coverage@10"] == 1.0
    assert set(found["questions"][0]) == {
        "task_id",
        "history_id",
        "ability",
        "recall",
        "coverage",
        "first_turn",
        "first_session",
    }


def made(**recalls: list[float]) -> RetrievalReport:
    """A report in which questions about each chat found so much."""
    return report_of(
        [
            SearchedQuestion(
                f"{chat}/{at}",
                chat,
                "easy" if at % 2 else "hard",
                (0.0, found, 1.0),
                (0.0, found / 2, 1.0),
            )
            for chat, values in recalls.items()
            for at, found in enumerate(values)
        ]
    )


def test_reports_are_compared_question_by_question() -> None:
    before, after = made(a=[0.2, 0.4], b=[0.0, 0.6]), made(a=[0.4, 0.4], b=[0.2, 0.6], c=[1.0])
    changes = compare(before, after).changes
    assert list(changes) == ["easy", "hard", "overall"]
    assert set(changes["hard"]) == set(retrieval.MEASURES)
    hard = changes["hard"]["recall@10"]
    assert (hard.questions, hard.before, hard.after) == (2, 0.1, pytest.approx(0.3)), (
        "only questions that both have"
    )
    assert hard.low == pytest.approx(0.2) and hard.high == pytest.approx(0.2), (
        "every chat gained the same"
    )
    assert changes["easy"]["recall@10"].high == 0.0
    assert changes["overall"]["session_coverage@10"].after == pytest.approx(0.2)
    mixed = compare(made(a=[0.0], b=[0.0], c=[0.0]), made(a=[1.0], b=[0.0], c=[0.0])).changes[
        "overall"
    ]["recall@10"]
    assert mixed.low == 0.0 and mixed.high >= 2 / 3, "what rests on one chat is uncertain"
    with pytest.raises(BadInput, match="no question in common"):
        compare(before, made(z=[1.0]))


def test_the_choice_among_settings_leaves_out_the_chat_that_it_is_measured_on() -> None:
    one, other = made(a=[1.0], b=[0.0], c=[0.5]), made(a=[0.0], b=[0.5], c=[0.4])
    chosen = choose([one, other])
    assert chosen.means == (0.5, pytest.approx(0.3))
    # without a, the other is best, and bad on a: what looked like .5 is not worth that on chats it
    # was not chosen on
    assert chosen.chosen == (2, 1) and chosen.held_out == pytest.approx((0.0 + 0.0 + 0.5) / 3)


def test_a_question_searches_its_own_history_only(tmp_path: Path) -> None:
    data = Path(shutil.copytree(sample_folder("beam"), tmp_path / "beam"))
    alone = measure([beam.Beam(data, "128K")])
    for number in range(2, 8):  # the same chat again and again, each a history of its own
        shutil.copytree(data / "100K" / "1", data / "100K" / str(number))
    crowded = measure([beam.Beam(data, "128K")])
    assert crowded.overall.questions == 7 * alone.overall.questions
    assert crowded.overall.recall_50 == pytest.approx(alone.overall.recall_50)


def test_longmemeval_is_measured_too_and_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path, seed=2, questions=14, sessions=8)
    monkeypatch.setattr(retrieval, "LARGE", 60)  # several logs, one after the other
    told: list[tuple[int, int]] = []
    report = measure(
        [longmemeval.LongMemEval(tmp_path, "s")], progress=lambda *so_far: told.append(so_far)
    )
    assert told == [(number, 14) for number in range(1, 15)]
    assert report.overall.questions == 12
    assert report.by_ability["single-session-user"].recall_5 == 1.0
    assert report.by_ability["single-session-assistant"].recall_5 == 1.0
    assert report.by_ability["multi-session"].coverage_10 == 1.0


def test_benchmarks_are_found_by_what_is_in_the_folder(tmp_path: Path) -> None:
    assert [one.split for one in benchmarks_in(sample_folder("beam"))] == ["128K", "10M"]
    generate(tmp_path)
    assert [(one.name, one.split) for one in benchmarks_in(tmp_path)] == [
        ("longmemeval", "oracle"),
        ("longmemeval", "s"),
        ("longmemeval", "m"),
    ]
    assert [one.split for one in benchmarks_in(tmp_path, ["m"])] == ["m"]


def test_no_data_is_a_fault_and_a_report(tmp_path: Path) -> None:
    report = measure(benchmarks_in(tmp_path / "nothing"))
    assert [fault.outcome for fault in report.faults] == ["missing-folder"]
    assert (report.overall.questions, report.overall.recall_10) == (0, 0.0)
    assert [fault.outcome for fault in measure(benchmarks_in(tmp_path, ["7M"])).faults] == [
        "unknown-split"
    ]


@pytest.mark.skipif(
    not (REAL / "100K").is_dir(),
    reason="the real BEAM chats are not here; set SCROLL_BEAM_DATA to test them",
)
def test_real_beam_reaches_its_recall() -> None:
    report = measure(benchmarks_in(REAL))
    assert report.overall.questions >= 200
    assert report.overall.recall_10 >= 0.54
    assert {fault.outcome for fault in report.faults} <= {"missing-evidence", "duplicate-id"}
