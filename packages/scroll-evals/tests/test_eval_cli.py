"""`scroll eval …` from the command line: whole runs with scripted models, bad input, and help that
is complete.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from made_runs import make_run
from scroll_context.cli.app import app
from scroll_evals.commands import app as eval_app

ROOT = Path(__file__).parents[3]
COMMANDS = eval_app.commands

Run = Callable[..., Result]


@pytest.fixture
def scroll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("SCROLL_MODEL", "SCROLL_JUDGE", "SCROLL_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: Any) -> Result:
        return CliRunner().invoke(app, ["eval", *map(str, args)], catch_exceptions=False)

    return run


def script(path: Path, replies: list[Any]) -> str:
    path.write_text(json.dumps(replies))
    return f"scripted:{path}"


def cell(source: str) -> dict[str, Any]:
    call = {"id": "", "name": "recall_history_python", "arguments": {"source": source}}
    return {"text": "Let me look.", "tool_calls": [call]}


def submit(answer: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "", "name": "submit_answer", "arguments": {"answer": answer}}]}


@pytest.fixture
def data(scroll: Run, tmp_path: Path) -> Path:
    """A small LongMemEval set, made by the command."""
    result = scroll("generate", "longmemeval", "tryout", "--seed", 3)
    assert result.exit_code == 0 and "longmemeval_s.json" in result.stdout
    return tmp_path / "tryout"


def models(tmp_path: Path, tasks: int) -> list[str]:
    """An agent that answers every task after one look, and a judge that says yes and no in turn."""
    agent = script(
        tmp_path / "agent.json",
        [cell("print(ms.expand(1, 3)[0]['content'][:40])"), submit("A tortoise.")] * tasks,
    )
    judge = script(tmp_path / "judge.json", ["yes", "no"] * tasks)
    return ["--model", agent, "--judge", judge, "--jobs", "1", "--limit", str(tasks)]


def test_from_data_to_tables(scroll: Run, data: Path, tmp_path: Path) -> None:
    result = scroll(
        "longmemeval", "--split", "s", "--data", data, *models(tmp_path, 4), "--out", "runs"
    )
    assert result.exit_code == 0, result.output
    assert "LongMemEval, score (%)" in result.stdout and re.search(r"Overall +50\.0", result.stdout)
    (config,) = (tmp_path / "runs").rglob("config.json")
    settings = json.loads(config.read_text())
    assert settings["split"] == "s" and settings["starts"][0]["versions"]["scroll"]
    assert settings["limits"] == {"steps": 100, "tokens": None, "seconds": 3600, "dollars": None}

    again = scroll(
        "longmemeval",
        "--split",
        "s",
        "--data",
        data,
        *models(tmp_path, 4),
        "--out",
        "runs",
        "--json",
    )
    assert again.exit_code == 0
    (one,) = json.loads(again.stdout)
    assert one["summary"]["scored"] == 4 and one["summary"]["scores"]["overall"] == 0.5
    assert len(json.loads(config.read_text())["starts"]) == 2

    report = scroll("report", "runs", "--json")
    assert json.loads(report.stdout)[0]["summary"]["scores"]["extra"]["micro"] == 0.5
    rescored = scroll("rescore", "runs")
    assert "50.0 → 50.0 (4 of 4)" in rescored.stdout
    exported = scroll("export-sft", "runs", "--out", "train.jsonl", "--threshold", "1")
    assert exported.exit_code == 0 and "from 2 trajectories; 2 were below 1" in exported.stderr
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert {line["decision"] for line in lines} == {"retrieval", "injection"}
    assert scroll("export-sft", "runs", "--out", "train.jsonl").exit_code == 1  # never overwritten


def test_contexts_and_backbones_in_one_tree(scroll: Run, data: Path, tmp_path: Path) -> None:
    answers = [submit("A tortoise.")] * 2
    names = [script(tmp_path / f"{name}.json", answers) for name in ("a", "b")]
    judge = script(tmp_path / "judge.json", ["yes"] * 8)
    result = scroll(
        "longmemeval",
        "--data",
        data,
        "--model",
        names[0],
        "--backbone",
        names[1],
        "--judge",
        judge,
        "--limit",
        "1",
        "--context",
        "scroll",
        "--context",
        "react",
        "--jobs",
        "1",
        "--out",
        "runs",
    )
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "runs").rglob("config.json"))) == 4
    assert (
        result.stdout.count("Backbones, context") == 2
        and result.stdout.count("Contexts, scripted:") == 2
    )


def test_figures(scroll: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    make_run(tmp_path / "runs/a", {"abstention": [1.0]})
    result = scroll("report", "runs", "--figures", "out")
    assert result.exit_code == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "abilities-beam.png",
        "abilities-beam.svg",
        "cost.png",
        "cost.svg",
    ]


def test_retrieval(scroll: Run, data: Path) -> None:
    table = scroll("retrieval", "--data", data, "--split", "s")
    assert table.exit_code == 0 and "recall@10" in table.stdout and "overall" in table.stdout
    found = json.loads(scroll("retrieval", "--data", data, "--split", "s", "--json").stdout)
    assert {"recall@5", "recall@10", "recall@50"} <= set(found["overall"])
    assert found["overall"]["recall@50"] >= found["overall"]["recall@5"] > 0
    assert all("recall@10" in scores for scores in found["by_ability"].values())
    nothing = scroll("retrieval", "--data", "nowhere")
    assert nothing.stdout == ""
    assert (
        nothing.exit_code == 1
        and "missing-folder" in nothing.stderr
        and "nothing to measure" in nothing.stderr
    )
    reports = []
    for name in ("before", "same", "again"):
        (data / f"{name}.json").write_text(
            scroll("retrieval", "--data", data, "--split", "s", "--json").stdout
        )
        reports.append(data / f"{name}.json")
    two = scroll("compare", *reports[:2])
    assert (
        two.exit_code == 0
        and "+0.000 [+0.000, +0.000]" in two.stdout
        and "cross-validated" not in two.stdout
    )
    assert "cross-validated by recall@10" in scroll("compare", *reports).stdout
    compared = json.loads(scroll("compare", *reports, "--json").stdout)
    assert len(compared["comparisons"]) == 2 and compared["choice"]["chosen"][1:] == [0, 0]
    (data / "no.json").write_text("{}")
    assert "is not a report of" in scroll("compare", reports[0], data / "no.json").stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("beam", "--data", "nowhere", "--split", "1M"), "missing-folder"),
        (("beam", "--data", "nowhere", "--split", "2M"), "unknown-split"),
        (("longmemeval", "--data", "nowhere"), "missing-folder"),
    ],
)
def test_data_that_is_not_there(
    scroll: Run, tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    result = scroll(*args, *models(tmp_path, 1), "--out", "runs")
    assert result.exit_code == 1
    assert said in result.stderr and "nothing to run" in result.stderr
    (faults,) = (tmp_path / "runs").rglob("faults.json")
    assert [fault["outcome"] for fault in json.loads(faults.read_text())] == [said]


def test_wishes_that_cannot_be_met(scroll: Run, data: Path, tmp_path: Path) -> None:
    given = ["longmemeval", "--data", data]
    assert "no model is named" in scroll(*given).stderr
    assert "no judge is named" in scroll(*given, "--model", "scripted:x.json").stderr
    unknown = scroll(*given, *models(tmp_path, 1), "--thinking", "hard")
    assert unknown.exit_code == 2 and "'hard' is not one of" in unknown.stderr
    wrong = scroll(*given, *models(tmp_path, 1), "--context", "clairvoyant")
    assert wrong.exit_code == 1 and "there is no context 'clairvoyant'" in wrong.stderr
    assert scroll(*given, *models(tmp_path, 1), "--out", "runs").exit_code == 0
    other = scroll(*given, *models(tmp_path, 1), "--out", "runs", "--steps", "7")
    assert other.exit_code == 1 and "holds another run (limits:" in other.stderr
    for command in ("report", "rescore"):
        missing = scroll(command, "nowhere")
        assert missing.exit_code == 1 and "there is no run in nowhere" in missing.stderr
    assert scroll("export-sft", "nowhere", "--out", "train.jsonl").exit_code == 1
    assert not (tmp_path / "train.jsonl").exists()


def test_unfinished_tasks_have_a_status(scroll: Run, data: Path, tmp_path: Path) -> None:
    judge = script(tmp_path / "judge.json", [])  # refuses from the first call
    agent = script(tmp_path / "agent.json", [submit("A tortoise.")])
    given = ["longmemeval", "--data", data, "--model", agent, "--limit", "1", "--out", "runs"]
    result = scroll(*given, "--judge", judge)
    assert result.exit_code == 3
    assert "judge-refused" in result.stderr and "0 of 1 tasks scored" in result.stderr
    script(tmp_path / "judge.json", ["yes"])
    assert scroll(*given, "--judge", judge).exit_code == 0


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_has_an_example(scroll: Run, name: str) -> None:
    result = scroll(name, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n(.*\n)*? +.*scroll eval {name}", result.stdout)


def test_every_command_and_option_is_documented(scroll: Run) -> None:
    text = (ROOT / "docs" / "EVALS.md").read_text()
    assert not [name for name in COMMANDS if f"scroll eval {name}" not in text]
    options = {
        option
        for command in COMMANDS.values()
        for parameter in command.params
        for option in parameter.opts
    }
    assert not [
        option
        for option in options
        if option.startswith("--") and option != "--help" and option not in text
    ]
    assert "..." not in scroll("--help").stdout.split("Commands:")[1]
