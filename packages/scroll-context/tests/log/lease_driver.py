"""A process that takes the lease of a session, says so, and waits to be told to end.

lease_driver.py FOLDER hold          take it, print "held", hold it until standard input closes
lease_driver.py FOLDER fork          the same, with a forked child that outlives the parent
lease_driver.py FOLDER race COUNT    take it COUNT times; each time append two events with nobody in
between
"""

import os
import sys
from pathlib import Path

from scroll_context.errors import SessionBusy, SessionFenced
from scroll_context.events import Kind, Scope
from scroll_context.log.journal import Journal
from scroll_context.store import Store


def main(folder: str, what: str, count: str = "0") -> None:
    with Store(Path(folder)) as store:
        if what == "race":
            for _ in range(int(count)):
                journal = Journal(store.log, Scope("raced"), wait=60.0)
                begun = journal.append(journal.draft(Kind.NOTICE, content=f"begin {os.getpid()}"))
                journal.append(
                    journal.draft(Kind.NOTICE, content=f"end {os.getpid()}", reply_to=begun.seq)
                )
                journal.close()
            return
        journal = Journal(store.log, Scope("held"))
        if what == "fork" and os.fork() == 0:
            try:
                journal.append(journal.draft(Kind.NOTICE, content="from the child"))
                os.write(1, b"recorded\n")
            except SessionFenced:
                os.write(1, b"fenced\n")
            sys.stdin.read()
            os._exit(0)
        os.write(1, b"held\n")
        sys.stdin.read()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SessionBusy as busy:
        print(f"busy {busy.holder.process}", flush=True)  # type: ignore[attr-defined]
