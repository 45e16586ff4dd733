"""A thread that keeps the index close to the log, so that nobody else has to write it.

It starts when it is first needed, waits a little for more events before it indexes, rests between commits, and drops
both habits when somebody waits. A search therefore never indexes by itself: it waits for this thread as long as it
likes, and a large payload or a slow merge cannot hold it longer.
"""

import threading

from scroll_context.errors import ScrollError
from scroll_context.store.indexer import Indexer

SETTLE = 0.05  # seconds to wait for more events before indexing
PAUSE = 0.5  # seconds to rest after a commit


class Follower:
    """Owns the indexing thread of one process."""

    def __init__(self, indexer: Indexer) -> None:
        self.trouble = ""  # why the last attempt failed; empty while another one is under way
        self._indexer = indexer
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._moved = threading.Condition()
        self._failures = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the log from now on."""
        with self._moved:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._follow, name="scroll-index", daemon=True)
                self._thread.start()
        self._wake.set()

    def notify(self) -> None:
        """Something was appended."""
        if not self._wake.is_set():  # each append asks; waking costs more than asking
            self._wake.set()

    def reach(self, seq: int, timeout: float) -> bool:
        """Wait until everything up to `seq` is indexed; False when that takes too long or fails (see `trouble`)."""
        failures = self._failures
        self._hurry.set()
        self.start()
        with self._moved:
            self._moved.wait_for(
                lambda: self._indexer.current_until() >= seq or self._failures > failures or self._closing, timeout
            )
        return self._indexer.current_until() >= seq

    def close(self) -> None:
        """Stop soon; what is not indexed by then, another day will bring."""
        with self._moved:
            self._closing = True
        self._indexer.stop()
        self._hurry.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._tell()  # whoever waits for the index waits in vain

    def _follow(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._hurry.wait(SETTLE)
            self._wake.clear()
            self._hurry.clear()
            self.trouble = ""
            try:
                self._indexer.catch_up(progress=lambda *_: self._tell())
            except ScrollError as error:  # said with the next search; the next append or search tries again
                self.trouble = str(error)
                self._failures += 1
            self._tell()
            if not self._closing:
                self._hurry.wait(PAUSE)

    def _tell(self) -> None:
        with self._moved:
            self._moved.notify_all()
