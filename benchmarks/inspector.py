"""How long the pages of the inspector take at 100,000 events, and whether its memory stays flat.

A store is made (or --store names one with a session `long`), `scroll serve` runs on it in a process
of its own, and this process asks for each page: once cold, then warm, timing the first byte. `cpu`
is the processor time of the server for a warm page, which other work on the machine hardly
lengthens. At the end every page is loaded in turn, 1,000 loads in all, and the memory of the server
is read before and after.
"""

import argparse
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "testing"))
from large_store import SESSION, build
from scroll_context.session.past import Past
from scroll_context.store import Store

WARM = 20
LOADS = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--store", type=Path, help="a store that was made before")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.store or build(Path(scratch) / "store", options.events)
        with Store(folder, read_only=True) as store:
            past = Past(store, SESSION)
            past.catch_up()
            plan = past.evictions[len(past.evictions) // 2].seq
            request = next(event.seq for event in past.requests if event.seq > plan)
            print(
                f"{store.log.last_seq():,} events, {len(past.requests):,} requests in the longest "
                "session"
            )
        pages = [
            "/",
            "/?q=harbour",
            "/search?q=walnut+garden",
            f"/session/{SESSION}",
            f"/session/{SESSION}?at={request}",
            f"/session/{SESSION}?at=end",
            f"/steps/{SESSION}?after={request}",
            f"/event/{request + 1}",
            f"/event/{plan}",
            f"/request/{request}",
            f"/request/{request}?about={plan - 500}",
            f"/request/{request}/index",
            f"/request/{request}/variables",
            f"/pressure/{SESSION}",
            f"/events/{plan - 60}-{plan}",
        ]
        measure(folder, pages)


def measure(folder: Path, pages: list[str]) -> None:
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from scroll_context.cli.main import main; main()",
            "serve",
            "--store",
            str(folder),
            "--port",
            "0",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SCROLL_SERVE_TOKEN": "t"},
    )
    try:
        assert server.stderr
        match = re.search(r":(\d+)/\?token", server.stderr.readline())
        assert match
        port = int(match[1])
        cookie = cookie_of(port)
        print(f"{'page':<34}{'cold ms':>9}{'median':>9}{'p95':>9}{'cpu':>9}{'kB':>8}")
        for page in pages:
            cold, size = first_byte(port, page, cookie)
            spent = processor(server.pid)
            warm = sorted(first_byte(port, page, cookie)[0] for _ in range(WARM))
            spent = (processor(server.pid) - spent) / WARM
            median, p95 = statistics.median(warm), warm[int(WARM * 0.95) - 1]
            print(
                f"{page:<34}{cold:>9.1f}{median:>9.1f}{p95:>9.1f}{spent:>9.1f}{size / 1000:>8.0f}"
            )
        before = resident(server.pid)
        begun = time.monotonic()
        for number in range(LOADS):
            first_byte(port, pages[number % len(pages)], cookie)
        took = time.monotonic() - begun
        print(
            f"memory after {LOADS:,} page loads ({took:.0f} s): {before:.1f} -> "
            f"{resident(server.pid):.1f} MB"
        )
    finally:
        server.terminate()
        server.wait(20)


def cookie_of(port: int) -> str:
    """The cookie that a browser gets for the token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/?token=t")
    answer = connection.getresponse()
    cookie = answer.getheader("set-cookie", "").partition(";")[0]
    connection.close()
    return cookie


def first_byte(port: int, page: str, cookie: str) -> tuple[float, int]:
    """Milliseconds until the first byte of the answer, and its size."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    begun = time.perf_counter()
    connection.request("GET", page, headers={"Cookie": cookie})
    answer = connection.getresponse()
    took = (time.perf_counter() - begun) * 1000
    body = answer.read()
    connection.close()
    assert answer.status == 200, (page, answer.status)
    return took, len(body)


def processor(process: int) -> float:
    """Milliseconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Megabytes of memory that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


if __name__ == "__main__":
    main()
