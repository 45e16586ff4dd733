"""The prompt for a person: a real terminal, real keys, and piped input."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from scroll_context.cli.kernel import show_last_expression

PROGRAM = """
import sys
from pathlib import Path
from scroll_context.cli.kernel import run
from scroll_context.kernel.kernel import Kernel
with Kernel() as kernel:
    sys.exit(run(kernel, Path(sys.argv[1])))
"""

pytestmark = pytest.mark.usefixtures("jailed")


@pytest.fixture
def jailed(tier: str) -> None:
    if tier == "none":
        pytest.skip("the prompt asks for a jail, which this machine does not offer")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("1 + 1", "2\n"),
        ("x = 1", ""),
        ("None", ""),
        ("x = 'é'; x  # comment", "'é'\n"),
        ("def f():\n    return [1,\n            2]\nf()", "[1, 2]\n"),
        ("(1,\n 2)", "(1, 2)\n"),
        ("'''a\nb'''", "'a\\nb'\n"),
        ("for i in range(2): print(i)", "0\n1\n"),
        ("import asyncio\nawait asyncio.sleep(0, 'done')", "'done'\n"),
        ("5;", "5\n"),
    ],
)
def test_the_value_of_a_last_expression_is_shown(kernel, source: str, shown: str) -> None:
    assert kernel.execute(show_last_expression(source)).stdout == shown


def test_a_traceback_points_to_what_was_typed(kernel) -> None:
    error = kernel.execute(show_last_expression("a = 1\nb = (a,\n     1 / 0)\nb")).error
    assert 'File "<cell 1>", line 3' in error.traceback


def piped(text: str, tmp_path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "history")]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_piped_input_runs_as_one_cell(tmp_path) -> None:
    done = piped("def f(x):\n    return x * 2\nprint(f(2))\nf(4)\n", tmp_path)
    assert (done.stdout, done.returncode) == ("4\n8\n", 0)
    failed = piped("print('begun')\n1 / 0\n", tmp_path)
    assert (failed.stdout, failed.returncode) == ("begun\n", 1)
    assert "ZeroDivisionError" in failed.stderr
    assert piped("", tmp_path).returncode == 0


TAKE_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"


class Terminal:
    """A prompt in a terminal of its own, typed at by the test."""

    def __init__(self, history) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL + PROGRAM, str(history)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def expect(self, pattern: str, again: str = "", seconds: float = 60.0) -> str:
        """Read on until the pattern has come; whenever it is quiet for a second, type `again`."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            if self.is_quiet(1.0):
                assert time.monotonic() < deadline, (
                    f"{pattern!r} did not come; the terminal shows {self.seen!r}"
                )
                self.type(again)
                continue
            try:
                self.seen += os.read(self.ours, 65536).decode()
            except OSError:
                raise AssertionError(
                    f"the program ended; the terminal shows {self.seen!r}"
                ) from None
        self.seen = self.seen[found.end() :]
        return found.group()

    def press_ctrl_c(self) -> str:
        """Until there is a prompt: the interpreter misses a signal that comes just before it waits
        for a key.
        """
        self.type("\x03")
        return self.expect(r"(?s).*?>>> ", again="\x03")

    def is_quiet(self, seconds: float = 0.2) -> bool:
        return not select.select([self.ours], [], [], seconds)[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


def test_a_session_at_a_terminal(tmp_path) -> None:
    terminal = Terminal(tmp_path / "folder" / "history")
    try:
        terminal.expect(r"jail tier \S+.*\r\n>>> ")
        terminal.type("x = 20 + 1\nx * 2\n")
        terminal.expect(r"\r\n42\r\n>>> ")
        terminal.type("def f():\n    return 'multi'\n\nf()\n")
        terminal.expect(r"\.\.\. ")
        terminal.expect(r"\r\n'multi'\r\n>>> ")
        shown = ""
        # The key may come before the cell has begun, or before it has printed: then type both
        # again.
        while not ("begun\r\n" in shown and "KeyboardInterrupt" in shown):
            terminal.type("print('begun'); import time; time.sleep(60)\n")
            terminal.expect(r"time\.sleep\(60\)\r\n")
            terminal.is_quiet()
            shown = terminal.press_ctrl_c()
        terminal.type(":names\n")
        terminal.expect(r"x: int = 21")
        terminal.expect(r">>> ")
        terminal.type("half a li")
        terminal.press_ctrl_c()
        terminal.type("x\n")
        terminal.expect(r"\r\n21\r\n>>> ")
        terminal.type("\x04")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    assert "x * 2" in (tmp_path / "folder" / "history").read_text()
