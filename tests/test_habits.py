"""The repository's own rules: versions, READMEs, pins, local hooks, checklists, columns."""

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import scroll_context

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
CORE = ROOT / "packages/scroll-context"
PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+)")
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<floor>[\d.]+)")


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def test_every_distribution_has_the_version_of_the_core() -> None:
    versions = {project(folder)["version"] for folder in DISTRIBUTIONS}
    assert versions == {scroll_context.__version__}


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_a_distribution_depends_on_the_others_of_its_version(folder: Path) -> None:
    table = project(folder)
    lines = chain(table["dependencies"], *table.get("optional-dependencies", {}).values())
    ours = [line for line in lines if line.startswith("scroll-")]
    assert all(line.endswith(f"=={scroll_context.__version__}") for line in ours), ours


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_a_distribution_has_the_licence(folder: Path) -> None:
    # A source archive can hold only files of its own folder.
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_changelog_is_about_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\S+) \((.+)\)$", text, re.MULTILINE)
    assert len(headings) == len(re.findall("^## ", text, re.MULTILINE))
    versions = [version for version, _ in headings]
    assert versions == sorted(versions, key=numbers, reverse=True)
    # The next version may have a section before the packages have its number.
    pending = [version for version, date in headings if date == "unreleased"]
    assert pending in ([], versions[:1])
    assert scroll_context.__version__ in versions[: 1 + len(pending)]


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_a_distribution_has_a_readme_of_half_a_page(folder: Path) -> None:
    words = (folder / "README.md").read_text().split()
    assert words[:2] == ["#", folder.name]
    assert 80 <= len(words) <= 350


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_the_pinned_versions_satisfy_the_declared_floors(folder: Path) -> None:
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    pins = {pin["name"].lower(): pin["version"] for pin in map(PIN.fullmatch, lines) if pin}
    for line in project(folder)["dependencies"]:
        requirement = REQUIREMENT.fullmatch(line)
        if requirement is not None:
            assert numbers(pins[requirement["name"]]) >= numbers(requirement["floor"])


def test_hooks_are_local_and_the_workflow_calls_the_script_of_ci() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"repo: (\S+)", hooks)) == {"local"}
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    assert re.findall(r"- run: (.+)", workflow) == [".ci/run"]


def test_files_that_the_checklists_name_exist() -> None:
    names = re.findall(r"`([\w/.]+\.(?:py|md|txt))`", (ROOT / "CONTRIBUTING.md").read_text())
    bases = (ROOT, CORE, CORE / "src/scroll_context", *ROOT.glob("packages/*/src"))
    assert len(names) > 15
    missing = [name for name in names if not any((base / name).is_file() for base in bases)]
    assert missing == []


WITHIN_COLUMNS = (
    *("Makefile", "pyproject.toml", "conftest.py", "examples"),
    *(
        f"packages/scroll-context/src/scroll_context/{room}"
        for room in (
            "agent",
            "cli",
            "demo",
            "importing",
            "jail",
            "kernel",
            "log",
            "sql",
            "upkeep",
            *("events.py", "contents.py", "store.py", "origin.py", "work.py", "files.py"),
        )
    ),
    "packages/scroll-assistants/src",
    "packages/scroll-shared/src",
)
"""Files and folders without a line above 100 columns. When all are, ruff's limit takes over."""


@pytest.mark.parametrize("name", WITHIN_COLUMNS)
def test_no_line_is_longer_than_100_columns(name: str) -> None:
    place = ROOT / name
    files = [place] if place.is_file() else list(place.rglob("*.py"))
    assert files
    long = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > 100 and "# type: ignore" not in line
    ]
    assert long == []
