"""Payloads: exact, durable, one file per body, verified on every read, and safe from hostile
digests.
"""

import hashlib
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing
from scroll_context.events import Draft, Payload
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import CHUNK, ArtifactRef, PayloadStore, ToolResultRef, ref


@pytest.fixture
def payloads(tmp_path: Path) -> PayloadStore:
    return PayloadStore(tmp_path / "payloads")


@settings(max_examples=form(20, 40))
@given(st.binary(max_size=5_000))
def test_bytes_come_back_exactly(body: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        payloads = PayloadStore(Path(folder))
        for form in (body, io.BytesIO(body), iter([body[:7], body[7:]])):
            stored = payloads.put(form, "application/octet-stream")
            assert stored == Payload(
                hashlib.sha256(body).hexdigest(), len(body), "application/octet-stream"
            )
            assert payloads.read(stored.digest) == body
        assert list(payloads.digests()) == [stored.digest]


def test_text_is_encoded_in_pieces_and_decoded_between_characters(payloads: PayloadStore) -> None:
    text = "漢" * (CHUNK + 5)
    stored = payloads.put_text(text)
    assert stored.size == 3 * len(text)
    pieces = list(payloads.text_pieces(stored.digest))
    assert len(pieces) > 2 and "".join(pieces) == text


def test_a_body_is_synced_before_it_gets_its_name_and_the_folder_after(
    payloads: PayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a name without its bytes would be a payload that an event names and nobody
    can read.
    """
    calls: list[tuple[str, Path]] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        sync(handle)
        calls.append(("sync", Path(f"/proc/self/fd/{handle}").readlink()))

    def replace(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        path = Path(f"/proc/self/fd/{src_dir_fd}").readlink() / source
        assert path.stat().st_size == len(body), "written out completely"
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        calls.append(("rename", path))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    body = b"x" * 100_000
    target = payloads.path(payloads.put(body, "x/y").digest)
    renamed = next(number for number, (what, _) in enumerate(calls) if what == "rename")
    before, after = calls[:renamed], calls[renamed + 1 :]
    assert ("sync", calls[renamed][1]) in before
    assert ("sync", payloads.folder) in before, "the folder of the body is there to stay"
    assert ("sync", target.parent) in after


def test_a_damaged_file_is_an_error_and_storing_again_heals_it(payloads: PayloadStore) -> None:
    body = os.urandom(3 * CHUNK)
    stored = payloads.put(body, "x/y")
    file = payloads.path(stored.digest)
    for damage in (body[:-1], body + b"!", b"", bytes([body[0] ^ 1]) + body[1:]):
        file.write_bytes(damage)
        with pytest.raises(PayloadDamaged, match="preview"):
            payloads.read(stored.digest)
        payloads.put(body, "x/y")
        assert payloads.read(stored.digest) == body


def test_a_reader_never_gets_a_whole_damaged_body(payloads: PayloadStore) -> None:
    body = os.urandom(2 * CHUNK)
    stored = payloads.put(body, "x/y")
    payloads.path(stored.digest).write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    got = b""
    with pytest.raises(PayloadDamaged):
        for piece in payloads.chunks(stored.digest):
            got += piece
    assert len(got) < len(body)


def test_a_missing_file_is_named(payloads: PayloadStore) -> None:
    with pytest.raises(PayloadMissing, match="0123456789ab"):
        payloads.read("0123456789ab" + "0" * 52)


@pytest.mark.parametrize(
    "digest",
    ["", "../../etc/passwd", "0" * 63, "0" * 64 + "/", "A" * 64, "0" * 64 + "\n", "ab/" * 30],
)
def test_only_digests_become_paths(payloads: PayloadStore, digest: str) -> None:
    with pytest.raises(PayloadMissing, match="64 hex digits"):
        payloads.read(digest)


def test_save_as_never_overwrites_and_leaves_no_bad_copy(
    payloads: PayloadStore, tmp_path: Path
) -> None:
    stored = payloads.put(b"body", "x/y")
    target = tmp_path / "out"
    payloads.save_as(stored.digest, target)
    assert target.read_bytes() == b"body"
    with pytest.raises(FileExistsError):
        payloads.save_as(stored.digest, target)
    payloads.path(stored.digest).write_bytes(b"bodY")
    with pytest.raises(PayloadDamaged):
        payloads.save_as(stored.digest, tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_a_failed_stream_leaves_nothing(payloads: PayloadStore) -> None:
    def broken():
        yield b"first"
        raise ConnectionError("the source broke")

    with pytest.raises(Exception, match="the source broke"):
        payloads.put(broken(), "x/y")
    assert [file for file in payloads.folder.rglob("*") if file.is_file()] == []


def test_sweep_removes_what_no_living_writer_holds(payloads: PayloadStore) -> None:
    (payloads.folder / "tmp").mkdir(parents=True)
    (payloads.folder / "tmp" / f"{'0' * 16}.part").write_bytes(b"half")

    def body() -> Iterator[bytes]:
        yield b"first"
        payloads.sweep()
        assert len(list((payloads.folder / "tmp").iterdir())) == 1
        yield b"second"

    stored = payloads.put(body(), "x/y")
    assert payloads.read(stored.digest) == b"firstsecond"
    assert list((payloads.folder / "tmp").iterdir()) == []


def test_writing_and_sweeping_at_once_lose_nothing(payloads: PayloadStore) -> None:
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            payloads.sweep()

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for n in range(200):
            assert payloads.read(payloads.put(b"%d" % n, "x/y").digest) == b"%d" % n
    finally:
        done.set()
        sweeper.join()


MEMORY = """
import resource, sys
from pathlib import Path
from scroll_context.log.payloads import PayloadStore
payloads = PayloadStore(Path(sys.argv[1]))
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
start = peak()
piece = bytes(1 << 20)
stored = payloads.put((piece for _ in range(100)), "application/octet-stream")
streamed = peak() - start
text = "x" * (100 << 20)
held = peak()
digest = payloads.put_text(text).digest
for _ in payloads.chunks(digest): pass
print(stored.size, streamed, peak() - held)
"""


def test_a_hundred_megabytes_stream_without_being_held_twice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "p")],
        capture_output=True,
        text=True,
        check=True,
    )
    size, streamed, extra = map(int, done.stdout.split())
    assert size == 100 << 20
    assert streamed < 30 and extra < 30  # MB above what the caller holds


def test_handles_show_much_and_load_late(log: EventLog) -> None:
    rows = [{"flight": n, "price": n * 10} for n in range(5_000)]
    import json

    text = log.get(log.append(Draft(content=json.dumps(rows))))
    lines = log.get(log.append(Draft(content="\n".join(f"line {n} é" for n in range(9_000)))))
    image = log.payloads.put(b"\x89PNG" + bytes(50_000), "image/png")
    picture = log.get(log.append(Draft(content="a picture", payload=image)))
    inline = log.get(log.append(Draft(content="short")))

    result = ref(text, log.payloads)
    assert isinstance(result, ToolResultRef)
    assert (result.seq, result.size) == (1, len(json.dumps(rows)))
    assert result.json() == rows and json.dumps(rows).startswith(result.preview)
    assert repr(result) == f"<ToolResultRef seq=1 text/plain; charset=utf-8 {result.size:,} bytes>"
    many = ref(lines, log.payloads)
    assert isinstance(many, ToolResultRef)
    assert list(many.lines()) == [f"line {n} é" for n in range(9_000)]
    with pytest.raises(BadInput, match=r"\.text\(\)"):
        many.json()
    artifact = ref(picture, log.payloads)
    assert isinstance(artifact, ArtifactRef) and artifact.media_type == "image/png"
    assert artifact.bytes() == b"\x89PNG" + bytes(50_000)
    assert ref(inline, log.payloads) is None
    log.payloads.path(image.digest).unlink()
    assert artifact.preview == "a picture"
    with pytest.raises(PayloadMissing):
        artifact.bytes()
