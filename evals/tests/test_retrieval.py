"""Evidence recall without a model: on the bundled sample, on made-up LongMemEval data, and on real BEAM where it is."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from scroll_evals import beam, longmemeval, retrieval
from scroll_evals.lme_generator import generate
from scroll_evals.retrieval import benchmarks_in, measure
from scroll_evals.tasks import sample_folder

REAL = Path(os.environ.get("SCROLL_BEAM_DATA", "no-folder"))


def test_the_sample_is_searched_ability_by_ability() -> None:
    report = measure(benchmarks_in(sample_folder("beam")))
    assert not report.faults
    assert report.overall.questions == 13, "abstention has no evidence and is not asked"
    assert "abstention" not in report.by_ability
    for ability in ("contradiction_resolution", "information_extraction", "knowledge_update", "temporal_reasoning"):
        assert report.by_ability[ability].recall_10 == 1.0
    assert 0.5 < report.overall.recall_10 <= report.overall.recall_50 < 1.0


def test_the_report_as_json_has_the_promised_names() -> None:
    found = msgspec.to_builtins(measure([beam.Beam(sample_folder("beam"), "10M")]))
    assert set(found) == {"overall", "by_ability", "faults"}
    names = {"questions", "recall@5", "recall@10", "recall@50"}
    covered = {"session_coverage@5", "session_coverage@10", "session_coverage@50"}
    assert set(found["overall"]) == names | covered
    assert set(found["by_ability"]["knowledge_update"]) == names
    assert set(found["by_ability"]["summarization"]) == names | covered
    assert found["by_ability"]["event_ordering"]["session_coverage@10"] == 1.0


def test_a_question_searches_its_own_history_only(tmp_path: Path) -> None:
    data = Path(shutil.copytree(sample_folder("beam"), tmp_path / "beam"))
    alone = measure([beam.Beam(data, "128K")])
    for number in range(2, 8):  # the same chat again and again, each a history of its own
        shutil.copytree(data / "100K" / "1", data / "100K" / str(number))
    crowded = measure([beam.Beam(data, "128K")])
    assert crowded.overall.questions == 7 * alone.overall.questions
    assert crowded.overall.recall_50 == pytest.approx(alone.overall.recall_50)


def test_longmemeval_is_measured_too_and_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(tmp_path, seed=2, questions=14, sessions=8)
    monkeypatch.setattr(retrieval, "LARGE", 60)  # several logs, one after the other
    told: list[tuple[int, int]] = []
    report = measure([longmemeval.LongMemEval(tmp_path, "s")], progress=lambda *so_far: told.append(so_far))
    assert told == [(number, 14) for number in range(1, 15)]
    assert report.overall.questions == 12
    assert report.by_ability["single-session-user"].recall_5 == 1.0
    assert report.by_ability["single-session-assistant"].recall_5 == 1.0
    assert report.by_ability["multi-session"].coverage_10 == 1.0


def test_benchmarks_are_found_by_what_is_in_the_folder(tmp_path: Path) -> None:
    assert [one.split for one in benchmarks_in(sample_folder("beam"))] == ["128K", "10M"]
    generate(tmp_path)
    assert [(one.name, one.split) for one in benchmarks_in(tmp_path)] == [
        ("longmemeval", "oracle"), ("longmemeval", "s"), ("longmemeval", "m"),
    ]  # fmt: skip
    assert [one.split for one in benchmarks_in(tmp_path, ["m"])] == ["m"]


def test_no_data_is_a_fault_and_a_report(tmp_path: Path) -> None:
    report = measure(benchmarks_in(tmp_path / "nothing"))
    assert [fault.outcome for fault in report.faults] == ["missing-folder"]
    assert (report.overall.questions, report.overall.recall_10) == (0, 0.0)
    assert [fault.outcome for fault in measure(benchmarks_in(tmp_path, ["7M"])).faults] == ["unknown-split"]


@pytest.mark.skipif(
    not (REAL / "100K").is_dir(), reason="the real BEAM chats are not here; set SCROLL_BEAM_DATA to test them"
)
def test_real_beam_reaches_its_recall() -> None:
    report = measure(benchmarks_in(REAL))
    assert report.overall.questions >= 200
    assert report.overall.recall_10 >= 0.54
    assert {fault.outcome for fault in report.faults} <= {"missing-evidence", "duplicate-id"}
