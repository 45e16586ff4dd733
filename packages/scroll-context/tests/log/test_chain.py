"""The chain is a chain: a row vouches for every row before it, not only for itself."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from scroll_context.events import Draft
from scroll_context.log import schema
from scroll_context.log.chain import GENESIS, expected, leaf_of, link
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import PayloadStore
from scroll_context.log.writer import INSERT
from scroll_context.upkeep.integrity import Verdict, verify

Rows = list[tuple[Any, ...]]


def rewritten(log: EventLog, change: Callable[[Rows], Rows]) -> Verdict:
    """What verify says of the log after its rows were changed in the file, with the guards off."""
    log.close()
    database = sqlite3.connect(log.path, isolation_level=None)
    database.execute("BEGIN")
    for (name,) in database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
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
    """The row with changes, and the hash that a row of its own content has behind the same row as
    before.
    """
    before = rows[at - 1][21] if at else GENESIS
    row = tuple((dict(zip(schema.ALL_COLUMNS, rows[at], strict=True)) | changes).values())
    return (*row[:21], expected(before, row), *row[22:])


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
        return [rows[0], (2, *third[1:]), (3, *second[1:]), *rows[3:]]

    assert [seq for seq, _ in rewritten(five, exchange).bad][:2] == [2, 3]


def test_two_rows_exchanged_each_with_a_hash_of_its_own_are_found(five: EventLog) -> None:
    def exchange(rows: Rows) -> Rows:
        moved = [rows[0], (2, *rows[2][1:]), (3, *rows[1][1:]), *rows[3:]]
        moved[1] = with_own_hash(moved, 1)
        moved[2] = with_own_hash(moved, 2)
        return moved

    assert [seq for seq, _ in rewritten(five, exchange).bad] == [4]


def test_a_row_removed_and_the_later_ones_renumbered_is_found(five: EventLog) -> None:
    def remove(rows: Rows) -> Rows:
        return rows[:2] + [(row[0] - 1, *row[1:]) for row in rows[3:]]

    assert [seq for seq, _ in rewritten(five, remove).bad] == [3, 4]


def test_a_row_slipped_in_is_found(five: EventLog) -> None:
    def slip_in(rows: Rows) -> Rows:
        later = [(row[0] + 1, *row[1:]) for row in rows[2:]]
        return [
            *rows[:2],
            with_own_hash([*rows[:2], (3, *rows[1][1:20], None, *rows[1][21:])], 2),
            *later,
        ]

    assert rewritten(five, slip_in).bad[0][0] == 4


def test_every_column_is_covered(five: EventLog) -> None:
    rows = five.query("SELECT * FROM event ORDER BY seq")
    before, row = rows[1][21], rows[2]
    assert expected(before, row) == row[21] != expected(rows[0][21], row)
    for at, value in enumerate(row[:21]):
        other = 9 if isinstance(value, int) or value is None else f"{value}x"
        assert expected(before, (*row[:at], other, *row[at + 1 :])) != row[21], schema.COLUMNS[at]
    for at in (22, 23):
        if row[at] is not None:
            assert expected(before, (*row[:at], bytes(16), *row[at + 1 :])) != row[21]


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
    "change", [{22: "text"}, {23: 7, 22: None}, {0: "x"}, {0: 1 << 70}, {7: object()}, {21: None}]
)
def test_a_row_that_damage_has_given_other_types_matches_no_hash(
    five: EventLog, change: dict[int, Any]
) -> None:
    row = tuple(
        change.get(at, value)
        for at, value in enumerate(five.query("SELECT * FROM event WHERE seq = 3")[0])
    )
    assert expected(five.get(2).chain, row) != row[21] or 21 in change
    assert isinstance(expected(five.get(2).chain, row), bytes)
