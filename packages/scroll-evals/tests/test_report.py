"""Tables and figures: the right numbers in the right places, from the files of runs alone."""

from pathlib import Path

import msgspec
import pytest

from made_runs import make_run
from scroll_evals.figures import draw
from scroll_evals.protocols import Attempt, TrialOutcome
from scroll_evals.report import Table, labels, read_runs, tables
from scroll_evals.results import RunFolder, Summary
from scroll_evals.summary import rescored


def table(found: list[Table], title: str) -> dict[str, tuple[str, ...]]:
    """Rows by their first cell, with the headings under ''."""
    one = next(table for table in found if table.title.startswith(title))
    return {"": one.columns[1:], **{row[0]: row[1:] for row in one.rows}}


def test_abilities_contexts_and_cost(tmp_path: Path) -> None:
    scores = {"summarization": [1.0, 0.5], "abstention": [0.0, 1.0], "knowledge_update": [1.0]}
    make_run(tmp_path / "a", scores)
    make_run(tmp_path / "b", {ability: [0.0] for ability in scores}, context="scroll-lossy")
    make_run(
        tmp_path / "c",
        {"multi-session": [1, 1, 0], "temporal-reasoning": [1]},
        benchmark="longmemeval",
        split="s",
    )
    found = tables(read_runs([tmp_path]))

    beam = table(found, "BEAM")
    assert beam[""] == ("scroll-lossy", "scroll")
    assert list(beam)[1:4] == [
        "Knowledge update",
        "Summarization",
        "Abstention",
    ]  # as the paper orders them
    assert beam["Summarization"] == ("0.0", "75.0") and beam["Abstention"] == ("0.0", "50.0")
    assert beam["Overall"] == ("0.0", "75.0")  # the mean of abilities, not of questions
    assert beam["Trials scored"] == ("3 of 3", "5 of 5")

    memory = table(found, "LongMemEval")
    assert memory["Multi-session"] == ("66.7",) and memory["Overall"] == ("75.0",)
    assert memory["Micro"] == ("75.0",) and memory["Macro"] == ("83.3",)

    contexts = table(found, "Contexts, model-a")
    assert contexts[""] == ("LongMemEval s", "BEAM 10M")
    assert contexts["scroll"] == ("75.0", "75.0") and contexts["scroll-lossy"] == ("–", "0.0")

    metrics = [attempt.metrics for attempt in RunFolder(tmp_path / "c").attempts()]
    cost = table(found, "Cost")["LongMemEval s · scroll"]
    assert cost[4] == f"{sum(one.tokens_in for one in metrics):,}" and cost[6:] == ("0.04", "0.00")


def test_a_run_without_a_scored_trial_has_no_score(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"multi-session": [0.0]}, benchmark="longmemeval", split="s")
    make_run(tmp_path / "b", {}, benchmark="longmemeval", split="m")
    found = tables(read_runs([tmp_path]))
    memory = table(found, "LongMemEval")
    assert memory["Overall"] == memory["Micro"] == memory["Macro"] == ("0.0", "–")
    assert table(found, "Overall")["scroll"] == ("0.0", "–")


def test_backbones_and_sizes(tmp_path: Path) -> None:
    for model, low, high in (("model-a", [1, 1, 1, 0], [1, 0]), ("model-b", [1, 0], [0, 0])):
        make_run(
            tmp_path / model,
            {"128k": low, "256k": high},
            benchmark="loca",
            split="128k,256k",
            model=model,
            verifier=True,
        )
    backbones = table(tables(read_runs([tmp_path])), "Backbones")
    assert backbones[""] == ("LOCA 128k", "LOCA 256k", "Δ LOCA")
    assert backbones["model-a"] == ("75.0", "50.0", "-25.0") and backbones["model-b"] == (
        "50.0",
        "0.0",
        "-50.0",
    )


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", {"abstention": [1.0]})
    summary, faults = rescored(folder)
    folder.save_summary(msgspec.structs.replace(summary, trials=7), faults)
    folder.save_attempt(
        Attempt(task_id="x", ability="abstention", outcome=TrialOutcome.UNAVAILABLE), []
    )
    folder.save_attempt(
        Attempt(task_id="y", ability="abstention", outcome=TrialOutcome.LIMIT, task=question("y")),
        [],
    )
    found = tables(read_runs([tmp_path]))
    assert table(found, "BEAM")["Abstention"] == (
        "50.0",
    )  # the limit counts as 0, the outage does not count
    assert table(found, "BEAM")["Trials scored"] == ("2 of 7",)
    outcomes = table(found, "Outcomes")
    assert dict(zip(outcomes[""], outcomes["scroll"], strict=True)) == {
        "Scored": "2 of 7",
        "answered": "1",
        "limit-reached": "1",
        "model-unavailable": "1",
    }


def question(task_id: str) -> dict[str, object]:
    return {"task_id": task_id, "history_id": "h", "ability": "abstention", "text": "?"}


def test_rescoring_reads_the_replies_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", {"abstention": [1.0, 0.5]})
    judgement = folder.judgement("made/abstention/0")
    changed = msgspec.structs.replace(
        judgement.replies[0], reply='{"score": 0, "reason": "on second thoughts"}'
    )
    folder.save_judgement(msgspec.structs.replace(judgement, replies=(changed,)))
    summary, faults = rescored(folder)
    assert summary.scores.overall == 0.25 and faults == []
    stored = msgspec.json.decode((tmp_path / "a/scores.json").read_bytes(), type=Summary)
    assert stored == summary
    folder.save_judgement(msgspec.structs.replace(judgement, replies=()))
    summary, faults = rescored(folder)
    assert (summary.scored, summary.unfinished) == (1, 1) and [
        fault.outcome for fault in faults
    ] == ["judge-missing"]


def test_labels_say_what_differs(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"abstention": [1.0]})
    assert labels(read_runs([tmp_path])) == ["scroll"]
    make_run(tmp_path / "b", {"abstention": [1.0]}, model="model-b")
    assert labels(read_runs([tmp_path])) == ["model-a", "model-b"]
    make_run(tmp_path / "c", {"abstention": [1.0]}, model="model-b")  # the same again
    assert [label.split(" · ")[0] for label in labels(read_runs([tmp_path]))] == [
        "model-a",
        "model-b",
        "model-b",
    ]
    assert len(set(labels(read_runs([tmp_path])))) == 3


def test_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    make_run(tmp_path / "runs/a", {"abstention": [1.0, 0.5], "summarization": [0.25]})
    make_run(
        tmp_path / "runs/b", {"abstention": [0.0], "summarization": [0.0]}, context="scroll-no-repl"
    )
    files = draw(read_runs([tmp_path / "runs"]), tmp_path / "figures")
    assert [file.name for file in files] == [
        "abilities-beam.svg",
        "abilities-beam.png",
        "cost.svg",
        "cost.png",
    ]
    bars, cost = (files[n].read_text() for n in (0, 2))
    for words in ("Abstention", "Summarization", "Overall", "scroll-no-repl", "BEAM 10M"):
        assert f">{words}</text>" in bars
    for words in ("Input tokens", "Output tokens", "Turns", "scroll-no-repl"):
        assert f">{words}</text>" in cost
    assert all(files[n].read_bytes().startswith(b"\x89PNG") for n in (1, 3))
    again = draw(read_runs([tmp_path / "runs"]), tmp_path / "again")
    assert again[0].read_text() == bars  # the same runs give the same file
