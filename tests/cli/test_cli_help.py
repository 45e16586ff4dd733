"""Help that teaches, a command line that starts at once, and a reference that is complete."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from scroll_context import __version__
from scroll_context.cli.main import COMMANDS, app

ROOT = Path(__file__).parents[2]
NAMES = [command.__name__.rstrip("_") for command in COMMANDS]


def test_every_command_is_documented() -> None:
    registered = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert registered == {*NAMES, "eval"}
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert not [name for name in registered if not re.search(rf"\bscroll {name}\b", text)]


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "CLI.md").read_text()
    options = {
        option
        for command in get_command(app).commands.values()  # type: ignore[attr-defined]
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("-")
    }
    assert not [option for option in options - {"--help", "-h"} if option not in text]


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example(scroll: Any, name: str) -> None:
    result = scroll(name, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n(.*\n)*? +.*scroll {name}", result.stdout)


def test_the_list_of_commands_cuts_no_sentence(scroll: Any) -> None:
    result = scroll("--help")
    assert result.exit_code == 0
    assert "..." not in result.stdout.split("Commands:")[1]


def test_version_and_usage(scroll: Any) -> None:
    assert scroll("--version").stdout == f"scroll {__version__}\n"
    assert "Usage:" in scroll().output
    assert scroll("nonsense").exit_code == 2


def test_help_loads_nothing_heavy() -> None:
    heavy = ("tantivy", "sqlite3", "rich", "msgspec", "cloudpickle", "pydantic_ai", "asyncio")
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
    assert done.stderr == "[]\n"
