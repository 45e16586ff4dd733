"""What verify says: the first bad seq, gaps by their ends, payloads by those who name them, and
what was declared.
"""

import json
import sqlite3

import pytest

from scroll_context.events import STORE_SESSION, Draft, Kind
from scroll_context.log.chain import leaf_of
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.log.rows import ERASED, ERASED_METADATA
from scroll_context.log.schema import PAGE
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify

pytestmark = pytest.mark.usefixtures("key_file")


def without(log: EventLog, *seqs: int, counter: int | None = None) -> EventLog:
    """The log with rows removed behind its back."""
    log.close()
    database = sqlite3.connect(log.path, isolation_level=None)
    database.execute("DROP TRIGGER event_no_delete")
    database.executemany("DELETE FROM event WHERE seq = ?", [(seq,) for seq in seqs])
    if counter is not None:
        database.execute("UPDATE sqlite_sequence SET seq = ?", [counter])
    database.close()
    return EventLog(FileBackend(log.path.parent))


def test_gaps_are_named_by_both_ends_and_counted_once(log: EventLog) -> None:
    log.append_many(Draft(content=f"{n}") for n in range(1, 21))
    log = without(log, 1, 5, 9, 10, 11, 20)
    verdict = verify(log)
    assert verdict.bad == (
        (1, "missing from the log"),
        (5, "missing from the log"),
        (9, "missing from the log, with all up to seq 11"),
        (20, "missing from the end of the log"),
    )
    assert (verdict.events, verdict.known) == (14, ()) and not verdict.ok
    log.close()


def test_the_end_of_a_log_is_known_from_its_counter(log: EventLog) -> None:
    log.append_many(Draft(content=f"{n}") for n in range(1, 6))
    log = without(log, 4, 5)
    assert verify(log).bad == ((4, "missing from the end of the log, with all up to seq 5"),)
    log.close()


def test_what_a_salvage_declared_is_known_up_to_its_bounds_and_no_further(log: EventLog) -> None:
    log.append_many(Draft(content=f"{n}") for n in range(1, 11))
    log.append(Draft(kind=Kind.SALVAGE, metadata={"lost": [[3, 4], [8, 8]], "altered": [2]}))
    database = sqlite3.connect(log.path, isolation_level=None)
    database.execute("DROP TRIGGER event_no_update")
    database.execute("UPDATE event SET content = 'x' WHERE seq IN (2, 7)")
    database.close()
    log = without(log, 3, 4, 5, 8)
    verdict = verify(log)
    assert [seq for seq, _ in verdict.bad] == [3, 7]  # the gap is longer than what was declared
    assert [seq for seq, _ in verdict.known] == [2, 8]
    log.close()


def test_a_gap_inside_what_a_salvage_declared_is_known(log: EventLog) -> None:
    log.append_many(Draft(content=f"{n}") for n in range(1, 11))
    log.append(Draft(kind=Kind.SALVAGE, metadata={"lost": [[3, 8]]}))
    log = without(log, 5, 6)
    verdict = verify(log)
    assert verdict.ok and verdict.known == ((5, "missing from the log, with all up to seq 6"),)
    log.close()


def test_payloads_are_checked_once_and_named_by_each_event_that_needs_them(log: EventLog) -> None:
    body = log.payloads.put(b"x" * 5_000, "application/octet-stream")
    pickle = log.payloads.put(b"y" * 5_000, "application/octet-stream")
    whole = log.payloads.put(b"z" * 5_000, "application/octet-stream")
    saved = json.dumps(
        {"cell": 1, "saved": [{"name": "a", "digest": pickle.digest}, {"name": "b", "digest": ""}]}
    )
    told = log.payloads.put(
        saved.encode(), "application/json"
    )  # names the pickle, and is no snapshot
    log.append_many(
        [
            Draft(payload=body),
            Draft(payload=whole),
            Draft(payload=body),
            Draft(kind=Kind.SNAPSHOT, content=saved),
            Draft(kind=Kind.CONVERSATION, payload=told),
        ]
    )
    assert verify(log).ok and verify(log).payloads == 4
    log.payloads.path(body.digest).write_bytes(b"x" * 4_999)
    log.payloads.path(pickle.digest).unlink()
    verdict = verify(log)
    assert [seq for seq, _ in verdict.bad] == [1, 3, 4]
    assert "no longer matches" in verdict.bad[0][1] and "is missing" in verdict.bad[2][1]


def test_a_long_log_is_read_in_pages_and_progress_is_told(log: EventLog) -> None:
    log.append_many(Draft(content=f"{n}") for n in range(2 * PAGE + 3))
    told: list[tuple[int, int]] = []
    verdict = verify(log, lambda done, total: told.append((done, total)))
    assert told == [(PAGE, 2 * PAGE + 3), (2 * PAGE, 2 * PAGE + 3), (2 * PAGE + 3, 2 * PAGE + 3)]
    assert (
        verdict.ok
        and verdict.events == 2 * PAGE + 3
        and verdict.head == log.get(2 * PAGE + 3).chain.hex()
    )


def test_an_erased_row_is_in_order_only_within_the_bounds_of_an_erasure(log: EventLog) -> None:
    log.append_many(Draft(content=f"{n}") for n in range(1, 11))
    database = sqlite3.connect(log.path, isolation_level=None)
    guards = database.execute(
        "SELECT sql FROM sqlite_master WHERE name = 'event_no_update'"
    ).fetchone()[0]
    database.execute("DROP TRIGGER event_no_update")
    for seq in range(2, 10):
        (row,) = log.rows(seq - 1, seq)
        database.execute(
            "UPDATE event SET content = ?, metadata = ?, leaf = ?, nonce = NULL WHERE seq = ?",
            [ERASED, ERASED_METADATA, leaf_of(row.nonce or b"", row.columns), seq],
        )
    database.execute(guards)
    database.close()
    assert [seq for seq, _ in verify(log).bad] == list(range(2, 10))
    log.append(
        Draft(kind=Kind.ERASURE, session_id=STORE_SESSION, metadata={"spans": [[3, 5], [7, 7]]})
    )
    assert [seq for seq, _ in verify(log).bad] == [2, 6, 8, 9]
    log.append(
        Draft(
            kind=Kind.ERASURE,
            session_id=STORE_SESSION,
            metadata={"spans": [[1, 2], [6, 6], [8, 20]]},
        )
    )
    assert verify(log).ok


def test_an_altered_row_is_found_before_and_behind_every_record_about_the_log(store: Store) -> None:
    """A record that declares what happened to some rows must not stand in for checking the others."""
    store.log.append_many(Draft(content=f"{n}") for n in range(1, 6))
    store.erase(seqs=[3])  # seq 6 records it
    store.append(Draft(content="7"))
    store.append(
        Draft(kind=Kind.SALVAGE, session_id=STORE_SESSION, metadata={"lost": [], "altered": []})
    )
    store.append(Draft(content="9"))
    assert verify(store.log).ok
    database = sqlite3.connect(store.log.path, isolation_level=None)
    database.execute("DROP TRIGGER event_no_update")
    for seq in (1, 5, 7, 9):
        database.execute("UPDATE event SET content = content || '!' WHERE seq = ?", [seq])
    database.close()
    assert [seq for seq, _ in verify(store.log).bad] == [1, 5, 7, 9]
