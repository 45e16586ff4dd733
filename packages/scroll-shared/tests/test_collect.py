"""Garbage collection races with writers and with erasures: no event may lose its payload.

It races for 2 seconds, for 60 in `make test-long`. The same race with a collector that lists,
compares and deletes is the control: it must lose payloads, or the race shows nothing.
"""

import contextlib
import json
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from forms import form
from members import body
from scroll_context import Draft, Store
from scroll_context.errors import PayloadMissing, StoreReadOnly
from scroll_shared.address import parse
from scroll_shared.admin import grant, init
from scroll_shared.backend import shared_backend
from scroll_shared.collect import collect, collect_at
from scroll_shared.objects import Bucket, ObjectPlace, SharedPayloads, key_of
from scroll_shared.server import Server

SECONDS = form(2, 60)
_APPEND = """SELECT o_seqs, o_states FROM scroll.append(%s, %s, %s, 0, '', %s, %s, %s, %s, %s, %s, %s, %s, %s)"""


class Shared:
    """A store on the server, without the rest of Scroll above it."""

    def __init__(self, database: str, bucket: str, folder: Path) -> None:
        self.url = f"{database}&store=race&payloads={bucket}/some/prefix"
        self.address = parse(self.url)
        init(self.address)
        self.folder = folder
        self.server = Server(self.address)
        ((self.store_id, self.uid),) = self.server.call(
            "SELECT store_id, uid::text FROM scroll.store"
        )

    def payloads(self) -> SharedPayloads:
        bucket = Bucket(self.address.payloads, self.uid)
        return SharedPayloads(ObjectPlace(bucket, self.folder / uuid.uuid4().hex))

    def collect(self, **options: object) -> int:
        with contextlib.closing(Server(self.address)) as server:
            return collect(server, self.store_id, self.payloads().place, **options).deleted  # type: ignore[arg-type]

    def collect_naively(self) -> int:
        """What everybody would write first."""
        with contextlib.closing(Server(self.address)) as server:
            place = self.payloads().place
            named = {
                digest
                for (digest,) in server.call("SELECT DISTINCT unnest(payloads) FROM scroll.event")
            }
            doomed = [stored.key for name, _, stored in place.objects() if name not in named]
            place.bucket.delete(doomed)
            return len(doomed)

    def lost(self) -> list[str]:
        """The digests that events name and a new host cannot read."""
        reader = self.payloads()
        lost = []
        for (digest,) in self.server.call("SELECT DISTINCT unnest(payloads) FROM scroll.event"):
            try:
                reader.check(digest)
            except PayloadMissing:
                lost.append(digest)
        return lost


@pytest.fixture
def shared(database: str, bucket: str, tmp_path: Path) -> Iterator[Shared]:
    shared = Shared(database, bucket, tmp_path)
    yield shared
    shared.server.close()


class Writer:
    """One host: puts bodies from a small stock, so that hosts and collector meet, and appends
    events that name them.
    """

    def __init__(self, shared: Shared, seed: int) -> None:
        self.shared = shared
        self.random = random.Random(seed)
        self.payloads = shared.payloads()
        self.server = Server(shared.address)
        self.writer, self.batch = uuid.uuid4(), 0
        self.refused = self.appended = 0

    def step(self) -> None:
        bodies = [
            b"body %d" % self.random.randrange(30) for _ in range(self.random.choice((1, 1, 2)))
        ]
        digests = [self.payloads.put(body, "").digest for body in bodies]
        if self.random.random() < 0.7:  # else the process was killed here
            self.append(digests)

    def append(self, digests: list[str]) -> None:
        while True:
            generation = self.payloads.generation(digests)
            state, told = self.append_once(digests, generation)
            if state == 0:
                self.appended += 1
                return
            assert state == 3
            self.refused += 1
            self.payloads.put_again(digests, told)

    def append_once(self, digests: list[str], generation: int) -> tuple[int, int]:
        self.batch += 1
        saved = [{"name": f"x{n}", "digest": digest} for n, digest in enumerate(digests)]
        row = (
            [b"s"],
            [b""],
            [b""],
            [None],
            [",".join(digests)],
            [generation],
            [None],
            [os.urandom(16)],
            [body(kind="snapshot", content=json.dumps({"saved": saved}))],
        )
        ((seqs, states),) = self.server.call(
            _APPEND, [self.shared.store_id, self.writer, self.batch, *row]
        )
        return states[0], seqs[0]


def race(
    shared: Shared, sweep: Callable[[], int], until: Callable[[], bool]
) -> tuple[list[Writer], int]:
    """Writers, an eraser and a collector at once; the writers, and how many objects were deleted."""
    writers = [Writer(shared, seed) for seed in range(4)]
    faults: list[BaseException] = []
    ended = threading.Event()
    deleted = 0

    def repeat(step: Callable[[], object]) -> None:
        try:
            while not ended.is_set():
                step()
        except BaseException as fault:
            faults.append(fault)
            ended.set()

    def erase() -> None:
        with psycopg.connect(shared.address.conninfo, autocommit=True) as connection:
            connection.execute("UPDATE scroll.event SET payloads = NULL WHERE random() < 0.2")

    def sweep_once() -> None:
        nonlocal deleted
        deleted += sweep()

    threads = [
        threading.Thread(target=repeat, args=(one,))
        for one in (*(w.step for w in writers), erase, sweep_once)
    ]
    for thread in threads:
        thread.start()
    while not until() and not ended.wait(0.1):
        pass
    ended.set()
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.server.close()
    if faults:
        raise faults[0]
    return writers, deleted


def test_no_event_loses_its_payload_to_a_race(shared: Shared) -> None:
    end = time.monotonic() + SECONDS
    writers, deleted = race(shared, lambda: shared.collect(grace=0), lambda: time.monotonic() > end)
    appended, refused = sum(w.appended for w in writers), sum(w.refused for w in writers)
    print(f"{appended} events, {refused} refused and put again, {deleted} objects deleted")
    assert shared.lost() == []
    assert deleted and refused, "nothing raced"


def test_the_naive_way_loses_payloads_in_the_same_race(shared: Shared) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and not shared.lost():
        pause = time.monotonic() + 1
        race(shared, shared.collect_naively, lambda pause=pause: time.monotonic() > pause)  # type: ignore[misc]
    assert shared.lost()


def test_a_body_that_was_deleted_before_its_append_is_refused_and_put_again(shared: Shared) -> None:
    writer = Writer(shared, 0)
    digest = writer.payloads.put_text("slow").digest
    assert shared.collect(grace=0) == 1
    assert writer.append_once([digest], 0)[0] == 3
    writer.append([digest])
    assert shared.lost() == []
    assert shared.collect(grace=0) == 0
    writer.server.close()


def test_a_store_puts_a_deleted_body_again_by_itself(shared: Shared, tmp_path: Path) -> None:
    with (
        Store(f"{shared.url}&replica={tmp_path / 'one'}") as one,
        Store(f"{shared.url}&replica={tmp_path / 'two'}") as two,
    ):
        payload = one.payloads.put_text("named late")
        assert collect_at(shared.url, grace=0).deleted == 1
        seq = one.append(Draft(content="here it is", payload=payload))
        assert (
            one.append(Draft(content="and again", payload=one.payloads.put_text("named late")))
            == seq + 1
        )
        assert shared_backend(two.log).replica.wait_for(seq + 1, 60)
        assert two.log.text(two.log.get(seq)) == two.log.text(two.log.get(seq + 1)) == "named late"
    assert collect_at(shared.url, grace=0).deleted == 0
    assert shared.lost() == []


def test_a_collector_that_was_stopped_for_long_deletes_nothing_in_use(shared: Shared) -> None:
    """It has buried the digest, sleeps, and deletes after the body was put again and named."""
    writer = Writer(shared, 0)
    digest = writer.payloads.put_text("again and again").digest
    shared.server.call("SELECT scroll.bury(%s, %s)", [shared.store_id, [digest]])
    writer.append([digest])
    writer.payloads.place.bucket.delete([key_of(digest)])
    assert shared.lost() == []
    writer.server.close()


def test_what_a_killed_collector_left_goes_with_the_next(shared: Shared) -> None:
    writer = Writer(shared, 0)
    digest = writer.payloads.put_text("left").digest
    shared.server.call("SELECT scroll.bury(%s, %s)", [shared.store_id, [digest]])
    writer.append([digest])  # has an object of its own now
    assert shared.collect() == 1, "its tombstone marks it, however young it is"
    assert shared.lost() == []
    writer.server.close()


def test_only_a_member_that_may_erase_may_collect(shared: Shared) -> None:
    with psycopg.connect(shared.address.conninfo, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS collector")
        connection.execute("CREATE ROLE collector LOGIN PASSWORD 'secret'")
    grant(shared.address, "collector")
    user = re.sub("//[^@]+@", "//collector:secret@", shared.url)
    with contextlib.closing(Server(parse(user))) as server:
        for statement in (
            "SELECT scroll.bury(%s, '{}')",
            "DELETE FROM scroll.tombstone WHERE store_id = %s",
        ):
            with pytest.raises(StoreReadOnly):
                server.call(statement, [shared.store_id])
        grant(shared.address, "collector", can_erase=True)
        assert server.call("SELECT scroll.bury(%s, '{}')", [shared.store_id]) == []
        grant(shared.address, "collector", can_erase=False)
        with pytest.raises(StoreReadOnly):
            server.call("SELECT scroll.bury(%s, '{}')", [shared.store_id])


def test_young_objects_and_named_ones_stay(shared: Shared) -> None:
    writer = Writer(shared, 0)
    named = writer.payloads.put_text("named").digest
    writer.append([named])
    young = writer.payloads.put_text("young").digest
    assert shared.collect() == 0
    assert shared.collect(grace=0, dry_run=True) == 1
    assert shared.collect(grace=0, only=[named]) == 0
    assert sorted(shared.payloads().digests()) == sorted([named, young])
    assert shared.collect(grace=0, only=[young]) == 1
    assert list(shared.payloads().digests()) == [named]
    writer.server.close()


def test_a_payload_that_an_event_names_is_not_buried_and_not_collected(shared: Shared) -> None:
    writer = Writer(shared, 0)
    named, unnamed = (writer.payloads.put_text(text).digest for text in ("named", "unnamed"))
    writer.append([named])
    bury = "SELECT scroll.bury(%s, %s)"
    digests = [named, unnamed]
    assert shared.server.call(bury, [shared.store_id, digests]) == [(unnamed,)]
    shared.server.call(
        "INSERT INTO scroll.tombstone VALUES (%s, %s, 99, false)", [shared.store_id, named]
    )
    assert shared.collect(grace=0) == 1
    assert list(shared.payloads().digests()) == [named] and shared.lost() == []
    writer.server.close()


def test_an_erasure_reports_a_payload_that_another_event_still_names(
    shared: Shared, tmp_path: Path
) -> None:
    with Store(f"{shared.url}&replica={tmp_path / 'one'}") as store:
        seq = store.append(Draft(content="TOPSECRET " * 8_000, role="user"))
        payload = store.log.get(seq).payload
        assert payload is not None
        writer = Writer(shared, 0)
        own = writer.payloads.put_text("not a snapshot").digest
        pinned = body(
            kind="snapshot", payload=own, payload_size=14, payload_type="text/plain", content="."
        )
        values = [[b"s"], [b""], [b""], [None], [f"{own},{payload.digest}"], [0], [None]]
        row = [*values, [os.urandom(16)], [pinned]]
        shared.server.call(_APPEND, [shared.store_id, uuid.uuid4(), 1, *row])
        store.log.backend.refresh()
        report = store.erase(seqs=[seq])
        assert (
            f"the payload {payload.digest[:12]} is still named by seq {seq + 1}"
            in report.unfinished
        )
        store.erase(seqs=[seq + 1])
        assert collect_at(shared.url, grace=0).deleted == 1
        assert payload.digest not in set(shared.payloads().digests())
        writer.server.close()
