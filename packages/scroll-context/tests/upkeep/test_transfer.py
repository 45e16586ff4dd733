"""Backups and exports: exact copies, whole or absent, while others write."""

import io
import json
import threading
from pathlib import Path

import pytest

from scroll_context.errors import BadInput, NotAStore, StoreDamaged
from scroll_context.events import Draft, Kind
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.merge import merge_export
from scroll_context.upkeep.salvage import salvage
from scroll_context.upkeep.transfer import backup, check_export, export


def reopen(folder: Path) -> EventLog:
    return EventLog(FileBackend(folder))


@pytest.fixture
def busy(log: EventLog) -> EventLog:
    """A log with all that a copy must carry: payloads of text and bytes, replies, metadata, an
    empty body.
    """
    log.append_many(
        Draft(content=f"message {n}", source_key=f"k{n}", metadata={"n": n}) for n in range(700)
    )
    call = log.append(Draft(kind=Kind.TOOL_CALL, content="{}", created_at="2024-01-01"))
    log.append(Draft(kind=Kind.TOOL_RESULT, content="漢" * 900_000, reply_to=call))
    image = log.payloads.put(bytes(range(256)) * 5_000, "image/png")
    log.append(Draft(content="a picture", payload=image))
    log.append(Draft(content="again", payload=image))
    log.append(Draft(content="nothing", payload=log.payloads.put(b"", "application/octet-stream")))
    return log


def restored(data: bytes, folder: Path) -> EventLog:
    copy = EventLog(FileBackend(folder, create=True))
    merge_export(io.BytesIO(data), copy, trust=True)
    return copy


def merged(data: bytes, log: EventLog) -> list[int]:
    return merge_export(io.BytesIO(data), log, trust=True).seqs


def exported(log: EventLog) -> bytes:
    out = io.BytesIO()
    export(log, out)
    return out.getvalue()


def test_a_backup_is_a_store(busy: EventLog, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "monday"
    steps: list[tuple[int, int]] = []
    report = backup(busy, target, lambda done, total: steps.append((done, total)))
    assert (report.events, report.payloads) == (705, 3) and steps
    copy = reopen(target)
    assert list(copy.iterate()) == list(busy.iterate())
    assert verify(copy).head == verify(busy).head and verify(copy).ok
    assert copy.append(Draft(content="it lives")) == 706
    copy.close()


def test_a_backup_during_writes_is_one_moment(busy: EventLog, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            busy.append(Draft(content="more " * 100))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(5):
            report = backup(busy, tmp_path / str(n))
            copy = reopen(tmp_path / str(n))
            assert copy.last_seq() == report.events and verify(copy).ok
            copy.close()
    finally:
        stop.set()
        writer.join()


def test_a_backup_never_overwrites_and_leaves_no_half(busy: EventLog, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(NotAStore):
        backup(busy, tmp_path / "mine")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine", "store"]


def test_an_export_restores_exactly(busy: EventLog, tmp_path: Path) -> None:
    data = exported(busy)
    copy = restored(data, tmp_path / "again")
    assert copy.last_seq() == 705
    assert list(copy.iterate()) == list(busy.iterate())
    assert verify(copy).ok and verify(copy).head == verify(busy).head
    assert copy.text(copy.get(702)) == "漢" * 900_000
    assert exported(copy) == data
    copy.close()


def test_what_a_salvage_declared_as_altered_is_exported_and_restored(
    log: EventLog, tmp_path: Path
) -> None:
    log.append_many(Draft(content=f"fox number {n}") for n in range(5))
    log.close()
    log.path.write_bytes(log.path.read_bytes().replace(b"fox number 2", b"Fox number 2"))
    damaged = reopen(log.path.parent)
    with pytest.raises(StoreDamaged, match=r"seq 3 .*salvage"):
        exported(damaged)
    damaged.close()
    salvage(log.path.parent)
    salvaged = reopen(log.path.parent)
    copy = restored(exported(salvaged), tmp_path / "again")
    assert list(copy.iterate()) == list(salvaged.iterate()) and verify(copy).ok
    copy.close()
    salvaged.close()


def test_an_export_merges_into_another_history_once(busy: EventLog, tmp_path: Path) -> None:
    other = EventLog(FileBackend(tmp_path / "other", create=True))
    other.append_many([Draft(content="own"), Draft(content="message 5", source_key="k5")])
    data = exported(busy)
    seqs = merged(data, other)
    assert other.last_seq() == 2 + 704 and len(seqs) == 705 and seqs[5] == 2
    assert merged(data, other) == seqs
    assert other.last_seq() == 706
    result = other.get(seqs[701])
    assert other.get(result.reply_to or 0).kind == Kind.TOOL_CALL
    assert verify(other).ok
    other.close()


def test_an_export_goes_exactly_into_a_log_that_is_empty_and_once(
    busy: EventLog, tmp_path: Path
) -> None:
    other = EventLog(FileBackend(tmp_path / "other", create=True))
    told: list[int] = []
    other.on_append.append(lambda: told.append(other.last_seq()))
    data = exported(busy)
    assert merged(data, other) == list(range(1, 706))
    assert told == [705]
    assert list(other.iterate()) == list(busy.iterate())
    assert verify(other).ok and verify(other).head == verify(busy).head
    assert merged(data, other) == list(range(1, 706))
    assert other.append(Draft(content="goes on")) == 706
    busy.append(Draft(content="goes on elsewhere"))
    assert merged(exported(busy), other) == [*range(1, 706), 707]
    assert verify(other).ok
    other.close()


def test_a_restored_export_is_not_merged_a_second_time(busy: EventLog, tmp_path: Path) -> None:
    data = exported(busy)
    copy = restored(data, tmp_path / "again")
    assert merged(data, copy) == list(range(1, 706))
    assert copy.last_seq() == 705
    copy.close()


def test_a_spoiled_export_leaves_an_empty_log_empty(busy: EventLog, tmp_path: Path) -> None:
    other = EventLog(FileBackend(tmp_path / "other", create=True))
    for how in ("cut", "content", "wrong type"):
        with pytest.raises(BadInput):
            merged(spoil(exported(busy), how), other)
        assert other.last_seq() == 0
    assert other.append(Draft(content="the first")) == 1
    assert verify(other).ok
    other.close()


def test_a_foreign_salvage_declares_nothing_here(log: EventLog, tmp_path: Path) -> None:
    log.append(Draft(content="x"))
    log.append(Draft(kind=Kind.SALVAGE, metadata={"lost": [[1, 9]], "altered": [1]}))
    other = EventLog(FileBackend(tmp_path / "other", create=True))
    other.append(Draft(content="own"))
    merged(exported(log), other)
    assert [event.content for event in other.iterate()] == ["own", "x"]
    other.close()


def spoil(data: bytes, how: str) -> bytes:
    lines = data.splitlines(keepends=True)
    if how == "cut":
        return b"".join(lines[:-3])
    if how == "half a line":
        return data[: len(data) // 2]
    if how == "content":
        return data.replace(b"message 99", b"message 98", 1)
    if how == "payload":
        at = next(n for n, line in enumerate(lines) if b'"payload":"' in line[:12])
        document = json.loads(lines[at])
        document["base64"] = "AAAA" + document["base64"][4:]
        lines[at] = json.dumps(document).encode() + b"\n"
        return b"".join(lines)
    if how == "missing payload":
        return b"".join(line for line in lines if not line.startswith(b'{"payload"'))
    if how == "huge number":
        return data.replace(b'"reply_to":null', b'"reply_to":%d' % (1 << 70), 1)
    if how == "wrong type":
        return data.replace(b'"role":""', b'"role":[]', 1)
    if how == "missing line":
        return b"".join(lines[:50] + lines[51:])
    version = {"older version": 1, "newer version": 99}[how]
    return b'{"scroll_export": %d}\n' % version + b"".join(lines[1:])


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        "half a line",
        "content",
        "payload",
        "missing payload",
        "huge number",
        "wrong type",
        "missing line",
        "older version",
        "newer version",
    ],
)
def test_a_spoiled_export_restores_nothing(busy: EventLog, tmp_path: Path, how: str) -> None:
    data = spoil(exported(busy), how)
    with pytest.raises(BadInput):
        check_export(io.BytesIO(data))
    other = EventLog(FileBackend(tmp_path / "other", create=True))
    with pytest.raises(BadInput):
        merged(data, other)
    assert other.last_seq() == 0
    other.close()


def test_a_merge_keeps_empty_values_in_metadata(log: EventLog, tmp_path: Path) -> None:
    asked = log.append(Draft(content="asked"))
    log.append(Draft(content="answered", reply_to=asked, metadata={"mood": None, "n": 1}))
    copy = EventLog(FileBackend(tmp_path / "copy", create=True))
    copy.append(Draft(content="there already"))
    answer = copy.get(merged(exported(log), copy)[1])
    assert answer.metadata["mood"] is None and answer.metadata["n"] == 1
    copy.close()


def test_an_export_with_nonsense_in_its_metadata_is_merged_as_it_is(
    log: EventLog, tmp_path: Path
) -> None:
    nonsense = {
        "plan": 7,
        "earlier": [1],
        "seqs": [None, []],
        "named_there": True,
        "inside_cell": "x",
        "at_seq": {},
    }
    kinds = (Kind.CONVERSATION, Kind.EVICTION, Kind.SESSION, Kind.SNAPSHOT, Kind.FORK)
    odd = {"plan": {"evicted": [1], "standing": [1]}, "earlier": {"topics": [{}]}}
    log.append_many(
        Draft(kind=kind, content="[]", metadata=one) for kind in kinds for one in (nonsense, odd)
    )
    for trust in (False, True):
        copy = EventLog(FileBackend(tmp_path / str(trust), create=True))
        copy.append(Draft(content="there already", session_id="mine"))
        report = merge_export(io.BytesIO(exported(log)), copy, trust=trust)
        merged_events = copy.get_many(report.seqs)
        kept = [
            (event.metadata if trust else event.metadata["set_aside"])["plan"]
            for event in merged_events
        ]
        assert kept == [7, odd["plan"]] * len(kinds) and verify(copy).ok
        copy.close()
