"""Imports go one way, between the distributions and between the rooms of the core; late and typing
imports count.

The light modules stay light.
"""

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scroll_context

PACKAGE = Path(scroll_context.__file__).parent
PACKAGES = Path(__file__).parents[2]
DISTRIBUTIONS = (
    "scroll_context",
    "scroll_assistants",
    "scroll_shared",
    "scroll_inspector",
    "scroll_gateway",
    "scroll_adapters",
    "scroll_evals",
)
BUILDS_ON = {"scroll_adapters": {"scroll_gateway"}}
"""The adapter for the OpenAI Agents SDK, whose items are those of the Responses API, reads them as
the gateway does. Its extra installs the gateway."""

VALUES = {
    "contents",
    "events",
    "errors",
    "messages",
    "background",
    "origin",
    "files",
    "work",
    "text",
    "plugins",
    "projects",
}
LOG = VALUES | {"log"}
STORE = LOG | {"search", "sql", "upkeep", "store"}
KERNEL = VALUES | {"kernel", "jail"}
SESSION = STORE | KERNEL | {"tools", "recall", "brief", "view", "models", "session"}

MAY_IMPORT = {
    **dict.fromkeys(VALUES, VALUES),
    "log": VALUES,
    "search": LOG,
    "sql": LOG | KERNEL,
    "upkeep": LOG | {"search"},
    "store": LOG | {"search", "sql", "upkeep"},
    "jail": VALUES,
    "kernel": KERNEL,
    "view": VALUES,
    "models": VALUES,
    "tools": LOG | KERNEL,
    "recall": STORE | KERNEL | {"tools"},
    "brief": STORE | {"view"},
    "session": SESSION,
    "agent": SESSION,
    "hosts": SESSION,
    "importing": STORE,
    "demo": SESSION | {"agent", "importing"},
    "cli": SESSION | {"agent", "demo", "importing"},
    "bundled": set(),
    "connections": set(),
}


def modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """The modules of a package by their dotted names."""
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), file


@functools.cache
def imports(file: Path) -> frozenset[str]:
    """The names that a file imports anywhere in it, as dotted names of modules or of things in
    them.
    """
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the room"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)


def room_of(name: str) -> str:
    """The room of the core that a dotted name belongs to, or another distribution of ours."""
    package, _, rest = name.partition(".")
    return rest.partition(".")[0] if package == "scroll_context" else package


def test_rooms_of_the_core_import_in_one_direction() -> None:
    wrong = []
    for module, file in modules(PACKAGE):
        room = room_of(module)
        if module == "scroll_context":
            continue
        assert room in MAY_IMPORT, (
            f"{room} has no place in the layers; add it to MAY_IMPORT on purpose"
        )
        others = {room_of(name) for name in imports(file) if name.startswith("scroll_")}
        others -= {"", room, "__version__"}
        wrong += [f"{module} imports {other}" for other in sorted(others - MAY_IMPORT[room])]
    assert not wrong


@pytest.mark.parametrize(
    ("libraries", "rooms"),
    [
        ({"click", "rich", "markdown_it"}, {"cli", "demo"}),
        ({"uvicorn", "h11"}, {"connections"}),
    ],
)
def test_libraries_for_people_and_servers_stay_in_their_rooms(
    libraries: set[str], rooms: set[str]
) -> None:
    for module, file in modules(PACKAGE):
        if room_of(module) not in rooms:
            third_party = {name.partition(".")[0] for name in imports(file)}
            assert not third_party & libraries, module


def source_folder(name: str) -> Path:
    return PACKAGES / name.replace("_", "-") / "src" / name


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_build_on_the_core_and_not_on_each_other(name: str) -> None:
    for module, file in modules(source_folder(name)):
        ours = {other.partition(".")[0] for other in imports(file) if other.startswith("scroll_")}
        allowed = {"scroll_context", name} | BUILDS_ON.get(name, set())
        assert ours <= allowed, f"{module} imports {sorted(ours)}"


def test_importing_the_package_loads_no_heavy_module() -> None:
    heavy = ("tantivy", "rich", "typer", "pydantic_ai", "cloudpickle", "sqlite3", "numpy")
    code = f"import sys, scroll_context; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_modules_of_a_distribution_have_no_import_cycles(name: str) -> None:
    files = dict(modules(source_folder(name)))
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        targets = {name if name in files else name.rpartition(".")[0] for name in imports(file)}
        graph[module] = targets & files.keys()
    graphlib.TopologicalSorter(graph).prepare()
