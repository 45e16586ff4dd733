"""The chain is a chain: a row vouches for every row before it, not only for itself."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from scroll_context.events import Draft
from scroll_context.log.chain import GENESIS, expected, leaf_of, link
from scroll_context.log.file_backend import INSERT, FileBackend
from scroll_context.log.log import EventLog
from scroll_context.log.rows import EventColumns, TableRow
from scroll_context.upkeep.integrity import Verdict, verify

Rows = list[TableRow]


def rewritten(log: EventLog, change: Callable[[Rows], Rows]) -> Verdict:
    """What verify says of the log after its rows were changed in the file, with the guards off."""
    log.close()
    database = sqlite3.connect(log.path, isolation_level=None)
    database.execute("BEGIN")
    for (name,) in database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
        database.execute(f"DROP TRIGGER {name}")
    stored = database.execute("SELECT * FROM event ORDER BY seq").fetchall()
    rows = [TableRow._make(row) for row in stored]
    database.execute("DELETE FROM event")
    database.executemany(INSERT, change(rows))
    database.execute("UPDATE sqlite_sequence SET seq = (SELECT max(seq) FROM event)")
    database.execute("COMMIT")
    database.close()
    again = EventLog(FileBackend(log.path.parent))
    verdict = verify(again)
    again.close()
    return verdict


@pytest.fixture
def five(log: EventLog) -> EventLog:
    log.append_many(Draft(content=f"word {n}", source_key=f"k{n}") for n in range(1, 6))
    return log


def with_own_hash(rows: Rows, at: int, **changes: Any) -> TableRow:
    """The row with changes, and the hash that a row of its own content has behind the same row as
    before.
    """
    before = rows[at - 1].chain if at else GENESIS
    row = rows[at]._replace(**changes)
    return row._replace(chain=expected(before, row))


def test_a_log_that_was_only_rewritten_as_it_is_verifies(five: EventLog) -> None:
    assert rewritten(five, lambda rows: rows).ok


def test_a_row_replaced_together_with_its_own_hash_is_found_at_the_next_row(five: EventLog) -> None:
    verdict = rewritten(
        five, lambda rows: [*rows[:2], with_own_hash(rows, 2, content="forged"), *rows[3:]]
    )
    assert [seq for seq, _ in verdict.bad] == [4]


def test_a_last_row_replaced_with_its_hash_changes_the_head(five: EventLog) -> None:
    head = verify(five).head
    verdict = rewritten(five, lambda rows: [*rows[:4], with_own_hash(rows, 4, content="forged")])
    assert verdict.ok and verdict.head != head  # only a head kept elsewhere finds this one


def test_two_rows_exchanged_are_found(five: EventLog) -> None:
    def exchange(rows: Rows) -> Rows:
        second, third = rows[1], rows[2]
        return [rows[0], third._replace(seq=2), second._replace(seq=3), *rows[3:]]

    assert [seq for seq, _ in rewritten(five, exchange).bad][:2] == [2, 3]


def test_two_rows_exchanged_each_with_a_hash_of_its_own_are_found(five: EventLog) -> None:
    def exchange(rows: Rows) -> Rows:
        moved = [rows[0], rows[2]._replace(seq=2), rows[1]._replace(seq=3), *rows[3:]]
        moved[1] = with_own_hash(moved, 1)
        moved[2] = with_own_hash(moved, 2)
        return moved

    assert [seq for seq, _ in rewritten(five, exchange).bad] == [4]


def test_a_row_removed_and_the_later_ones_renumbered_is_found(five: EventLog) -> None:
    def remove(rows: Rows) -> Rows:
        return rows[:2] + [row._replace(seq=row.seq - 1) for row in rows[3:]]

    assert [seq for seq, _ in rewritten(five, remove).bad] == [3, 4]


def test_a_row_slipped_in_is_found(five: EventLog) -> None:
    def slip_in(rows: Rows) -> Rows:
        later = [row._replace(seq=row.seq + 1) for row in rows[2:]]
        extra = rows[1]._replace(seq=3, source_key=None)
        return [*rows[:2], with_own_hash([*rows[:2], extra], 2), *later]

    assert rewritten(five, slip_in).bad[0][0] == 4


def test_every_column_is_covered(five: EventLog) -> None:
    first, second, row, *_ = five.rows(0, 5)
    before = second.chain
    assert expected(before, row) == row.chain != expected(first.chain, row)
    for column in ("seq", *EventColumns._fields):
        value = getattr(row, column)
        other: Any = 9 if isinstance(value, int) or value is None else f"{value}x"
        assert expected(before, row._replace(**{column: other})) != row.chain, column
    assert expected(before, row._replace(nonce=bytes(16))) != row.chain


def test_the_hashes_are_fixed_for_ever() -> None:
    body = (
        "s",
        "",
        "",
        "conversation",
        "user",
        "",
        "héllo\0",
        None,
        None,
        None,
        "",
        "",
        "",
        None,
        3,
        -1,
        "{}",
        "2026-01-01",
        "2026-01-01T00:00:00+00:00",
        None,
    )
    leaf = leaf_of(bytes(range(16)), body)
    assert leaf.hex() == "25fec1995e908a84f7b9e2783cbf7ab32821a85dbb71c425ad1a92bc891a7d90"
    assert (
        link(GENESIS, 7, leaf).hex()
        == "730370500d18e8494f349fd1112255a410a73d6432264a816e358a234acc8e48"
    )


def test_equal_events_have_different_leaves(log: EventLog) -> None:
    log.append_many([Draft(content="yes", created_at="2026-01-01")] * 50)
    nonces = {nonce for (nonce,) in log.query("SELECT nonce FROM event")}
    assert len(nonces) == 50 and {len(nonce) for nonce in nonces} == {16}


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": "text"},
        {"leaf": 7, "nonce": None},
        {"seq": "x"},
        {"seq": 1 << 70},
        {"content": object()},
        {"chain": None},
    ],
)
def test_a_row_that_damage_has_given_other_types_matches_no_hash(
    five: EventLog, change: dict[str, Any]
) -> None:
    row = five.rows(2, 3)[0]._replace(**change)
    assert expected(five.get(2).chain, row) != row.chain or "chain" in change
    assert isinstance(expected(five.get(2).chain, row), bytes)
