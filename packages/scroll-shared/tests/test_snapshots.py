"""Snapshots that somebody has forged: a new host takes no word from them that the server's chain
does not confirm.
"""

import gzip
import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import obstore
import psycopg
import pytest
from obstore.store import from_url

from members import Member, body
from scroll_context import Draft, Store
from scroll_context.errors import StoreReadOnly
from scroll_context.log.rows import UNREADABLE
from scroll_context.upkeep.integrity import verify
from scroll_shared import admin
from scroll_shared.address import parse
from scroll_shared.backend import shared_backend
from scroll_shared.host_snapshot import take_of
from scroll_shared.snapshots import Snapshot
from stores import Hosts, hosts_of

Frame = list[Any]  # ["row", seq, nonce, body, chain] or ["file", name, piece]


class Site:
    """A store with a history, an object store, and one snapshot of it."""

    def __init__(self, database: str, bucket: str, hosts: Hosts) -> None:
        self.database = database
        self.hosts = hosts
        self.objects = from_url(bucket)
        self.store = hosts.open("owner", create=True)
        self.member = Member(database)
        for n in range(6):
            self.store.append(
                Draft(content=f"event {n} of the pigeons", session_id="s", role="user")
            )
        self.member.append(body()[:-1] + b"\xa1x\xc0")  # one that cannot be read
        self.store.erase(seqs=[2])
        taken = take_of(hosts.address("owner"))
        assert taken is not None
        self.taken: Snapshot = taken

    def key(self, key: str) -> str:
        return f"stores/{shared_backend(self.store.log).facts.uid}/{key}"

    def frames(self) -> list[Frame]:
        data = gzip.decompress(bytes(obstore.get(self.objects, self.key(self.taken.key)).bytes()))
        frames = []
        while data:
            size = int.from_bytes(data[:4], "big")
            frames.append(msgspec.msgpack.decode(data[4 : 4 + size]))
            data = data[4 + size :]
        return frames

    def put(self, content: bytes, *, is_listed: bool) -> None:
        """Put an object in the place of the snapshot; with `is_listed`, the server lists its
        digest.
        """
        key = self.taken.key
        obstore.put(self.objects, self.key(key), content)
        if is_listed:
            self.member.sql(
                "UPDATE scroll.snapshot SET sha256 = %s", hashlib.sha256(content).hexdigest()
            )

    def contents(self) -> list[str]:
        return [event.content for event in self.store.log.iterate()]


def packed(frames: list[Frame]) -> bytes:
    encoded = [msgspec.msgpack.encode(frame) for frame in frames]
    return gzip.compress(b"".join(len(frame).to_bytes(4, "big") + frame for frame in encoded))


@pytest.fixture
def site(database: str, bucket: str, tmp_path: Path) -> Iterator[Site]:
    with hosts_of(database, tmp_path, payloads=bucket) as hosts:
        site = Site(database, bucket, hosts)
        yield site
        site.member.close()


def test_a_snapshot_gives_the_same_history_as_the_server(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [frame for frame in site.frames() if frame[0] == "row"]
    assert [row[1] for row in rows] == list(range(1, 9))
    assert [row[1] for row in rows if row[2] is None] == [2, 7], "only the server vouches for these"
    fresh = site.hosts.open("fresh")
    assert [event.content for event in fresh.log.iterate()] == site.contents()
    assert fresh.log.get(2).is_erased and fresh.log.get(7).content == UNREADABLE
    assert verify(fresh.log).ok and fresh.stats().head == site.store.stats().head
    assert "cannot be used" not in caplog.text


def forge_a_row(frames: list[Frame]) -> None:
    frames[3][3] = frames[3][3].replace(b"pigeons", b"falcons")


def hide_a_row(frames: list[Frame]) -> None:
    """As if it were erased: such a row says nothing, and its place in the chain fits."""
    frames[3][2:4] = [None, b""]


def say_something_in_an_erased_row(frames: list[Frame]) -> None:
    frames[1][2:4] = [b"n" * 16, body(content="never said")]


def leave_a_row_out(frames: list[Frame]) -> None:
    del frames[3]


def leave_the_end_out(frames: list[Frame]) -> None:
    del frames[6:8]


def add_a_row(frames: list[Frame]) -> None:
    frames.insert(8, ["row", 9, b"n" * 16, body(content="never said"), b"c" * 32])


def name_a_seq_that_nobody_has(frames: list[Frame]) -> None:
    frames.insert(8, ["row", 2**62, None, b"", b"c" * 32])


def write_outside_the_index(frames: list[Frame]) -> None:
    frames.append(["file", "index/v1/../../log.db", b"never said"])


def write_the_log_itself(frames: list[Frame]) -> None:
    frames.append(["file", "log.db", b"never said"])


FORGERIES = [
    forge_a_row,
    hide_a_row,
    say_something_in_an_erased_row,
    leave_a_row_out,
    leave_the_end_out,
    add_a_row,
    name_a_seq_that_nobody_has,
    write_outside_the_index,
    write_the_log_itself,
]


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_no_forged_row_reaches_a_new_host(site: Site, forge: Callable[[list[Frame]], None]) -> None:
    frames = site.frames()
    forge(frames)
    site.put(packed(frames), is_listed=True)
    fresh = site.hosts.open("fresh")
    assert [event.content for event in fresh.log.iterate()] == site.contents()
    assert verify(fresh.log).ok and fresh.stats().head == site.store.stats().head
    assert [path.name for path in fresh.folder.glob(".snapshot-*")] == []


# Functions, so that collecting the tests packs nothing: the bomb takes a second.
BAD_BYTES: dict[str, Callable[[], bytes]] = {
    "no gzip": lambda: b"SQLite format 3\0" + b"\0" * 1000,
    "a frame without an end": lambda: gzip.compress(b"\xff\xff\xff\xff"),
    "a bomb": lambda: gzip.compress(b"\x01\xff\xff\xff" + b"\0" * (256 << 20)),
    "nonsense in a frame": lambda: gzip.compress(b"\0\0\0\x03abc"),
    "cut off": lambda: gzip.compress(b"\0\0\0\x03abc" * 1000)[:-20],
    "nothing": bytes,
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bytes_that_are_no_snapshot_are_left_out_with_a_warning(
    site: Site, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    site.put(BAD_BYTES[name](), is_listed=True)
    fresh = site.hosts.open("fresh")
    assert [event.content for event in fresh.log.iterate()] == site.contents()
    assert "cannot be used" in caplog.text


def test_a_snapshot_with_another_digest_is_not_used_however_good_its_rows_are(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [frame for frame in site.frames() if frame[0] == "row"]  # without the index
    site.put(packed(frames), is_listed=False)
    fresh = site.hosts.open("fresh")
    assert "its digest is not the one that the server lists" in caplog.text
    assert [event.content for event in fresh.log.iterate()] == site.contents()


def test_a_snapshot_of_another_history_is_not_used(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.member.sql("UPDATE scroll.snapshot SET chain = sha256('another')")
    fresh = site.hosts.open("fresh")
    assert "the server has another history" in caplog.text and fresh.log.last_seq() == 8


def test_only_a_role_that_may_erase_makes_and_removes_snapshots(site: Site) -> None:
    name = psycopg.conninfo.conninfo_to_dict(site.database)["dbname"]
    role = f"appender_{name}"
    site.member.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    try:
        admin.grant(parse(site.hosts.url), role)
        rest = site.hosts.address("appender").partition("@")[2]
        url = f"postgresql://{role}:pw@{rest}"
        with Store(url) as store:
            assert store.log.last_seq() == 8, "it may start from one"
        with pytest.raises(StoreReadOnly):
            take_of(url)
        assert len(list(obstore.list(site.objects, site.key("snapshots")).collect())) == 1, (
            "and leaves no object"
        )
        appender = Member(f"postgresql://{role}:pw@{site.database.partition('@')[2]}")
        listed = [appender.store_id, "snapshots/forged.gz", site.taken.seq, site.taken.chain, 1, ""]
        for statement, values in (
            ("SELECT scroll.add_snapshot(%s, %s, %s, %s, %s, %s)", listed),
            ("SELECT scroll.drop_snapshots(%s, 0, 0)", listed[:1]),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                appender.sql(statement, *values)
        appender.close()
        admin.grant(parse(site.hosts.url), role, can_erase=True)
        assert take_of(url) is not None
    finally:
        site.member.sql(f"DROP OWNED BY {role}")
        site.member.sql(f"DROP ROLE {role}")


def test_a_snapshot_brings_no_erased_words_back(site: Site) -> None:
    """Somebody kept the row as it was before its erasure: its hash still fits the chain."""
    row = "SELECT nonce, body FROM scroll.event WHERE seq = 4"
    ((nonce, content),) = site.member.sql(row)
    site.store.erase(seqs=[4])
    taken = take_of(site.hosts.address("owner"))
    assert taken is not None
    site.taken = taken
    frames = site.frames()
    assert frames[3][1:3] == [4, None]
    frames[3][2:4] = [nonce, content]
    site.put(packed(frames), is_listed=True)
    fresh = site.hosts.open("fresh")
    assert fresh.log.get(4).is_erased and fresh.log.get(5).content == "event 4 of the pigeons"
    assert [event.content for event in fresh.log.iterate()] == site.contents()
    assert verify(fresh.log).ok


def test_verify_reports_events_that_an_erasure_names_and_that_are_still_legible(site: Site) -> None:
    record = body(kind="erasure", session_id="scroll.store", metadata='{"spans":[[4,5]]}')
    seq = site.member.append(record, session_id=b"scroll.store")
    site.store.log.backend.refresh()
    faults = [what for at, what in verify(site.store.log).known if at == 4]
    assert faults == [f"2 events that the erasure at seq {seq} names are still legible here"]


def test_a_snapshot_with_two_rows_of_one_source_key_can_be_used(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.store.append(Draft(content="first", source_key="k"))
    site.member.sql("DELETE FROM scroll.source")
    second = site.hosts.open("second")
    second.append(Draft(content="second", source_key="k"))
    site.store.log.backend.refresh()
    rows = site.member.sql("SELECT seq, nonce, body, chain FROM scroll.event ORDER BY seq")
    frames = [["row", *row] for row in rows]
    seq, chain = rows[-1][0], rows[-1][3]
    site.member.sql("UPDATE scroll.snapshot SET seq = %s, chain = %s", seq, chain)
    site.put(packed(frames), is_listed=True)
    fresh = site.hosts.open("fresh")
    assert [event.content for event in fresh.log.iterate()][-2:] == ["first", UNREADABLE]
    assert verify(fresh.log).ok and "cannot be used" not in caplog.text
