"""Long sessions, measured: tokens within budget, evictions, prefix reuse, recovery, and what each
context costs.

    python benchmarks/agent.py [--json FILE] [--only task events hard contexts recall]

Everything is real but the model: a store on disk, jailed kernels, and a `ScriptedModel` that counts
four characters to a token and, as cache reads, what repeats the beginning of the request before.
Five parts, one table each:

* task      one request, 500 steps; results of 1 to 200 kB stay in variables and 1 kB a step is
  printed; the last row has a window in which nothing need ever leave
* events    the same shape recorded directly, 10,000 events
* hard      200 kB printed, and 200 kB returned natively, step after step
* contexts  one trajectory under every context: tokens sent, and whether a detail of an early result
  can be had again
* recall    one search and one print in a running kernel, over 50,000 messages
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scroll_context.agent.agent import Agent
from scroll_context.events import Event, Kind
from scroll_context.messages import ToolCall
from scroll_context.models import Reply, Request, ScriptedModel, answer, exec_cell
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.eviction import Budget
from scroll_evals.contexts import CONTEXTS
from store import made_up

TASK = "Go through all records and total what they say by supplier, without those of May."
HIGH = Budget(window=1).high
VARIABLES = 20
WORDS = [
    first + second
    for first in "ba ce di fo gu ka le mi no pu ra se ti vo zu".split()
    for second in "lan mer nos per tik sol ven dar gim hos".split()
]

Row = dict[str, Any]
SERIES = "series"
"""The key under which a row keeps what is drawn and not printed."""


# records ----------------------------------------------------------------------------------------


def record(number: int, size: int) -> str:
    """A record: `size` bytes that are a function of its number, with a detail of its own in the
    middle.
    """
    words = random.Random(number).choices(WORDS, k=size // 6)
    words.insert(len(words) // 2, detail(number))
    return f"record {number}: {' '.join(words)}"[:size].ljust(size, ".")


def detail(number: int) -> str:
    return f"invoice-{number * 7919 % 100_003}"


def size_of(number: int, largest: int = 200_000) -> int:
    """From 1 kB to `largest`, evenly over the orders of magnitude."""
    return int(1_000 * (largest / 1_000) ** random.Random(-number - 1).random())


def fetch(number: int, size: int) -> str:
    """One record."""
    return record(number, size)


def cell(number: int, size: int, printed: int) -> Reply:
    name = f"r{number % VARIABLES}"
    return exec_cell(
        f"{name} = fetch({number}, {size})\nprint({name}[:{printed}])",
        headline=(
            f"total by supplier | records up to {number} read, {name} is new | fetch {number + 1} "
            "| running"
        ),
    )


def native(number: int, size: int) -> Reply:
    headline = f"⟦ total by supplier | records up to {number - 1} read | fetch {number} | running ⟧"
    return Reply(
        text=headline, tool_calls=(ToolCall("", "fetch", {"number": number, "size": size}),)
    )


# running ----------------------------------------------------------------------------------------


@contextmanager
def session_for(context: str = "scroll") -> Iterator[Session]:
    options = SessionOptions(context=context)
    with (
        tempfile.TemporaryDirectory(
            ignore_cleanup_errors=True
            # A merge of the index may outlive the store.
        ) as folder,
        Store(Path(folder) / "store", create=True) as store,
        Session.open(store, session_id="work", tools=[fetch], options=options) as session,
    ):
        yield session


class Watch:
    """Times the evictions of a session: planning, recording and applying together."""

    def __init__(self, session: Session) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._fit = session.context.fit
        session.context.fit = self._timed  # type: ignore[method-assign]
        self._session = session
        self.evictions: list[Event] = []
        self.index: list[Row] = []
        session.subscribe(
            lambda event: self.evictions.append(event) if event.kind == Kind.EVICTION else None
        )

    def _timed(self, *args: Any) -> bool:
        before, wall, cpu = len(self.evictions), time.perf_counter(), time.thread_time()
        shrank = self._fit(*args)
        if len(self.evictions) > before:
            self.wall.append((time.perf_counter() - wall) * 1e3)
            self.cpu.append((time.thread_time() - cpu) * 1e3)
            index = self._session.context.view.index  # type: ignore[attr-defined]
            evicted = sum(line.entries for line in index.lines)
            self.index.append({"evicted": evicted, "blocks": index.blocks, "tokens": index.tokens})
        return shrank

    def facts(self) -> Row:
        return {
            "evictions": len(self.wall),
            "eviction ms": round(statistics.median(self.wall), 1) if self.wall else 0,
            "max": round(max(self.wall, default=0), 1),
            "cpu max": round(max(self.cpu, default=0), 1),
            "over": sum(event.metadata["plan"]["over_budget"] for event in self.evictions),
        }


def run(session: Session, window: int, script: Callable[[Request, int], Reply]) -> Row:
    """One run to its answer: largest request against the budget, evictions, reuse, time."""
    watch = Watch(session)
    agent = Agent(session, ScriptedModel(script, window=window, keep=1))
    begun = time.perf_counter()
    done = agent.run(TASK)
    seconds = time.perf_counter() - begun
    assert done.state == "answered", done.state
    sent = [usage["input_tokens"] for usage in usages(session)]
    return {
        "window": window,
        "steps": done.totals.steps,
        "largest": max(sent),
        "of budget": max(sent) / (window * HIGH),
        "reuse": done.totals.cache_read_tokens / done.totals.input_tokens,
        **watch.facts(),
        "ms/step": round(seconds * 1e3 / done.totals.steps, 1),
        SERIES: {"sent": sent, "index": watch.index},
    }


def usages(session: Session) -> Iterator[dict[str, int]]:
    for event in session.events():
        if event.role == "assistant" and event.kind == Kind.CONVERSATION:
            yield {
                "input_tokens": 0,
                "output_tokens": 0,
                "cache_read_tokens": 0,
                **event.metadata["usage"],
            }


def unrecovered(session: Session, expected: Callable[[Event], str | None]) -> tuple[int, int]:
    """How many events there are, and how many do not expand to what was recorded, byte for byte."""
    count = wrong = 0
    memory, log = session.environment.memory, session.store.log
    for event in session.events():
        row = memory.call("ms.expand", event.seq).value["rows"][0]
        text = log.text(log.get(row["seq"])) if "payload" in row else row["content"]
        original = expected(event)
        count += 1
        wrong += text != (log.text(event) if original is None else original)
    return count, wrong


# the parts --------------------------------------------------------------------------------------


def task(steps: int = 500) -> Iterator[Row]:
    def script(_: Request, step: int) -> Reply:
        return cell(step, size_of(step), 1_000) if step < steps else answer("Totalled.")

    def expected(event: Event) -> str | None:
        if event.kind == Kind.TOOL_RESULT:
            arguments = json.loads(calls[event.reply_to or 0])
            return record(arguments["number"], arguments["size"])
        if event.kind == Kind.TOOL_CALL:
            calls[event.seq] = event.content
        return None

    for window in (32_000, 128_000, 1_000_000):
        calls: dict[int, str] = {}
        with session_for() as session:
            facts = run(session, window, script)
            count, wrong = unrecovered(session, expected)
            yield facts | {"events": count, "lost": wrong}


def events(count: int = 10_000) -> Iterator[Row]:
    """Seven events a step, recorded without kernel and agent; the model's count is what a
    ScriptedModel counts.
    """
    for window in (32_000, 128_000):
        with session_for() as session:
            watch, model = (
                Watch(session),
                ScriptedModel(lambda *_: answer("noted"), window=window, keep=1),
            )
            system = "Work through the records. " * 40
            session.say(TASK)
            largest = sent = reused = steps = 0
            begun = time.perf_counter()
            while session.store.log.last_seq() < count:
                budget = Budget(window=window, overhead=len(system) // 3)
                session.context.fit(session, budget, model, False)
                rendered = session.context.render(system, "")
                session.record(Kind.REQUEST, metadata=rendered.metadata())
                usage = model.reply(Request(rendered.messages)).usage
                largest = max(largest, usage.input_tokens)
                sent, reused = sent + usage.input_tokens, reused + usage.cache_read_tokens
                direct_step(session, steps, usage.input_tokens)
                steps += 1
            seconds = time.perf_counter() - begun
            total, wrong = unrecovered(session, lambda _: None)
            yield {
                "window": window,
                "steps": steps,
                "largest": largest,
                "of budget": largest / (window * HIGH),
                "reuse": reused / sent,
                **watch.facts(),
                "ms/step": round(seconds * 1e3 / steps, 1),
                "events": total,
                "lost": wrong,
                SERIES: {"index": watch.index},
            }


def direct_step(session: Session, number: int, counted: int) -> None:
    """What the log holds of a step: reply, cell, a call inside it with its result, and what was
    printed.
    """
    made = cell(number, 1_500, 1_000).tool_calls[0]
    assert isinstance(made.arguments, dict)
    session.record(
        Kind.CONVERSATION,
        role="assistant",
        headline=made.arguments["headline"],
        metadata={
            "tool_calls": [{"id": f"c{number}", "name": "exec", "arguments": made.arguments}],
            "usage": {"input_tokens": counted},
        },
    )
    ran = session.record(
        Kind.CELL,
        role="assistant",
        name="exec",
        tool_call_id=f"c{number}",
        content=made.arguments["source"],
    )
    inside = {"inside_cell": ran.seq}
    text = record(number, 1_500)
    call = session.record(
        Kind.TOOL_CALL, role="assistant", name="fetch", content="{}", metadata=inside
    )
    session.record(
        Kind.TOOL_RESULT,
        role="tool",
        name="fetch",
        content=text,
        reply_to=call.seq,
        metadata=inside,
    )
    session.record(
        Kind.OBSERVATION,
        role="tool",
        name="exec",
        tool_call_id=f"c{number}",
        reply_to=ran.seq,
        content=text[:1_000],
        metadata={"bound": [f"r{number % VARIABLES}"]},
    )


def hard(steps: int = 40) -> Iterator[Row]:
    cases = [
        ("printed", "scroll", 32_000),
        ("printed", "scroll", 128_000),
        ("native", "scroll-no-repl", 32_000),
        ("native", "scroll-no-repl", 128_000),
        ("native", "react", 32_000),
    ]
    for how, context, window in cases:

        def script(_: Request, step: int, how: str = how) -> Reply:
            if step >= steps:
                return answer("Totalled.")
            return cell(step, 200_000, 200_000) if how == "printed" else native(step, 200_000)

        with session_for(context) as session:
            yield {"200 kB": how, "context": context} | run(session, window, script)


def contexts(steps: int = 120, window: int = 32_000, early: int = 5) -> Iterator[Row]:
    """The same records under every context; at the end each looks for a detail of an early one, if
    it has a search.

    "early detail" says whether that detail is in the last request. Where there is no search nothing
    is tried: the record's variable has been bound anew by then, and the scripted summary holds no
    details, as a real one might.
    """
    finders: dict[str, Callable[[], Reply]] = {
        "search": lambda: Reply(tool_calls=(ToolCall("", "ms_search", {"query": detail(early)}),)),
        "recall": lambda: Reply(tool_calls=(ToolCall("", "recall", {"query": detail(early)}),)),
        "ms": lambda: exec_cell(
            f"hits = ms.search('{detail(early)}')\nprint([hit['snippet'] for hit in hits])"
        ),
    }
    for name, context in CONTEXTS.items():
        actions = context.actions
        way = "ms" if actions.exec and actions.ms else next(iter(actions.memory_tools), "")
        played, found_all = 0, False

        def script(request: Request, _: int, way: str = way, writes: bool = actions.exec) -> Reply:
            nonlocal played, found_all
            # The context asked for a summary.
            if not request.tools:
                return answer(f"Records up to {played - 1} were read. " * 20)
            played += 1
            if played <= steps:
                number = played - 1
                return (
                    cell(number, size_of(number), 1_000)
                    if writes
                    else native(number, size_of(number))
                )
            if played == steps + 1 and way:
                return finders[way]()
            found_all = any(
                detail(early) in message.text
                for message in request.messages
                if message.role != "assistant"
            )
            return answer("Totalled.")

        with session_for(name) as session:
            facts = run(session, window, script)
            own = list(usages(session))
            summaries = [
                e.metadata["usage"]
                for e in session.events()
                if "usage" in e.metadata and e.kind == Kind.EVICTION
            ]
            yield {
                "context": name,
                "input tokens": sum(row["input_tokens"] for row in own),
                "not cached": sum(row["input_tokens"] - row["cache_read_tokens"] for row in own),
                "for summaries": sum(row["input_tokens"] for row in summaries),
                "output": sum(row["output_tokens"] for row in [*own, *summaries]),
                "largest": facts["largest"],
                "of budget": facts["of budget"],
                "evictions": facts["evictions"],
                "early detail": "yes" if found_all else "no",
            }


def recall(messages: int = 50_000, rounds: int = 200) -> Iterator[Row]:
    corpus = made_up(messages)
    with session_for() as session:
        store = session.store
        begun = time.perf_counter()
        for start in range(0, messages, 5_000):
            batch = corpus.messages[start : start + 5_000]
            store.log.append_many(
                replace(draft, agent_id=session.scope.agent_id) for draft in batch
            )
        store.index.catch_up()
        loading = time.perf_counter() - begun
        environment = session.environment
        marker = session.record(Kind.CELL, content="timed")
        searches, alone, whole = [], [], []
        for n in range(rounds):
            words = " ".join(corpus.questions[n % len(corpus.questions)].split()[:3])
            source = f"hits = ms.search({words!r})\nprint(hits[0]['seq'] if hits else None)"
            begun = time.perf_counter()
            environment.memory.call("ms.search", words)
            searches.append((time.perf_counter() - begun) * 1e3)
            environment.variables.wait_for_save()
            begun = time.perf_counter()
            result, _ = environment.run(source, marker, 30.0)
            alone.append((time.perf_counter() - begun) * 1e3)
            assert result.ended == "ok", result
            environment.variables.wait_for_save()
            begun = time.perf_counter()
            session.run(source, f"c{n}")
            whole.append((time.perf_counter() - begun) * 1e3)
        yield {
            "messages": messages,
            "loaded in s": round(loading, 1),
            "search ms": round(statistics.median(searches), 2),
            "cell ms": round(statistics.median(alone), 2),
            "p95": round(statistics.quantiles(alone, n=20)[-1], 2),
            "with both events": round(statistics.median(whole), 2),
        }


# printing ---------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[], Iterator[Row]], str]] = {
    "task": (
        task,
        (
            "One request, 500 steps, 1 to 200 kB bound, 1 kB printed a step (target: reuse 90 %, "
            "at 128k 95 %)"
        ),
    ),
    "events": (events, "The same shape, 10,000 events"),
    "hard": (hard, "The hard case: 200 kB a step, 40 steps"),
    "contexts": (
        contexts,
        "One trajectory of 120 records of 1 to 200 kB at a 32k window, by context",
    ),
    "recall": (recall, "A recall cell: one search, one print (target: 2 ms)"),
}


def shown(name: str, value: Any) -> str:
    if name in ("of budget", "reuse"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: list[Row]) -> str:
    columns = [name for name in rows[0] if name != SERIES]
    lines = [columns]
    for row in rows:
        lines.append([shown(name, row[name]) for name in columns])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="the parts to run"
    )
    chosen = parser.parse_args()
    results: dict[str, list[Row]] = {}
    for name in chosen.only:
        measure, title = PARTS[name]
        begun = time.perf_counter()
        results[name] = list(measure())
        print(
            f"\n{title}\n{table(results[name])}\n({time.perf_counter() - begun:.0f} s)", flush=True
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
