"""The tests of the framework adapters, each in a virtual environment with its framework.

    make test-hosts                        every framework, lowest and newest supported version
    make test-hosts HOST=langchain         one framework
    python benchmarks/hosts.py --list      the frameworks

The environments are made below `.venv-hosts`, because the frameworks pin versions that exclude each
other. The newest version is the newest that can be installed; a newer one that the registry has is
named in the table. The tests run without a network: in a network namespace where the system allows
`unshare`, else with sockets that refuse to connect (testing/offline.py), and
packages/scroll-adapters/tests/test_offline.py checks it in each run. With the newest version of a framework whose
adapter bounds, the tokens of 200 steps are counted, with and without Scroll. A table of all runs comes last, and
`.venv-hosts/results.json` holds the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-hosts"
RESULTS = FOLDER / "results.json"
CORE = ROOT / "packages/scroll-context"
ADAPTERS = ROOT / "packages/scroll-adapters"

VERSIONS = ("lowest", "newest")
TOOLS = ("hypothesis>=6.170", "pytest>=9.2", "pytest-xdist>=3.8")
HEADINGS = ("framework", "version", "packages", "tests", "seconds", "tokens without", "with Scroll")


class Framework(NamedTuple):
    """How the environment of a framework is made.

    The name of a framework is that of its test file, and for an adapter that bounds, that of a host
    in testing/. Most also have an extra and a module of scroll-adapters.
    """

    # The extra of the distribution, where its name differs.
    extra: str = ""
    # Arguments of pip for more packages, in both versions or in the newest only.
    beside: tuple[str, ...] = ()
    beside_newest: tuple[str, ...] = ()
    # Requirements that are installed without their own requirements, after all others.
    alone: tuple[str, ...] = ()
    # The oldest Python that the framework runs on, if that is newer than ours.
    python: tuple[int, int] = (3, 11)


# The agent of QwenPaw runs with these. Its application requires some 200 packages more.
QWENPAW_AGENT = (
    "agent-client-protocol>=0.9,<0.11",
    "apscheduler>=3.11,<4",
    "cryptography>=43",
    "google-genai>=2",
    "html2text>=2024.2",
    "keyring>=25",
    "orjson>=3.9",
    "pillow>=10",
    "playwright>=1.49",
    "psutil>=6",
    "python-dotenv>=1",
    "segno>=1.6",
    "watchfiles>=0.22",
    "wcmatch>=10",
)

FRAMEWORKS = {
    "agentscope": Framework(),
    "claude_agent_sdk": Framework(),
    "google_adk": Framework(),
    "harbor": Framework(python=(3, 12)),
    "inspect_ai": Framework(),
    "langchain": Framework(beside_newest=("deepagents>=0.7",)),
    "openai_agents": Framework(),
    "pydantic_ai": Framework(),
    "qwenpaw": Framework("agentscope", beside=QWENPAW_AGENT, alone=("qwenpaw>=2.2.2",)),
    "smolagents": Framework(),
    "telemetry": Framework(beside=("opentelemetry-sdk>=1.45",)),
}


class Unavailable(Exception):
    """Why a framework cannot be tested on this machine."""


# environments -----------------------------------------------------------------------------------


def requirements(name: str) -> list[str]:
    """The requirements of a framework's extra, and those that are installed alone."""
    foreign = [line for line in extra_lines(name) if not is_ours(line)]
    return [*(line.partition(";")[0] for line in foreign), *FRAMEWORKS[name].alone]


def extra_lines(name: str) -> list[str]:
    project = tomllib.loads((ADAPTERS / "pyproject.toml").read_text())["project"]
    lines: list[str] = project["optional-dependencies"][extra(name)]
    return lines


def is_ours(requirement: str) -> bool:
    return requirement.startswith("scroll-")


def own_packages(name: str) -> list[str]:
    """Arguments of pip for the distributions of this checkout that a framework's tests need."""
    others = [line.partition("==")[0] for line in extra_lines(name) if is_ours(line)]
    folders = {CORE, *(ROOT / "packages" / other for other in others)}
    places = [f"{ADAPTERS}[{extra(name)}]", *sorted(map(str, folders))]
    return [word for place in places for word in ("--editable", place)]


def extra(name: str) -> str:
    return FRAMEWORKS[name].extra or name.replace("_", "-")


def at_version(requirement: str, version: str) -> str:
    return requirement.replace(">=", "==") if version == "lowest" else requirement


def interpreter(name: str) -> str:
    """A Python that is new enough for a framework."""
    oldest = FRAMEWORKS[name].python
    minors = range(oldest[1], 15)
    commands = [f"python3.{minor}" for minor in minors]
    # The commands that pyenv puts on the path fail for versions that are not chosen.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for minor in minors:
        commands += map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/python")))
    for command in (sys.executable, *commands):
        if shutil.which(command) is None:
            continue
        probe = f"import sys; sys.exit(sys.version_info < {oldest})"
        tried = subprocess.run([command, "-c", probe], capture_output=True, check=False)
        if tried.returncode == 0:
            return command
    raise Unavailable(f"needs Python {oldest[0]}.{oldest[1]} or newer, which is not installed")


def install(name: str, version: str) -> Path:
    """Make the environment of a framework, unless it is there; its Python."""
    framework = FRAMEWORKS[name]
    folder = FOLDER / f"{name}-{version}"
    python = folder / "bin" / "python"
    alone = [at_version(line, version) for line in framework.alone]
    wanted = [*framework.beside, *(framework.beside_newest if version == "newest" else ())]
    if version == "lowest":
        pinned = [line for line in requirements(name) if line not in framework.alone]
        wanted += [at_version(line, version) for line in pinned]
    done = folder / "requirements.txt"
    contents = "\n".join([*requirements(name), *wanted, *alone, *TOOLS])
    if done.exists() and done.read_text() == contents:
        return python
    command = interpreter(name)
    print(f"   installing {name}, {version}", flush=True)
    try:
        subprocess.run([command, "-m", "venv", "--clear", folder], check=True)
        pip(python, *own_packages(name), *TOOLS, *wanted)
        if alone:
            pip(python, "--no-deps", *alone)
    except subprocess.CalledProcessError as error:
        raise Unavailable("could not be installed") from error
    # Written at the end, so that an install that failed is not taken for one.
    done.write_text(contents)
    return python


def pip(python: Path, *arguments: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def packages(name: str) -> list[str]:
    """The names of the packages that a framework consists of."""
    lines = [*requirements(name), *FRAMEWORKS[name].beside_newest]
    return [line.partition(">=")[0].partition("[")[0] for line in lines]


def installed(python: Path, name: str) -> list[str]:
    """The packages of a framework in an environment, as `name==version`."""
    listing = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = listing.stdout.replace("_", "-").split()
    return [line for line in lines if line.partition("==")[0] in packages(name)]


def newer_than(python: Path, present: Sequence[str]) -> list[str]:
    """Newer versions in the registry, which other requirements kept from being installed."""
    newer = []
    for line in present:
        package, _, version = line.partition("==")
        listing = subprocess.run(
            [python, "-m", "pip", "index", "versions", package],
            check=False,
            capture_output=True,
            text=True,
        )
        # The first line is `name (newest version)`.
        newest = listing.stdout.partition("(")[2].partition(")")[0]
        if newest and newest != version:
            newer.append(f"{package}=={newest}")
    return newer


# runs -------------------------------------------------------------------------------------------


def without_network() -> list[str]:
    """The beginning of a command that has no network; nothing where that is not allowed."""
    loopback = 'ip link set lo up && exec "$@"'
    command = ["unshare", "--net", "--map-root-user", "sh", "-c", loopback, "sh"]
    if shutil.which("unshare"):
        trial = subprocess.run([*command, "true"], capture_output=True, check=False)
        if trial.returncode == 0:
            return command
    return []


def run(name: str, version: str, earlier: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Test one framework in one version. Returns a row of the table."""
    begun = time.monotonic()
    row: dict[str, Any] = {"framework": name, "version": version, "passed": False}
    try:
        python = install(name, version)
    except Unavailable as error:
        return row | {"tests": str(error)}
    row["packages"] = installed(python, name)
    if version == "newest":
        row["newer"] = newer_than(python, row["packages"])
    print(f"== {name}, {version}: {', '.join(row['packages'])}", flush=True)
    if not row["packages"]:
        # The tests would be skipped, and a run that skips everything looks like a good one.
        return row | {"tests": "the framework is not installed"}
    tested = [other for other in earlier if is_same(other, row)]
    if tested:
        row |= {"passed": tested[0]["passed"], "tests": f"the same as {tested[0]['version']}"}
    else:
        row |= run_tests(python, name)
    is_bounding = (ROOT / f"testing/host_{name}.py").exists()
    if row["passed"] and is_bounding and version == "newest":
        row |= count_tokens(python, name)
    return row | {"seconds": round(time.monotonic() - begun)}


def is_same(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether two rows are for one framework in one version."""
    return all(other.get(key) == row[key] for key in ("framework", "packages"))


def run_tests(python: Path, name: str) -> dict[str, Any]:
    """Run the tests of a framework; how they ended."""
    prefix = without_network()
    plugin = [] if prefix else ["-p", "offline"]
    files = [ADAPTERS / f"tests/test_{name}.py", ADAPTERS / "tests/test_offline.py"]
    options = ["-rs", "-n", "2", "-p", "no:cacheprovider", *plugin]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "testing"),
        "SCROLL_OFFLINE": "namespace" if prefix else "sockets",
    }
    tests = subprocess.run(
        [*prefix, python, "-m", "pytest", *options, *files],
        check=False,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    print(tests.stdout, flush=True)
    last_line = (tests.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
    return {"tests": last_line, "passed": tests.returncode == 0}


def count_tokens(python: Path, name: str) -> dict[str, Any]:
    """The tokens of 200 steps with and without Scroll."""
    program = ROOT / "testing/host_tokens.py"
    counted = subprocess.run(
        [*without_network(), python, program, f"host_{name}"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if counted.returncode:
        return {"passed": False, "tests": "the tokens could not be counted"}
    tokens: dict[str, Any] = json.loads(counted.stdout)
    return tokens


def table(rows: list[dict[str, Any]]) -> str:
    lines = [HEADINGS]
    for row in rows:
        newer = [f"({package} cannot be installed)" for package in row.get("newer", ())]
        lines.append(
            (
                row["framework"],
                row["version"],
                " ".join([*row.get("packages", ()), *newer]),
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
    FOLDER.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in given.frameworks or FRAMEWORKS:
        for version in [given.version] if given.version else VERSIONS:
            rows.append(run(name, version, rows))
            # Written after each, so that a run that is interrupted leaves what it saw.
            RESULTS.write_text(json.dumps(rows, indent=2))
    print(json.dumps(rows, indent=2) if given.json else table(rows))
    return not all(row["passed"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
