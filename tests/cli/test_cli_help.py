"""Help that teaches, a command line that starts at once, and a reference that is complete."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from scroll_context import __version__
from scroll_context.cli.app import app
from scroll_context.cli.main import COMMANDS, overview

ROOT = Path(__file__).parents[2]


def command(name: str) -> Any:
    found = get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_help_says(name: str) -> None:
    assert COMMANDS[name][1] == command(name).help.splitlines()[0]


def test_every_command_is_documented() -> None:
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert not [name for name in COMMANDS if not re.search(rf"\bscroll {name}\b", text)]


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "CLI.md").read_text()
    options = {
        option
        for name in COMMANDS
        for parameter in command(name).params
        for option in parameter.opts
        if option.startswith("-")
    }
    assert not [option for option in options - {"--help", "-h"} if option not in text]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(scroll: Any, name: str) -> None:
    result = scroll(name, "--help")
    assert result.exit_code == 0
    assert re.search(rf"(Examples?|Begin with):\n(.*\n)*? +.*scroll {name}", result.stdout)


def test_the_overview_is_the_same_in_both_ways_and_fits_a_terminal(scroll: Any) -> None:
    assert scroll("--help").stdout == scroll("-h").stdout == overview()
    assert max(map(len, overview().splitlines())) <= 80


def test_version_and_usage(scroll: Any) -> None:
    assert scroll("--version").stdout == f"scroll {__version__}\n"
    assert "Usage:" in scroll().output
    mistyped = scroll("serch", "toll")
    assert mistyped.exit_code == 2 and "'search'" in mistyped.stderr


def test_help_loads_nothing_heavy() -> None:
    heavy = ("typer", "tantivy", "sqlite3", "rich", "msgspec", "cloudpickle", "pydantic_ai", "asyncio")
    code = f"""
import sys
from scroll_context.cli.main import main
sys.argv = ["scroll", "--help"]
try:
    main()
finally:
    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == "[]\n" and done.stdout == overview()
