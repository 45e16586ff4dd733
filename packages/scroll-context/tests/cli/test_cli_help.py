"""Help that teaches, a command line that starts at once, and a reference that is complete."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from cli_reference import FILE, page
from scroll_context import __version__
from scroll_context.cli.app import app
from scroll_context.cli.commands import GROUPS, HIDDEN, PACKAGES, commands, overview

ROOT = Path(__file__).parents[4]
# The evaluations are a group of commands with its own documentation.
COMMANDS = {name: entry.summary for name, entry in commands().items() if name != "eval"}


def command(name: str) -> Any:
    found = app.get_command(click.Context(app), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_help_says(name: str) -> None:
    assert COMMANDS[name] == command(name).help.splitlines()[0]


def test_every_command_is_documented() -> None:
    text = "\n".join(
        path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    )
    assert not [name for name in COMMANDS if not re.search(rf"\bscroll {name}\b", text)]


def test_the_reference_is_the_help_of_every_command() -> None:
    missing = {package for name, package in PACKAGES.items() if name not in commands()}
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    assert page() == FILE.read_text(), "run: python testing/cli_reference.py"


def test_the_list_has_groups_of_few_commands() -> None:
    sizes = Counter(entry.group for entry in commands().values())
    assert max(sizes.values()) <= 12 and set(sizes) <= {*GROUPS, HIDDEN, ""}
    assert "  hook " not in overview() and "  completion " not in overview()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(scroll: Any, name: str) -> None:
    result = scroll(name, "--help")
    assert result.exit_code == 0
    assert re.search(rf"(Examples?|Begin with):\n(.*\n)*? +.*scroll {name}", result.stdout)


def test_the_overview_is_the_same_in_both_ways_and_fits_a_terminal(scroll: Any) -> None:
    assert scroll("--help").stdout == scroll("-h").stdout == overview()
    assert max(map(len, overview().splitlines())) <= 80
    assert re.findall(r"^(\w+):$", overview(), re.MULTILINE)[1:3] == ["Start", "Agent"]


PLUGIN = """
import click
from scroll_context.errors import BadInput

@click.command()
@click.argument("word")
def shout(word):
    \"\"\"Say it loudly.\"\"\"
    click.echo(word.upper())

@click.command()
@click.argument("upto", type=int)
def count(upto):
    \"\"\"Count.\"\"\"
    if upto > 9:
        raise BadInput("that is too far")
    click.echo(" ".join(map(str, range(upto))))

@click.group()
def both(): pass

@both.command()
def left(): click.echo("left")

@both.command()
def right(): raise click.exceptions.Exit(5)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that adds commands, as its files are in a folder of packages."""
    (tmp_path / "plugged.py").write_text(PLUGIN)
    facts = tmp_path / "plugged-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\nSummary: Words and numbers.\n"
    )
    (facts / "entry_points.txt").write_text(
        "[console_scripts]\nno = plugged:shout\n\n[scroll_context.commands]\nshout = "
        "plugged:shout\n"
        "count = plugged:count\nboth = plugged:both\nsearch = plugged:shout\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_an_installed_package_adds_commands(scroll: Any, plugin: None) -> None:
    assert "  shout       Words and numbers.\n" in scroll("--help").stdout
    assert scroll("shout", "hello").stdout == "HELLO\n"
    assert scroll("count", "3").stdout == "0 1 2\n"
    refused = scroll("count", "10")
    assert (refused.exit_code, refused.stderr) == (1, "scroll: that is too far\n")
    assert scroll("count", "x").exit_code == 2
    assert "Usage: scroll count" in scroll("count", "--help").stdout
    assert scroll("both", "left").stdout == "left\n"
    assert scroll("both", "right").exit_code == 5
    assert "'shout'" in scroll("shoud").stderr
    assert scroll("no").exit_code == 2
    assert "Find events" in scroll("search", "--help").stdout, (
        "a command of Scroll itself cannot be replaced"
    )


def test_version_and_usage(scroll: Any) -> None:
    assert scroll("--version").stdout == f"scroll {__version__}\n"
    assert "Usage:" in scroll().output
    mistyped = scroll("serch", "toll")
    assert mistyped.exit_code == 2 and "'search'" in mistyped.stderr


def loaded(names: tuple[str, ...], *args: str) -> "subprocess.CompletedProcess[str]":
    """Run a command; the last line on stderr lists which of these modules were imported for it."""
    code = f"""
import atexit, sys
from scroll_context.cli.main import main
sys.argv = ["scroll", *{args!r}]
atexit.register(lambda: print([name for name in {names!r} if name in sys.modules], file=sys.stderr))
main()
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_loads_nothing_heavy() -> None:
    heavy = (
        "typer",
        "tantivy",
        "sqlite3",
        "rich",
        "msgspec",
        "cloudpickle",
        "pydantic_ai",
        "asyncio",
    )
    done = loaded(heavy, "--help")
    assert done.returncode == 0
    assert done.stderr == "[]\n" and done.stdout == overview()


@pytest.mark.parametrize(
    "command_line",
    [
        ("search", "toll", "-k", "3", "--role", "user"),
        ("show", "3-5"),
        ("sessions", "--json"),
        ("stats",),
        ("verify",),
        ("sql", "SELECT 1"),
        ("export",),
        ("run", "--help"),
    ],
    ids=lambda one: one[0],
)
def test_commands_load_only_what_they_need(
    filled: Any, folder: Path, command_line: tuple[str, ...]
) -> None:
    """Each of these takes longer to import than the command takes to run."""
    store = [] if "--help" in command_line else ["--store", str(folder)]
    done = loaded(
        ("typer", "pydantic", "importlib.metadata", "mcp", "asyncio"), *command_line, *store
    )
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("-k", "0"), "'-k': 0 is not in the range"),
        (("-k", "1001"), "'-k': 1001 is not in the range"),
        (("-k", "-3"), "'-k': -3 is not in the range"),
        (("-k", "ten"), "'-k': 'ten' is not a valid integer"),
        (("--seq", "9-3"), "for '--seq': '9-3' runs backwards; write 3-9"),
        (("--from", "soon"), "for '--from': 'soon' is not a date"),
        (("--to", "soon"), "for '--to': 'soon' is not a date"),
    ],
)
def test_a_bad_value_is_told_with_its_option(
    filled: Any, given: tuple[str, ...], said: str
) -> None:
    refused = filled("search", "toll", *given)
    assert refused.exit_code == 2 and said in refused.stderr
