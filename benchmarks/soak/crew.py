"""The workers of a soak as processes: starting, killing, watching and, at the end, stopping them.

A worker that ends by itself is a violation, whatever its status; one that was killed is started
again. Every wait is for something that a worker reports; its seconds are only there so that a soak
that hangs comes to an end.
"""

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from notes import Report, Reports
from vitals import Vitals
from workers import SIGNALS, Orders


class Member:
    """One place in the crew, and the process that fills it at the moment."""

    def __init__(self, orders: Orders, steady: bool) -> None:
        self.orders = orders
        # Never killed, so that its memory and files can be watched.
        self.steady = steady
        self.vitals = Vitals()
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        program, orders = (
            Path(__file__).with_name("workers.py"),
            msgspec.json.encode(self.orders).decode(),
        )
        # The scratch folders of killed agents go with the rest.
        litter = Path(self.orders.notes).with_name("tmp")
        litter.mkdir(exist_ok=True)
        # A signal waits until the worker can handle it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with open(self.errors, "ab") as errors:
                self.process = subprocess.Popen(
                    [sys.executable, program, orders],
                    stdin=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, "TMPDIR": str(litter)},
                    preexec_fn=end_with_parent,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self.process

    @property
    def errors(self) -> Path:
        return Path(self.orders.notes) / f"{self.orders.name}.stderr"

    def kill(self) -> float:
        """kill -9, and another process in its place; the moment from which all that is reported is
        the new one's.
        """
        self.process.kill()
        self.process.wait()
        moment = time.monotonic()
        self.start()
        return moment


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
                self.violations.append(
                    f"{member.orders.name} ended by itself with status {status}: {_said(member)}"
                )
                member.start()
            elif member.steady:
                member.vitals.take(member.process.pid)
        self.reports.refresh()

    def go_on(self, seconds: float) -> None:
        """Let the workers work."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(0.25)

    def wait_for_work(self, seconds: float) -> list[str]:
        """Wait until every worker has got something done from now on; the names of those that did
        not.
        """
        begun, waiting = time.monotonic(), {member.orders.name for member in self.members}
        while waiting and time.monotonic() < begun + seconds:
            time.sleep(0.1)
            self.look()
            waiting -= {
                report.worker for report in self.reports.since(begun) if report.what == "ok"
            }
        return sorted(waiting)

    def wait_for(
        self, whats: set[str], since: float, seconds: float, *, worker: str = "", about: str = ""
    ) -> Report | None:
        """Wait until some worker, or the one named, reports one of these, with `about` in its
        words.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            for report in self.reports.since(since):
                if (
                    report.what in whats
                    and worker in ("", report.worker)
                    and about in report.detail
                ):
                    return report
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)

    def kernels(self, member: Member) -> list[int]:
        """The innermost processes under an agent: its jailed kernels."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    children.setdefault(parent, []).append(int(entry.name))
        pids, todo = [], list(children.get(member.process.pid, ()))
        while todo:
            pid = todo.pop()
            todo += (below := children.get(pid, []))
            if not below:
                pids.append(pid)
        return pids

    def stop(self) -> None:
        """Let everyone finish the piece of work under way."""
        for member in self.members:
            member.process.terminate()
        for member in self.members:
            try:
                status = member.process.wait(120)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
                self.violations.append(f"{member.orders.name} did not stop within 120 s of SIGTERM")
                continue
            if status != 0:
                self.violations.append(
                    f"{member.orders.name} ended with status {status}: {_said(member)}"
                )
        self.reports.refresh()

    def kill_all(self) -> None:
        """For the end of a soak that failed: leave no process behind."""
        for member in self.members:
            with contextlib.suppress(OSError):
                member.process.kill()
                member.process.wait()


def end_with_parent() -> None:
    """Not to outlive whoever started this process, even if that is killed."""
    # The number 1 is PR_SET_PDEATHSIG.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def choose(rng: random.Random, members: list[Member]) -> Member:
    return members[rng.randrange(len(members))]


def _said(member: Member) -> str:
    return member.errors.read_text().strip()[-2_000:]
