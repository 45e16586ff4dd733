"""The process inside the jail: takes the host's requests one at a time and answers them.

The order is fixed: imports, signals, `enter` of the jail, then `Ready` with what is enforced, and
only then the first byte of anything that the host or a model wrote. From then on everything here
shares an interpreter with model code, which may break it; the host relies on none of it. What is
done about that here is for the sake of carelessness: streams, built-ins and names of the host are
put back after each cell.
"""

import builtins
import linecache
import os
import site
import socket
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any, cast

import msgspec

from scroll_context.errors import KernelUnavailable
from scroll_context.jail.entry import enter
from scroll_context.jail.linux import clean_environment, home_in
from scroll_context.jail.spec import ALLOW_UNSANDBOXED, JailSpec, make_importable
from scroll_context.kernel import cell, channel, frames, snapshot
from scroll_context.kernel.cell import CellRunner, Output, OutputLimitExceeded, Streams
from scroll_context.kernel.channel import Channel, Interrupts
from scroll_context.kernel.describe import describe
from scroll_context.kernel.names import NamesUsed
from scroll_context.kernel.process import report_process
from scroll_context.kernel.protocol import (
    Describe,
    Done,
    Execute,
    Facts,
    Failed,
    KernelSettings,
    Load,
    LoadPiece,
    Prelude,
    Prepare,
    Prepared,
    Printed,
    Ready,
    Save,
    Saved,
)
from scroll_context.kernel.results import CellError, is_variable_name
from scroll_context.kernel.snapshot import Snapshots

# Interrupts are raised in none of these.
_OWN_MODULES = (cell, channel, frames, snapshot, sys.modules[__name__])
_NAMES = 20_000
_REASON_CHARS = 65_536
_RESERVE_BYTES = 8 << 20


def serve(sock: socket.socket, settings: bytes) -> None:
    """Enter the jail, say so, and answer requests until the host goes away.

    The process must have one thread.
    """
    request = msgspec.msgpack.decode(settings, type=KernelSettings)
    spec = request.spec
    if request.allow_unsandboxed:
        os.environ[ALLOW_UNSANDBOXED] = "1"
    interrupts = Interrupts()
    interrupts.protect(*_OWN_MODULES)
    interrupts.install()
    channel = Channel(sock, interrupts)
    started_as = os.getpid()
    try:
        enforcement = enter(
            spec, keep={sock.fileno()}, report_pid=lambda pid: report_process(sock, pid)
        )
    except KernelUnavailable as error:
        if os.getpid() == started_as:
            # It failed before there was a jailed process to report.
            report_process(sock, started_as)
        channel.send(Failed(str(error)))
        return
    if enforcement.tier == "none":
        # The other tiers have done this, and more thoroughly.
        clean_environment(home_in(spec.scratch))
        os.chdir(spec.scratch)
    _tidy(spec)
    channel.send(Ready(enforcement, sys.version.partition(" ")[0]))
    Worker(channel, interrupts).run()


def _tidy(spec: JailSpec) -> None:
    """Leave the interpreter with the paths that a cell can read, and the usual built-ins."""
    if spec.tier != "none":
        readable = tuple(f"{path}/" for path in spec.read_only)
        sys.path[:] = [path for path in sys.path if f"{path}/".startswith(readable)]
    sys.argv[:] = sys.orig_argv[:] = [""]
    if spec.packages:
        make_importable(spec.packages)
    site.setquit()
    site.sethelper()


class Worker:
    """The namespace and everything that acts on it."""

    def __init__(self, channel: Channel, interrupts: Interrupts) -> None:
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        self._namespace: dict[str, Any] = main.__dict__
        self._channel = channel
        self._interrupts = interrupts
        # Any buffer can be sent.
        self._output = Output(lambda data: channel.send(Printed(cast(bytes, data))), interrupts)
        self._streams = Streams(self._output)
        self._host_names: dict[str, Any] = {}
        self._runner = CellRunner(self._namespace, self._host_names, interrupts)
        self._snapshots = Snapshots(self._namespace, interrupts)
        self._pieces: list[bytes] = []
        # It counts for the limit, but touches no memory.
        self._reserve: bytes | None = bytes(_RESERVE_BYTES)
        # Host names that were put back after the last cell.
        self._rebound: tuple[str, ...] = ()
        # Bound methods of built-in types, so that putting built-ins back needs none of them.
        self._restore_builtins = vars(builtins).update
        self._builtins = dict(vars(builtins))
        self._watch_builtins = False

    def run(self) -> None:
        while True:
            self._answer(self._channel.next_request())

    def _answer(self, request: Any) -> None:
        match request:
            case Execute(cell, source):
                self._execute(cell, source)
            case Describe():
                self._channel.send(
                    Facts(tuple(describe(*item) for item in self._variables().items()))
                )
            case Save(full, again, limit):
                variables = self._variables()
                if again:
                    self._snapshots.forget()
                unchecked = self._snapshots.save(variables, full, limit, self._channel.send)
                self._channel.send(Saved(tuple(variables), unchecked))
            case LoadPiece(piece):
                self._pieces.append(piece)
            case Load(names, module):
                data = b"".join(self._pieces)
                self._pieces.clear()
                self._channel.send(self._snapshots.load(names, data, module))
            case Prepare(preludes, output_bytes):
                self._prepare(preludes, output_bytes)

    def _variables(self) -> dict[str, Any]:
        """The model's variables: not the interpreter's names, and not the host's unless they were
        overwritten.

        A copy, because threads of a cell may keep changing the namespace.
        """
        items = [item for item in list(self._namespace.items()) if self._is_variable(*item)]
        return dict(items[:_NAMES])

    def _is_variable(self, name: str, value: Any) -> bool:
        if not is_variable_name(name):
            return False
        return name not in self._host_names or self._host_names[name] is not value

    def _execute(self, cell: int, source: str) -> None:
        self._channel.begin_cell()
        before = {name: id(value) for name, value in list(self._namespace.items())}
        error, used = self._runner.run(cell, source)
        self._watch_builtins = self._watch_builtins or "builtins" in source
        if self._watch_builtins:
            # Some cell has named the built-ins, and a function that it defined may still run.
            self._restore_builtins(self._builtins)
        if error is not None and error.limit == "memory":
            # This makes room to answer, even if the namespace itself fills the limit.
            self._reserve = None
        self._channel.send(self._done(cell, error, used, before))
        # This comes after the answer, while the host is busy with it.
        self._put_back()

    def _done(
        self, cell: int, error: CellError | None, used: NamesUsed, before: dict[str, int]
    ) -> Done:
        # The cell may have filled up or closed a stream.
        with suppress(OutputLimitExceeded, ValueError):
            self._streams.finish_cell()
        after = dict(self._namespace)
        written = [
            name
            for name, value in after.items()
            if before.get(name) != id(value) or name in used.bound
        ]
        if not (written or used.read or len(before) != len(after)):
            return Done(cell, error, rebound=self._rebound)

        def variables(names: Iterable[str]) -> list[str]:
            return [
                name for name in names if name in after and self._is_variable(name, after[name])
            ]

        # New names come first.
        bound = sorted(variables(written), key=before.__contains__)[:_NAMES]
        deleted = [name for name in before if name not in after and is_variable_name(name)]
        read = sorted(variables(used.read))
        self._snapshots.note_cell((*bound, *read))
        return Done(
            cell,
            error,
            bound=tuple(bound),
            deleted=tuple(deleted[:_NAMES]),
            read=tuple(read),
            rebound=self._rebound,
        )

    def _put_back(self) -> None:
        """Restore what a cell may have changed: signals, streams, limits, host names."""
        self._interrupts.install()
        self._output.begin_cell()
        if self._streams.stdout.closed or self._streams.stderr.closed:
            self._streams = Streams(self._output)
        sys.stdin, sys.stdout, sys.stderr = (
            self._streams.stdin,
            self._streams.stdout,
            self._streams.stderr,
        )
        sys.setrecursionlimit(1000)
        self._namespace["__name__"] = "__main__"
        self._namespace["__builtins__"] = builtins
        if self._reserve is None:
            with suppress(MemoryError):
                self._reserve = bytes(_RESERVE_BYTES)
        lost = [
            name
            for name, value in self._host_names.items()
            if self._namespace.get(name) is not value
        ]
        for name in lost:
            self._namespace[name] = self._host_names[name]
        self._rebound = tuple(lost)

    def _prepare(self, preludes: tuple[Prelude, ...], output_bytes: int) -> None:
        self._output.limit = output_bytes
        for prelude in preludes:
            try:
                self._run_prelude(prelude)
            except BaseException:  # noqa: BLE001 - whatever it is, the host must know it
                reason = f"prelude {prelude.name} failed:\n{traceback.format_exc()}"
                self._channel.send(Failed(reason[:_REASON_CHARS]))
                return
        self._namespace.update(self._host_names)
        self._put_back()
        self._channel.send(Prepared())

    def _run_prelude(self, prelude: Prelude) -> None:
        filename = f"<prelude {prelude.name}>"
        lines = prelude.source.splitlines(keepends=True)
        linecache.cache[filename] = (len(prelude.source), None, lines, filename)
        module = ModuleType(prelude.name)
        names = module.__dict__
        names["call"] = self._channel.call
        sys.modules[prelude.name] = module
        code = compile(prelude.source, filename, "exec", dont_inherit=True)
        exec(code, names)
        for export in prelude.exports:
            is_module = export == prelude.name and export not in names
            self._host_names[export] = module if is_module else names[export]
