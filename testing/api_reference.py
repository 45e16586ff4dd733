"""docs/reference/python.md and errors.md, made from the docstrings of the public names.

`python testing/api_reference.py` writes both. A test compares the files with these texts, so a
public name cannot be without documentation, and a removed one cannot stay documented.
"""

import inspect
import re
from pathlib import Path
from types import ModuleType

import scroll_context
import scroll_context.errors
import scroll_context.hosts
import scroll_gateway

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
MARK = "<!-- Everything below is generated from docstrings by testing/api_reference.py. -->\n"
MODULES = {
    scroll_context: "For every program",
    scroll_context.hosts: "For authors of host adapters",
    scroll_gateway: "For programs that use a provider's SDK",
}


def python_names() -> str:
    """The generated part of the Python reference."""
    sections = []
    for module, heading in MODULES.items():
        entries = [_entry(module, name) for name in module.__all__]
        sections.append(
            f"## {heading}\n\nImport from `{module.__name__}`.\n\n" + "\n".join(entries)
        )
    return MARK + "\n" + "\n".join(sections)


def errors() -> str:
    """The generated part of the page about errors: the tree, and a row for each class."""
    module = scroll_context.errors
    tree = inspect.getdoc(module) or ""
    drawing = "\n".join(line[4:] for line in tree.splitlines() if line.startswith("    "))
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    rows = [f"| `{error.__name__}` | {_summary(error)} |" for error in classes]
    table = "\n".join(["| error | meaning |", "|---|---|", *rows])
    return f"{MARK}\n```text\n{drawing}\n```\n\n{table}\n"


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    text = inspect.getdoc(value) or ""
    prose, prompt, example = text.partition(">>> ")
    parts = [f"### {name}\n", prose.strip() + "\n"]
    if prompt:
        parts.append(f"```text\n{prompt}{example.strip()}\n```\n")
    members = [] if not inspect.isclass(value) else _members(value)
    if members:
        parts.append("\n".join(["| method | |", "|---|---|", *members]) + "\n")
    return "\n".join(parts)


def _members(kind: type) -> list[str]:
    """The public methods that a class defines itself and describes."""
    rows = []
    for name, member in vars(kind).items():
        function = getattr(member, "__func__", member)
        described = inspect.isfunction(function) and function.__doc__
        if described and not name.startswith("_"):
            rows.append(f"| `{name}({_parameters(function)})` | {_summary(function)} |")
    return rows


def _parameters(function: object) -> str:
    names = inspect.signature(function).parameters  # type: ignore[arg-type]
    return ", ".join(name for name in names if name not in ("self", "cls"))


def _summary(value: object) -> str:
    """The first paragraph of a docstring in one line of a table."""
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0]
    return re.sub(r"\s+", " ", paragraph.split(">>>")[0]).replace("|", "\\|").strip()


PAGES = {"python.md": python_names, "errors.md": errors}


def page(name: str) -> str:
    """A complete page: its written part as it is, and the generated part."""
    written = (FOLDER / name).read_text("utf-8").partition(MARK)[0]
    return written + PAGES[name]()


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / name).write_text(page(name), "utf-8")
