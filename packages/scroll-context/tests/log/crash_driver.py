"""Run by test_crash.py in a process of its own: writers forked from here are killed at random
moments.

Each writer appends events, every eighth with a payload, and notes each acknowledged append in a
file of its own (a plain write survives SIGKILL). One of them also keeps the search index up to
date, so that indexing is cut short too.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import tantivy  # noqa: F401 - imported before the fork, so that writers start at once

from scroll_context.events import Draft
from scroll_context.store import Store

WRITERS = 4


def write(folder: Path, acknowledged: Path, name: str, indexes: bool) -> None:
    rng = random.Random(name)
    with Store(folder, create=True) as store, acknowledged.open("ab", buffering=0) as out:
        for n in range(1_000_000):
            size = 40_000 if n % 8 == 0 else rng.randrange(10, 2_000)
            drafts = [
                Draft(session_id=name, content=f"{name} {n} {part} ".ljust(size, "x"))
                for part in range(n % 3 + 1)
            ]
            seqs = store.log.append_many(drafts)
            out.write(
                "".join(
                    f"{seq} {d.content[:30].split(' x')[0]}\n"
                    for seq, d in zip(seqs, drafts, strict=True)
                ).encode()
            )
            if indexes and n % 4 == 3:
                store.index.catch_up()


def sizes(notes: Path) -> dict[Path, int]:
    return {file: file.stat().st_size for file in notes.iterdir()}


def wait_for(notes: Path, before: dict[Path, int], writers: int) -> bool:
    """Wait until so many writers have noted an append of this round; False when that takes a
    minute.
    """
    deadline = time.monotonic() + 60
    while sum(size > before.get(file, 0) for file, size in sizes(notes).items()) < writers:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def main(folder: Path, notes: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    for turn in range(rounds):
        before = sizes(notes)
        children = []
        for number in range(WRITERS):
            child = os.fork()
            if child == 0:
                try:
                    write(folder, notes / f"{number}.txt", f"w{number}-{turn}", indexes=number == 0)
                finally:
                    os._exit(1)
            children.append(child)
        appended = wait_for(notes, before, rng.randint(1, WRITERS))  # however slow the machine is
        time.sleep(rng.uniform(0.0, 0.1))
        for child in rng.sample(children, WRITERS):
            os.kill(child, signal.SIGKILL)
        for child in children:
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                sys.exit(f"round {turn}: a writer failed by itself")
        if not appended:
            sys.exit(f"round {turn}: the writers appended nothing within a minute")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
