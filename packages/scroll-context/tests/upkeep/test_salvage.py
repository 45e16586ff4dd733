"""Salvage: what is legible in a damaged log comes over with its address and hash, and the rest is
declared.
"""

import contextlib
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from scroll_context.errors import PayloadMissing, ScrollError, StoreDamaged, StoreLocked
from scroll_context.events import Draft, Kind
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.log.pages import PageFile, is_event
from scroll_context.log.rows import COLUMNS, event_from_row
from scroll_context.search import documents
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.salvage import salvage

PAGE = 4096


def reopen(folder: Path) -> EventLog:
    return EventLog(FileBackend(folder))


@pytest.fixture
def full(log: EventLog, folder: Path) -> dict[int, str]:
    """A closed log of several hundred pages, long rows (overflow pages) among them; its contents by
    seq.
    """
    rng = random.Random(7)
    words = ["alpha", "beta", "gamma", "漢字", "émile"]
    log.append_many(
        Draft(
            content=" ".join(rng.choices(words, k=rng.choice([3, 30, 300, 3_000]))),
            metadata={"n": n},
        )
        for n in range(600)
    )
    contents = {event.seq: event.content for event in log.iterate()}
    log.close()
    return contents


def damage(path: Path, pages: list[int]) -> None:
    with path.open("r+b") as file:
        for number in pages:
            file.seek((number - 1) * PAGE)
            file.write(os.urandom(PAGE))


def test_every_row_is_found_without_sqlite(full: dict[int, str], folder: Path) -> None:
    pages = PageFile(folder / "log.db")
    found = {
        seq: pages.row(place)
        for n in range(1, pages.count + 1)
        for place, seq, record in pages.cells(n)
        if is_event(record)
    }
    pages.close()
    expected = sqlite3.connect(folder / "log.db").execute("SELECT * FROM event").fetchall()
    assert [found[seq] for seq, *_ in expected] == expected
    assert len(found) == 600


def test_rows_still_in_the_write_ahead_log_are_found(
    log: EventLog, folder: Path, tmp_path: Path
) -> None:
    log.append_many(Draft(content=f"row {n}") for n in range(50))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("log.db", "log.db-wal"):
        shutil.copy(folder / name, copy / name)
    pages = PageFile(copy / "log.db")
    seqs = {
        seq
        for n in range(1, pages.count + 1)
        for _, seq, record in pages.cells(n)
        if is_event(record)
    }
    pages.close()
    assert seqs == set(range(1, 51))


def test_a_sound_log_comes_over_whole(full: dict[int, str], folder: Path) -> None:
    report = salvage(folder)
    assert (report.recovered, report.lost, report.altered) == (600, (), ())
    log = reopen(folder)
    assert {e.seq: e.content for e in log.iterate(until=600)} == full
    assert verify(log).ok
    assert log.append(Draft(content="life goes on")) == 602
    assert report.kept_as.exists()
    log.close()


def test_the_original_is_kept_with_its_write_ahead_log(
    log: EventLog, folder: Path, tmp_path: Path
) -> None:
    """Of a store that was copied while it was open, the newest rows are in the write-ahead log
    alone.
    """
    log.append_many(Draft(content=f"row {n}") for n in range(50))
    copy = tmp_path / "copy"
    copy.mkdir()
    originals = {name: (folder / name).read_bytes() for name in ("log.db", "log.db-wal")}
    for name, data in originals.items():
        (copy / name).write_bytes(data)
    assert b"row 49" in originals["log.db-wal"] and b"row 49" not in originals["log.db"]
    report = salvage(copy)
    assert report.recovered == 50
    assert (
        report.kept_as.with_name(report.kept_as.name + "-wal").read_bytes()
        == originals["log.db-wal"]
    )
    assert report.kept_as.read_bytes() == originals["log.db"]


def test_a_broken_root_hides_nothing(full: dict[int, str], folder: Path) -> None:
    """SQLite refuses the file, yet every leaf is intact, so every row comes back."""
    path = folder / "log.db"
    root = (
        sqlite3.connect(path)
        .execute("SELECT rootpage FROM sqlite_master WHERE name = 'event'")
        .fetchone()[0]
    )
    damage(path, [1, root])
    with pytest.raises(ScrollError):
        reopen(folder)
    report = salvage(folder)
    assert report.recovered == 600
    log = reopen(folder)
    assert {e.seq: e.content for e in log.iterate(until=600)} == full
    assert verify(log).ok
    log.close()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_lost_is_reported_by_seq(full: dict[int, str], folder: Path, seed: int) -> None:
    path = folder / "log.db"
    before = path.read_bytes()
    count = path.stat().st_size // PAGE
    damage(path, random.Random(seed).sample(range(2, count), 25))
    damaged = path.read_bytes()
    report = salvage(folder)
    assert report.kept_as.read_bytes() == damaged != before
    log = reopen(folder)
    rows = {e.seq: e.content for e in log.iterate() if e.kind != Kind.SALVAGE}
    lost = {seq for lo, hi in report.lost for seq in range(lo, hi + 1)}
    assert lost and len(rows) == report.recovered > 300
    assert set(rows) | lost == set(full) and not set(rows) & lost
    assert all(rows[seq] == full[seq] for seq in rows if seq not in report.altered)
    verdict = verify(log)
    assert verdict.ok and {seq for seq, _ in verdict.known} >= {lo for lo, _ in report.lost}
    declared = log.tail(1)[0]
    assert declared.kind == Kind.SALVAGE and [
        tuple(pair) for pair in declared.metadata["lost"]
    ] == list(report.lost)
    log.close()


def test_a_flipped_bit_in_a_row_is_kept_and_declared(log: EventLog, folder: Path) -> None:
    log.append_many(Draft(content=f"the quick brown fox number {n:03}") for n in range(100))
    log.close()
    path = folder / "log.db"
    data = path.read_bytes()
    at = data.index(b"fox number 041")
    path.write_bytes(data[:at] + b"Fox" + data[at + 3 :])
    bad = reopen(folder)
    assert verify(bad).bad[0][0] == 42
    bad.close()
    report = salvage(folder)
    assert report.altered == (42,) and report.lost == ()
    after = reopen(folder)
    assert after.get(42).content == "the quick brown Fox number 041"
    assert verify(after).ok
    after.close()


@pytest.mark.parametrize("seed", range(40))
def test_one_flipped_bit_is_named_and_hides_nothing_else(
    log: EventLog, folder: Path, seed: int
) -> None:
    drafts = [
        Draft(content="漢字 word " * (n % 3), source_key=f"k{n}", metadata={"n": n})
        for n in range(60)
    ]
    log.append_many(drafts)
    sound = {event.seq: event for event in log.iterate()}
    log.close()
    path = folder / "log.db"
    data = bytearray(path.read_bytes())
    rng = random.Random(seed)
    leaf = rng.choice([at for at in range(PAGE, len(data), PAGE) if data[at] == 0x0D])
    data[leaf + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    with contextlib.suppress(ScrollError):  # SQLite may refuse the page; nothing else may go wrong
        bad = reopen(folder)
        try:
            seen = {event.seq: event for event in bad.iterate()}
            altered = {seq for seq, _ in verify(bad).bad}
            assert all(seen[seq] == sound[seq] for seq in sound.keys() & seen.keys() - altered)
        finally:
            bad.close()
    report = salvage(folder)
    after = reopen(folder)
    rows = {event.seq: event for event in after.iterate() if event.kind != Kind.SALVAGE}
    assert verify(after).ok and len(rows) == report.recovered >= 59
    assert all(rows[seq] == sound[seq] for seq in sound.keys() & rows.keys() - set(report.altered))
    after.close()


def test_text_that_is_no_utf8_any_more_is_read_found_and_kept(log: EventLog, folder: Path) -> None:
    log.append_many(Draft(content=f"the quick brown fox number {n:03}") for n in range(10))
    log.close()
    path = folder / "log.db"
    path.write_bytes(path.read_bytes().replace(b"fox number 004", b"f\xefx number 004"))
    with Store(folder) as store:
        assert verify(store.log).bad[0] == (5, "altered: the row does not match its hash")
        assert store.log.get(5).content == "the quick brown f\ufffdx number 004"
        assert [hit.seq for hit in store.index.search("004")] == [5]
        window = store.sql()
        rows = window.query("SELECT content FROM hist.events WHERE seq > 4 AND seq < 7").rows
        window.close()
        assert [row["content"][16:] for row in rows] == ["f\ufffdx number 004", "fox number 005"]
    report = salvage(folder)
    assert (report.recovered, report.altered, report.lost) == (10, (5,), ())


def test_a_payload_whose_name_is_damaged_costs_the_body_and_no_more(
    log: EventLog, folder: Path
) -> None:
    log.append_many(
        [Draft(content="begins here " + "and goes on " * 5_000), Draft(content="another")]
    )
    payload = log.get(1).payload
    assert payload
    log.close()
    path = folder / "log.db"
    path.write_bytes(
        path.read_bytes().replace(payload.digest.encode(), b"../" + payload.digest[3:].encode())
    )
    with Store(folder) as store:
        assert [seq for seq, _ in verify(store.log).bad] == [1, 1]
        assert [hit.seq for hit in store.index.search("begins")] == [1]
        assert [hit.seq for hit in store.index.search("another")] == [2]
        with pytest.raises(PayloadMissing, match="damaged"):
            store.log.text(store.log.get(1))


def test_a_column_whose_type_was_flipped_costs_its_row_and_no_more(
    log: EventLog, folder: Path
) -> None:
    log.append_many(Draft(content=f"number {n}") for n in range(10))
    log.close()
    path = folder / "log.db"
    header = bytes(
        [0, 27, 13, 13, 37]
    )  # serial types: no seq, "default", two empty texts, "conversation"
    first, second, rest = path.read_bytes().split(header, 2)
    path.write_bytes(
        first + header + second + bytes([0, 27, 12, 13, 37]) + rest
    )  # 12: an empty blob
    bad = reopen(folder)
    (seq, what), *others = verify(bad).bad
    assert "altered" in what and not others
    bad.close()
    with Store(folder) as store:  # until then it reads, and is found, as far as it is legible
        assert sorted(hit.seq for hit in store.index.search("number", k=20)) == list(range(1, 11))
        assert store.log.get(seq).agent_id == ""
    report = salvage(folder)
    assert (report.recovered, report.lost) == (9, ((seq, seq),))


@pytest.mark.parametrize("column", COLUMNS[1:])
@pytest.mark.parametrize("value", [None, 7, 1.5, "text", b"\xff"])
def test_a_row_with_any_column_of_any_type_is_an_event_that_can_be_indexed(
    log: EventLog, column: str, value: object
) -> None:
    log.append(Draft(content="whole", role="user", payload=log.payloads.put(b"body", "text/plain")))
    (row,) = log.rows(0, 1)
    event = event_from_row(row._replace(**{column: value}))
    (document,) = documents.documents(event, 1, log.payloads)
    documents.mark(document, event.seq, event.chain)
    assert all(
        isinstance(getattr(event, name), str)
        for name in ("session_id", "kind", "content", "created_at")
    )
    assert event.payload is None or event.payload.size in (4, 7, 0)


def test_an_address_that_a_bad_bit_made_huge_is_one_gap(log: EventLog) -> None:
    log.append_many([Draft(content="one"), Draft(content="two")])
    raw = sqlite3.connect(log.path, isolation_level=None)
    raw.execute("UPDATE sqlite_sequence SET seq = 1 << 60")
    raw.close()
    assert verify(log).bad == (
        (3, f"missing from the end of the log, with all up to seq {1 << 60}"),
    )


def test_metadata_that_is_no_json_any_more_is_shown_as_it_is(log: EventLog, folder: Path) -> None:
    log.append(Draft(content="whole", metadata={"word": "alpha"}))
    log.close()
    path = folder / "log.db"
    path.write_bytes(path.read_bytes().replace(b'{"word"', b'{word""'))
    bad = reopen(folder)
    event = bad.get(1)
    assert event.content == "whole" and event.metadata == {"damaged_metadata": '{word"":"alpha"}'}
    assert verify(bad).bad[0][0] == 1
    bad.close()


def test_a_truncated_file(full: dict[int, str], folder: Path) -> None:
    path = folder / "log.db"
    os.truncate(path, path.stat().st_size // 2 + 123)
    report = salvage(folder)
    assert 100 < report.recovered < 600
    log = reopen(folder)
    assert verify(log).ok
    assert log.last_seq() == 601  # addresses that were given out are never given out again
    log.close()


def test_hopeless_files_are_left_alone(folder: Path) -> None:
    folder.mkdir()
    garbage = os.urandom(100_000)
    (folder / "log.db").write_bytes(garbage)
    with pytest.raises(StoreDamaged, match="backup"):
        salvage(folder)
    assert (folder / "log.db").read_bytes() == garbage


def test_a_log_in_use_is_not_salvaged(log: EventLog, folder: Path) -> None:
    log.append(Draft(content="x"))
    with pytest.raises(StoreLocked, match="in use"):
        salvage(folder)
    assert log.append(Draft(content="y")) == 2
