"""Long tasks at small windows, with a real store and a real kernel: never over budget, and nothing
beyond recovery.

The same shapes as in benchmarks/agent.py, shorter; what is asserted are ratios and invariants,
never times.
"""

import random
from itertools import pairwise

import pytest

from context_runs import TASK, counted, of_kind, open_session, reader, record, run
from scroll_context.events import Kind
from scroll_context.session.session import Session
from scroll_context.store import Store


def size_of(number: int) -> int:
    """1 to 60 kB."""
    return int(1_000 * 60 ** random.Random(number).random())


def assert_everything_expands(session: Session) -> None:
    """Each event of the session comes back through the memory surface as it was recorded."""
    memory, log = session.environment.memory, session.store.log
    for event in session.events():
        (row,) = memory.call("ms.expand", event.seq).value["rows"]
        assert row["content"] == log.text(event)


def assert_plans_announce_the_next_request(session: Session) -> None:
    """The size after an eviction is the estimate of the request that follows it."""
    pairs = pairwise(of_kind(session, Kind.EVICTION, Kind.REQUEST))
    sizes = [
        (plan.metadata["plan"]["after"], request.metadata["tokens"])
        for plan, request in pairs
        if (plan.kind, request.kind) == (Kind.EVICTION, Kind.REQUEST)
    ]
    assert sizes and all(after == tokens for after, tokens in sizes)


def test_a_long_task_whose_results_stay_in_variables(store: Store) -> None:
    window = 10_000
    with open_session(store, "scroll") as session:
        done, model = run(session, reader(session, 80, size_of), window)
        plans = [event.metadata["plan"] for event in of_kind(session, Kind.EVICTION)]
        print(
            f"reuse {done.totals.cache_read_tokens / done.totals.input_tokens:.1%}, "
            f"{len(plans)} evictions"
        )
        assert done.state == "answered" and done.totals.steps == 81
        assert len(plans) >= 3 and not any(plan["over_budget"] for plan in plans)
        assert max(counted(session)) <= 0.8 * window
        assert done.totals.cache_read_tokens >= 0.8 * done.totals.input_tokens
        assert all(
            any(TASK in message.text for message in request.messages) for request in model.requests
        )
        results = [store.log.text(event) for event in of_kind(session, Kind.TOOL_RESULT)]
        assert results == [record(number, size_of(number)) for number in range(80)]
        assert_plans_announce_the_next_request(session)
        assert_everything_expands(session)


@pytest.mark.parametrize(("context", "printed"), [("scroll", 200_000), ("plain", 0), ("react", 0)])
@pytest.mark.parametrize("window", [6_000, 40_000])
def test_200_kb_printed_or_returned_step_after_step(
    store: Store, context: str, printed: int, window: int
) -> None:
    if context == "react":
        pytest.importorskip("scroll_evals", reason="scroll-evals is not installed")
    with open_session(store, context) as session:
        done, _ = run(session, reader(session, 10, 200_000, printed), window)
        plans = [event.metadata["plan"] for event in of_kind(session, Kind.EVICTION)]
        assert done.state == "answered"
        assert plans and not any(plan["over_budget"] for plan in plans)
        assert max(counted(session)) <= 0.8 * window
        results = [store.log.text(event) for event in of_kind(session, Kind.TOOL_RESULT)]
        assert results == [record(number, 200_000) for number in range(10)]
        if printed:
            shown = [store.log.text(event) for event in of_kind(session, Kind.OBSERVATION)]
            assert [text.rstrip("\n") for text in shown] == results, (
                "the log keeps all that was printed"
            )
        assert_everything_expands(session)
