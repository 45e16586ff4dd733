"""The tests with the oldest dependencies that Scroll says it works with: are the floors in the
pyproject files true?

    make test-lowest                       every test
    make test-lowest ARGS="packages/scroll-context/tests/log"    a part of them; ARGS goes to pytest

Each dependency of a distribution, and of its extras, is installed at exactly its floor
(`>=X`) into a virtual environment of its own, `.venv-lowest`. Their own dependencies and the tools of
the tests stay new. The floors of the frameworks are tested by `make test-hosts`.
"""

import re
import subprocess
import sys
import tomllib
import venv
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-lowest"
PROJECTS = tuple(sorted(ROOT.glob("packages/*/pyproject.toml")))
OTHERS = (
    "assistants",
    "shared",
    "inspector",
    "gateway[openai,anthropic]",
    "adapters[pydantic-ai]",
    "evals",
)
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[\w,-]+\])?([>=]=(?P<floor>[\w.]+))?(; python_version >= '[\d.]+')?"
)


def floors() -> dict[str, str]:
    """The floor of every direct dependency; where two places name one, the higher counts, as it
    does for pip.
    """
    lowest: dict[str, str] = {}
    for project in PROJECTS:
        table = tomllib.loads(project.read_text())["project"]
        for requirement in chain(
            table["dependencies"], *table.get("optional-dependencies", {}).values()
        ):
            match = REQUIREMENT.fullmatch(requirement)
            if match is None:
                raise SystemExit(
                    f"{project.relative_to(ROOT)}: {requirement!r} is not written as name>=floor"
                )
            name, floor = match["name"], match["floor"]
            if name.startswith("scroll-"):
                continue
            if floor is None:
                raise SystemExit(f"{project.relative_to(ROOT)}: {name} has no floor")
            lowest[name] = max(lowest.get(name, "0"), floor, key=numbers)
    return dict(sorted(lowest.items()))


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def install(pinned: dict[str, str]) -> str:
    """Make the environment, unless it has these versions already; its Python."""
    python = str(FOLDER / "bin" / "python")
    constraints = "".join(f"{name}=={floor}\n" for name, floor in pinned.items())
    written = FOLDER / "constraints.txt"
    if written.exists() and written.read_text() == constraints:
        return python
    venv.create(FOLDER, clear=True, with_pip=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1"], check=True
    )
    # Renamed at the end, so that an install that failed is not taken for one.
    waiting = FOLDER / "constraints.new"
    waiting.write_text(constraints)
    packages = ["--editable", "./packages/scroll-context[models,mcp]"]
    for name in OTHERS:
        packages += ["--editable", f"./packages/scroll-{name}"]
    packages += ["--group", "dev"]
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", str(waiting), *packages]
    subprocess.run(command, check=True, cwd=ROOT)
    waiting.rename(written)
    return python


def main() -> int:
    pinned = floors()
    print("\n".join(f"{name}=={floor}" for name, floor in pinned.items()), flush=True)
    python = install(pinned)
    return subprocess.run(
        [python, "-m", "pytest", *(sys.argv[1:] or ["-n", "2"])], check=False, cwd=ROOT
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
