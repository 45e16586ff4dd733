"""A shared store on a real Postgres beside one SQLite file, in one run; fills the table of
docs/SHARED.md.

    python benchmarks/shared.py                a few minutes; a new host of 100,000 events
    python benchmarks/shared.py --events 1000000
    python benchmarks/shared.py --write        put what was found into docs/SHARED.md
    python benchmarks/shared.py --priority     go before other work on this machine (Linux, as root)

Hosts are processes. In a shared store each has a replica of its own, so an event is written once on
the server and four times in replicas, all on the processors of one machine; the SQLite file is
written once. To tell the two apart, the same processes are also measured as those of one host, with
one replica. Nothing is indexed while appends are measured, and both sides wait for their disk. The
server and the object store are started here (see testing/servers.py). What is compared is measured
in turns, since a machine that others use is never as fast twice: trust ratios more than absolute
numbers.
"""

import argparse
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "testing"))


from scroll_context import Draft, Store  # noqa: E402
from scroll_context.session.session import Session  # noqa: E402
from scroll_shared.address import parse  # noqa: E402
from scroll_shared.backend import shared_backend  # noqa: E402
from scroll_shared.host_snapshot import take_of  # noqa: E402
from scroll_shared.push import push  # noqa: E402
from servers import ObjectServer, Postgres, programs, server_folder  # noqa: E402

BEGIN, END = "<!-- shared:begin -->", "<!-- shared:end -->"
HOSTS, THREADS = 4, 8
# The leader of a group commit waits 2 ms before it flushes.
FLUSH = {
    "commit_delay": "2000",
    "commit_siblings": "0",
}
WORDS = (
    "river bridge pigeon harbour ticket museum breakfast window train garden letter market".split()
)
# Events a second while searches are measured.
FOREIGN_RATE = 1_500

# In the environment, since hosts are processes.
_PRIORITY = "SCROLL_BENCH_PRIORITY"

SESSION_DRIVER = ROOT / "packages" / "scroll-shared" / "tests" / "session_driver.py"
VERDICTS = {None: "", True: "met", False: "**missed**"}

_spawn = multiprocessing.get_context("spawn")


def prioritise(pids: Iterable[int | str] = ("self",)) -> None:
    """Let processes go before those of other sessions on this machine, if that was asked for."""
    if os.environ.get(_PRIORITY):
        for pid in pids:
            Path(f"/proc/{pid}/autogroup").write_text("-12")


# hosts, each a process --------------------------------------------------------------------------


def append_for(address: str, seconds: float, ready: Any, results: Any) -> None:
    """Append from several threads for some seconds; how many events that were, and the processor
    time they took.
    """
    # A host of its own for the scheduler too, as every process of the server is.
    os.setsid()
    prioritise()
    with Store(address) as store:
        store.append(Draft(content="warm"))
        ready.wait()
        before, until = time.process_time(), time.monotonic() + seconds
        counts = [0] * THREADS

        def work(number: int) -> None:
            while time.monotonic() < until:
                store.append(
                    Draft(content=text(counts[number]), session_id=f"{os.getpid()}-{number}")
                )
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results.put((sum(counts), time.process_time() - before))
        # The server's time is read before its connections end.
        ready.wait()


def append_at_rate(address: str, rate: float, ended: Any, ready: Any) -> None:
    """Append so many events a second, 50 times a second, each with the moment at which its append
    began.
    """
    os.setsid()
    prioritise()
    with Store(address) as store:
        store.append(Draft(content="warm"))
        ready.wait()
        begun, count, batch = time.monotonic(), 0, max(1, round(rate / 50))
        while not ended.is_set():
            if count < (time.monotonic() - begun) * rate:
                moment = time.time()
                about = {"at": moment}
                drafts = [
                    Draft(content=text(count + n), session_id="foreign", metadata=about)
                    for n in range(batch)
                ]
                store.log.append_many(drafts)
                count += batch
            else:
                time.sleep(0.001)


def text(number: int) -> str:
    words = [WORDS[(number * step) % len(WORDS)] for step in (1, 3, 5, 7)]
    return (
        f"note {number}: the {words[0]} by the {words[1]}, a {words[2]} and the {words[3]} of "
        "that day"
    )


# measurements -----------------------------------------------------------------------------------


def appended(
    addresses: list[str], seconds: float, server: Postgres | None = None
) -> tuple[float, float, float]:
    """Events a second of all hosts together, and microseconds of processor time an event: of hosts,
    of the server.
    """
    ready, results = _spawn.Barrier(len(addresses) + 1), _spawn.Queue()
    hosts = [
        _spawn.Process(target=append_for, args=(address, seconds, ready, results))
        for address in addresses
    ]
    for host in hosts:
        host.start()
    ready.wait()
    prioritise(server.processes() if server else ())
    before = server.processor_time() if server else 0.0
    counts = [results.get(timeout=600) for _ in hosts]
    served = server.processor_time() - before if server else 0.0
    ready.wait()
    for host in hosts:
        host.join()
    total = sum(count for count, _ in counts)
    return total / seconds, 1e6 * sum(used for _, used in counts) / total, 1e6 * served / total


@contextmanager
def foreign_events(address: str, rate: float, server: Postgres) -> Iterator[None]:
    """Another host appends meanwhile."""
    ended, ready = _spawn.Event(), _spawn.Barrier(2)
    host = _spawn.Process(target=append_at_rate, args=(address, rate, ended, ready))
    host.start()
    ready.wait()
    prioritise(server.processes())
    try:
        yield
    finally:
        ended.set()
        host.join()


def lags(url: str, folder: Path, seconds: float, server: Postgres) -> list[float]:
    """Milliseconds from the start of an append until another host's replica has the event."""
    times: list[float] = []
    with Store(f"{url}&replica={folder / 'watching'}") as store:
        log = store.log
        seen = log.last_seq()

        def applied() -> None:
            nonlocal seen
            now = time.time()
            for seq, metadata in log.query(
                "SELECT seq, metadata FROM event WHERE seq > ? ORDER BY seq", [seen]
            ):
                seen = seq
                if "at" in metadata:
                    times.append(1000 * (now - json.loads(metadata)["at"]))

        shared_backend(log).replica.on_applied = applied
        with foreign_events(f"{url}&replica={folder / 'telling'}", 200, server):
            time.sleep(seconds)
    return times


def takeover(url: str, folder: Path, number: int) -> float:
    """Seconds from the end of a killed host's lease until another host has its session and its
    variables.
    """
    effects = folder / f"effects-{number}"
    command = [
        sys.executable,
        str(SESSION_DRIVER),
        f"{url}&replica={folder / 'killed'}",
        "stuck",
        f"work-{number}",
    ]
    environment = {**os.environ, "EFFECTS": str(effects)}
    pipe = subprocess.PIPE
    with Store(f"{url}&replica={folder / 'resuming'}") as store:
        host = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True
        )
        assert host.stdout is not None and host.stdout.readline() == b"inside\n"
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        log = store.log
        asked = (
            "SELECT extract(epoch FROM lease_until)::float8 FROM scroll.session "
            "WHERE session_id = %b"
        )
        ((expires,),) = shared_backend(log).server.call(asked, [f"work-{number}".encode()])
        with Session.resume(store, f"work-{number}", wait=60) as session:
            assert "42" in session.run("print(found)", "d1").content
            return time.time() - expires


def search_times(store: Store, seconds: float) -> list[float]:
    """Milliseconds of searches for any of three words, back to back with a short rest."""
    times, count, until = [], 0, time.monotonic() + seconds
    while time.monotonic() < until:
        query = " ".join(WORDS[(count * step + 1) % len(WORDS)] for step in (1, 5, 7))
        begun = time.perf_counter()
        store.index.search(query)
        times.append(1000 * (time.perf_counter() - begun))
        count += 1
        time.sleep(0.01)
    return times


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def fill(folder: Path, events: int) -> None:
    with Store(folder, create=True) as store:
        for at in range(0, events, 10_000):
            batch = range(at, min(at + 10_000, events))
            store.log.append_many(
                [Draft(content=text(n), session_id=f"s{n % 500}", role="user") for n in batch]
            )


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# the run ----------------------------------------------------------------------------------------


def measure(events: int, seconds: float) -> list[tuple[str, str, str, bool | None]]:
    """What was measured, the number, the target, and whether it was met."""
    rows: list[tuple[str, str, str, bool | None]] = []

    def add(what: str, number: str, target: str = "", met: bool | None = None) -> None:
        rows.append((what, number, target, met))
        print(f"{what:<72}{number:>26}  {target:<24}{VERDICTS[met]}", flush=True)

    with server_folder() as servers, tempfile.TemporaryDirectory(prefix="scroll-bench-") as name:
        folder = Path(name)
        postgres = Postgres(servers / "postgres", programs=programs()).create().start()
        slow = Postgres(servers / "slow", programs=programs(), settings=FLUSH).create().start()
        objects = ObjectServer(servers)
        os.environ.update(objects.environment)
        bucket = objects.bucket()

        # appends: one SQLite file, Postgres, Postgres with one replica for all, Postgres with a
        # slow flush, in turns
        rates: dict[str, list[tuple[float, float, float]]] = {
            "sqlite": [],
            "postgres": [],
            "one": [],
            "slow": [],
        }
        servers_of = {"postgres": postgres, "one": postgres, "slow": slow}
        urls = {
            kind: f"{server.database()}&store=a&payloads={bucket}"
            for kind, server in servers_of.items()
        }
        Store(folder / "sqlite", create=True).close()
        for kind, url in urls.items():
            Store(f"{url}&replica={folder / kind}-0", create=True).close()
        for _ in range(3):
            rates["sqlite"].append(appended([str(folder / "sqlite")] * HOSTS, seconds))
            for kind, url in urls.items():
                addresses = [
                    f"{url}&replica={folder / kind}-{0 if kind == 'one' else n}"
                    for n in range(HOSTS)
                ]
                rates[kind].append(appended(addresses, seconds, servers_of[kind]))
        used = {
            kind: list(map(statistics.median, zip(*rounds, strict=True)))
            for kind, rounds in rates.items()
        }
        best = {kind: medians[0] for kind, medians in used.items()}
        who = f"{HOSTS} hosts × {THREADS} threads"
        add(f"durable appends, {who}, one SQLite file", f"{best['sqlite']:,.0f} /s")
        ratio = best["postgres"] / best["sqlite"]
        add(
            f"durable appends, {who}, Postgres, {HOSTS} replicas",
            f"{best['postgres']:,.0f} /s ({ratio:.2f} ×)",
            "≥ 0.8 × SQLite",
            ratio >= 0.8,
        )
        ratio = best["one"] / best["sqlite"]
        add(
            "the same as processes of one host, Postgres, 1 replica",
            f"{best['one']:,.0f} /s ({ratio:.2f} ×)",
        )
        ratio = best["slow"] / best["postgres"]
        add(
            f"{HOSTS} replicas, with a flush of 2 ms, as on a cloud disk",
            f"{best['slow']:,.0f} /s ({ratio:.2f} ×)",
            "≥ 0.8 × of itself",
            ratio >= 0.8,
        )
        add(
            "processor time of an event: SQLite; Postgres: hosts and their replicas + server",
            f"{used['sqlite'][1]:.0f}; {used['postgres'][1]:.0f} + {used['postgres'][2]:.0f} µs",
        )
        slow.stop()

        # a host dies
        took = statistics.median(
            takeover(f"{urls['postgres']}&lease=3", folder, n) for n in range(3)
        )
        add(
            "a host killed inside a tool: from the end of its lease until another resumed",
            f"{took:.1f} s",
            "≤ 2 s",
            took <= 2,
        )

        # lag and searches
        delays = lags(urls["postgres"], folder, 4 * seconds, postgres)
        p50, p99 = percentile(delays, 0.5), percentile(delays, 0.99)
        add(
            "replica lag at 200 events/s, p50 / p99",
            f"{p50:.1f} / {p99:.1f} ms",
            "p99 ≤ 50 ms",
            p99 <= 50,
        )

        # a new host
        fill(folder / "large", events)
        url = f"{postgres.database()}&store=large&payloads={bucket}"
        pushing = timed(
            lambda: push(folder / "large", parse(f"{url}&replica={folder / 'pushing'}"))
        )
        add(f"push of {events:,} events", f"{events / pushing:,.0f} /s")
        taking = timed(lambda: take_of(f"{url}&replica={folder / 'pushing'}"))
        fresh = timed(lambda: Store(f"{url}&replica={folder / 'fresh'}").close())
        add(f"snapshot of {events:,} events, indexed before", f"{taking:.1f} s")
        bound = 30 * events / 1_000_000
        add(
            f"a new host of {events:,} events from the snapshot",
            f"{fresh:.1f} s",
            "1M in ≤ 30 s",
            fresh <= bound,
        )
        with Store(f"{url}&replica={folder / 'fresh'}") as store:
            assert store.log.last_seq() == events, "the new host has everything"
            assert store.index.indexed_seq == events, "and its index too"
            store.index.search("pigeon")
            idle = percentile(search_times(store, 4 * seconds), 0.95)
            with foreign_events(f"{url}&replica={folder / 'pushing'}", FOREIGN_RATE, postgres):
                begun, before = time.monotonic(), store.log.last_seq()
                busy = percentile(search_times(store, 4 * seconds), 0.95)
                rate = (store.log.last_seq() - before) / (time.monotonic() - begun)
        add("search, p95, idle", f"{idle:.1f} ms")
        add(
            f"search, p95, while {rate:,.0f} foreign events/s arrive",
            f"{busy:.1f} ms ({busy / idle:.1f} ×)",
            "≤ 2 × idle at 1,500/s",
            busy <= 2 * idle and rate >= 0.9 * FOREIGN_RATE,
        )
        ((size, total),) = postgres.execute(
            """SELECT
                (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits)::float, last_seq
            FROM scroll.head""",
            parse(url).conninfo.rpartition("/")[2].partition("?")[0],
        )
        replica = sum(
            file.stat().st_size for file in (folder / "fresh").rglob("*") if file.is_file()
        )
        per_event = float(str(size)) / int(str(total)), replica / int(str(total))
        add(
            "disk for each event: server / replica with its index",
            f"{per_event[0]:,.0f} / {per_event[1]:,.0f} bytes",
        )
        postgres.stop()
    rows += extrapolated(per_event, fresh / events, best["postgres"])
    return rows


def extrapolated(
    per_event: tuple[float, float], fresh: float, rate: float
) -> list[tuple[str, str, str, bool | None]]:
    """The needs of larger stores, computed from measured rates and sizes, not measured."""
    rows: list[tuple[str, str, str, bool | None]] = []
    for events in (10**6, 10**7, 10**8, 10**9):
        server, replica = (each * events / 2**30 for each in per_event)
        hours = events / rate / 3600
        what = f"extrapolated: {events:,} events"
        number = (
            f"server {server:,.1f} GiB, replica {replica:,.1f} GiB, new host "
            f"{fresh * events / 60:,.1f} min"
        )
        rows.append((what, number, f"written in {hours:,.1f} h at the measured rate", None))
    return rows


def table(rows: list[tuple[str, str, str, bool | None]]) -> str:
    """What docs/SHARED.md shows."""
    machine = (
        f"{os.cpu_count()} cores ({platform.machine()}, Linux {platform.release().split('-')[0]})"
    )
    before = ", going before other work (`--priority`)" if os.environ.get(_PRIORITY) else ""
    lines = [
        (
            f"`make bench-shared` on {machine}{before}; load average {os.getloadavg()[2]:.1f}; "
            "short made-up messages."
        ),
        "",
        "| what | measured | target | |",
        "|---|---|---|---|",
    ]
    for what, number, target, met in rows:
        lines.append(f"| {what} | {number} | {target} | {VERDICTS[met]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--events", type=int, default=100_000, help="how many a new host begins with"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of appends")
    parser.add_argument("--write", action="store_true", help="put the table into docs/SHARED.md")
    parser.add_argument(
        "--priority", action="store_true", help="go before other work on this machine"
    )
    options = parser.parse_args()
    if options.priority:
        os.environ[_PRIORITY] = "1"
        prioritise()
    rows = measure(options.events, options.seconds)
    for what, number, target, met in rows:
        if met is None and what.startswith("extrapolated"):
            print(f"{what:<36}{number}; {target}")
    if options.write:
        file = ROOT / "docs" / "SHARED.md"
        before, rest = file.read_text().split(BEGIN)
        file.write_text(before + BEGIN + "\n" + table(rows) + END + rest.split(END)[1])
    if any(met is False for *_, met in rows):
        sys.exit("a target was missed")


if __name__ == "__main__":
    main()
