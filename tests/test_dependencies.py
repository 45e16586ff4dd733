"""Each distribution declares the packages that it imports, and imports those that it declares.

Late imports and extras count. The standard library and Scroll's own packages do not: for those see
`packages/scroll-context/tests/test_layers.py`.
"""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
OWN = {folder.name for folder in DISTRIBUTIONS}

NOT_DECLARED = {
    # A module that the kernel puts beside a prelude. It exists only inside the jail.
    "handles",
    # Only type checkers read that import, and they bring the module.
    "typing-extensions",
}


NOT_INSTALLED = {"agents": ["openai-agents"]}
"""The distributions of modules that only `make test-hosts` installs, where the names differ."""


NAMESPACES = {"google"}
"""Packages that several distributions share."""


def normal(name: str) -> str:
    """The name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_modules(folder: Path) -> set[str]:
    """The top-level modules that any file below a folder imports anywhere."""
    modules: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
    return {top_module(module) for module in modules} - sys.stdlib_module_names


def top_module(module: str) -> str:
    """The part of a module's name that belongs to one distribution."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] in NAMESPACES else 1])


# It reads the files of every installed distribution.
homes_of_modules = cache(packages_distributions)


def imported(folder: Path) -> set[str]:
    """The distributions that the sources of a distribution import."""
    homes = NOT_INSTALLED | dict(homes_of_modules())
    names = {normal(homes.get(module, [module])[0]) for module in imported_modules(folder / "src")}
    return names - OWN - NOT_DECLARED


def declared(folder: Path) -> set[str]:
    """The distributions that a distribution declares, in its extras too."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    lines = chain(project["dependencies"], *extras.values())
    names = {normal(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines}
    return names - OWN


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_what_a_distribution_imports_is_what_it_declares(folder: Path) -> None:
    assert imported(folder), "no import was read"
    assert imported(folder) == declared(folder)


def test_the_library_loads_nothing_that_only_the_command_line_needs() -> None:
    code = (
        "import sys, importlib, pkgutil, scroll_context\n"
        "skipped = ('scroll_context.cli', 'scroll_context.demo')\n"
        "late = ('_prelude', 'connections', 'pydantic_ai', 'models.provider_errors', 'models.translate')\n"
        "for module in pkgutil.walk_packages(scroll_context.__path__, 'scroll_context.'):\n"
        "    if not module.name.startswith(skipped) and not module.name.endswith(late):\n"
        "        importlib.import_module(module.name)\n"
        "assert 'scroll_context.session.session' in sys.modules\n"
        "print(sorted({'click', 'rich', 'markdown_it'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
