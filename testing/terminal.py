"""A command of `scroll` at a terminal of its own, and what such tests wait for."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import msgspec

from scroll_context.models import Reply

MAIN = "from scroll_context.cli.main import main; main()"
TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


def script(folder: Path, *entries: Reply | str) -> str:
    file = folder / f"script{len(list(folder.iterdir()))}.json"
    file.write_bytes(msgspec.json.encode(list(entries)))
    return f"scripted:{file}"


def wait_for(file: Path, process: "subprocess.Popen[bytes]", seconds: float = 120) -> None:
    """Until a file appears; a process that ends before that has failed."""
    until = time.monotonic() + seconds
    while not file.exists():
        assert process.poll() is None and time.monotonic() < until, f"{file.name} was not made"
        time.sleep(0.01)


class Terminal:
    """A command of `scroll` at a terminal of its own, on which ^C is a signal."""

    def __init__(
        self, command: list[str], folder: Path, *, columns: int = 80, **variables: str
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL + MAIN, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**environment, "TERM": "dumb", "SCROLL_STORE": str(folder), **variables},
        )
        os.close(slave)
        # The output since the last expected text.
        self._seen = b""
        self.everything = b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def expect(self, text: str, seconds: float = 60) -> str:
        """Everything up to and including a text, from where the last one ended."""
        sought = text.encode()
        while sought not in self._seen:
            ready, _, _ = select.select([self._master], [], [], seconds)
            piece = b""
            # The terminal is closed.
            with contextlib.suppress(OSError):
                piece = os.read(self._master, 65536) if ready else b""
            assert piece, f"{text!r} did not come; there was {self._seen.decode(errors='replace')}"
            self._seen += piece
            self.everything += piece
        upto, _, self._seen = self._seen.partition(sought)
        return (upto + sought).decode(errors="replace")

    def finish(self, seconds: float = 60) -> str:
        """Everything up to the end of the command."""
        # The terminal is closed.
        with contextlib.suppress(OSError):
            while select.select([self._master], [], [], seconds)[0] and (
                piece := os.read(self._master, 65536)
            ):
                self.everything += piece
        assert self.process.wait(seconds) is not None
        return self.everything.decode(errors="replace")

    def finish_by(self, key: str) -> None:
        """Leave a chat from its prompt."""
        self.expect("›")
        self.type(key)
        self.finish()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def press(self, key: str, text: str) -> None:
        """Type at a prompt until it answers: what comes just before the line editor waits for a key
        may be lost.
        """
        for _ in range(3):
            self.type(key)
            with contextlib.suppress(AssertionError):
                self.expect(text, seconds=10)
                return
        self.expect(text)
