"""What a cell can cost the host: arguments, time, memory, and work that outlives the cell."""

import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import BadInput, QueryLimit, WorkStopped
from scroll_context.events import Draft, Scope
from scroll_context.kernel.kernel import Kernel
from scroll_context.recall.arguments import MAX_TEXT
from scroll_context.recall.memory import MAX_CALLS, Memory, NoSession, memory_prelude
from scroll_context.search.grep import Scan
from scroll_context.search.grep_pattern import pattern
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.text import words
from scroll_context.tools.handles import handles_prelude
from scroll_context.work import Work

MEGABYTE = 1 << 20


def memory_of(store: Store) -> Memory:
    return Memory(store, Scope("own", agent_id="me"), "all", NoSession())


def said(store: Store, content: str, **fields: Any) -> int:
    return store.append(
        Draft(
            **{"role": "user", "session_id": "own", "agent_id": "me", "content": content} | fields
        )
    )


def seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def until(condition: Callable[[], bool], within: float) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


LONG = "x" * (MAX_TEXT + 1)
TOO_LONG: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "ms.search": ((LONG,), {}),
    "ms.expand": ((LONG,), {}),
    "ms.sql_query": (("SELECT ?", [LONG]), {}),
    "ms.grep": ((LONG,), {}),
    "ms.timeline": ((LONG,), {}),
    "ms.outline": ((), {"query": LONG}),
    "ms.turns": ((LONG,), {}),
    "ms.gist": ((), {"query": LONG}),
    "ms.standing": ((LONG,), {}),
    "ms.provenance": ((LONG,), {}),
    "ms.index": ((LONG,), {}),
    "payload.read": ((LONG,), {}),
}


def test_every_call_is_tested_with_a_text_that_is_too_long(store: Store) -> None:
    assert TOO_LONG.keys() == memory_of(store).names


@pytest.mark.parametrize("capability", TOO_LONG)
def test_a_text_that_is_too_long_is_refused_at_the_border(store: Store, capability: str) -> None:
    said(store, "tea")
    args, kwargs = TOO_LONG[capability]
    with pytest.raises(
        BadInput, match=f"the arguments of {capability} are too large.* 100,000 characters"
    ):
        memory_of(store).call(capability, *args, **kwargs)


@pytest.mark.parametrize(
    "filters",
    [
        {"session_id": LONG},
        {"role": ["user"] * 20_000},
        {"kind": [LONG]},
        {LONG: 1},
        {"created_from": LONG},
        {"seq_range": [["x" * 60_000], ["x" * 60_000]]},
    ],
    ids=["text", "many", "in a list", "name", "date", "nested"],
)
def test_no_filter_is_larger_than_a_question(store: Store, filters: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="too large"):
        memory_of(store).call("ms.search", "tea", **filters)


def test_the_tools_of_models_without_cells_have_the_same_border(store: Store) -> None:
    from scroll_context.recall.memory_tools import recall_tools

    for tool in recall_tools(memory_of(store), ["search", "grep", "recall"]):
        with pytest.raises(BadInput, match="too large"):
            tool(LONG)


@pytest.mark.parametrize(
    "query", ["a" + " " * 99_000 + "b", "a " * 400, " OR ".join("ab" * 80), "NOT " * 200]
)
def test_a_query_takes_linear_time(store: Store, query: str) -> None:
    said(store, "a tale of b")
    memory = memory_of(store)

    def ask_all() -> None:
        for capability, given in (
            ("ms.timeline", {}),
            ("ms.outline", {}),
            ("ms.search", {}),
            ("ms.gist", {}),
        ):
            try:
                memory.call(capability, query=query, **given)
            except BadInput:
                continue

    assert seconds(ask_all) < 5


@pytest.mark.parametrize(
    "piece", [".", "?", "\\(", "a.", "a.b@", "- ", "x-", "...)", "$", "`", "/a.", "漢", "~~~a"]
)
def test_running_text_is_cut_in_linear_time(piece: str) -> None:
    text = f"x{piece * 200_000}b @ / [ ```"
    assert seconds(lambda: list(words.sentences(words.prose(words.body(text))))) < 20


def test_sentences_end_where_they_ended_before() -> None:
    text = 'One... two?! "Three." (Four.) v1.2.x stays... really?? yes!'
    assert list(words.sentences(text)) == [
        "One...",
        "two?!",
        '"Three."',
        "(Four.)",
        "v1.2.x stays...",
        "really??",
        "yes!",
    ]
    assert words.prose("Write to a.b+c@d-e.org, or see /usr/lib/x and \\(a+b\\).").split() == [
        "Write",
        "to",
        ".",
        ",",
        "or",
        "see",
        ".",
        "and",
        ".",
        ".",
    ]


# stopping -----------------------------------------------------------------------------------------------


def heavy(store: Store, copies: int = 60) -> None:
    """Events whose bodies take long to read: all of them have one large text."""
    body = "the quick brown fox " * (8 * MEGABYTE // 20)
    store.log.append_many(
        [Draft(session_id="own", role="user", content=body) for _ in range(copies)]
    )


def test_work_stops_in_the_log_in_bodies_and_in_queries(store: Store) -> None:
    heavy(store, copies=3)
    memory = memory_of(store)
    work = Work(time.monotonic() + 60)
    work.stop()
    with work.in_this_thread():
        for ask in (
            lambda: memory.call("ms.grep", "fox"),
            lambda: memory.call("ms.expand", 1),
            lambda: memory.call("ms.turns", 1, 3),
            lambda: memory.call("ms.gist"),
            lambda: memory.call("ms.standing"),
            lambda: memory.call("ms.outline"),
            lambda: memory.call("ms.timeline", "fox"),
            lambda: memory.call("ms.sql_query", "SELECT count(*) FROM hist.events"),
            lambda: memory.call("payload.read", 1),
        ):
            with pytest.raises(WorkStopped):
                ask()
    assert memory.call("ms.grep", "fox").value["rows"], "the same memory continues to work"
    assert len(memory.call("ms.outline").value["rows"]) == 1


def test_one_query_of_the_log_is_stopped_while_it_runs(store: Store) -> None:
    work = Work(time.monotonic() + 0.5)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with work.in_this_thread():
        begun = time.monotonic()
        with pytest.raises(WorkStopped):
            store.log.query(endless)
    assert time.monotonic() - begun < 3
    assert store.log.query("SELECT 1") == [(1,)]


def test_a_guarded_query_is_killed_with_its_cell(store: Store) -> None:
    said(store, "tea")
    sql = store.sql(Scope("own").grant("all"))
    sql.query("SELECT 1")
    work = Work(time.monotonic() + 0.5)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with work.in_this_thread():
        begun = time.monotonic()
        with pytest.raises(WorkStopped):
            sql.query(endless)
    assert time.monotonic() - begun < 2
    with pytest.raises(QueryLimit):
        sql.query(endless)
    sql.close()


CALLS = {
    "grep": "ms.grep('absent', regex=True)",
    "expand": "ms.expand(1, 60)",
    "gist": "ms.gist(role=None)",
    "turns": "ms.turns(1, 60)",
}


@pytest.mark.parametrize("call", CALLS)
def test_the_work_of_many_threads_is_bounded_and_ends_with_the_cell(
    store: Store, call: str
) -> None:
    heavy(store)
    memory = memory_of(store)
    cell = f"""
import threading
def work():
    while True:
        {CALLS[call]}
for _ in range(48):
    threading.Thread(target=work, daemon=True).start()
import time
time.sleep(60)
"""
    most = 0
    watching = threading.Event()

    def watch() -> None:
        nonlocal most
        while not watching.wait(0.01):
            most = max(most, memory.places.taken)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        with Kernel(memory.answer, preludes=(handles_prelude(), memory_prelude())) as kernel:
            result = kernel.execute(cell, timeout=1.5)
            assert result.ended in ("timeout", "killed")
            assert until(lambda: memory.places.taken == 0, within=1.5), (
                "the host works for a cell that has ended"
            )
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
            # The threads go on in a process that was only interrupted. On a busy machine they can
            # cost the next cell its processor time, and so that process; a new one works.
            endings = [kernel.execute("print(ms.expand(1)[0]['seq'])").ended for _ in range(2)]
            assert endings in (["ok", "ok"], ["killed", "ok"])
    finally:
        watching.set()
        watcher.join()
    assert 0 < most <= MAX_CALLS
    assert grown < 600 * MEGABYTE


def test_a_body_is_searched_piece_by_piece(folder: Path) -> None:
    with Store(folder, create=True) as store:
        body = "a" * (3 * MEGABYTE) + "needle" + "b" * (3 * MEGABYTE)
        seq = store.append(Draft(session_id="own", role="user", content=body))
        [match] = Scan(store.log, detailed=1).rows(pattern("needle"))
        assert (match.seq, match.count) == (seq, 1) and "aaneedlebb" in match.excerpt


def test_an_extract_of_very_many_turns_reads_some_that_are_spread_evenly(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scroll_context.recall import overview

    monkeypatch.setattr(overview, "MOST_READ", 50)
    store.log.append_many(
        [
            Draft(session_id="own", role="user", content=f"Planted {n} apple trees in field {n}.")
            for n in range(400)
        ]
    )
    answer = memory_of(store).call("ms.gist", chars=2_000)
    seqs = [row["seq"] for row in answer.value["rows"]]
    assert min(seqs) < 60 and max(seqs) > 340


def test_a_cell_of_a_session_calls_within_its_limits(opened: Callable[..., Session]) -> None:
    session = opened()
    result = session.run(f"ms.search('x' * {MAX_TEXT + 1})", "call-1")
    assert "too large" in result.content
