"""The chain is a chain: a row vouches for every row before it, not only for itself."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scroll_context.events import Draft
from scroll_context.store import schema
from scroll_context.store.chain import GENESIS, link
from scroll_context.store.log import INSERT, EventLog
from scroll_context.store.payloads import PayloadStore
from scroll_context.store.verify import Verdict, verify

Rows = list[tuple[Any, ...]]


def rewritten(log: EventLog, change: Callable[[Rows], Rows]) -> Verdict:
    """What verify says of the log after its rows were changed in the file, with the guards off."""
    log.close()
    database = sqlite3.connect(log.path, isolation_level=None)
    database.execute("BEGIN")
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        database.execute(f"DROP TRIGGER {name}")
    rows = database.execute(f"SELECT {', '.join(schema.COLUMNS)} FROM event ORDER BY seq").fetchall()
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
    before = rows[at - 1][-1] if at else GENESIS
    values = dict(zip(schema.COLUMNS, rows[at], strict=True)) | changes
    columns = tuple(values[name] for name in schema.COLUMNS[:-1])
    return (*columns, link(before, columns))


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
        return [*rows[:2], with_own_hash([*rows[:2], (3, *rows[1][1:20], None, b"")], 2), *later]

    assert rewritten(five, slip_in).bad[0][0] == 4


def test_every_column_is_covered(five: EventLog, tmp_path: Path) -> None:
    row = tuple(five.query(f"SELECT {', '.join(schema.COLUMNS)} FROM event WHERE seq = 3")[0])
    before = five.get(2).chain
    assert link(before, row[:-1]) == row[-1]
    for at, value in enumerate(row[:-1]):
        other = 9 if isinstance(value, int) or value is None else f"{value}x"
        assert link(before, (*row[:at], other, *row[at + 1 : -1])) != row[-1], schema.COLUMNS[at]
