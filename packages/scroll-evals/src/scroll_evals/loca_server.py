"""One sandbox server of a LOCA-bench checkout: started on a free port of 127.0.0.1, watched, and
always stopped.

Each trial has a server of its own, as in the benchmark, so that one that dies takes no other trial
with it. It runs behind a supervisor (loca_supervisor.py), which ends it and all that it started
when this process lets go of it or dies. It gets an environment with nothing of ours in it: no keys,
and a home folder of its own. Once it answers, it is verified that it is this server that answers,
and that it listens on 127.0.0.1 and nowhere else.

This is not a sandbox by itself: what a task's tools execute runs with the rights of the user. Run
LOCA-bench in a container or under an account that has nothing to lose.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from scroll_context.errors import ToolFailed
from scroll_evals import loca_supervisor
from scroll_evals.loca_client import LocaClient
from scroll_evals.loca_environment import ServerEnvironment
from scroll_evals.loca_supervisor import GRACE, descendants

SCRIPT = Path("gem", "server", "http_server.py")  # in a checkout
HEALTHY_SECONDS = 180.0  # it imports much, and several may be starting at once
POLL = 0.2
DYING_SECONDS = 10.0  # between a server's last answer and its end, on a busy machine
PORTS = 3  # tries, when somebody takes the port that was free a moment ago
LOG_TAIL = 2_000  # bytes of the log that an error repeats
_PASSED_ON = (
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "SHELL",
    "SSL_CERT_FILE",
)
_LISTENING = "0A"  # a state in /proc/net/tcp
_LOOPBACK = "0100007F"


class LocaServer:
    """A server that answers. Make one with start(); use it in a with statement, or call stop()."""

    def __init__(self, supervisor: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self._supervisor = supervisor
        self._log = log
        self.client = LocaClient(port)

    @classmethod
    def start(
        cls,
        checkout: Path,
        environment: ServerEnvironment,
        folder: Path,
        log: Path,
        *,
        ports: Iterator[int] | None = None,
        healthy_seconds: float = HEALTHY_SECONDS,
        check: Callable[[], None] = lambda: None,
    ) -> "LocaServer":
        """Start a server that may write to `folder` and appends what it says to `log`; wait until
        it answers.

        `ports` are tried in turn. `check` is called while waiting and may raise. Raises ToolFailed
        when there is no server in the end, with its last words.
        """
        ports = ports or (free_port() for _ in range(PORTS))
        fault: ToolFailed | None = None
        for port in ports:
            server = cls(_spawn(checkout, environment, folder, log, port), port, log)
            try:
                server._await_health(time.monotonic() + healthy_seconds, check)
                return server
            except ToolFailed as error:
                taken = not server.is_alive and _is_taken(port)
                server.stop()
                if not taken:
                    raise
                fault = error
            except BaseException:
                server.stop()
                raise
        raise fault or ToolFailed("no port was given to start a sandbox server on")

    def __enter__(self) -> "LocaServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def is_alive(self) -> bool:
        return self._supervisor.poll() is None

    def has_died(self) -> bool:
        """Whether it ended by itself.

        One that does not answer may be about to, and is waited for.
        """
        try:
            self._supervisor.wait(0 if self.client.is_healthy() else DYING_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """End the server and all processes that it started."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        try:
            self._supervisor.wait(3 * GRACE)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()  # the kernel ends the server with it
            self._supervisor.wait()

    def log_tail(self) -> str:
        """The end of the server's log, for an error."""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL))
            said = log.read().decode(errors="replace").strip()
        return f" It last wrote: {said}" if said else ""

    def _await_health(self, until: float, check: Callable[[], None]) -> None:
        while not self._answers():
            check()
            self._check_alive()
            if time.monotonic() > until:
                raise ToolFailed(
                    f"the sandbox server does not become healthy.{self.log_tail()}", state="timeout"
                )
            time.sleep(POLL)

    def _answers(self) -> bool:
        """Whether it answers.

        While it does not listen itself, an answer on its port comes from another process.
        """
        found = listening(self._supervisor.pid)
        if found is not None and found != {("127.0.0.1", self.client.port)}:
            if not found:
                return False
            where = ", ".join(f"{address}:{port}" for address, port in sorted(found))
            raise ToolFailed(
                f"the sandbox server listens on {where} instead of 127.0.0.1:{self.client.port} alone"
            )
        return self.client.is_healthy()

    def _check_alive(self) -> None:
        if not self.is_alive:
            status = self._supervisor.returncode
            raise ToolFailed(f"the sandbox server ended with status {status}.{self.log_tail()}")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(pid: int) -> set[tuple[str, int]] | None:
    """The addresses that this process and those below it accept TCP connections on; None where
    there is no /proc.
    """
    tables = [table for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if table.exists()]
    if not tables:
        return None
    inodes = {inode for one in (pid, *descendants(pid)) for inode in _sockets(one)}
    found: set[tuple[str, int]] = set()
    for table in tables:
        for row in table.read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add(("127.0.0.1" if address == _LOOPBACK else f"0x{address}", int(port, 16)))
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    try:
        links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # it ended meanwhile
        return set()
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _spawn(
    checkout: Path, environment: ServerEnvironment, folder: Path, log: Path, port: int
) -> "subprocess.Popen[bytes]":
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {
        "HOME": str(home),
        "PATH": os.pathsep.join([*map(str, environment.bins), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "mcp_convert")]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # the checkout stays as it is
    }
    server = [environment.python, checkout / SCRIPT, "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-I", loca_supervisor.__file__, *server, "--workspace-base", folder]
    with log.open("ab") as said:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=checkout,  # some of its tools are started by relative paths
            env=variables,
            start_new_session=True,  # Ctrl-C in a terminal is for us; we stop the server
        )
