"""The faults of a soak: each is done to the running store and undone, while the crew goes on.

A fault that has a name among Scroll's errors is only undone after some worker has reported that
error, however long this takes; one that nobody reports at all is a violation (`NotSeen`). The
device faults need a file system of our own, which the driver mounts inside a user namespace: a full
disk is that file system shrunk to what it holds, and a read-only store is a read-only mount laid
over its folder, which stops every new file and every new process, while a process that has the log
open for writing may go on with it.
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
from notes import Report

from scroll_context.errors import PayloadDamaged
from scroll_context.search.index_files import committed_files, damaged_files, footer
from scroll_context.store import Store

# Seconds after which an error that must be seen has not been seen; most come within one.
SEEN_WITHIN = 300.0


class Site(msgspec.Struct, frozen=True):
    """Where the soak takes place."""

    store: Path
    # The mount that holds the store; None when nothing could be mounted.
    volume: Path | None
    # The size of the volume in bytes.
    size: int
    # Names the payload that is damaged at the moment.
    damaged: Path


class Fault(msgspec.Struct, frozen=True):
    """Something that goes wrong."""

    name: str
    # Returns what was done and seen, in a few words.
    strike: Callable[[Site, Crew, random.Random], str]
    # The error that has to be seen before the fault is undone.
    must: str
    # The errors that workers may report because of it.
    causes: frozenset[str]
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
    killed = member.kill()
    report = _seen(crew, {"began"}, killed, worker=member.orders.name)
    return f"SIGKILL to {member.orders.name}; another began after {report.at - killed:.1f} s"


def kill_kernel(_site: Site, crew: Crew, rng: random.Random) -> str:
    begun = time.monotonic()
    killed = 0
    while time.monotonic() < begun + SEEN_WITHIN:
        kernels = crew.kernels(choose(rng, crew.of("agent")))
        # It may have ended by itself.
        with contextlib.suppress(ProcessLookupError):
            if kernels:
                os.kill(rng.choice(kernels), signal.SIGKILL)
                killed += 1
        if killed and (report := crew.wait_for({"KernelDied", "KernelUnavailable"}, begun, 2.0)):
            return f"SIGKILL to {killed} of the processes of a kernel; {_told(report, begun)}"
    raise NotSeen("no agent reported KernelDied")


def jump_clock(_site: Site, crew: Crew, rng: random.Random) -> str:
    begun = time.monotonic()
    # Readers give no times.
    member = choose(rng, crew.of("writer") + crew.of("agent"))
    member.process.send_signal(signal.SIGUSR1)
    report = _seen(crew, {"clock jumped"}, begun, worker=member.orders.name)
    return f"that of {member.orders.name} is now {report.detail} off"


def fill_disk(site: Site, crew: Crew, rng: random.Random) -> str:
    assert site.volume is not None
    begun = time.monotonic()
    report = None
    try:
        while report is None:
            if time.monotonic() > begun + SEEN_WITHIN:
                raise NotSeen("no worker reported StoreFull")
            # Again and again: whoever removes a file makes room.
            status = os.statvfs(site.volume)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
            _mount("-o", f"remount,size={used + rng.choice([1, 8, 64]) * 4096}", site.volume)
            report = crew.wait_for({"StoreFull"}, begun, 0.5)
        crew.go_on(rng.uniform(0.2, 1.0))
    finally:
        _mount("-o", f"remount,size={site.size}", site.volume)
    return f"no room for {time.monotonic() - begun:.1f} s; {_told(report, begun)}"


def make_read_only(site: Site, crew: Crew, rng: random.Random) -> str:
    begun = time.monotonic()
    # A mount that somebody writes to cannot be made read-only.
    aside = site.damaged.with_name("read-only")
    aside.mkdir(exist_ok=True)
    if not (
        _mount("--bind", site.store, aside)
        and _mount("-o", "remount,ro,bind", aside)
        and _mount("--move", aside, site.store)
    ):
        raise NotSeen("the store could not be made read-only")
    try:
        # A new process cannot write at all.
        choose(rng, crew.of("writer", killable=True)).kill()
        report = _seen(crew, {"StoreReadOnly"}, begun)
        crew.go_on(rng.uniform(0.2, 1.0))
    finally:
        subprocess.run(["umount", "--lazy", site.store], check=True)
    return f"for {time.monotonic() - begun:.1f} s; {_told(report, begun)}"


def damage_index(site: Site, crew: Crew, rng: random.Random) -> str:
    """A fresh reader, which has nothing of the old index in memory, must find what was planted
    without being told.

    Not every file is needed for that; what nobody noticed is then repaired as a person would, so
    that it explains no later error.
    """
    how = rng.choice(["cut short", "emptied", "deleted", "the whole index deleted"])
    before = _generation(site)
    if how == "the whole index deleted":
        shutil.rmtree(site.store / "index", ignore_errors=True)
    elif (file := _index_file(site, rng)) is None:
        return "there was no index to damage"
    else:
        # A merge was quicker.
        with contextlib.suppress(FileNotFoundError):
            if how == "deleted":
                file.unlink()
            else:
                body = file.read_bytes()
                _replace(site, file, body[: len(body) // 2] if how == "cut short" else b"")
        how = f"{file.suffix or file.name} {how}"
    reader = choose(rng, crew.of("reader", killable=True))
    begun = reader.kill()
    report = _seen(crew, {"ok"}, begun, worker=reader.orders.name)
    healed = "built anew by whoever searched"
    if _generation(site) == before:
        healed = "nobody needed that, built anew by hand"
        with Store(site.store) as store:
            store.index.rebuild()
    return f"{how}; a fresh reader was right after {report.at - begun:.1f} s ({healed})"


def flip_index(site: Site, crew: Crew, rng: random.Random) -> str:
    """The engine never reads its checksums, so searches may be misled; `scroll verify` reads them
    and must tell.

    It is then built anew, as `verify` says, and must be whole. A merge can be quicker than the look
    at the checksums.
    """
    index = site.store / "index"
    if (file := _committed_file(site, rng)) is None:
        return "there was no index to damage"
    begun = time.monotonic()
    outcome = "merged away before anybody looked at it"
    # A merge was quicker, or the file is empty.
    with contextlib.suppress(FileNotFoundError, ValueError):
        with file.open("rb") as handle:
            end, _ = footer(handle)
        body = bytearray(file.read_bytes())
        body[rng.randrange(end)] ^= 1 << rng.randrange(8)
        _replace(site, file, bytes(body))
        if file.name in damaged_files(index):
            outcome = "told by its checksum"
        elif file.read_bytes() == body and _is_committed(file):
            raise NotSeen(f"a flipped bit in {file.name} matches its checksum")
    report = crew.wait_for({"wrong answer", "IndexUnavailable"}, begun, rng.uniform(1.0, 3.0))
    with Store(site.store) as store:
        store.index.rebuild()
    if still := damaged_files(index):
        raise NotSeen(f"{', '.join(still)} of a new index do not match their checksums")
    seen = _told(report, begun) if report else "no search was misled"
    return f"one bit of {file.suffix}; {outcome}; {seen}; built anew"


def _committed_file(site: Site, rng: random.Random) -> Path | None:
    for meta in (site.store / "index").glob("v*/meta.json"):
        # It is being built anew, or another fault's work.
        with contextlib.suppress(FileNotFoundError, ValueError):
            if files := committed_files(meta):
                return rng.choice(files)
    return None


def _is_committed(file: Path) -> bool:
    return file in committed_files(file.with_name("meta.json"))


def _index_file(site: Site, rng: random.Random) -> Path | None:
    files: list[Path] = []
    # It is being built anew.
    with contextlib.suppress(FileNotFoundError):
        files += (
            file
            for file in (site.store / "index").rglob("*")
            if file.is_file() and "lock" not in file.name
        )
    return rng.choice(sorted(files)) if files else None


def _generation(site: Site) -> int | None:
    """What changes when the index is built anew; None while there is none."""
    for folder in (site.store / "index").glob("v*"):
        with contextlib.suppress(FileNotFoundError):
            return folder.stat().st_ino
    return None


def _replace(site: Site, file: Path, body: bytes) -> None:
    """Replace the file: cutting a mapped file in place would kill its readers by SIGBUS."""
    copy = site.store / "index" / "replacement"
    copy.write_bytes(body)
    os.replace(copy, file)


def flip_payload(site: Site, crew: Crew, rng: random.Random) -> str:
    """The file is put back at the end; until then nobody may get its body.

    It is one of a writer's, which are all different: the agents store the same records again and
    again, and storing a body again heals its file before anyone need have looked at it.
    """
    with Store(site.store) as store:
        rows = store.log.query(
            "SELECT payload FROM event WHERE session_id LIKE 'writer%' AND payload IS NOT NULL "
            "AND role = 'user'"
        )
        digest = str(rng.choice(rows)[0])
        file = store.payloads.path(digest)
        whole = file.read_bytes()
        body = bytearray(whole)
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        begun = time.monotonic()
        try:
            _put(file, bytes(body))
            _put(site.damaged, digest.encode())
            with contextlib.suppress(PayloadDamaged):
                store.payloads.read(digest)
                raise NotSeen("a damaged payload was read as if it were whole")
            report = _seen(crew, {"PayloadDamaged"}, begun, about=digest[:12])
        finally:
            site.damaged.unlink(missing_ok=True)
            _put(file, whole)
    return f"one bit of {digest[:12]}…; {_told(report, begun)}; put back"


def _put(file: Path, body: bytes) -> None:
    """Whole in one moment: nobody meets half of it."""
    copy = file.with_name(f".{file.name}.new")
    copy.write_bytes(body)
    os.replace(copy, file)


def _mount(*arguments: object) -> bool:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


def _seen(
    crew: Crew, whats: set[str], since: float, *, worker: str = "", about: str = ""
) -> Report:
    """The report that a fault must give."""
    report = crew.wait_for(whats, since, SEEN_WITHIN, worker=worker, about=about)
    if report is None:
        raise NotSeen(
            f"{worker or 'no worker'} did not report {' or '.join(sorted(whats))} within "
            f"{SEEN_WITHIN:g} s"
        )
    return report


def _told(report: Report, since: float) -> str:
    return f"{report.worker} reported {report.what} after {report.at - since:.1f} s"


NOT_SAVED = "variables not saved"
KILLED_KERNEL = frozenset({"KernelDied", "KernelUnavailable", NOT_SAVED})
INDEX = frozenset({"IndexUnavailable"})
DEVICE = INDEX | {NOT_SAVED}

FAULTS = (
    Fault("writer killed", kill_writer, "another writer begins", frozenset()),
    Fault("agent killed", kill_agent, "another agent begins", frozenset()),
    Fault("reader killed", kill_reader, "another reader begins", frozenset()),
    Fault("kernel killed", kill_kernel, "KernelDied", KILLED_KERNEL),
    Fault("clock jumped", jump_clock, "a clock that is off", frozenset()),
    Fault("disk full", fill_disk, "StoreFull", DEVICE | {"StoreFull"}, needs_volume=True),
    Fault(
        "store read-only",
        make_read_only,
        "StoreReadOnly",
        DEVICE | {"StoreReadOnly"},
        needs_volume=True,
    ),
    Fault("index damaged", damage_index, "right answers again", INDEX),
    Fault("index bit flipped", flip_index, "a wrong checksum", INDEX | {"wrong answer"}),
    Fault("payload flipped", flip_payload, "PayloadDamaged", frozenset({"PayloadDamaged"})),
)
