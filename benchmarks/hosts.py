"""The tests of the framework adapters, each in a virtual environment with its framework.

    make test-hosts                        every framework, lowest and newest supported version
    make test-hosts HOST=langchain         one framework

The environments are made below `.venv-hosts`, because the frameworks pin versions that exclude each
other. The tests run without a network where the system allows `unshare`. At the end of each run the
tokens of 200 steps are counted, with and without Scroll.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-hosts"
CORE = ROOT / "packages/scroll-context"
TESTS = CORE / "tests/hosts"

# Each is an extra of the core and a test file; an adapter has a module of `scroll_context.hosts` and
# a host in testing/ too.
FRAMEWORKS = (
    "agentscope",
    "claude_agent_sdk",
    "harbor",
    "inspect_ai",
    "langchain",
    "openai_agents",
    "smolagents",
    "telemetry",
)
# The adapter of the Claude Agent SDK uses the importer of this distribution.
BESIDE = {"claude_agent_sdk": ROOT / "packages/scroll-assistants"}
# Frameworks that need a newer Python than Scroll.
PYTHONS = {"harbor": "python3.12"}
TOOLS = ("opentelemetry-sdk>=1.45", "hypothesis>=6.170", "pytest>=9.2", "pytest-xdist>=3.8")


def extra(framework: str) -> str:
    return framework.replace("_", "-")


def floors(framework: str) -> list[str]:
    """The requirements of a framework's extra, at exactly their floors."""
    project = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]
    requirements: list[str] = project["optional-dependencies"][extra(framework)]
    return [requirement.partition(";")[0].replace(">=", "==") for requirement in requirements]


def install(framework: str, version: str) -> Path:
    """Make the environment of a framework, unless it is there; its Python."""
    folder = FOLDER / f"{framework}-{version}"
    python = folder / "bin" / "python"
    done = folder / "requirements.txt"
    requirements = floors(framework) if version == "lowest" else []
    contents = "\n".join([version, *floors(framework), *TOOLS])
    if done.exists() and done.read_text() == contents:
        return python
    interpreter = PYTHONS.get(framework, sys.executable)
    subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
    core = ["--editable", f"{CORE}[{extra(framework)}]"]
    if framework in BESIDE:
        core += ["--editable", str(BESIDE[framework])]
    command = [python, "-m", "pip", "install", "--quiet", *core, *TOOLS, *requirements]
    subprocess.run(command, check=True, cwd=ROOT)
    # Written at the end, so that an install that failed is not taken for one.
    done.write_text(contents)
    return python


def without_network() -> list[str]:
    """The beginning of a command that has no network; nothing where that is not allowed."""
    command = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare"):
        tried = subprocess.run([*command, "true"], capture_output=True, check=False)
        if tried.returncode == 0:
            return command
    print("unshare is not allowed here: the tests run with the network on", flush=True)
    return []


def run(framework: str, version: str) -> bool:
    interpreter = PYTHONS.get(framework, sys.executable)
    if shutil.which(interpreter) is None:
        print(f"{framework} needs {interpreter}, which is not installed", flush=True)
        return False
    python = install(framework, version)
    names = [requirement.partition("==")[0] for requirement in floors(framework)]
    listing = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"],
        check=True,
        capture_output=True,
        text=True,
    )
    versions = [
        line
        for line in listing.stdout.replace("_", "-").split()
        if line.partition("==")[0] in names
    ]
    print(f"== {framework}, {version}: {', '.join(versions)}", flush=True)
    if not versions:
        # The tests would be skipped, and a run that skips everything looks like a good one.
        return False
    test = TESTS / f"test_{framework}.py"
    options = ["-n", "2", "-p", "no:cacheprovider"]
    tests = [python, "-m", "pytest", *options, str(test)]
    if subprocess.run([*without_network(), *tests], check=False, cwd=ROOT).returncode:
        return False
    if not (ROOT / f"testing/host_{framework}.py").exists():
        return True
    count = [python, str(ROOT / "testing/host_tokens.py"), f"host_{framework}"]
    return subprocess.run(count, check=False, cwd=ROOT).returncode == 0


def main() -> int:
    chosen = sys.argv[1:] or list(FRAMEWORKS)
    if unknown := set(chosen) - set(FRAMEWORKS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(FRAMEWORKS)}")
    failed = [
        f"{framework} ({version})"
        for framework in chosen
        for version in ("lowest", "newest")
        if not run(framework, version)
    ]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
