"""The commands of this package are installed, listed and documented as those of the core are."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from scroll_context.cli.app import app
from scroll_context.cli.commands import PACKAGES, commands

ROOT = Path(__file__).parents[3]
NAMES = ("watch", "install", "hook", "mcp")


def command(name: str) -> click.Command:
    loaded = app.get_command(click.Context(app), name)
    assert loaded is not None
    return loaded


def test_the_installed_entry_points_are_the_declared_ones() -> None:
    points = importlib.metadata.entry_points(group="scroll_context.commands")
    ours = {point.name for point in points if point.value.startswith("scroll_assistants.")}
    assert ours == set(NAMES), "after a change of pyproject.toml, install the package again"
    assert {name for name, package in PACKAGES.items() if package == "scroll-assistants"} == ours


@pytest.mark.parametrize("name", NAMES)
def test_the_list_says_what_the_help_says(name: str) -> None:
    text = command(name).help or ""
    assert commands()[name].summary == text.splitlines()[0]
    assert re.search(rf"Examples?:\n(.*\n)*? +.*scroll {name}", text)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_option_is_documented(name: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(re.search(rf"\bscroll {name}\b", page.read_text()) for page in pages)
    reference = (ROOT / "docs" / "CLI.md").read_text()
    options = {option for parameter in command(name).params for option in parameter.opts}
    flags = {option for option in options if option.startswith("--")} - {"--help"}
    assert not [option for option in flags if option not in reference]


def without_packages(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `scroll` as if nothing were installed beside the core."""
    code = f"""
import sys
from scroll_context import plugins
plugins._search_path = list
from scroll_context.cli.main import main
sys.argv = ["scroll", *{arguments!r}]
main()
"""
    return subprocess.run(
        [sys.executable, "-c", code], input="{}", capture_output=True, text=True, check=False
    )


def test_a_hook_never_fails_even_if_this_package_is_missing() -> None:
    done = without_packages("hook", "claude-code", "--store", "/nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_hook_never_fails_even_if_this_package_cannot_be_imported() -> None:
    code = """
import sys
sys.modules["scroll_assistants"] = None
from scroll_context.cli.main import main
sys.argv = ["scroll", "hook", "claude-code", "--store", "/nowhere"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], input="{}", capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_command_names_the_package_to_install() -> None:
    for command, package in (("watch", "scroll-assistants"), ("eval", "scroll-evals")):
        done = without_packages(command)
        assert done.returncode == 2
        assert f"pip install ./packages/{package}" in done.stderr
    assert "watch" not in without_packages("--help").stdout
