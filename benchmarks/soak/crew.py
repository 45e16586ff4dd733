"""The workers of a soak as processes: starting, killing, watching and, at the end, stopping them.

A worker that ends by itself is a violation, whatever its status; one that was killed is started again. Memory and open
files are sampled for the workers that are never killed: anonymous memory only, since mapped index files come and go.
"""

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from notes import Reports
from workers import Orders

from scroll_context.store.indexer import HEAP

WARM_UP = 0.2  # of the samples, not looked at
MORE_MEMORY = 40 << 20  # bytes, beside 30 %, that the last third may have more than the first and be called flat;
SETTLING = 180.0  # in a soak shorter than this, the heap of an index writer, which is filled first in that time
MORE_FILES = 12


class Sample(msgspec.Struct, frozen=True):
    at: float
    memory: int
    files: int


class Member:
    """One place in the crew, and the process that fills it at the moment."""

    def __init__(self, orders: Orders, steady: bool) -> None:
        self.orders = orders
        self.steady = steady  # never killed, so that its memory can be watched
        self.samples: list[Sample] = []
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        program, orders = Path(__file__).with_name("workers.py"), msgspec.json.encode(self.orders).decode()
        litter = Path(self.orders.notes).with_name("tmp")  # the scratch folders of killed agents go with the rest
        litter.mkdir(exist_ok=True)
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, program, orders],
                stdin=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "TMPDIR": str(litter)},
            )
        return self.process

    @property
    def errors(self) -> Path:
        return Path(self.orders.notes) / f"{self.orders.name}.stderr"

    def kill(self) -> None:
        """kill -9, and another process in its place."""
        self.process.kill()
        self.process.wait()
        self.start()

    def sample(self) -> None:
        with contextlib.suppress(OSError):
            proc = Path(f"/proc/{self.process.pid}")
            status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            self.samples.append(
                Sample(time.monotonic(), int(status["RssAnon"].split()[0]) << 10, len(list((proc / "fd").iterdir())))
            )

    def growth(self) -> tuple[Sample, Sample] | None:
        """Medians of the first and the last third, without the warm-up; None when there are too few samples."""
        settled = self.samples[int(len(self.samples) * WARM_UP) :]
        third = len(settled) // 3
        if third < 3:
            return None
        first, last = settled[:third], settled[-third:]
        return _median(first), _median(last)

    @property
    def memory_is_flat(self) -> bool:
        grown = self.growth()
        if grown is None:
            return True
        slack = MORE_MEMORY if self.samples[-1].at - self.samples[0].at > SETTLING else HEAP
        return grown[1].memory <= grown[0].memory * 1.3 + slack

    @property
    def files_are_flat(self) -> bool:
        grown = self.growth()
        return grown is None or grown[1].files <= grown[0].files + MORE_FILES


class Crew:
    """All workers of a soak."""

    def __init__(self, members: list[Member], reports: Reports) -> None:
        self.members = members
        self.reports = reports
        self.violations: list[str] = []

    def of(self, role: str, *, killable: bool = False) -> list[Member]:
        return [m for m in self.members if m.orders.role == role and not (killable and m.steady)]

    def look(self) -> None:
        """Sample those that live long, and notice those that died by themselves."""
        for member in self.members:
            if (status := member.process.poll()) is not None:
                said = member.errors.read_text().strip()[-2_000:]
                self.violations.append(f"{member.orders.name} ended by itself with status {status}: {said}")
                member.start()
            elif member.steady:
                member.sample()
        self.reports.refresh()

    def wait_for_work(self, seconds: float) -> list[str]:
        """Wait until every worker has got something done from now on; the names of those that did not."""
        begun, waiting = time.monotonic(), {member.orders.name for member in self.members}
        while waiting and time.monotonic() < begun + seconds:
            time.sleep(0.1)
            self.look()
            waiting -= {r.worker for r in self.reports.all if r.what == "ok" and r.at > begun}
        return sorted(waiting)

    def wait_for(self, whats: set[str], since: float, seconds: float) -> bool:
        """Wait until some worker reports one of these."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.look()
            if any(report.what in whats and report.at >= since for report in reversed(self.reports.all)):
                return True
            time.sleep(0.05)
        return False

    def kernels(self, member: Member) -> list[int]:
        """The innermost processes under an agent: its jailed kernels."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    children.setdefault(parent, []).append(int(entry.name))
        found, todo = [], list(children.get(member.process.pid, ()))
        while todo:
            pid = todo.pop()
            todo += (below := children.get(pid, []))
            if not below:
                found.append(pid)
        return found

    def stop(self) -> None:
        """Let everyone finish the piece of work under way."""
        for member in self.members:
            member.process.terminate()
        for member in self.members:
            try:
                status = member.process.wait(60)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
                self.violations.append(f"{member.orders.name} did not stop within 60 s of SIGTERM")
                continue
            if status not in (0, -signal.SIGTERM):  # the signal may come before Python is ready for it
                said = member.errors.read_text().strip()[-2_000:]
                self.violations.append(f"{member.orders.name} ended with status {status}: {said}")
        self.reports.refresh()

    def kill_all(self) -> None:
        """For the end of a soak that failed: leave no process behind."""
        for member in self.members:
            with contextlib.suppress(OSError):
                member.process.kill()
                member.process.wait()


def choose(rng: random.Random, members: list[Member]) -> Member:
    return members[rng.randrange(len(members))]


def _median(samples: list[Sample]) -> Sample:
    return Sample(
        samples[0].at,
        int(statistics.median(s.memory for s in samples)),
        int(statistics.median(s.files for s in samples)),
    )
