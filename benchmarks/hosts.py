"""The tests of the framework adapters, each in a virtual environment with its framework.

    make test-hosts                        every framework, lowest and newest supported version
    make test-hosts HOST=langchain         one framework
    python benchmarks/hosts.py --list      the frameworks

The environments are made below `.venv-hosts`, because the frameworks pin versions that exclude each
other. The tests run without a network: in a network namespace where the system allows `unshare`,
else with sockets that refuse to connect (testing/offline.py). After the tests of an adapter that
bounds, the tokens of 200 steps are counted, with and without Scroll. A table of all runs comes last,
and `.venv-hosts/results.json` holds the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-hosts"
RESULTS = FOLDER / "results.json"
CORE = ROOT / "packages/scroll-context"
TESTS = CORE / "tests/hosts"

# Each is an extra of the core and a test file; an adapter has a module of `scroll_context.hosts`
# too, and one that bounds a host in testing/.
FRAMEWORKS = (
    "agentscope",
    "claude_agent_sdk",
    "google_adk",
    "harbor",
    "inspect_ai",
    "langchain",
    "openai_agents",
    "pydantic_ai",
    "smolagents",
    "telemetry",
)
VERSIONS = ("lowest", "newest")
BESIDE = {
    # Its adapter uses the importer of that distribution.
    "claude_agent_sdk": ["--editable", str(ROOT / "packages/scroll-assistants")],
    "langchain-newest": ["deepagents>=0.7"],
    "telemetry": ["opentelemetry-sdk>=1.45"],
}
"""What else is installed for the tests of a framework, or of one version of it."""
# Frameworks that need a newer Python than Scroll.
PYTHONS = {"harbor": "python3.12"}
TOOLS = ("hypothesis>=6.170", "pytest>=9.2", "pytest-xdist>=3.8")
HEADINGS = ("framework", "version", "packages", "tests", "seconds", "tokens without", "with Scroll")


def extra(framework: str) -> str:
    return framework.replace("_", "-")


def requirements(framework: str) -> list[str]:
    """The requirements of a framework's extra."""
    project = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]
    lines: list[str] = project["optional-dependencies"][extra(framework)]
    return [line.partition(";")[0] for line in lines]


def install(framework: str, version: str) -> Path:
    """Make the environment of a framework, unless it is there; its Python."""
    folder = FOLDER / f"{framework}-{version}"
    python = folder / "bin" / "python"
    done = folder / "requirements.txt"
    wanted = [*BESIDE.get(framework, ()), *BESIDE.get(folder.name, ())]
    if version == "lowest":
        wanted += [line.replace(">=", "==") for line in requirements(framework)]
    contents = "\n".join([*requirements(framework), *wanted, *TOOLS])
    if done.exists() and done.read_text() == contents:
        return python
    print(f"   installing {framework}, {version}", flush=True)
    interpreter = PYTHONS.get(framework, sys.executable)
    subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
    core = ["--editable", f"{CORE}[{extra(framework)}]"]
    command = [python, "-m", "pip", "install", "--quiet", *core, *TOOLS, *wanted]
    subprocess.run(command, check=True, cwd=ROOT)
    # Written at the end, so that an install that failed is not taken for one.
    done.write_text(contents)
    return python


def installed(python: Path, framework: str) -> list[str]:
    """The packages of a framework's extra in an environment, with their versions."""
    lines = [*requirements(framework), *BESIDE.get(f"{framework}-newest", ())]
    names = [line.partition(">=")[0].partition("[")[0] for line in lines]
    listing = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"],
        check=True,
        capture_output=True,
        text=True,
    )
    packages = listing.stdout.replace("_", "-").split()
    return [package for package in packages if package.partition("==")[0] in names]


def without_network() -> list[str]:
    """The beginning of a command that has no network; nothing where that is not allowed."""
    command = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare"):
        trial = subprocess.run([*command, "true"], capture_output=True, check=False)
        if trial.returncode == 0:
            return command
    return []


def run(framework: str, version: str) -> dict[str, Any]:
    """Test one framework in one version. Returns a row of the table."""
    begun = time.monotonic()
    row: dict[str, Any] = {"framework": framework, "version": version, "passed": False}
    interpreter = PYTHONS.get(framework, sys.executable)
    if shutil.which(interpreter) is None:
        return row | {"tests": f"needs {interpreter}, which is not installed"}
    try:
        python = install(framework, version)
    except subprocess.CalledProcessError:
        return row | {"tests": "could not be installed"}
    row["packages"] = installed(python, framework)
    print(f"== {framework}, {version}: {', '.join(row['packages'])}", flush=True)
    if not row["packages"]:
        # The tests would be skipped, and a run that skips everything looks like a good one.
        return row | {"tests": "the framework is not installed"}
    prefix = without_network()
    options = ["-n", "2", "-p", "no:cacheprovider", *([] if prefix else ["-p", "offline"])]
    command = [*prefix, python, "-m", "pytest", *options, TESTS / f"test_{framework}.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "testing")}
    tests = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    print(tests.stdout, flush=True)
    row["tests"] = (tests.stdout.strip().splitlines() or ["no output"])[-1]
    row["passed"] = tests.returncode == 0
    if row["passed"] and (ROOT / f"testing/host_{framework}.py").exists():
        row |= count_tokens(python, framework)
    return row | {"seconds": round(time.monotonic() - begun)}


def count_tokens(python: Path, framework: str) -> dict[str, Any]:
    """The tokens of 200 steps with and without Scroll."""
    program = ROOT / "testing/host_tokens.py"
    counted = subprocess.run(
        [python, program, f"host_{framework}"], check=False, stdout=subprocess.PIPE, text=True
    )
    if counted.returncode:
        return {"passed": False}
    tokens: dict[str, Any] = json.loads(counted.stdout)
    return tokens


def table(rows: list[dict[str, Any]]) -> str:
    lines = [HEADINGS]
    for row in rows:
        lines.append(
            (
                row["framework"],
                row["version"],
                " ".join(row.get("packages", ())),
                row["tests"] if row["passed"] else f"FAILED: {row['tests']}",
                str(row.get("seconds", "")),
                f"{row['without']:,}" if "without" in row else "",
                f"{row['with']:,}" if "with" in row else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frameworks", nargs="*", metavar="framework", help="all of them by default")
    parser.add_argument("--list", action="store_true", help="name the frameworks, and do nothing")
    parser.add_argument("--version", choices=VERSIONS, help="only this version")
    parser.add_argument("--json", action="store_true", help="print the results as JSON at the end")
    given = parser.parse_args()
    if unknown := set(given.frameworks) - set(FRAMEWORKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(FRAMEWORKS)}")
    return given


def main() -> int:
    given = arguments()
    if given.list:
        print(", ".join(FRAMEWORKS))
        return 0
    rows = []
    for framework in given.frameworks or FRAMEWORKS:
        for version in [given.version] if given.version else VERSIONS:
            rows.append(run(framework, version))
            # Written after each, so that a run that is interrupted leaves what it saw.
            RESULTS.write_text(json.dumps(rows, indent=2))
    print(json.dumps(rows, indent=2) if given.json else table(rows))
    return not all(row["passed"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
