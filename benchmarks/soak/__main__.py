"""The soak: agents, writers and readers on one store, and everything going wrong around them.

    python benchmarks/soak --minutes 10 --seed 7

Every fault happens once, in random order, and then at random until time is up; afterwards everything is inspected.
The same seed gives the same workers and the same order of faults; when they hit is up to the machine. The store lies
on a small file system of its own where the system lets us mount one (Linux, user namespaces); elsewhere the faults
that need it are skipped by name. Exits with 1 if anything was lost, unexpected or not flat.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
from crew import Crew, Member
from faults import FAULTS, Fault, NotSeen, Site
from inspection import Finding, inspect
from notes import Report, Reports
from workers import LANDMARKS, Orders, landmark

from scroll_context.events import Draft
from scroll_context.store.store import Store

INSIDE = "SCROLL_SOAK_VOLUME"  # set in the process that runs in the namespace: where the volume is to be mounted
VOLUME = 6 << 30  # bytes the volume may take, of which a soak of ten minutes uses a fraction
GRACE = 45.0  # seconds after a fault in which its errors may still be reported: an index may have to be built anew
RECOVERY = 90.0  # seconds in which every worker must be at work again
MOST_SHOWN = 20  # violations


class Struck(msgspec.Struct, frozen=True):
    """One fault that happened."""

    fault: Fault
    begun: float
    ended: float


def crew_for(site: Site, notes: Path, seed: int, agents: int, others: int) -> Crew:
    """The first of each role lives as long as the soak; the others can be killed."""
    places = [("agent", agents), ("writer", others), ("reader", others)]
    members = [
        Member(
            Orders(role, f"{role}{n}", str(site.store), str(notes), str(site.damaged), seed, pace=0.02), steady=n == 0
        )
        for role, count in places
        for n in range(count)
    ]
    return Crew(members, Reports(notes))


def soak(site: Site, crew: Crew, minutes: float, rng: random.Random) -> list[Struck]:
    """Strike until time is up, each fault once in any case."""
    start = time.monotonic()
    deadline = start + minutes * 60
    possible = [fault for fault in FAULTS if site.volume is not None or not fault.needs_volume]
    todo = rng.sample(possible, len(possible))
    struck: list[Struck] = []
    if late := crew.wait_for_work(RECOVERY):
        crew.violations.append(f"never began to work: {', '.join(late)}")
    while todo or time.monotonic() < deadline:
        fault = todo.pop() if todo else rng.choice(possible)
        begun = time.monotonic()
        try:
            done = fault.strike(site, crew, rng)
        except NotSeen as error:
            crew.violations.append(f"{fault.name}: {error}")
            done = str(error)
        struck.append(Struck(fault, begun, time.monotonic()))
        print(f"{begun - start:6.1f} s  {fault.name}: {done}", flush=True)
        last = not todo and time.monotonic() >= deadline
        if (last or rng.random() < 0.6) and (late := crew.wait_for_work(RECOVERY)):  # else the next one comes on top
            crew.violations.append(f"not at work {RECOVERY:g} s after “{fault.name}”: {', '.join(late)}")
        pause = time.monotonic() + min(rng.uniform(0.2, 3.0), minutes)
        while time.monotonic() < pause:
            crew.look()
            time.sleep(0.25)
    return struck


def explained(report: Report, struck: list[Struck]) -> Fault | None:
    """The newest fault that may have caused what a worker reported."""
    for one in reversed(struck):
        if report.what in one.fault.causes and one.begun <= report.at <= one.ended + GRACE:
            return one.fault
    return None


def unexpected(crew: Crew, struck: list[Struck]) -> list[str]:
    """Errors that no fault of the time explains."""
    return [
        f"{report.worker} reported {report.what} with no fault to cause it: {report.detail}"
        for report in crew.reports.all
        if report.what != "ok" and explained(report, struck) is None
    ]


def print_report(crew: Crew, struck: list[Struck], findings: list[Finding], skipped: list[str]) -> None:
    print(f"\n{'fault':<18}{'times':>6}   what the workers said about it")
    for fault in FAULTS:
        times = [one for one in struck if one.fault is fault]
        if fault.name in skipped:
            print(f"{fault.name:<18}{'–':>6}   skipped: no file system can be mounted here")
            continue
        said = Counter(r.what for r in crew.reports.all if r.what != "ok" and explained(r, struck) is fault)
        words = ", ".join(f"{what} {count}" for what, count in said.most_common()) or "nothing: they went on"
        print(f"{fault.name:<18}{len(times):>6}   {words}")
    print()
    for finding in findings:
        print(f"{'ok ' if not finding.wrong else 'BAD'} {finding.name}: {finding.seen}")
        for line in finding.wrong[:5]:
            print(f"      {line}")
    work = Counter({member.orders.role: 0 for member in crew.members})
    for report in crew.reports.all:
        if report.what == "ok":
            work[report.worker.rstrip("0123456789")] += int(report.detail)
    print(f"\ndone: {work['agent']:,} agent steps, {work['writer']:,} appends, {work['reader']:,} searches and reads")
    for violation in crew.violations[:MOST_SHOWN]:
        print(f"BAD {violation}")
    if len(crew.violations) > MOST_SHOWN:
        print(f"BAD and {len(crew.violations) - MOST_SHOWN} more")


def main(base: Path, volume: Path | None, chosen: argparse.Namespace) -> int:
    notes, place = base / "notes", volume or base / "plain"
    notes.mkdir()
    place.mkdir(exist_ok=True)
    site = Site(place / "store", volume, VOLUME, base / "damaged")
    with Store(site.store, create=True) as store:
        store.log.append_many(Draft(session_id="planted", role="user", content=landmark(n)) for n in range(LANDMARKS))
    rng = random.Random(chosen.seed)
    skipped = [fault.name for fault in FAULTS if fault.needs_volume and volume is None]
    print(f"soak of {chosen.minutes:g} minutes, SOAK_SEED={chosen.seed}, {chosen.agents} agents, "
          f"{chosen.others} writers, {chosen.others} readers", flush=True)  # fmt: skip
    crew = crew_for(site, notes, chosen.seed, chosen.agents, chosen.others)
    try:
        struck = soak(site, crew, chosen.minutes, rng)
        crew.stop()
    finally:
        crew.kill_all()
    crew.violations += unexpected(crew, struck)
    findings = list(inspect(site.store, notes, crew))
    print_report(crew, struck, findings, skipped)
    failed = bool(crew.violations) or any(finding.wrong for finding in findings)
    print("\nFAILED" if failed else "\nsurvived")
    if failed and chosen.keep:
        shutil.copytree(base, chosen.keep, ignore_dangling_symlinks=True)
        print(f"the store and what the workers noted are in {chosen.keep}")
    return int(failed)


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = "mount -t tmpfs tmpfs /mnt && mount -o remount,size=1m /mnt && mount --bind /mnt /mnt"
    return subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False).returncode == 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    surprise = random.SystemRandom().randrange(1_000_000)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES") or 10))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SOAK_SEED") or surprise))
    parser.add_argument("--agents", type=int, default=3, help="the first of them is never killed")
    parser.add_argument("--others", type=int, default=2, help="how many writers, and how many readers")
    parser.add_argument("--no-mounts", action="store_true", help="use an ordinary folder even if we can mount one")
    parser.add_argument("--keep", type=Path, help="a new folder for the store and the notes, if the soak fails")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    if inside := os.environ.get(INSIDE):
        volume = Path(inside) / "volume"
        volume.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "tmpfs", volume], check=True)
        sys.exit(main(Path(inside), volume, chosen))
    with tempfile.TemporaryDirectory(prefix="scroll-soak-") as folder:
        if chosen.no_mounts or not can_mount():
            sys.exit(main(Path(folder), None, chosen))
        command = ["unshare", "-rm", sys.executable, *sys.argv, "--seed", str(chosen.seed)]
        sys.exit(subprocess.run(command, env={**os.environ, INSIDE: folder}).returncode)
