"""Successful trajectories as training examples, one decision each.

* `retrieval`: what the model saw, and the cell that it wrote.
* `injection`: a cell and the records that it was given, and what it printed of them into the
  context.

Contexts are exactly what was sent, rebuilt from the log when the trial ended. A decision is
exported whole or not at all: cells that failed, and steps whose context was not kept, are left out
and counted.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from scroll_evals.protocols import Attempt
from scroll_evals.results import RunConfig, RunFolder

CELL_TOOLS = frozenset({"recall_history_python", "repl_exec", "exec"})


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the export."""

    decision: str  # "retrieval" or "injection"
    task_id: str
    step_index: int
    ability: str
    score: float  # of the whole trajectory
    model: str
    input: dict[str, Any]
    output: dict[str, Any]


class Exported(msgspec.Struct, kw_only=True):
    """The result of an export."""

    trajectories: int = 0
    retrieval: int = 0
    injection: int = 0
    below_threshold: int = 0  # trajectories
    skipped_steps: int = 0  # with a cell, but without a context that was kept, or failed


def examples(folder: RunFolder, threshold: float, exported: Exported) -> Iterator[Example]:
    """The examples of a run, from trajectories with at least this score; `exported` is counted up
    on the way.
    """
    config = folder.config()
    for attempt in folder.attempts():
        judged = folder.judgement(attempt.task_id).judged
        score = attempt.score if attempt.score is not None else judged.score if judged else 0.0
        if not attempt.has_answer or score < threshold:
            exported.below_threshold += 1
            continue
        exported.trajectories += 1
        yield from _of_attempt(folder, config, attempt, score, exported)


def _of_attempt(
    folder: RunFolder, config: RunConfig, attempt: Attempt, score: float, exported: Exported
) -> Iterator[Example]:
    seen = folder.requests(attempt.task_id)
    messages: list[dict[str, Any]] = []
    for at, step in enumerate(attempt.steps):
        known = seen[at] if at < len(seen) else None
        if known is not None:
            messages = [*messages[: known["keep"]], *known["messages"]]
        action = step["action"]
        if action["tool"] not in CELL_TOOLS:
            continue
        source = action["args"].get("source") if isinstance(action["args"], dict) else None
        if known is None or not source or "further_actions" in step or known.get("state") != "ok":
            exported.skipped_steps += 1
            continue
        same: dict[str, Any] = {
            "task_id": attempt.task_id,
            "step_index": at,
            "ability": attempt.ability,
            "score": score,
            "model": config.model,
        }
        exported.retrieval += 1
        yield Example(
            decision="retrieval",
            input={"messages": list(messages)},
            output={"reasoning": step["reasoning"], "tool": action["tool"], "source": source},
            **same,
        )
        if known.get("rows"):
            exported.injection += 1
            yield Example(
                decision="injection",
                input={
                    "task": attempt.prompt,
                    "source": source,
                    "rows": known["rows"],
                    "rows_total": known["rows_total"],
                },
                output={"printed": known["shown"]},
                **same,
            )
