"""The four task shapes of the paper's appendix play through as trials, with the published cells as
the agent's own.

Knowledge update, contradiction resolution, preference following, summarization: each a question
about a history of thousands of turns, answered by the cells of its published trajectory in their
order.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import paper_history
from scroll_context.events import Draft
from scroll_context.models import Reply, Request, ScriptedModel, exec_cell
from scroll_evals.memory import MemorySuite
from scroll_evals.protocols import Setup
from scroll_evals.results import RunConfig, RunFolder
from scroll_evals.runner import Runner
from scroll_evals.tasks import Question
from small import fair, judge_model, submit

AGENT_TESTS = Path(__file__).parents[2] / "scroll-context" / "tests" / "agent"
CELLS = AGENT_TESTS / "paper_cells"
TOOL = "recall_history_python"

SHAPES = {
    "knowledge_update": (
        "sprint",
        "ku",
        "How many tasks are in the sprint of 2024-11-05, and what is the target?",
    ),
    "contradiction_resolution": ("events", "cr", "Did Pamela brief the entertainers?"),
    "preference_following": ("trip", "pf", "Which tools should I plan the next trip with?"),
    "summarization": ("trip", "sum", "Summarize what I learned between 2023-04-08 and 2023-04-25."),
}
ANSWERS = {
    "knowledge_update": "You have **17 tasks**, updated from 14, and aim for **88%**, updated from 85%.",
    "contradiction_resolution": "You said both: that she did, and later that this was a misunderstanding.",
    "preference_following": "Google Maps and Roadtrippers, without toll roads.",
    "summarization": "Fewer stops, looser plans, more sleep, and a growth that you rate at 82%.",
}


class PaperHistory(msgspec.Struct, frozen=True):
    history_id: str
    turns: tuple[Draft, ...]
    question: Question

    def drafts(self) -> Iterator[Draft]:
        return iter(self.turns)

    def questions(self) -> list[Question]:
        return [self.question]


class OneHistory(msgspec.Struct, frozen=True):
    history: PaperHistory
    name: str = "beam"
    split: str = "10M"

    def histories(self) -> Iterator[PaperHistory]:
        yield self.history

    def rubric_prompt(self) -> str:
        return "Search with ms, then call submit_answer."


def turns_of(name: str) -> tuple[Draft, ...]:
    """The turns of a history, as a benchmark has them: by no agent, each with a key."""
    return tuple(
        msgspec.structs.replace(draft, agent_id="", source_key=f"{name}/{n}")
        for n, draft in enumerate(paper_history.drafts(name))
    )


def cells_of(prefix: str) -> list[str]:
    """The published cells in order; the summarization repeats one with other offsets, and keeps
    each page.
    """
    sources = []
    for file in sorted(
        CELLS.glob(f"{prefix}-c*.txt"), key=lambda file: int(file.stem.split("-c")[1])
    ):
        source = file.read_text()
        sources.append(source)
        if file.stem == "sum-c2":
            sources[-1] += "\npage0 = rows2"
            for page in (1, 2, 3):
                sources.append(
                    source.replace("OFFSET 0", f"OFFSET {page}000") + f"\nrows{page + 2} = rows2"
                )
            sources[-1] += "\nrows2 = page0"
    return sources


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_plays_through(tmp_path: Path, shape: str) -> None:
    task, prefix, text = SHAPES[shape]
    cells = cells_of(prefix)

    def play(request: Request, step: int) -> Reply:
        if step < len(cells):
            return exec_cell(
                cells[step],
                tool=TOOL,
                text="Let me look.",
                headline=f"{shape} | {step} | next | running",
            )
        return submit(ANSWERS[shape])

    question = Question(
        task_id=f"beam/10M-1/{shape}/0",
        history_id=task,
        ability=shape,
        text=text,
        answer=ANSWERS[shape],
        rubric=(f"says: {ANSWERS[shape]}", "says: something else"),
    )
    folder = RunFolder(tmp_path / "run")
    folder.begin(RunConfig(benchmark="beam", split="10M", model="paper"))
    suite = MemorySuite(OneHistory(PaperHistory(task, turns_of(task), question)))
    agent = ScriptedModel(play, name="paper")
    summary = Runner(suite, Setup(model=agent), folder, judge_model(fair), jobs=1).run()

    assert summary.outcomes == {"answered": 1}, folder.faults()
    assert summary.scores.by_ability == {shape: 0.5}
    attempt = folder.attempt(question.task_id)
    assert attempt is not None and attempt.answer == ANSWERS[shape]
    assert attempt.metrics.step_count == len(cells) + 1
    assert [step["action"]["args"].get("source") for step in attempt.steps[:-1]] == cells
    for step in attempt.steps[:-1]:
        assert "the cell failed" not in step["observation"], step["observation"]
    shown = "\n".join(step["observation"] for step in attempt.steps[:-1])
    decisive = {"sprint": 8349, "events": 8867, "trip": 2335 if prefix == "pf" else 15489}[task]
    assert paper_history.SAID[task][decisive] in shown
    first = agent.requests[0].messages[1].text
    assert "index of earlier work" in first and text in first
