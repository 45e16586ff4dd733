"""Running `scroll`: in this process for the many, as a real process for the few that need one."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scroll_context.cli.app import app

Run = Callable[..., Result]

SCROLL = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]


@pytest.fixture
def scroll(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the test's own store.

    A bug raises; a refusal is a status and a line on stderr.
    """
    monkeypatch.setenv("SCROLL_STORE", str(folder))

    def run(*args: str | Path | int, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(
            app, [str(arg) for arg in args], input=input, catch_exceptions=False
        )

    return run


@pytest.fixture
def process(folder: Path) -> Callable[..., "subprocess.Popen[bytes]"]:
    """Start `scroll` as a process of its own on the test's store."""

    def start(
        *args: str | Path, prefix: tuple[str, ...] = (), **options: Any
    ) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "SCROLL_STORE": str(folder)}
        environment.pop("PYTHONUNBUFFERED", None)  # for people, output is buffered
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            **options,
        }
        return subprocess.Popen([*prefix, *SCROLL, *map(str, args)], env=environment, **options)

    return start


@pytest.fixture
def trip() -> Path:
    """The conversation that comes with Scroll: 30 messages in three sessions."""
    return Path(str(resources.files("scroll_context") / "bundled" / "trip.jsonl"))


@pytest.fixture
def filled(scroll: Run, trip: Path) -> Run:
    """The same as `scroll`, with the trip imported as the user's own history."""
    assert scroll("import", trip, "--mine").exit_code == 0
    return scroll
