"""The world that an attack is aimed at: secrets, a victim, listening sockets, a terminal, all owned
by its user.

Everything is made anew for each run and compared afterwards, so that damage is seen even when the
attack itself reports none.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pty
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

_VICTIM_TEXT = ctypes.create_string_buffer(b"victim of attacks")


class World:
    def __init__(self, user: int | None) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="scroll-attack-")).resolve()
        for name in ("outside/empty", "declared", "scratch"):
            (self.base / name).mkdir(parents=True)
        self.secret = self.base / "outside/secret"
        self.secret.write_text("secret text")
        with contextlib.suppress(OSError):  # not every file system has them
            os.setxattr(self.secret, "user.note", b"secret note")
        (self.base / "outside/link").symlink_to("secret")
        self.library = self.base / "declared/library"
        self.library.write_text("library text")
        (self.base / "declared/planted").symlink_to(self.secret)
        self.inherited = os.open(self.secret, os.O_RDWR)
        os.set_inheritable(self.inherited, True)
        self._listen()
        self.terminal_host, self.terminal = pty.openpty()
        if user is not None:
            self._give_to(user)
        self.victim = self._spawn_victim(user)
        self.before = self._state()

    def _listen(self) -> None:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.tcp6 = (
            socket.create_server(("::1", 0), family=socket.AF_INET6) if socket.has_ipv6 else None
        )
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract = f"\0scroll-attack-{os.getpid()}-{time.monotonic_ns()}"
        self.sockets = []
        for kind, path, abstract in (
            (socket.SOCK_STREAM, "outside/stream", self.abstract),
            (socket.SOCK_DGRAM, "outside/datagram", self.abstract + "-datagram"),
        ):
            for address in (str(self.base / path), abstract):
                listener = socket.socket(socket.AF_UNIX, kind)
                listener.bind(address)
                if kind == socket.SOCK_STREAM:
                    listener.listen()
                self.sockets.append(listener)

    def _give_to(self, user: int) -> None:
        for path in (self.base, *self.base.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)
        os.fchown(self.terminal, user, user)

    def _spawn_victim(self, user: int | None) -> int:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            become(user)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            ctypes.CDLL(None).prctl(
                4, 1, 0, 0, 0
            )  # dumpable again, so that only the jail protects it
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
            os.write(writer, b"ready")
            while True:
                signal.pause()
        os.read(reader, 5)
        os.close(reader)
        os.close(writer)
        return child

    def targets(self, answer: int, environment_address: int) -> SimpleNamespace:
        return SimpleNamespace(
            outside=str(self.base / "outside"),
            declared=str(self.base / "declared"),
            scratch=str(self.base / "scratch"),
            secret=str(self.secret),
            library=str(self.library),
            victim=self.victim,
            victim_address=ctypes.addressof(_VICTIM_TEXT),
            tcp_port=self.tcp.getsockname()[1],
            tcp6_port=self.tcp6.getsockname()[1] if self.tcp6 else 9,
            udp_port=self.udp.getsockname()[1],
            unix_path=str(self.base / "outside/stream"),
            unix_datagram_path=str(self.base / "outside/datagram"),
            abstract=self.abstract,
            abstract_datagram=self.abstract + "-datagram",
            terminal=self.terminal,
            answer=answer,
            environment_address=environment_address,
            secret_inode=self.secret.stat().st_ino,
        )

    def damage(self) -> str:
        """What an attack changed outside its scratch folder; empty if nothing."""
        after = self._state()
        return ", ".join(
            sorted(
                name
                for name in self.before.keys() | after.keys()
                if self.before.get(name) != after.get(name)
            )
        )

    def _state(self) -> dict[str, tuple[object, ...]]:
        state: dict[str, tuple[object, ...]] = {"the victim": (self._victim_lives(),)}
        for tree in ("outside", "declared"):
            for path in sorted((self.base / tree).rglob("*")):
                info = path.lstat()
                plain = path.is_file() and not path.is_symlink()
                text = hashlib.sha256(path.read_bytes()).hexdigest() if plain else ""
                attributes = tuple(os.listxattr(path)) if plain else ()
                state[str(path)] = (
                    info.st_mode,
                    info.st_uid,
                    info.st_size,
                    info.st_mtime_ns,
                    text,
                    attributes,
                )
        return state

    def _victim_lives(self) -> bool:
        ended = os.waitid(os.P_PID, self.victim, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is None

    def empty_scratch(self) -> None:
        for path in (self.base / "scratch").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        os.kill(self.victim, signal.SIGKILL)
        os.waitpid(self.victim, 0)
        for closable in (self.tcp, self.udp, *self.sockets, *([self.tcp6] if self.tcp6 else [])):
            closable.close()
        for descriptor in (self.inherited, self.terminal, self.terminal_host):
            os.close(descriptor)
        shutil.rmtree(self.base, ignore_errors=True)


def become(user: int | None) -> None:
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
