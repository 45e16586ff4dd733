"""What encryption at rest costs: payloads of a plain store and of an encrypted one, in turns.

    python benchmarks/encryption.py [--rounds 15] [--sqlcipher]

Printed are medians in milliseconds. With --sqlcipher (which needs sqlcipher3-wheels), rows of plain SQLite and of
SQLCipher are measured too: what encrypting the whole log would cost.
"""

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scroll_context.events import Draft
from scroll_context.store.store import Store

KEY = bytes(32)
LARGE = 64 << 20


class Table:
    """Times by name and side."""

    def __init__(self) -> None:
        self.times: dict[str, dict[str, list[float]]] = {}

    def take(self, name: str, side: str, work: Callable[[], Any], clock: Callable[[], float], count: int = 1) -> Any:
        begun = clock()
        result = work()
        self.times.setdefault(name, {}).setdefault(side, []).append((clock() - begun) * 1_000 / count)
        return result

    def show(self) -> None:
        for name, sides in self.times.items():
            (one, first), (other, second) = ((side, statistics.median(found)) for side, found in sides.items())
            print(f"{name:34} {one} {first:9.4f}   {other} {second:9.4f}   ratio {second / first:5.2f}")


def payloads(folder: Path, rounds: int) -> None:
    table, cpu, real = Table(), time.process_time, time.perf_counter
    with Store(folder / "p", create=True) as plain, Store(folder / "e", create=True, key=KEY) as encrypted:
        for number in range(rounds):
            for side, store in (("plain", plain), ("encrypted", encrypted)):
                bodies, body = store.payloads, os.urandom(100_000)
                text = Draft(session_id="s", content=f"{number} " + "word " * 12_000)
                short = [Draft(session_id="s", content="short")] * 20
                stored = table.take("put 100 kB, CPU", side, lambda b=bodies, d=body: b.put(d, "x/y", "s"), cpu)
                table.take("read 100 kB, CPU", side, lambda b=bodies, p=stored: b.read(p.digest), cpu)
                table.take("append 60 kB of text, real", side, lambda s=store, d=text: s.append(d), real)
                table.take("append a short text, CPU", side, lambda s=store, d=short: list(map(s.append, d)), cpu, 20)
                if number < 4:
                    body = os.urandom(LARGE)
                    stored = table.take("put 64 MB, CPU", side, lambda b=bodies, d=body: b.put(d, "x/y", "s"), cpu)
                    table.take("read 64 MB, CPU", side, lambda b=bodies, p=stored: b.check(p.digest), cpu)
                    table.take(
                        "64 kB of 64 MB, CPU",
                        side,
                        lambda b=bodies, p=stored: b.piece(p.digest, LARGE // 2, 65_536),
                        cpu,
                    )
    table.show()


def rows(folder: Path, rounds: int) -> None:
    import sqlcipher3

    def opened(side: str, number: int) -> Any:
        module = sqlite3 if side == "SQLite" else sqlcipher3.dbapi2
        database = module.connect(folder / f"{side}-{number}.db", isolation_level=None)
        if side == "SQLCipher":
            database.execute(f"PRAGMA key = \"x'{KEY.hex()}'\"")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        return database

    def load(database: Any) -> None:
        database.execute("CREATE TABLE event (seq INTEGER PRIMARY KEY, session TEXT, content TEXT, chain BLOB)")
        database.execute("BEGIN")
        made = [(None, "s", "word " * 120, b"x" * 32)] * 10_000
        database.executemany("INSERT INTO event VALUES (?, ?, ?, ?)", made)
        database.execute("COMMIT")

    table = Table()
    for number in range(rounds):
        for side in ("SQLite", "SQLCipher"):
            database = opened(side, number)
            table.take("insert a row, CPU", side, lambda one=database: load(one), time.process_time, 10_000)
            database.close()
            database = opened(side, number)  # with nothing in its cache
            read = database.execute("SELECT * FROM event").fetchall
            table.take("read a row, CPU", side, read, time.process_time, 10_000)
            database.close()
    table.show()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sqlcipher", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["SCROLL_KEY_FILE"] = f"{temporary}/keys/key"
        payloads(Path(temporary), given.rounds)
        if given.sqlcipher:
            rows(Path(temporary), given.rounds)
