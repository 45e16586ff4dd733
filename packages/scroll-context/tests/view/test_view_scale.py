"""Long sessions: always within budget, a prefix that is reused, a view whose size does not follow
the history.
"""

import pytest

from scroll_context.events import BOOKKEEPING
from scroll_context.view.working import WorkingView, render
from view_histories import DIGEST, SYSTEM, blocks, long_run


@pytest.mark.parametrize(("window", "reuse"), [(32_000, 0.90), (128_000, 0.95)])
def test_one_request_of_500_steps(window: int, reuse: float) -> None:
    run = long_run(window, 500, printed=1_000)
    print(
        f"{window} tokens: {run.reuse:.1%} of input reused, {len(run.scribe.plans)} evictions, largest {run.largest}"
    )
    assert run.largest <= 0.8 * window
    assert not any(plan.over_budget for plan in run.scribe.plans)
    assert run.reuse >= reuse


def test_a_session_of_10_000_events() -> None:
    run = long_run(32_000, 1_250, printed=1_000)
    scribe = run.scribe
    assert len(scribe.log) > 10_000
    assert run.largest <= 0.8 * 32_000 and run.reuse >= 0.90
    assert run.entries < 120, "the view does not grow with the session"
    assert blocks(scribe.view.index) <= 8 * 5
    replayed = WorkingView.replay(scribe.log)
    assert render(replayed, SYSTEM, DIGEST) == render(scribe.view, SYSTEM, DIGEST)
    for event in scribe.log:
        if event.kind not in BOOKKEEPING:
            shown = any(entry.seq <= event.seq <= entry.last for entry in scribe.view.entries)
            assert shown or scribe.view.index.find(event.seq)


@pytest.mark.parametrize("window", [8_000, 32_000, 128_000])
@pytest.mark.parametrize("parallel", [1, 3])
def test_results_of_200_kb_step_after_step(window: int, parallel: int) -> None:
    run = long_run(window, 40, printed=200_000, parallel=parallel)
    assert run.largest <= 0.8 * window
    assert not any(plan.over_budget for plan in run.scribe.plans)
