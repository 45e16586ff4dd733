"""The soak: agents, writers and readers on one store, and everything going wrong around them.

    python benchmarks/soak --minutes 10 --seed 7

Every fault happens once, in random order, and then at random until time is up; afterwards
everything is inspected. The same seed gives the same workers and the same order of faults; when
they hit is up to the machine. The store lies on a small file system of its own where the system
lets us mount one (user namespaces); elsewhere the faults that need it are skipped by name. Exits
with 1 if anything was lost, unexpected or not flat. Linux only.
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

from crew import Crew, Member, end_with_parent
from faults import FAULTS, NotSeen, Site
from inspection import Finding, flatness, inspect
from notes import NEWS, Reports
from timeline import Struck, Timeline
from workers import LANDMARKS, Orders, landmark

from scroll_context.events import Draft
from scroll_context.store import Store

# set in the process that runs in the namespace: where the volume is to be mounted
INSIDE = "SCROLL_SOAK_VOLUME"
# Bytes the volume may take, of which a soak of ten minutes uses a fraction.
VOLUME = 6 << 30
# seconds in which every worker must be at work again, which may take building the index anew
RECOVERY = 300.0
# The exit status when there were violations.
MOST_SHOWN = 20


def crew_for(site: Site, notes: Path, chosen: argparse.Namespace) -> Crew:
    """The first of each role lives as long as the soak; the others can be killed."""
    places = [("agent", chosen.agents), ("writer", chosen.others), ("reader", chosen.others)]
    members = [
        Member(
            Orders(
                role,
                f"{role}{n}",
                str(site.store),
                str(notes),
                str(site.damaged),
                chosen.seed,
                chosen.pace,
            ),
            steady=n == 0,
        )
        for role, count in places
        for n in range(count)
    ]
    return Crew(members, Reports(notes))


def soak(site: Site, crew: Crew, minutes: float, rng: random.Random) -> Timeline:
    """Strike until time is up, each fault once in any case."""
    start = time.monotonic()
    deadline = start + minutes * 60
    possible = [fault for fault in FAULTS if site.volume is not None or not fault.needs_volume]
    todo = rng.sample(possible, len(possible))
    timeline = Timeline()
    if late := crew.wait_for_work(RECOVERY):
        crew.violations.append(f"never began to work: {', '.join(late)}")
    while todo or time.monotonic() < deadline:
        fault = todo.pop() if todo else rng.choice(possible)
        begun = time.monotonic()
        try:
            done = fault.strike(site, crew, rng)
        except NotSeen as error:
            crew.violations.append(f"{fault.name}: {error}")
            done = f"BAD: {error}"
        timeline.struck.append(Struck(fault, begun, time.monotonic()))
        print(f"{begun - start:7.1f} s  {fault.name}: {done}", flush=True)
        last = not todo and time.monotonic() >= deadline
        # Otherwise the next fault would come on top of this one.
        if last or rng.random() < 0.6:
            if late := crew.wait_for_work(RECOVERY):
                crew.violations.append(
                    f"not at work {RECOVERY:g} s after “{fault.name}”: {', '.join(late)}"
                )
            timeline.recovered.append(time.monotonic())
        crew.go_on(rng.uniform(0.2, 3.0))
    return timeline


def print_report(
    crew: Crew, timeline: Timeline, findings: list[Finding], skipped: list[str]
) -> None:
    print(
        f"\n{'fault':<19}{'times':>5}  {'had to be seen each time':<26}what the "
        "workers reported because of it"
    )
    causes = Counter((timeline.cause(r), r.what) for r in crew.reports.all if r.what not in NEWS)
    for fault in FAULTS:
        if fault.name in skipped:
            print(f"{fault.name:<19}{'–':>5}  skipped: no file system can be mounted here")
            continue
        lines = [
            f"{what} ({count})" for (cause, what), count in causes.most_common() if cause is fault
        ]
        print(
            f"{fault.name:<19}{timeline.times(fault):>5}  {fault.must:<26}{', '.join(lines) or '–'}"
        )
    print()
    for finding in findings:
        print(f"{'ok ' if not finding.wrong else 'BAD'} {finding.name}: {finding.seen}")
        for line in finding.wrong[:5]:
            print(f"      {line}")
    work = Counter({member.orders.role: 0 for member in crew.members})
    for report in crew.reports.all:
        if report.what == "ok":
            work[report.worker.rstrip("0123456789")] += int(report.detail)
    print(
        f"\ndone: {work['agent']:,} agent steps, {work['writer']:,} appends, "
        f"{work['reader']:,} searches and reads"
    )
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
        store.log.append_many(
            Draft(session_id="planted", role="user", content=landmark(n)) for n in range(LANDMARKS)
        )
    rng = random.Random(chosen.seed)
    skipped = [fault.name for fault in FAULTS if fault.needs_volume and volume is None]
    print(
        f"soak of {chosen.minutes:g} minutes, SOAK_SEED={chosen.seed}: "
        f"{chosen.agents} agents, {chosen.others} writers "
        f"and {chosen.others} readers work on one store, each in its own "
        "process,\nwhile one thing after the other "
        "goes wrong. Each line: when, what was done to them, and what was seen of it.",
        flush=True,
    )
    crew = crew_for(site, notes, chosen)
    try:
        timeline = soak(site, crew, chosen.minutes, rng)
        crew.stop()
    finally:
        crew.kill_all()
    crew.violations += timeline.unexplained(crew.reports.all)
    print("\ninspecting what is left ...", flush=True)
    findings = [*inspect(site.store, notes), *flatness(crew)]
    print_report(crew, timeline, findings, skipped)
    failed = bool(crew.violations) or any(finding.wrong for finding in findings)
    print("\nFAILED" if failed else "\nsurvived")
    if chosen.keep:
        shutil.copytree(base, chosen.keep, ignore_dangling_symlinks=True)
        print(f"the store and what the workers noted are in {chosen.keep}")
    return int(failed)


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = "mount -t tmpfs tmpfs /mnt && mount -o remount,size=1m /mnt && mount --bind /mnt /mnt"
    return (
        subprocess.run(
            ["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False
        ).returncode
        == 0
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    surprise = random.SystemRandom().randrange(1_000_000)
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES") or 10)
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SOAK_SEED") or surprise))
    parser.add_argument(
        "--agents", type=int, default=3, help="two or more; the first of them is never killed"
    )
    parser.add_argument(
        "--others", type=int, default=2, help="how many writers, and how many readers; two or more"
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=0.01,
        help="seconds each rests after a piece of work, on average",
    )
    parser.add_argument(
        "--no-mounts", action="store_true", help="use an ordinary folder even if we can mount one"
    )
    parser.add_argument(
        "--keep", type=Path, help="a new folder, for the store and what the workers noted"
    )
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    if inside := os.environ.get(INSIDE):
        end_with_parent()
        volume = Path(inside) / "volume"
        volume.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "tmpfs", volume], check=True
        )
        sys.exit(main(Path(inside), volume, chosen))
    with tempfile.TemporaryDirectory(prefix="scroll-soak-") as folder:
        if chosen.no_mounts or not can_mount():
            sys.exit(main(Path(folder), None, chosen))
        command = ["unshare", "-rm", sys.executable, *sys.argv, "--seed", str(chosen.seed)]
        sys.exit(subprocess.run(command, env={**os.environ, INSIDE: folder}).returncode)
