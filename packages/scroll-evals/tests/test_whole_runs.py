"""A whole run of each memory benchmark on the sample that comes with Scroll, with scripted agent
and judge.

With SCROLL_BEAM_DATA naming a folder of BEAM, that is run instead of the sample, as far as its
first tasks go.
"""

import os
import re
from pathlib import Path

import pytest

from scroll_context.messages import ToolCall
from scroll_context.models import Reply, Request, ScriptedModel, exec_cell
from scroll_evals import beam, longmemeval
from scroll_evals.memory import MemorySuite
from scroll_evals.protocols import Setup
from scroll_evals.results import RunConfig, RunFolder
from scroll_evals.runner import Runner
from scroll_evals.tasks import Benchmark, sample_folder

BEAM = (
    Path(os.environ["SCROLL_BEAM_DATA"])
    if "SCROLL_BEAM_DATA" in os.environ
    else sample_folder("beam")
)
TASKS = 12


def searching(request: Request, _: int) -> Reply:
    """Search with the words of the question, then submit the best hit."""
    found = [message.text for message in request.messages if message.role == "tool"]
    if found:
        return Reply(tool_calls=(ToolCall("", "submit_answer", {"answer": found[-1]}),))
    question = request.messages[-1].text.rpartition("below.]")[2].strip()
    source = f"hits = ms.search({question!r}, k=5)\nprint(hits[0]['content'] if hits else 'not enough information')"
    return exec_cell(source, tool="recall_history_python")


def lenient(request: Request, _: int) -> str:
    """A judge that is content with any answer, in whatever form it is asked."""
    prompt = request.messages[-1].text
    if "JSON object" in prompt and '"score"' in prompt:
        return '{"score": 1, "reason": "fine"}'
    return "[1, 2]" if re.search(r"\blist\b", prompt) and "yes" not in prompt.lower() else "yes"


@pytest.mark.parametrize(
    "benchmark",
    [
        beam.Beam(BEAM, "128K"),
        beam.Beam(BEAM, "10M"),
        longmemeval.LongMemEval(sample_folder("longmemeval"), "oracle"),
    ],
    ids=["beam-128K", "beam-10M", "longmemeval"],
)
def test_a_benchmark_runs_from_its_files_to_its_scores(
    tmp_path: Path, benchmark: Benchmark
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(
        RunConfig(
            benchmark=benchmark.name, split=benchmark.split, model="searching", judge="lenient"
        )
    )
    agent, judge = (
        ScriptedModel(searching, name="searching"),
        ScriptedModel(lenient, name="lenient"),
    )
    summary = Runner(MemorySuite(benchmark), Setup(model=agent), folder, judge, jobs=2).run(TASKS)

    assert summary.trials == summary.scored > 0 and summary.outcomes == {
        "answered": summary.trials
    }, folder.faults()
    assert summary.scores.overall > 0.9
    for attempt in folder.attempts():
        assert attempt.answer.strip() and attempt.ability in summary.scores.by_ability
        assert "the cell failed" not in attempt.steps[0]["observation"]
    assert not any("[Session " in attempt.answer for attempt in folder.attempts())
    assert all(
        "submit_answer" in request.messages[0].text for request in agent.requests
    )  # the rubric
