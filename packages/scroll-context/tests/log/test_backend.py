"""The contract of `LogBackend`, on every backend that is installed (see the root conftest.py)."""

import os

import pytest

from scroll_context.errors import SessionBusy
from scroll_context.events import Draft, Kind
from scroll_context.log.log import EventLog

pytestmark = pytest.mark.usefixtures("key_file")

PATIENCE = 60.0
FACTS = {"reason": "request", "by": "a test"}


class Reports:
    """Counts what a backend reports."""

    def __init__(self) -> None:
        self.appended = 0
        self.erased = 0

    def rows_appended(self) -> None:
        self.appended += 1

    def rows_erased(self) -> None:
        self.erased += 1


def test_own_appends_are_read_at_once_and_are_in_the_file_when_they_were_waited_for(
    log: EventLog,
) -> None:
    backend = log.backend
    assert (backend.last_seq(), backend.applied_seq(), backend.awaited_seq(PATIENCE)) == (0, 0, 0)
    seqs = [log.append(Draft(session_id="s", content=f"event {n}")) for n in range(3)]
    assert seqs == [1, 2, 3] and backend.last_seq() == 3
    assert [event.content for event in log.iterate()] == ["event 0", "event 1", "event 2"]
    assert backend.wait_for_own(PATIENCE)
    assert (backend.applied_seq(), backend.awaited_seq(PATIENCE), backend.unread(3)) == (3, 3, 0)


def test_a_session_has_one_lease_and_its_holder_is_named(log: EventLog) -> None:
    lease = log.backend.take_lease("s")
    holder = log.backend.holder("s")
    assert holder is not None and holder.process == os.getpid()
    with pytest.raises(SessionBusy, match="'s' is open elsewhere"):
        log.backend.take_lease("s")
    lease.release()
    assert log.backend.holder("s") is None
    log.backend.take_lease("s").release()


def test_an_erasure_replaces_rows_records_it_and_is_reported(log: EventLog) -> None:
    for content in ("the code is heron", "nothing secret"):
        log.append(Draft(session_id="s", content=content))
    chains = log.column("chain", [1, 2])
    reports = Reports()
    log.backend.watch(reports)
    record = log.backend.erase([1], [], FACTS)
    assert record.seq == 3 and reports.appended > 0
    erased, untouched, erasure = log.get_many([1, 2, 3])
    assert erased.is_erased and "heron" not in erased.content
    assert untouched.content == "nothing secret"
    assert erasure.kind == Kind.ERASURE and erasure.metadata["by"] == "a test"
    assert log.column("chain", [1, 2]) == chains
    assert log.append(Draft(session_id="s", content="after it")) == 4


def test_nothing_changes_where_every_append_had_its_answer(log: EventLog) -> None:
    log.append(Draft(session_id="s", content="answered"))
    log.resolve_unanswered()
    log.backend.refresh()
    log.backend.check_writable()
    assert [event.content for event in log.iterate()] == ["answered"]
