"""A host that appends until it is told to stop, and notes what was acknowledged.

append_driver.py URL NAME THREADS: each thread appends numbered events to a session of its own. Each
acknowledged event is a line "SEQ CONTENT" on standard output. It ends when standard input closes.
An append that had no answer is not repeated: the log decides whether it is there.
"""

import os
import sys
import threading

from scroll_context import Draft, Store
from scroll_context.errors import StoreUnreachable


def main(url: str, name: str, threads: str) -> None:
    over = threading.Event()
    with Store(url) as store:

        def work(session: str) -> None:
            number = 0
            while not over.is_set():
                content = f"{session}:{number}"
                number += 1
                try:
                    seq = store.append(Draft(session_id=session, content=content))
                except StoreUnreachable:
                    continue
                os.write(1, f"{seq} {content}\n".encode())

        workers = [
            threading.Thread(target=work, args=(f"{name}-{n}",)) for n in range(int(threads))
        ]
        for worker in workers:
            worker.start()
        sys.stdin.read()
        over.set()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
