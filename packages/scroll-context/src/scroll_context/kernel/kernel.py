"""The kernel as the rest of Scroll sees it: a Python namespace that lives across cells, in a jailed
process.

`Kernel` owns the lifetime: it starts a worker, runs cells in it, saves and restores its namespace,
and replaces it when it had to be killed. It knows nothing of stores or models; what cells may reach
arrives as `dispatch`, and where pickles are kept as `blobs`. All methods may be called from any
thread; they take turns, except `interrupt`, which acts on the current turn. No method waits without
a deadline, whatever the model's code does.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec

from scroll_context.errors import KernelDied, KernelError, KernelUnavailable
from scroll_context.jail.scratch import ScratchFolder
from scroll_context.jail.spec import (
    ALLOW_UNSANDBOXED,
    UNTESTED,
    Enforcement,
    JailSpec,
    Tier,
    default_read_only,
    package_paths,
    site_packages,
)
from scroll_context.kernel.protocol import (
    Describe,
    Done,
    Execute,
    Facts,
    KernelSettings,
    Prelude,
    Prepare,
    Save,
    Saved,
)
from scroll_context.kernel.results import (
    BlobStore,
    CapabilityCall,
    CellError,
    CellResult,
    Dispatch,
    Ended,
    Loss,
    Manifest,
    MemoryBlobs,
    RestoreReport,
    SaveReport,
    Variable,
    head_and_tail,
    without_repeats,
)
from scroll_context.kernel.saving import SavedPieces, load_into
from scroll_context.kernel.variables import Namespace, check_names
from scroll_context.kernel.worker_process import WorkerProcess

if TYPE_CHECKING:
    from scroll_context.kernel.launcher import ForkServer

WORKER_MODULE = "scroll_context.kernel.worker"
"""The module that runs inside the jail. The host itself never imports it."""

_SETUP_SECONDS = 30.0
_DESCRIBE_SECONDS = 5.0
_SAVE_SECONDS = 60.0
# The pickles of one save may take this many times the memory of a worker.
_PICKLES = 4
# The pause between two requests to stop, when closing.
_AGAIN_SECONDS = 0.05
_NOT_RUNNING = "the kernel is not running: call start(), or use it in a with statement"


class KernelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that the host keeps; those of the jail are in `JailSpec.limits`."""

    # How much of a cell's output the model sees.
    output_chars: int = 32_000
    # How much of a cell's output is recorded. A cell that prints more is stopped.
    output_bytes: int = 64 << 20
    # The time for each capability call.
    call_seconds: float = 60.0
    # The size of one variable's pickle.
    blob_bytes: int = 256 << 20
    # Packages that cells can import: names or paths, as in `JailSpec.packages`.
    packages: tuple[str, ...] = ()
    # Workers of one fork server start fast, and share hash seed and address layout.
    share_fork_server: bool = True


class Kernel:
    """One namespace, in one jailed process at a time."""

    def __init__(
        self,
        dispatch: Dispatch | Mapping[str, Callable[..., Any]] | None = None,
        *,
        preludes: tuple[Prelude, ...] = (),
        blobs: BlobStore | None = None,
        spec: JailSpec | None = None,
        options: KernelOptions | None = None,
    ) -> None:
        self._dispatch = dispatch if callable(dispatch) else dispatch_to(dispatch or {})
        self._preludes = preludes
        self._host_names: set[str] = set()
        for prelude in preludes:
            self._host_names.update(prelude.exports)
        self._blobs: BlobStore = MemoryBlobs() if blobs is None else blobs
        self._spec = spec
        # The tier of the first worker. Others must not have less.
        self._tier: Tier | None = None
        self._options = options or KernelOptions()
        self._turn = threading.RLock()
        # It guards the next two. A signal handler may take it twice.
        self._stopping = threading.RLock()
        # Whether the cell that has the turn is to stop; None when there is no cell.
        self._stop: bool | None = None
        # The worker that runs the cell, while it does.
        self._running_worker: WorkerProcess | None = None
        self._worker: WorkerProcess | None = None
        self._fork_server: ForkServer | None = None
        self._scratch: ScratchFolder | None = None
        self._started = False
        self._cell = 0
        self.names = Namespace()
        """The host's record of the variables. Reading it does not wait for a running cell."""
        self._manifest = Manifest()
        # The last save is incomplete, so the next one must not build on it.
        self._send_again = False
        # It goes with the next cell's result.
        self._unreported_restore: RestoreReport | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Enforcement:
        """Start the process and tell what is enforced on it.

        Raises KernelUnavailable; no model code has run then.
        """
        with self._turn:
            self._started = True
            return self._ready().enforcement

    def execute(self, source: str, timeout: float = 60.0, *, event: int = 0) -> CellResult:
        """Run a cell. Whatever the cell does, this returns; a worker that had to be killed is
        replaced.

        `event` is the address of the cell in a log, under which its variables are then known.
        """
        with self._turn:
            self._stop = False
            try:
                return self._run_cell(source, timeout, event)
            finally:
                self._stop = None

    def interrupt(self) -> bool:
        """Stop the cell that is running or about to, as a timeout would; False when none is.

        Does not wait.
        """
        with self._stopping:
            if self._stop is None:
                return False
            self._stop = True
            if self._running_worker is not None:
                self._running_worker.interrupt()
            return True

    def variables(self) -> tuple[Variable, ...]:
        """Every variable with its type, size and origin. Runs none of the model's code."""
        with self._turn:
            self._refresh_descriptions()
            return self.names.variables()

    def variable_list(self, limit: int = 2000) -> str:
        """The namespace in at most about `limit` characters, one line a variable, the last used
        first.
        """
        with self._turn:
            fresh = self._refresh_descriptions()
            heading: list[str] = []
            if self._worker is not None and self._worker.enforcement.tier == "none":
                heading.append(
                    "(unsandboxed: code in this kernel runs with all the rights of its user)"
                )
            if self._worker is not None and self._worker.enforcement.tier in UNTESTED:
                heading.append("(the sandbox of this kernel is experimental and untested)")
            if not fresh:
                heading.append(
                    f"(the kernel did not answer; this is what was known after cell {self._cell})"
                )
            return self.names.variable_list(limit, "\n".join(heading))

    def save(self, full: bool = False) -> SaveReport:
        """Pickle variables that may have changed since the last save, or, if `full`, check all.

        The pickles are written to the blob store here, and a worker that is replaced later restores
        them.

        Raises KernelDied if the process is lost over it; the last save stays valid and the next
        cell restores it. An error of the blob store is raised here; the last save stays valid then
        as well, and the kernel lives on.
        """
        with self._turn:
            worker = self._ready()
            # Names may share parts, which are pickled with each; more than this does not fit into
            # one memory.
            everything = _PICKLES * worker.memory_bytes
            pieces = SavedPieces(self._manifest, self._blobs, self._options.blob_bytes, everything)
            request = Save(full, self._send_again, self._options.blob_bytes)
            try:
                answer = worker.ask(request, Saved, _SAVE_SECONDS, pieces.take, answers_calls=True)
                check_names(answer.names, answer.unchecked)
            except BaseException:
                self._discard()
                raise
            self._send_again = pieces.trouble is not None
            if pieces.trouble is not None:
                raise pieces.trouble
            unsaved = {name for name, entry in pieces.entries.items() if entry.reason}
            mutated = self.names.record_save(answer.names, pieces.changed, self._cell, unsaved)
            manifest = self.names.saved(pieces.entries, answer.names, answer.unchecked)
            self._manifest = msgspec.structs.replace(
                manifest, cell=self._cell, python=worker.python
            )
            return SaveReport(manifest=self._manifest, mutated=mutated)

    def restore(self, manifest: Manifest) -> RestoreReport:
        """Replace the namespace by a saved one, of this kernel or of another."""
        with self._turn:
            if not self._started:
                raise KernelError(_NOT_RUNNING)
            self._discard()
            self.names, self._unreported_restore = Namespace(), None
            self._manifest = manifest
            self._cell = max(self._cell, manifest.cell)
            return self._restore_saved()

    def replace_preludes(self, preludes: tuple[Prelude, ...], call_seconds: float) -> None:
        """Run these preludes instead of the kernel's first ones, now and in every new process.

        Their capability calls may take `call_seconds`.
        """
        with self._turn:
            self._preludes = preludes
            for prelude in preludes:
                self._host_names.update(prelude.exports)
            self._options = msgspec.structs.replace(self._options, call_seconds=call_seconds)
            if self._worker is not None:
                self._worker.broker.seconds = call_seconds
                self._worker.prepare(Prepare(preludes, self._options.output_bytes), _SETUP_SECONDS)

    def close(self) -> None:
        """End the process, and the cell that it may be running. Unsaved variables are lost."""
        # Threads that wait for a turn get none.
        self._started = False
        while True:
            worker = self._worker
            if worker is not None:
                # This stops a save or a restore too.
                worker.interrupt()
            if self._turn.acquire(timeout=_AGAIN_SECONDS):
                break
        try:
            self._discard()
            # The kernel may have been started meanwhile.
            self._started = False
            if self._fork_server is not None:
                self._fork_server.close()
                self._fork_server = None
        finally:
            self._turn.release()

    def _run_cell(self, source: str, timeout: float, event: int) -> CellResult:
        worker = self._ready()
        restore, self._unreported_restore = self._unreported_restore, None
        self._cell += 1
        begun = time.monotonic()
        try:
            done = self._ask_for_cell(worker, source, timeout)
        except KernelDied as error:
            return self._killed(worker, str(error), begun, timeout)
        except ValueError as error:
            # The source cannot be sent: it is too long, or not Unicode.
            refusal = CellError(type(error).__name__, f"{type(error).__name__}: {error}")
            return CellResult(
                cell=self._cell, ended="error", stdout="", error=refusal, restore=restore
            )
        except BaseException:
            # The caller was interrupted in the middle of the conversation.
            self._discard()
            raise
        ended, cell_error = _outcome(done.error, worker.stopped_for, timeout)
        result = self._result(worker, begun, ended, cell_error, done, restore)
        lines = worker.broker.take_lines()
        self.names.record_cell(
            self._cell, done.bound, done.deleted, done.read, result.seqs, source, event, lines
        )
        return result

    def _ask_for_cell(self, worker: WorkerProcess, source: str, timeout: float) -> Done:
        with self._stopping:
            worker.begin_cell(self._cell, timeout)
            self._running_worker = worker
            if self._stop:
                worker.interrupt()
        try:
            done = worker.ask(Execute(self._cell, source), Done, timeout, answers_calls=True)
        finally:
            # An interrupt must not reach the next request to the worker.
            with self._stopping:
                self._running_worker = None
        if done.cell != self._cell:
            raise KernelDied("the kernel process answered for another cell")
        check_names(done.bound, done.deleted, done.read)
        if not self._host_names.issuperset(done.rebound):
            raise KernelDied("the kernel process named something as the host's that is not")
        return done

    def _ready(self) -> WorkerProcess:
        """The worker; if there is none, a fresh one with the namespace of the last save."""
        if not self._started:
            raise KernelError(_NOT_RUNNING)
        if self._worker is not None and self._worker.process.has_ended():
            self._discard()
        if self._worker is None:
            report = self._restore_saved()
            self._unreported_restore = report if report != RestoreReport() else None
        return self._ensure_worker()

    def _ensure_worker(self) -> WorkerProcess:
        """The worker; if there is none, a fresh one with an empty namespace.

        `auto` is the best tested tier that can be built: each is tried for real. `none` and
        `seatbelt` must be named.
        """
        if self._worker is not None:
            return self._worker
        try:
            from scroll_context.jail.entry import chosen, no_jail
        except ImportError as error:
            # The jails need modules that only Unix has.
            raise KernelUnavailable(f"cells cannot run on this system: {error}") from error
        spec = self._full_spec()
        required = self._tier or spec.tier
        tiers = chosen() if required == "auto" else (required,)
        refusals: list[str] = []
        for tier in tiers:
            try:
                self._worker = self._spawn(msgspec.structs.replace(spec, tier=tier))
            except KernelUnavailable as error:
                refusals.append(f"{tier}: {error}" if len(tiers) > 1 else str(error))
                continue
            self._tier = tier
            return self._worker
        raise KernelUnavailable("; ".join(refusals) or no_jail())

    def _spawn(self, spec: JailSpec) -> WorkerProcess:
        from scroll_context.kernel.launcher import ForkServer, spawn_shared

        settings = KernelSettings(spec, os.environ.get(ALLOW_UNSANDBOXED) == "1")
        if self._options.share_fork_server:
            sock = spawn_shared(WORKER_MODULE, settings)
        else:
            if self._fork_server is not None:
                self._fork_server.close()
            self._fork_server = ForkServer()
            sock = self._fork_server.spawn(WORKER_MODULE, settings)
        options = self._options
        worker = WorkerProcess(
            sock, spec, self._dispatch, options.call_seconds, options.output_bytes
        )
        try:
            worker.prepare(Prepare(self._preludes, options.output_bytes), _SETUP_SECONDS)
        except BaseException:
            worker.close()
            raise
        return worker

    def _full_spec(self) -> JailSpec:
        """The spec with everything filled in: a scratch folder, and packages as readable paths."""
        spec = self._spec or JailSpec(
            read_only=(*default_read_only(), *site_packages()), scratch=""
        )
        packages = package_paths((*spec.packages, *self._options.packages))
        readable = [path for path in packages if path not in spec.read_only]
        spec = msgspec.structs.replace(
            spec, read_only=(*spec.read_only, *readable), packages=packages
        )
        if spec.scratch:
            return spec
        self._scratch = self._scratch or ScratchFolder()
        return msgspec.structs.replace(spec, scratch=self._scratch.path)

    def _refresh_descriptions(self) -> bool:
        """Refresh the facts about the variables; False when the worker did not give them."""
        if self._worker is None:
            return not self.names.variables()
        try:
            self.names.record_description(
                self._worker.ask(Describe(), Facts, _DESCRIBE_SECONDS).variables
            )
        except KernelDied:
            self._discard()
            return False
        return True

    def _killed(
        self, worker: WorkerProcess, reason: str, begun: float, timeout: float
    ) -> CellResult:
        """The worker died during the cell: keep what it printed, and bring back what was saved."""
        if worker.stopped_for == "timeout":
            reason = f"the cell ran for more than {timeout:g} s; {reason}"
        error = CellError("KernelDied", reason)
        result = self._result(worker, begun, "killed", error, Done(self._cell), None)
        self._discard()
        return msgspec.structs.replace(result, restore=self._restore_or_report())

    def _result(
        self,
        worker: WorkerProcess,
        begun: float,
        ended: Ended,
        error: CellError | None,
        done: Done,
        restore: RestoreReport | None,
    ) -> CellResult:
        """The facts about a cell, however it ended."""
        duration = time.monotonic() - begun
        printed = worker.take_printed()
        text = printed.decode("utf-8", "replace")
        limit = self._options.output_chars
        stdout, hidden = head_and_tail(without_repeats(text), limit, len(text))
        return CellResult(
            cell=self._cell,
            ended=ended,
            stdout=stdout,
            printed=printed,
            printed_chars=len(text),
            hidden_chars=hidden,
            error=error,
            bound=done.bound,
            deleted=done.deleted,
            read=done.read,
            rebound=done.rebound,
            seqs=worker.broker.take_seqs(),
            duration=duration,
            restore=restore,
        )

    def _restore_saved(self) -> RestoreReport:
        """Fill a fresh worker with the namespace of the last save."""
        restored, lost = load_into(self._ensure_worker, self._discard, self._manifest, self._blobs)
        return self.names.record_restore(self._manifest, restored, lost)

    def _restore_or_report(self) -> RestoreReport:
        """Like `_restore_saved`, but if no process can start now, everything counts as lost until
        the next cell.
        """
        try:
            return self._restore_saved()
        except KernelUnavailable as error:
            reason = f"no kernel process could be started: {error}"
            names = [variable.name for variable in self.names.variables()]
            return RestoreReport(lost=tuple(Loss(name, reason) for name in names))

    def _discard(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        if self._scratch is not None:
            # The next process gets a folder of its own, since this one may be full.
            self._scratch.close()
            self._scratch = None


# How a cell ended, by the limit that it reached.
_ENDED_BY: dict[str, Ended] = {"memory": "memory", "output": "output-limit", "cpu": "timeout"}


def _outcome(
    error: CellError | None, stopped_for: str, timeout: float
) -> tuple[Ended, CellError | None]:
    if error is None:
        return "ok", None
    if error.limit in _ENDED_BY:
        return _ENDED_BY[error.limit], error
    if stopped_for == "timeout":
        message = f"the cell ran for more than {timeout:g} s"
        return "timeout", msgspec.structs.replace(error, message=message)
    return ("interrupted" if stopped_for else "error"), error


def dispatch_to(capabilities: Mapping[str, Callable[..., Any]]) -> Dispatch:
    """A dispatch that calls one function for each name."""

    def dispatch(call: CapabilityCall) -> Any:
        function = capabilities.get(call.capability)
        if function is None:
            raise NameError(f"the host offers no capability {call.capability!r}")
        return function(*call.args, **call.kwargs)

    return dispatch
