"""A benchmark of two short histories with two questions each, and models that play agent and judge
on it.

The agent finds its way by what it is shown, as a real one does: it searches once, then submits what
it found. So it plays the same part whichever trial it is in, in whichever order, in one process or
in several.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.events import Draft
from scroll_context.messages import ToolCall
from scroll_context.models import Model, Reply, Request, ScriptedModel, exec_cell
from scroll_evals.memory import MemorySuite
from scroll_evals.protocols import Setup
from scroll_evals.results import RunConfig, RunFolder
from scroll_evals.runner import Runner
from scroll_evals.tasks import DataFault, Question

FACTS = {
    "one": {"kettle": "The kettle cost 31 euros.", "bicycle": "My bicycle is painted green."},
    "two": {"ferry": "The ferry leaves at 07:40.", "violin": "I tuned the violin to 442 hertz."},
}


class SmallHistory(msgspec.Struct, frozen=True):
    history_id: str

    def drafts(self) -> Iterator[Draft]:
        for number, said in enumerate(FACTS[self.history_id].values(), 1):
            for position, (role, text) in enumerate(
                (("user", said), ("assistant", "Noted, thank you."))
            ):
                yield Draft(
                    session_id=f"{self.history_id}/{number}",
                    task_id=self.history_id,
                    role=role,
                    content=text,
                    created_at=f"2024-03-0{number}",
                    source_key=f"{self.history_id}/{number}/{position}",
                    metadata={"date": f"2024-03-0{number}"},
                )

    def questions(self) -> list[Question]:
        abilities = ("information_extraction", "temporal_reasoning")
        return [
            Question(
                task_id=f"small/{self.history_id}/{thing}",
                history_id=self.history_id,
                ability=ability,
                text=f"What did I say about the {thing}?",
                answer=said,
                rubric=(f"says: {said}", "is polite"),
            )
            for ability, (thing, said) in zip(
                abilities, FACTS[self.history_id].items(), strict=True
            )
        ]


class SmallBenchmark(msgspec.Struct, frozen=True):
    """Judged and scored as BEAM is."""

    faults: tuple[DataFault, ...] = ()
    name: str = "beam"
    split: str = "small"

    def histories(self) -> Iterator[SmallHistory | DataFault]:
        yield from self.faults
        yield from map(SmallHistory, FACTS)

    def rubric_prompt(self) -> str:
        return "Search with ms, then call submit_answer."


def thing_asked(request: Request) -> str:
    """What the question in this request is about."""
    for message in request.messages:
        if message.role == "user" and (
            found := re.search(r"What did I say about the (\w+)\?", message.text)
        ):
            return found.group(1)
    raise AssertionError("the request holds no question")


def submit(answer: str) -> Reply:
    return Reply(
        tool_calls=(ToolCall("", "submit_answer", {"answer": answer}),), finish_reason="tool_call"
    )


def diligent(request: Request, _: int) -> Reply:
    """Search for what is asked about, again if the search was cut off, then submit the line that
    was found.
    """
    told = [message.text for message in request.messages if message.role == "tool"]
    cut_off = ("process ended", "no result was recorded", "the user stopped")
    observations = [text for text in told if not any(words in text for words in cut_off)]
    if not observations:
        source = f"hits = ms.search({thing_asked(request)!r}, k=3)\nprint(hits[0]['content'] if hits else 'nothing')"
        return exec_cell(source, tool="recall_history_python", text="I look it up.")
    return submit(observations[-1])


def fair(request: Request, _: int) -> str:
    """A judge that looks for the fact in the answer, and finds everything polite."""
    prompt = request.messages[-1].text
    wanted = re.search(r"CRITERION:\n(.+)", prompt)
    answer = prompt.partition("ANSWER TO BE GRADED:")[2].partition("How to grade")[0]
    assert wanted is not None
    item = wanted.group(1).removeprefix("says: ")
    met = item == "is polite" or item in answer
    return f'{{"score": {int(met)}, "reason": "looked"}}'


def agent_model(script: Any = diligent, **options: Any) -> ScriptedModel:
    return ScriptedModel(script, name="agent", **options)


def judge_model(script: Any = fair) -> ScriptedModel:
    return ScriptedModel(script, name="judge")


def runner(
    path: Path,
    agent: Model | None = None,
    judge: Model | None = None,
    *,
    benchmark: Any = None,
    **options: Any,
) -> Runner:
    """A runner on a run folder, begun if it is new."""
    agent, judge = agent or agent_model(), judge or judge_model()
    folder = RunFolder(path)
    context = options.pop("context", "scroll")
    folder.begin(
        RunConfig(
            benchmark="beam", split="small", model=agent.name, context=context, judge=judge.name
        )
    )
    setup = Setup(
        model=agent,
        context=context,
        **{key: options.pop(key) for key in ("limits",) if key in options},
    )
    return Runner(
        MemorySuite(benchmark or SmallBenchmark()), setup, folder, judge, **{"jobs": 2, **options}
    )
