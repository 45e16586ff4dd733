"""The Python environment that LOCA-bench's server runs in: made once, in a cache folder, and used
again.

The server needs versions of its libraries that clash with ours, two tool servers written for Node,
and two written in Python. Each step that succeeded leaves a mark, so an interrupted installation
continues where it stopped. Another set of requirements or another Python makes another folder.

Everything runs on the Python that runs Scroll, so no other one is downloaded. `pdf-tools-mcp` says
that it needs 3.12. Version 0.1.4 uses nothing newer than 3.11 has: on 3.11.7 it started and read the
pages of a PDF through an MCP client. It is therefore installed regardless of the Python that it
names, without its requirements, which a step before it installs.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from scroll_context.errors import BadInput

PINS = ("mcp<2", "fastmcp<3", "pandas<3")  # newer ones do not work with the server
NODE_SERVERS = ("@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-memory")
CLI_SERVER = "cli-mcp-server"
PDF_SERVER = "pdf-tools-mcp"
PDF_LIBRARIES = ("pypdf2>=3.0.1", "mcp[cli]", "httpx", "requests")
LAST_LINES = 8  # of a step's output that an error repeats
TOLD_EVERY = 15.0  # seconds between two remarks on a step that takes long

Tell = Callable[[str], None]


class ServerEnvironment(msgspec.Struct, frozen=True):
    """Where the server's Python is, and the folders to put before its PATH."""

    python: Path
    bins: tuple[Path, ...]


class InstallStep(msgspec.Struct, frozen=True, kw_only=True):
    """One command of an installation.

    Without one that is optional, only the tasks that need it cannot run.
    """

    name: str
    says: str
    command: tuple[str, ...]
    variables: dict[str, str] = {}
    optional: bool = False


def cache_folder() -> Path:
    """Where environments are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "scroll-context" / "loca"


def existing(python: Path) -> ServerEnvironment:
    """An environment that the user made; the tool servers are looked for beside its Python and on
    the PATH.
    """
    if not python.is_file() or not os.access(python, os.X_OK):
        raise BadInput(
            f"{python} is not an executable Python; name the Python of the server's environment"
        )
    return ServerEnvironment(python.absolute(), (python.absolute().parent,))


def prepared(checkout: Path, tell: Tell, cache: Path | None = None) -> ServerEnvironment:
    """The environment for a checkout, made if it is not there yet.

    Raises BadInput when it cannot be made.
    """
    requirements = (*requirements_of(checkout), *PINS)
    told = "\n".join([sys.version, *requirements, *NODE_SERVERS, CLI_SERVER, PDF_SERVER])
    folder = (cache or cache_folder()) / hashlib.sha256(told.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, tell):
        install(folder, steps(folder, requirements), tell)
    bins = (folder / "python" / "bin", folder / "bin", folder / "node" / "node_modules" / ".bin")
    return ServerEnvironment(bins[0] / "python", bins)


def requirements_of(checkout: Path) -> tuple[str, ...]:
    """The requirements of the checkout itself."""
    file = checkout / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return msgspec.convert(project["dependencies"], tuple[str, ...])
    except OSError as error:
        raise BadInput(
            f"cannot read {file}: {error.strerror}; is this a checkout of LOCA-bench?"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file} does not list the server's requirements: {error}") from error


def steps(folder: Path, requirements: tuple[str, ...]) -> tuple[InstallStep, ...]:
    """The commands that make an environment in a folder."""
    bins = folder / "python" / "bin"
    places = {"UV_TOOL_DIR": str(folder / "applications"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    pip = (str(bins / "python"), "-m", "pip", "install", "--disable-pip-version-check")
    return (
        InstallStep(
            name="python",
            says="making a Python environment",
            command=(sys.executable, "-m", "venv", "--clear", str(folder / "python")),
        ),
        InstallStep(
            name="packages",
            says="installing the server's Python packages (some minutes)",
            command=(*pip, "uv", *requirements),
        ),
        InstallStep(
            name="node",
            says="installing the tool servers for Node",
            command=(
                "npm",
                "install",
                "--no-fund",
                "--no-audit",
                "--prefix",
                str(folder / "node"),
                *NODE_SERVERS,
            ),
        ),
        InstallStep(
            name=CLI_SERVER,
            says=f"installing {CLI_SERVER}",
            command=(
                str(bins / "uv"),
                "tool",
                "install",
                "--force",
                "--no-python-downloads",
                "--python",
                sys.executable,
                "--with",
                PINS[0],
                CLI_SERVER,
            ),
            variables=places,
            optional=True,
        ),
        InstallStep(
            name="pdf-libraries",
            says=f"installing the libraries of {PDF_SERVER}",
            command=(*pip, *PDF_LIBRARIES, *PINS),
            optional=True,
        ),
        InstallStep(
            name=PDF_SERVER,
            says=f"installing {PDF_SERVER}",
            command=(*pip, "--no-deps", "--ignore-requires-python", PDF_SERVER),
            optional=True,
        ),
    )


def install(folder: Path, todo: tuple[InstallStep, ...], tell: Tell) -> None:
    """Carry out the steps that were not yet, in order."""
    log = folder / "install.log"
    for step in todo:
        done = folder / f"{step.name}.done"
        if done.exists():
            continue
        tell(f"LOCA server: {step.says}")
        fault = _run(step, folder, log, tell)
        if fault and not step.optional:
            raise BadInput(
                f"{step.says} failed: {fault}\nThe complete log is {log}. Run the command again to continue, or "
                "name a Python that can run the server already."
            )
        if fault:
            tell(
                f"LOCA server: {step.says} failed; tasks that need it will be reported as environment-failed. {fault}"
            )
        else:
            done.touch()


def _run(step: InstallStep, folder: Path, log: Path, tell: Tell) -> str:
    """Run one step; what went wrong, or nothing."""
    program = shutil.which(step.command[0])
    if program is None:
        return f"there is no {step.command[0]} on the PATH"
    begun = time.monotonic()
    last: deque[str] = deque(maxlen=LAST_LINES)
    process = subprocess.Popen(
        [program, *step.command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env=os.environ | step.variables,
    )
    reader = threading.Thread(target=_keep, args=(process, log, last), daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            reader.join(TOLD_EVERY)
            if reader.is_alive():
                said = last[-1][:100] if last else ""
                tell(f"LOCA server: {step.says}, {time.monotonic() - begun:.0f} s so far: {said}")
    except BaseException:
        process.kill()
        raise
    return (
        f"status {process.returncode}. It last wrote:\n" + "\n".join(last) if process.wait() else ""
    )


def _keep(process: "subprocess.Popen[str]", log: Path, last: deque[str]) -> None:
    """Write what a process says to a log, until it ends; `last` has the end of it."""
    assert process.stdout is not None
    with log.open("a") as kept, process.stdout:
        for line in process.stdout:
            kept.write(line)
            last.append(line.strip())


@contextlib.contextmanager
def _locked(folder: Path, tell: Tell) -> Iterator[None]:
    """Keep other processes from installing into the same folder."""
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("LOCA server: waiting for another process that is installing its environment")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
