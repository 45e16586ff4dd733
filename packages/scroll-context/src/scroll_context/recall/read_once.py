"""What recall keeps in memory of the messages that it read, so that each of them is read once.

After an erasure everything is read again: nothing of erased events stays in memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from scroll_context.recall.reader import Reader


class ReadOnce:
    """Reads the messages within the grant of a reader; a subclass keeps what it makes of them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = Lock()
        # The seq of the newest erasure that is known here.
        self._erasure = 0
        self._restart()

    def _restart(self) -> None:
        """Forget everything, so that the next reading begins with the first message."""
        # The seq up to which messages were read.
        self._upto = 0

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """Keep other threads out and forget erased events; yields the seq up to which to read."""
        erasure = self._reader.log.newest_erasure()
        upto = self._reader.last_before_running()
        with self._lock:
            if erasure != self._erasure:
                self._erasure = erasure
                self._restart()
            yield upto
