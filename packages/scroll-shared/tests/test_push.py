"""A folder becomes a shared store and a folder again, with the same seqs and hashes; hosts begin
from a snapshot.
"""

import io
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from scroll_context import Draft, Store
from scroll_context.errors import BadInput, StoreDamaged
from scroll_context.events import Kind
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.transfer import export
from scroll_shared.address import parse
from scroll_shared.backend import shared_backend
from scroll_shared.objects import SharedPayloads
from scroll_shared.push import pull, push
from scroll_shared.snapshots import KEPT, snapshots, take
from stores import Hosts


@pytest.fixture
def hosts(database: str, bucket: str, tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(database, tmp_path / "hosts")
    hosts.url = f"{database}&store=main&payloads={bucket}/history"
    yield hosts
    hosts.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with what a log can hold: long bodies, source keys, a snapshot's variables, an erased
    event.
    """
    folder = tmp_path / "folder"
    with Store(folder, create=True) as store:
        for n in range(40):
            store.append(
                Draft(
                    content=f"event {n} of the pigeons\0",
                    session_id=f"s{n % 3}",
                    source_key=f"key {n}",
                )
            )
        store.append(Draft(content="long " * 20_000, kind=Kind.TOOL_RESULT, role="tool"))
        variable = store.payloads.put(b"a pickle", "application/octet-stream")
        saved = json.dumps({"saved": [{"name": "v", "digest": variable.digest}]})
        store.append(Draft(content=saved, kind=Kind.SNAPSHOT, session_id="s1"))
        store.erase(seqs=[7])
    return folder


def head(store: Store) -> str:
    return store.stats().head


def exported(store: Store) -> list[bytes]:
    out = io.BytesIO()
    export(store.log, out)
    return out.getvalue().splitlines()


def snapshot(store: Store) -> None:
    backend, payloads = shared_backend(store.log), store.payloads
    assert isinstance(payloads, SharedPayloads)
    assert store.index.search("pigeons")  # so that there is an index
    bucket, index = payloads.place.bucket, store.folder / "index"
    take(backend.server, backend.facts.store_id, bucket, store.log, index)


def test_a_folder_is_pushed_and_pulled_with_every_seq_and_hash(
    hosts: Hosts, folder: Path, tmp_path: Path
) -> None:
    report = push(folder, parse(hosts.address("a")))
    with Store(folder) as local:
        assert (report.events, report.head, report.payloads) == (43, head(local), 2)
        shared = hosts.open("b")
        assert exported(shared) == exported(local)
        assert shared.append(Draft(content="again", source_key="key 3")) == 4, (
            "source keys came along"
        )
        assert shared.append(Draft(content="after the push")) == 44
        shared.payloads.check(shared.log.get(41).payload.digest)  # type: ignore[union-attr]
    pull(parse(hosts.address("b")), tmp_path / "pulled")
    with Store(tmp_path / "pulled") as pulled:
        verdict = verify(pulled.log)
        assert verdict.ok and verdict.events == 44 and verdict.payloads == 2
        assert verdict.head == head(shared)
        assert pulled.append(Draft(content="it is a store of its own")) == 45
        assert [hit.seq for hit in pulled.index.search("pigeons")]


def test_a_push_goes_on_where_it_was_cut_off(
    hosts: Hosts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scroll_shared.push._ROWS", 10)

    def cut(seq: int, _: int) -> None:
        if seq == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(folder, parse(hosts.address("a")), cut)
    report = push(folder, parse(hosts.address("a")))
    assert (report.pushed, report.events) == (23, 43)
    with Store(folder) as local:
        local.append(Draft(content="and what came later"))
        assert push(folder, parse(hosts.address("a"))).pushed == 1
        assert exported(hosts.open("b")) == exported(local)


def test_a_push_never_mixes_histories(hosts: Hosts, folder: Path, tmp_path: Path) -> None:
    push(folder, parse(hosts.address("a")))
    with Store(tmp_path / "other", create=True) as other:
        other.append(Draft(content="another history"))
    with pytest.raises(BadInput, match="another history"):
        push(tmp_path / "other", parse(hosts.address("a")))
    hosts.open("b").append(Draft(content="a host works here now"))
    with Store(folder) as local:
        local.append(Draft(content="and here"))
    with pytest.raises(BadInput, match="another history"):
        push(folder, parse(hosts.address("a")))
    pull(parse(hosts.address("a")), tmp_path / "pulled")
    with Store(tmp_path / "pulled") as pulled:
        pulled.append(Draft(content="and here"))
    with pytest.raises(BadInput, match="hosts have appended"):
        push(tmp_path / "pulled", parse(hosts.address("a")))
    assert hosts.open("c").log.tail(1)[0].content == "a host works here now"


def test_a_damaged_folder_is_not_pushed(hosts: Hosts, folder: Path) -> None:
    with sqlite3.connect(folder / "log.db") as database:
        database.execute("DROP TRIGGER event_no_update")
        database.execute("UPDATE event SET content = 'altered' WHERE seq = 5")
    with pytest.raises(StoreDamaged, match="seq 5"):
        push(folder, parse(hosts.address("a")))


def test_a_new_host_begins_from_a_snapshot(hosts: Hosts, folder: Path) -> None:
    push(folder, parse(hosts.address("a")))
    first = hosts.open("a")
    snapshot(first)
    first.append(Draft(content="pigeons after the snapshot"))
    shared_backend(first.log).server.call(
        "UPDATE scroll.event SET body = '' WHERE seq < 43"
    )  # row by row it cannot be read
    second = hosts.open("b")
    assert second.index.indexed_seq >= 41, "the index came along"
    assert verify(second.log).ok and head(second) == head(first)
    assert second.index.search("event 3 pigeons")[0].seq == 4


def test_processes_that_start_at_once_share_a_snapshot_and_what_a_killed_one_left_goes(
    hosts: Hosts, folder: Path
) -> None:
    push(folder, parse(hosts.address("a")))
    snapshot(hosts.open("a"))
    with ThreadPoolExecutor() as pool:
        assert [store.log.last_seq() for store in pool.map(hosts.open, ["b"] * 3)] == [43] * 3
    hosts.close()
    for file in (hosts.folder / "b").glob("log.db*"):
        file.unlink()
    (hosts.folder / "b" / ".snapshot-killed").mkdir()
    with Store(hosts.address("b")) as again:
        assert verify(again.log).ok and again.log.last_seq() == 43
    assert not list((hosts.folder / "b").glob(".snapshot-*"))


def test_a_snapshot_is_believed_only_as_far_as_the_server_vouches_for_it(
    hosts: Hosts, folder: Path, bucket: str
) -> None:
    push(folder, parse(hosts.address("a")))
    first = hosts.open("a")
    snapshot(first)
    backend = shared_backend(first.log)
    (listed,) = snapshots(backend.server, backend.facts.store_id)
    objects = from_url(bucket)
    key = f"history/stores/{backend.facts.uid}/{listed.key}"
    body = bytearray(obstore.get(objects, key).bytes())
    body[len(body) // 2] ^= 1
    obstore.put(objects, key, bytes(body))
    second = hosts.open("b")
    assert verify(second.log).ok and second.log.last_seq() == 43, "it was read row by row"
    obstore.delete(objects, key)
    assert hosts.open("c").log.last_seq() == 43
    assert not list(second.folder.glob(".snapshot-*"))


def test_old_snapshots_and_those_from_before_an_erasure_go(
    hosts: Hosts, folder: Path, bucket: str
) -> None:
    push(folder, parse(hosts.address("a")))
    first = hosts.open("a")
    backend = shared_backend(first.log)
    for n in range(KEPT + 2):
        first.append(Draft(content=f"more {n}"))
        snapshot(first)
    kept = snapshots(backend.server, backend.facts.store_id)
    assert len(kept) == KEPT
    assert objects(bucket) == sorted(one.key[10:] for one in kept)
    stale = kept[0]
    first.erase(seqs=[5])
    assert snapshots(backend.server, backend.facts.store_id) == [] and objects(bucket) == []
    values = [backend.facts.store_id, "snapshots/late.gz", stale.seq, stale.chain, 1, ""]
    assert backend.server.call("SELECT scroll.add_snapshot(%s, %s, %s, %s, %s, %s)", values) == [
        (False,)
    ]
    snapshot(first)
    assert len(objects(bucket)) == 1
    again = hosts.open("b")
    assert again.log.get(5).is_erased and verify(again.log).ok


def objects(bucket: str) -> list[str]:
    names = [
        one["path"].rpartition("/")[2] for page in obstore.list(from_url(bucket)) for one in page
    ]
    return sorted(name for name in names if name.endswith(".gz"))
