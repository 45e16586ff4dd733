"""The chain is a chain: a row vouches for every row before it, not only for itself."""

import io
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft
from scroll_context.store import schema
from scroll_context.store.chain import GENESIS, expected, leaf_of, link, link_1
from scroll_context.store.integrity import Verdict, salvage, verify
from scroll_context.store.log import EventLog
from scroll_context.store.merge import merge_export
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.rows import prepare
from scroll_context.store.transfer import export
from scroll_context.store.writer import INSERT

Rows = list[tuple[Any, ...]]


def rewritten(log: EventLog, change: Callable[[Rows], Rows]) -> Verdict:
    """What verify says of the log after its rows were changed in the file, with the guards off."""
    log.close()
    database = sqlite3.connect(log.path, isolation_level=None)
    database.execute("BEGIN")
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    rows = database.execute("SELECT * FROM event ORDER BY seq").fetchall()
    database.execute("DELETE FROM event")
    database.executemany(INSERT, change(rows))
    database.execute("UPDATE sqlite_sequence SET seq = (SELECT max(seq) FROM event)")
    database.execute("COMMIT")
    database.close()
    again = EventLog(log.path.parent, PayloadStore(log.path.parent / "payloads"))
    verdict = verify(again)
    again.close()
    return verdict


@pytest.fixture
def five(log: EventLog) -> EventLog:
    log.append_many(Draft(content=f"word {n}", source_key=f"k{n}") for n in range(1, 6))
    return log


def with_own_hash(rows: Rows, at: int, **changes: Any) -> tuple[Any, ...]:
    """The row with changes, and the hash that a row of its own content has behind the same row as before."""
    before = rows[at - 1][21] if at else GENESIS
    row = tuple((dict(zip(schema.ALL_COLUMNS, rows[at], strict=True)) | changes).values())
    return (*row[:21], expected(before, row), *row[22:])


def test_a_log_that_was_only_rewritten_as_it_is_verifies(five: EventLog) -> None:
    assert rewritten(five, lambda rows: rows).ok


def test_fault_27_a_row_replaced_together_with_its_own_hash_is_found_at_the_next_row(five: EventLog) -> None:
    verdict = rewritten(five, lambda rows: [*rows[:2], with_own_hash(rows, 2, content="forged"), *rows[3:]])
    assert [seq for seq, _ in verdict.bad] == [4]


def test_fault_27_a_last_row_replaced_with_its_hash_changes_the_head(five: EventLog) -> None:
    head = verify(five).head
    verdict = rewritten(five, lambda rows: [*rows[:4], with_own_hash(rows, 4, content="forged")])
    assert verdict.ok and verdict.head != head  # only a head kept elsewhere finds this one


def test_fault_27_two_rows_exchanged_are_found(five: EventLog) -> None:
    def exchange(rows: Rows) -> Rows:
        second, third = rows[1], rows[2]
        return [rows[0], (2, *third[1:]), (3, *second[1:]), *rows[3:]]

    assert [seq for seq, _ in rewritten(five, exchange).bad][:2] == [2, 3]


def test_fault_27_two_rows_exchanged_each_with_a_hash_of_its_own_are_found(five: EventLog) -> None:
    def exchange(rows: Rows) -> Rows:
        moved = [rows[0], (2, *rows[2][1:]), (3, *rows[1][1:]), *rows[3:]]
        moved[1] = with_own_hash(moved, 1)
        moved[2] = with_own_hash(moved, 2)
        return moved

    assert [seq for seq, _ in rewritten(five, exchange).bad] == [4]


def test_fault_27_a_row_removed_and_the_later_ones_renumbered_is_found(five: EventLog) -> None:
    def remove(rows: Rows) -> Rows:
        return rows[:2] + [(row[0] - 1, *row[1:]) for row in rows[3:]]

    assert [seq for seq, _ in rewritten(five, remove).bad] == [3, 4]


def test_fault_27_a_row_slipped_in_is_found(five: EventLog) -> None:
    def slip_in(rows: Rows) -> Rows:
        later = [(row[0] + 1, *row[1:]) for row in rows[2:]]
        return [*rows[:2], with_own_hash([*rows[:2], (3, *rows[1][1:20], None, *rows[1][21:])], 2), *later]

    assert rewritten(five, slip_in).bad[0][0] == 4


def as_format_1(rows: Rows) -> Rows:
    """The same events as rows of format 1."""
    chain, old = GENESIS, []
    for row in rows:
        chain = link_1(chain, row[:21])
        old.append((*row[:21], chain, None, None))
    return old


@pytest.mark.parametrize("change", [lambda rows: rows, as_format_1], ids=["format 2", "format 1"])
def test_every_column_is_covered_in_both_formats(five: EventLog, change: Callable[[Rows], Rows]) -> None:
    rows = change([tuple(row) for row in five.query("SELECT * FROM event ORDER BY seq")])
    before, row = rows[1][21], rows[2]
    assert expected(before, row) == row[21] != expected(rows[0][21], row)
    for at, value in enumerate(row[:21]):
        other = 9 if isinstance(value, int) or value is None else f"{value}x"
        assert expected(before, (*row[:at], other, *row[at + 1 :])) != row[21], schema.COLUMNS[at]
    for at in (22, 23):
        if row[at] is not None:
            assert expected(before, (*row[:at], bytes(16), *row[at + 1 :])) != row[21]


def test_the_hashes_of_both_formats_are_fixed_for_ever() -> None:
    body = ("s", "", "", "conversation", "user", "", "héllo\0", None, None, None, "", "", "", None, 3, -1,
            "{}", "2026-01-01", "2026-01-01T00:00:00+00:00", None)  # fmt: skip
    leaf = leaf_of(bytes(range(16)), body)
    assert leaf.hex() == "25fec1995e908a84f7b9e2783cbf7ab32821a85dbb71c425ad1a92bc891a7d90"
    assert link(GENESIS, 7, leaf).hex() == "730370500d18e8494f349fd1112255a410a73d6432264a816e358a234acc8e48"
    assert link_1(GENESIS, (7, *body)).hex() == "dba1f7c1e68ea4429d858fe9ac5e8ac7edad0684ba1438e5e5f6f1dcd7a6c073"


def test_equal_events_have_different_leaves(log: EventLog) -> None:
    log.append_many([Draft(content="yes", created_at="2026-01-01")] * 50)
    nonces = {nonce for (nonce,) in log.query("SELECT nonce FROM event")}
    assert len(nonces) == 50 and {len(nonce) for nonce in nonces} == {16}


def old_store(folder: Path, contents: list[str]) -> None:
    """A store of format 1, as earlier versions made it."""
    folder.mkdir()
    database = sqlite3.connect(folder / "log.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    schema.migrate(database, schema.MIGRATIONS[:1])
    chain = GENESIS
    for seq, content in enumerate(contents, 1):
        columns = (
            seq,
            *prepare(Draft(content=content), "2026-01-01T00:00:00+00:00", PayloadStore(folder / "p")).before,
        )
        chain = link_1(chain, columns)
        marks = ", ".join("?" * len(schema.COLUMNS))
        database.execute(f"INSERT INTO event ({', '.join(schema.COLUMNS)}) VALUES ({marks})", (*columns, chain))
    database.close()


def test_a_store_of_format_1_reads_as_it_is_and_upgrades_with_the_first_append(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old_store(folder, ["one", "two", "three"])
    before = (folder / "log.db").read_bytes()
    log = EventLog(folder, PayloadStore(folder / "payloads"))
    assert [event.content for event in log.iterate()] == ["one", "two", "three"]
    head = verify(log)
    assert head.ok and (folder / "log.db").read_bytes() == before
    with caplog.at_level("INFO", "scroll_context.store"):
        assert log.append(Draft(content="four")) == 4
    assert "upgraded from format 1 to 2" in caplog.text
    assert [event.content for event in log.iterate()] == ["one", "two", "three", "four"]  # by an open connection
    assert [row[0] is None for row in log.query("SELECT nonce FROM event")] == [True, True, True, False]
    assert log.get(3).chain.hex() == head.head and verify(log).ok
    log.close()


def test_rows_of_both_formats_in_one_log_are_verified_copied_and_salvaged(folder: Path, tmp_path: Path) -> None:
    old_store(folder, ["one", "two", "three"])
    log = EventLog(folder, PayloadStore(folder / "payloads"))
    log.append_many([Draft(content="four"), Draft(content="five")])
    events, head = list(log.iterate()), verify(log).head
    out = io.BytesIO()
    export(log, out)
    log.close()
    copy = EventLog(tmp_path / "copy", PayloadStore(tmp_path / "copy" / "payloads"), create=True)
    merge_export(io.BytesIO(out.getvalue()), copy, trust=True)
    assert list(copy.iterate()) == events and verify(copy).head == head
    copy.close()
    assert salvage(folder).lost == ()
    again = EventLog(folder, PayloadStore(folder / "payloads"))
    assert list(again.iterate(until=5)) == events and verify(again).ok
    again.close()
    for seq in (4, 2):
        assert [bad for bad, _ in rewritten(again, lambda rows, at=seq: forged(rows, at)).bad][:1] == [seq]


def forged(rows: Rows, seq: int) -> Rows:
    return [(*row[:7], "forged", *row[8:]) if row[0] == seq else row for row in rows]


def test_an_export_of_version_1_is_read(folder: Path, tmp_path: Path) -> None:
    old_store(folder, ["one", "two"])
    log = EventLog(folder, PayloadStore(folder / "payloads"))
    out = io.BytesIO()
    export(log, out)
    data = out.getvalue().replace(b'"scroll_export":2', b'"scroll_export":1')
    assert b"nonce" not in data
    copy = EventLog(tmp_path / "copy", PayloadStore(tmp_path / "copy" / "payloads"), create=True)
    merge_export(io.BytesIO(data), copy, trust=True)
    assert verify(copy).head == verify(log).head
    copy.close()
    log.close()


@pytest.mark.parametrize("change", [{22: "text"}, {23: 7, 22: None}, {0: "x"}, {0: 1 << 70}, {7: object()}, {21: None}])
def test_a_row_that_damage_has_given_other_types_matches_no_hash(five: EventLog, change: dict[int, Any]) -> None:
    row = tuple(change.get(at, value) for at, value in enumerate(five.query("SELECT * FROM event WHERE seq = 3")[0]))
    assert expected(five.get(2).chain, row) != row[21] or 21 in change
    assert isinstance(expected(five.get(2).chain, row), bytes)
