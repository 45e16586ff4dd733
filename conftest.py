"""Fixtures that several layers share, how hard the property tests try, and which test begins.

Every Hypothesis test carries the marker `fuzz`. In `make test` each runs its bounded number of examples, the same
ones every time, so that a red run means a change. `make fuzz` sets FUZZ_MINUTES: each then begins anew with other
examples until its minutes are over, and what failed once is kept in .hypothesis and tried first next time.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from scroll_context.store.log import EventLog
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.search import SearchIndex

FUZZ_SECONDS = 60 * float(os.environ.get("FUZZ_MINUTES") or 0)

hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile(
    "fuzz", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fuzz" if FUZZ_SECONDS else "tests")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; tests press Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A search that has waited long enough answers from what is indexed; a busy machine must not bring that about.
    SearchIndex.search.__kwdefaults__["patience"] = 60.0
    config.addinivalue_line("markers", "fuzz: draws its examples; every Hypothesis test has it")
    config.addinivalue_line("markers", "first: begins before all others, since it takes longest")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("fuzz")
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    until = time.monotonic() + FUZZ_SECONDS
    yield
    while item.get_closest_marker("fuzz") and time.monotonic() < until:
        item.runtest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a store may be created."""
    return tmp_path / "store"


@pytest.fixture
def log(folder: Path) -> Iterator[EventLog]:
    """An empty log on disk."""
    log = EventLog(folder, PayloadStore(folder / "payloads"), create=True)
    yield log
    log.close()
