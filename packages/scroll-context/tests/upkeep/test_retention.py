"""Retention in a service: one run in each interval, each an event, whatever else goes on."""

import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import STORE_SESSION, Draft, Event, Kind
from scroll_context.log.rows import prepare
from scroll_context.store import Store
from scroll_context.upkeep.erase import Retention
from scroll_context.upkeep.integrity import verify

MONTH = dt.timedelta(days=30)


@pytest.fixture
def store(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("SCROLL_KEY_FILE", str(tmp_path / "key"))
    with Store(folder, create=True) as store:
        yield store


def record(store: Store, days: int, *drafts: Draft) -> list[int]:
    past = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).isoformat(timespec="microseconds")
    return [
        row.seq
        for row in store.log.write([prepare(draft, past, store.payloads) for draft in drafts])
    ]


def runs(store: Store) -> list[Event]:
    return list(store.log.iterate(session_id=STORE_SESSION, kind=Kind.ERASURE))


def test_a_run_is_due_once_in_an_interval_by_rule(store: Store) -> None:
    old = record(
        store, 40, Draft(content="old"), Draft(kind=Kind.TOOL_RESULT, content="an old result")
    )
    new = record(store, 1, Draft(content="new"))
    results = Retention(store, MONTH, kinds=[Kind.TOOL_RESULT])
    report = results.run_if_due()
    assert report is not None and report.asked == (old[1],) and results.run_if_due() is None
    everything = Retention(store, MONTH)
    report = everything.run_if_due()  # another rule
    assert report is not None and report.asked == (old[0],)
    assert (
        everything.run_if_due() is None and Retention(store, MONTH).run_if_due() is None
    )  # nor after a restart
    assert [event.metadata["rule"]["kinds"] for event in runs(store)] == [["tool_result"], []]
    assert not store.log.get(new[0]).is_erased and verify(store.log).ok


def test_the_date_of_recording_counts_and_no_date_that_a_file_brings(store: Store) -> None:
    [old] = record(
        store, 40, Draft(content="recorded long ago", created_at="2099-01-01T00:00:00+00:00")
    )
    [new] = record(
        store, 1, Draft(content="imported yesterday", created_at="2009-01-01T00:00:00+00:00")
    )
    report = Retention(store, MONTH).run_if_due()
    assert report is not None and report.asked == (old,)
    assert not store.log.get(new).is_erased


def test_records_of_erasures_and_salvages_are_kept(store: Store) -> None:
    [old, *about] = record(
        store,
        400,
        Draft(content="an old message"),
        Draft(kind=Kind.ERASURE, session_id=STORE_SESSION, metadata={"spans": []}),
        Draft(kind=Kind.SALVAGE, session_id=STORE_SESSION, metadata={"lost": [], "altered": []}),
    )
    assert store.expire(MONTH, dry_run=True).asked == (old,)
    Retention(store, MONTH).run_if_due()
    assert [store.log.get(seq).is_erased for seq in (old, *about)] == [True, False, False]


def test_a_run_that_finds_nothing_is_recorded_and_leaves_the_index_alone(store: Store) -> None:
    record(store, 1, Draft(content="new"))
    store.index.catch_up()
    report = Retention(store, MONTH).run_if_due()
    assert report is not None and report.events == 0 and report.seq == 2
    assert [hit.seq for hit in store.index.search("new")] == [1] and store.stats().index_bytes > 0


def test_it_runs_while_the_service_works_and_is_over_when_the_service_is(store: Store) -> None:
    (seq,) = record(store, 40, Draft(content="old"))
    erased = threading.Event()
    store.log.on_append.append(lambda: erased.set() if runs(store) else None)
    with Retention(store, MONTH):
        store.append(Draft(content="others go on"))
        assert erased.wait(60)
    assert store.log.get(seq).is_erased and len(runs(store)) == 1 and verify(store.log).ok
    assert not [thread for thread in threading.enumerate() if thread.name == "scroll-retention"]


def test_a_run_that_fails_does_not_end_the_service(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadInput):
        Retention(store, dt.timedelta(0)).run_if_due()
    with Retention(store, dt.timedelta(0), every=dt.timedelta(milliseconds=1)) as service:
        while len(caplog.records) < 2:  # it is tried again
            assert service._thread.is_alive()
    assert "is tried again later" in caplog.text and runs(store) == []
