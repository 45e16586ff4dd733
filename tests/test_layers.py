"""Imports between layers go one way, the public names are the promised ones, and the light modules stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import scroll_context

PACKAGE = Path(scroll_context.__file__).parent

VALUES = {
    "background", "connections", "errors", "events", "files", "folders", "ids", "messages", "origin", "project", "text",
    "work",
}  # fmt: skip
MAY_IMPORT = {
    "events": {"errors", "origin"},
    "errors": set(),
    "messages": set(),
    "background": set(),
    "files": set(),
    "folders": set(),
    "ids": set(),
    "origin": set(),
    "project": set(),
    "work": {"errors"},
    "connections": set(),
    "text": {"work"},
    "bundled": set(),
    "importers": VALUES | {"store"},
    "store": VALUES,
    "kernel": VALUES,
    "view": VALUES,
    "models": VALUES,
    "surface": VALUES | {"store", "kernel"},
    "session": VALUES | {"store", "kernel", "view", "models", "surface"},
    "agent": VALUES | {"store", "kernel", "view", "models", "surface", "session"},
    "doors": VALUES | {"store", "kernel", "view", "models", "surface", "session", "agent", "importers"},
    "demo": VALUES | {"store", "view", "models", "surface", "session", "agent", "importers"},
    "web": VALUES | {"store", "kernel", "view", "surface", "session"},
    "cli": VALUES
    | {"demo", "doors", "web", "store", "kernel", "view", "models", "surface", "session", "agent", "importers"},
}


def imported_layers(file: Path) -> set[str]:
    layers = set()
    for node in ast.walk(ast.parse(file.read_text())):
        modules = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the layer"
            names = [alias.name for alias in node.names]
            modules = [f"scroll_context.{n}" for n in names] if node.module == "scroll_context" else [node.module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        assert not any(m and m.startswith("scroll_evals") for m in modules), f"{file}: evaluations build on the core"
        layers |= {m.split(".")[1] for m in modules if m and m.startswith("scroll_context.")}
    return layers - {"__version__"}


def test_layers_import_in_one_direction() -> None:
    wrong, seen = [], set()
    for file in PACKAGE.rglob("*.py"):
        layer = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if layer in ("__init__", "__main__"):
            continue
        assert layer in MAY_IMPORT, f"{layer} has no place in the layers; add it to MAY_IMPORT on purpose"
        seen.add(layer)
        wrong += [f"{file.name}: {layer} -> {other}" for other in imported_layers(file) - {layer} - MAY_IMPORT[layer]]
    assert not wrong
    assert {"events", "errors", "store"} <= seen


def test_public_names_are_sorted_and_importable() -> None:
    assert scroll_context.__all__ == sorted(scroll_context.__all__)
    for name in scroll_context.__all__:
        assert getattr(scroll_context, name) is not None
    assert {"Draft", "Event", "Grant", "ScrollError", "Store"} <= set(scroll_context.__all__)


def test_importing_the_package_loads_no_heavy_module() -> None:
    heavy = ("tantivy", "rich", "typer", "pydantic_ai", "cloudpickle", "sqlite3", "numpy")
    code = f"import sys, scroll_context; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
