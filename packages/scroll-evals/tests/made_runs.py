"""Run folders with made-up results, for what only reads them."""

import random
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.models import Usage
from scroll_evals.judge import JudgeVerdict
from scroll_evals.protocols import Attempt, Judged, Metrics, TrialOutcome
from scroll_evals.results import Judgement, JudgeReply, RunConfig, RunFolder
from scroll_evals.tasks import Question


def make_run(
    path: Path,
    scores: dict[str, list[float]],
    *,
    seed: int = 0,
    tokens: int = 100_000,
    verifier: bool = False,
    **config: Any,
) -> RunFolder:
    """A finished run: for each ability, one trial with each of these scores."""
    rng = random.Random(seed)
    folder = RunFolder(path)
    settings = {
        "benchmark": "beam",
        "split": "10M",
        "model": "model-a",
        "context": "scroll",
        "judge": "judge",
    }
    folder.begin(RunConfig(**settings | config))
    for ability, values in scores.items():
        for number, score in enumerate(values):
            task_id = f"made/{ability}/{number}"
            question = Question(
                task_id=task_id, history_id="h", ability=ability, text="?", rubric=("x",)
            )
            metrics = Metrics(
                tokens_in=int(tokens * rng.lognormvariate(0, 0.6)),
                tokens_out=int(tokens / 25 * rng.lognormvariate(0, 0.7)),
                wall_time_s=round(rng.uniform(10, 90), 2),
                step_count=2 + int(rng.lognormvariate(1.5, 0.5)),
                dollars=0.01,
            )
            attempt = Attempt(
                task_id=task_id,
                ability=ability,
                outcome=TrialOutcome.ANSWERED,
                answer="a",
                metrics=metrics,
                task=msgspec.to_builtins(question),
                score=score if verifier else None,
            )
            folder.save_attempt(attempt, [])
            verdict = msgspec.to_builtins(JudgeVerdict(score=score))
            reply = JudgeReply(
                key="item-0",
                prompt="p",
                reply=f'{{"score": {score}, "reason": ""}}',
                cost=0.001,
                usage=Usage(input_tokens=100, output_tokens=10),
            )
            judged = Judged(score, {} if verifier else verdict)
            folder.save_judgement(
                Judgement(task_id=task_id, replies=() if verifier else (reply,), judged=judged)
            )
    return folder
