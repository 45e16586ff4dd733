"""The faults of a soak: each is done to the running store, and undone; the crew goes on meanwhile.

A fault says which of Scroll's errors it may cause, and whether one of them must be seen before it is undone. The
device faults need a file system of our own, which the driver mounts inside a user namespace: a full disk is that file
system shrunk to what it holds, and a read-only store is a read-only mount laid over its folder, which stops every new
file and every new process, while a process that has the log open for writing may go on with it.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from crew import Crew, choose

from scroll_context.errors import PayloadDamaged
from scroll_context.store.store import Store

SEEN_WITHIN = 60.0  # seconds in which an error that must be seen is seen


class Site(msgspec.Struct, frozen=True):
    """Where the soak takes place."""

    store: Path
    volume: Path | None  # the mount that holds the store; None when nothing could be mounted
    size: int  # bytes of the volume
    damaged: Path  # names the payload that is damaged at the moment


class Fault(msgspec.Struct, frozen=True):
    """Something that goes wrong."""

    name: str
    strike: Callable[[Site, Crew, random.Random], str]  # returns what was done, in a few words
    causes: frozenset[str]  # the errors that workers may report for it
    needs_volume: bool = False


class NotSeen(Exception):
    """A fault that had to give its named error gave none."""


def kill_writer(_site: Site, crew: Crew, rng: random.Random) -> str:
    return _kill(crew, "writer", rng)


def kill_agent(_site: Site, crew: Crew, rng: random.Random) -> str:
    return _kill(crew, "agent", rng)


def kill_reader(_site: Site, crew: Crew, rng: random.Random) -> str:
    return _kill(crew, "reader", rng)


def _kill(crew: Crew, role: str, rng: random.Random) -> str:
    member = choose(rng, crew.of(role, killable=True))
    member.kill()
    return f"SIGKILL to {member.orders.name}"


def kill_kernel(_site: Site, crew: Crew, rng: random.Random) -> str:
    begun = time.monotonic()
    killed = 0
    while time.monotonic() < begun + SEEN_WITHIN:
        kernels = crew.kernels(choose(rng, crew.of("agent")))
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            if kernels:
                os.kill(rng.choice(kernels), signal.SIGKILL)
                killed += 1
        if killed and crew.wait_for({"KernelDied", "KernelUnavailable"}, begun, 2.0):
            return f"SIGKILL to {killed} of the processes of a kernel"
    raise NotSeen("no agent reported KernelDied")


def jump_clock(_site: Site, crew: Crew, rng: random.Random) -> str:
    begun = time.monotonic()
    member = choose(rng, crew.of("writer") + crew.of("agent"))  # readers give no times
    member.process.send_signal(signal.SIGUSR1)
    if not crew.wait_for({"clock jumped"}, begun, SEEN_WITHIN):
        raise NotSeen(f"the clock of {member.orders.name} did not jump")
    return f"the clock of {member.orders.name} jumped"


def fill_disk(site: Site, crew: Crew, rng: random.Random) -> str:
    assert site.volume is not None
    begun = time.monotonic()
    try:
        while True:  # others write while we measure
            status = os.statvfs(site.volume)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            if _mount("-o", f"remount,size={used + rng.choice([1, 8, 64]) * 4096}", site.volume):
                break
        if not crew.wait_for({"StoreFull"}, begun, SEEN_WITHIN):
            raise NotSeen("no worker reported StoreFull")
        time.sleep(rng.uniform(0.2, 1.0))
    finally:
        _mount("-o", f"remount,size={site.size}", site.volume)
    return "no room for some seconds"


def make_read_only(site: Site, crew: Crew, rng: random.Random) -> str:
    begun = time.monotonic()
    aside = site.damaged.with_name("read-only")  # a mount that somebody writes to cannot be made read-only
    aside.mkdir(exist_ok=True)
    if not (
        _mount("--bind", site.store, aside)
        and _mount("-o", "remount,ro,bind", aside)
        and _mount("--move", aside, site.store)
    ):
        raise NotSeen("the store could not be made read-only")
    try:
        choose(rng, crew.of("writer", killable=True)).kill()  # a new process cannot write at all
        if not crew.wait_for({"StoreReadOnly"}, begun, SEEN_WITHIN):
            raise NotSeen("no worker reported StoreReadOnly")
        time.sleep(rng.uniform(0.2, 1.0))
    finally:
        subprocess.run(["umount", "--lazy", site.store], check=True)
    return "read-only for some seconds"


def damage_index(site: Site, _crew: Crew, rng: random.Random) -> str:
    """Nobody repairs anything here: whoever searches next must."""
    how = rng.choice(["cut short", "emptied", "deleted", "the whole index deleted"])
    if how == "the whole index deleted":
        shutil.rmtree(site.store / "index", ignore_errors=True)
        return how
    if (file := _index_file(site, rng)) is None:
        return "there was no index to damage"
    with contextlib.suppress(FileNotFoundError):  # a merge was quicker
        if how == "deleted":
            file.unlink()
        else:
            body = file.read_bytes()
            _replace(site, file, body[: len(body) // 2] if how == "cut short" else b"")
    return f"{file.suffix or file.name} {how}"


def flip_index(site: Site, crew: Crew, rng: random.Random) -> str:
    """The engine keeps no checksum that it reads: a bit may be noticed, or mislead until somebody builds it anew."""
    if (file := _index_file(site, rng)) is None:
        return "there was no index to damage"
    with contextlib.suppress(FileNotFoundError, ValueError):  # a merge was quicker, or the file is empty
        body = bytearray(file.read_bytes())
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        _replace(site, file, bytes(body))
    begun = time.monotonic()
    crew.wait_for({"wrong answer", "IndexUnavailable"}, begun, rng.uniform(1.0, 3.0))
    with Store(site.store) as store:
        store.index.rebuild()
    return f"one bit of {file.suffix or file.name}, and the index built anew"


def _index_file(site: Site, rng: random.Random) -> Path | None:
    files: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # it is being built anew
        files += (file for file in (site.store / "index").rglob("*") if file.is_file() and "lock" not in file.name)
    return rng.choice(sorted(files)) if files else None


def _replace(site: Site, file: Path, body: bytes) -> None:
    """With another file, not in place: cutting a file that is mapped kills its readers, by SIGBUS."""
    copy = site.store / "index" / "replacement"
    copy.write_bytes(body)
    os.replace(copy, file)


def flip_payload(site: Site, crew: Crew, rng: random.Random) -> str:
    """The file is put back at the end; until then nobody may get its body."""
    begun = time.monotonic()
    with Store(site.store) as store:
        rows = store.log.query("SELECT payload FROM event WHERE payload_type LIKE 'text/%' AND payload IS NOT NULL")
        digest = str(rng.choice(rows)[0])
        file = store.payloads.path(digest)
        whole = file.read_bytes()
        body = bytearray(whole)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        try:
            file.write_bytes(body)
            site.damaged.write_text(digest)
            try:
                store.payloads.read(digest)
                raise NotSeen("a damaged payload was read as if it were whole")
            except PayloadDamaged:
                pass
            if not crew.wait_for({"PayloadDamaged"}, begun, SEEN_WITHIN):
                raise NotSeen("no reader reported PayloadDamaged")
        finally:
            site.damaged.unlink(missing_ok=True)
            file.write_bytes(whole)
    return "one bit flipped, and put back"


def _mount(*arguments: object) -> bool:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


NOT_SAVED = "variables not saved"
KILLED_KERNEL = frozenset({"KernelDied", "KernelUnavailable", NOT_SAVED})
INDEX = frozenset({"IndexUnavailable", "incomplete, and said so"})
DEVICE = INDEX | {NOT_SAVED}

FAULTS = (
    Fault("writer killed", kill_writer, frozenset()),
    Fault("agent killed", kill_agent, frozenset()),
    Fault("reader killed", kill_reader, frozenset()),
    Fault("kernel killed", kill_kernel, KILLED_KERNEL),
    Fault("clock jumped", jump_clock, frozenset({"clock jumped"})),
    Fault("disk full", fill_disk, DEVICE | {"StoreFull"}, needs_volume=True),
    Fault("store read-only", make_read_only, DEVICE | {"StoreReadOnly"}, needs_volume=True),
    Fault("index damaged", damage_index, INDEX),
    Fault("index bit flipped", flip_index, INDEX | {"wrong answer"}),
    Fault("payload flipped", flip_payload, frozenset({"PayloadDamaged"})),
)
