"""What questions about a long history cost in tokens: the first request, and five questions with
five cells each.

    python benchmarks/tokens.py --data DIR [--split 10M] [--window 128000] [--json FILE] [--show]

DIR is BEAM's own folder (its layout is in scroll_evals/beam.py); its first chat of the split is
taken. Everything is real but the model: the chat is ingested, and a `ScriptedModel` (four
characters to a token) writes the cells that agents write most: search by the question, by a few of
its words, SQL with LIKE, the surroundings of the best hit, counts by session. The cells are the
same in every version, so two versions of the code can be compared; `--show` prints the first
request instead.
"""

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from scroll_context.messages import ToolCall
from scroll_context.models import Reply, Request, ScriptedModel, exec_cell

try:
    from scroll_evals.beam import Beam
    from scroll_evals.memory import MemorySuite
    from scroll_evals.protocols import Setup, Stop
except ImportError:
    # A revision in which the evaluations were part of the core.
    from scroll_context.evals.beam import Beam  # type: ignore[import-not-found, no-redef]
    from scroll_context.evals.memory import MemorySuite  # type: ignore[import-not-found, no-redef]
    from scroll_context.evals.trials import Setup, Stop  # type: ignore[import-not-found, no-redef]

ABILITIES = (
    "information_extraction",
    "knowledge_update",
    "event_ordering",
    "summarization",
    "instruction_following",
)
COMMON = frozenset(
    (
        "about after before could different during following order their there these those which "
        "would"
    ).split()
)


CELLS = (
    """\
hits = ms.search(QUESTION, k=10)
for hit in hits:
    print(hit['seq'], hit['created_at'][:10], hit['role'], hit['snippet'])
""",
    """\
more = ms.search(WORDS, k=20, role='user')
for hit in more:
    print(hit['seq'], hit['created_at'][:10], hit['content'][:300])
""",
    """\
rows = ms.sql_query(
    "SELECT seq, session_id, substr(content, 1, 400) AS said FROM hist.conversation_history "
    "WHERE role = 'user' AND content LIKE ? ORDER BY seq LIMIT 40", ['%' + WORD + '%'])
for row in rows:
    print(row)
""",
    """\
best = hits[0]['seq'] if hits else more[0]['seq'] if more else 1
for event in ms.expand(max(1, best - 2), best + 2):
    print(event['seq'], event['role'], event['content'][:1500])
""",
    """\
rows = ms.sql_query(
    "SELECT session_id, min(created_at) AS first, count(*) AS turns FROM hist.conversation_history "
    "WHERE content LIKE ? GROUP BY session_id ORDER BY min(seq)", ['%' + WORD + '%'])
for row in rows:
    print(row['session_id'], row['first'][:10], row['turns'])
""",
)
"""What agents write most. QUESTION, WORDS and WORD are filled in."""


def cells(question: str) -> list[str]:
    """The cells for a question."""
    words = [word for word in re.findall(r"[A-Za-z]{5,}", question) if word.lower() not in COMMON]
    telling = sorted(dict.fromkeys(words), key=len, reverse=True)[:3]
    places = {"QUESTION": question, "WORDS": " ".join(telling), "WORD": telling[0]}
    return [
        re.sub(
            r"\b[A-Z]{4,}\b",
            lambda place: repr(places.get(place[0])) if place[0] in places else place[0],
            cell,
        )
        for cell in CELLS
    ]


def _rough_tokens(request: Request) -> int:
    return sum(len(message.text) for message in request.messages) // 4


def played(trial: Any, folder: Path, question: str, window: int) -> tuple[dict[str, Any], Request]:
    """What one question takes, and its first request."""
    sources = cells(question)

    def script(_: Request, step: int) -> Reply:
        if step < len(sources):
            return exec_cell(
                sources[step],
                tool="recall_history_python",
                headline=f"question | cell {step + 1} | go on | ok",
            )
        return Reply(tool_calls=(ToolCall("", "submit_answer", {"answer": "As found."}),))

    model = ScriptedModel(script, window=window)
    attempt = trial.run(Setup(model=model), folder, Stop())
    failed = [
        step["observation"][:200]
        for step in attempt.steps
        if "Traceback" in (step.get("observation") or "")
    ]
    first = model.requests[0]
    return {
        "question": question,
        "first request": sum(len(message.text) for message in first.messages) // 4,
        "input tokens": attempt.metrics.tokens_in,
        "not cached": attempt.metrics.tokens_in - attempt.metrics.tokens_cached,
        "largest request": max(map(_rough_tokens, model.requests)),
        "requests": len(model.requests),
        "failed cells": failed,
    }, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="BEAM's folder")
    parser.add_argument("--split", default="10M")
    parser.add_argument("--window", type=int, default=128_000, help="tokens")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--show", action="store_true", help="print the first request and stop")
    chosen = parser.parse_args()
    suite = MemorySuite(Beam(chosen.data, chosen.split))
    trials = [item for item in suite.trials() if hasattr(item, "run")]
    group = trials[0].group
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for ability in ABILITIES:
            trial = next(
                (item for item in trials if item.group == group and item.ability == ability), None
            )
            if trial is None:
                continue
            rows[ability], first = played(trial, Path(folder), trial._question.text, chosen.window)
            if chosen.show:
                print(
                    "\n\n".join(f"<{message.role}>\n{message.text}" for message in first.messages)
                )
                return
    for ability, row in rows.items():
        facts = ", ".join(
            f"{name} {value:,}" for name, value in row.items() if isinstance(value, int)
        )
        print(
            f"{ability}: {facts}" + "".join(f"\n  failed: {text}" for text in row["failed cells"])
        )
    sent = sum(row["input tokens"] for row in rows.values())
    not_cached = sum(row["not cached"] for row in rows.values())
    total = {"input tokens": sent, "not cached": not_cached}
    print(f"all {len(rows)}: input tokens {sent:,}, not cached {not_cached:,}")
    if chosen.json:
        turns = sum(1 for _ in trials[0]._history.drafts())
        chosen.json.write_text(
            json.dumps({"turns": turns, "questions": rows, "all": total}, indent=1)
        )


if __name__ == "__main__":
    main()
