"""One worker of guarded SQL, as the host drives it: the kernel's fork server, frames and pidfds.

`GuardedSql` imports this module at its first query: a program that asks nothing starts faster.
"""

import os
import tempfile
import time

import msgspec

from scroll_context.errors import KernelDied
from scroll_context.jail.scratch import ScratchFolder
from scroll_context.kernel.broker import Connection
from scroll_context.kernel.launcher import spawn_shared
from scroll_context.kernel.process import receive_process
from scroll_context.sql.messages import Query, Ready, SqlAnswer, SqlSettings, ToHost
from scroll_context.work import check as check_work

WORKER_MODULE = "scroll_context.sql.worker"
START_SECONDS = 60.0
"""How long a worker may take to start and to copy the rows of its grant, on a busy machine."""
LOOK_SECONDS = 0.1
"""The time between two checks whether the cell that asked still waits."""


class SqlProcess:
    """A running worker and the connection to it. One thread at a time asks; any thread may kill.

    `has_begun` says whether the last query began to run, `has_answered` whether any was answered.
    """

    def __init__(self, settings: SqlSettings) -> None:
        self._scratch = ScratchFolder(_temporary_folder())
        try:
            settings = msgspec.structs.replace(settings, scratch=self._scratch.path)
            sock = spawn_shared(WORKER_MODULE, settings)
            process = receive_process(sock, START_SECONDS)
            if process is None:
                sock.close()
                raise KernelDied("the worker ended before it answered")
        except BaseException:
            self._scratch.close()
            raise
        self.process = process
        self.has_answered = False
        self.has_begun = False
        self._connection = Connection(sock, ToHost, settings.limits.frame_bytes)
        self._seconds = settings.limits.seconds
        self._hidden: tuple[int, ...] = ()

    def ask(self, query: Query, grace: float) -> SqlAnswer:
        """The answer to a query.

        Raises TimeoutError when there is none in time, KernelDied when the worker has ended.
        """
        if query.hidden == self._hidden:
            query = msgspec.structs.replace(query, hidden=None)
        else:
            self._hidden = query.hidden or ()
        self.has_begun = False
        self._connection.send(query)
        message = self._receive(time.monotonic() + START_SECONDS)
        if isinstance(message, Ready):
            self.has_begun = True
            message = self._receive(time.monotonic() + self._seconds + grace)
        if not isinstance(message, SqlAnswer):
            raise KernelDied("the worker sent no answer")
        self.has_answered = True
        return message

    def close(self) -> None:
        """End the process, and everything that it has. For the one thread that may ask."""
        self.process.end()
        self._connection.close()
        self._scratch.close()

    def _receive(self, deadline: float) -> Ready | SqlAnswer:
        while True:
            check_work()
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            message: Ready | SqlAnswer | None = self._connection.receive(min(seconds, LOOK_SECONDS))
            if message is not None:
                return message


def _temporary_folder() -> str:
    """The folder in which SQLite itself would put temporary files.

    They can be large, so it is on a disk rather than in /tmp.
    """
    folder = os.environ.get("SQLITE_TMPDIR") or os.environ.get("TMPDIR") or "/var/tmp"
    if os.access(folder, os.W_OK | os.X_OK):
        return folder
    return tempfile.gettempdir()
