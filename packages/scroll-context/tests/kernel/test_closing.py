"""Interrupting and closing a kernel at awkward moments: nothing hangs, nothing is left, nothing
else is hit.
"""

import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scroll_context.errors import KernelError
from scroll_context.kernel.broker import MAX_OPEN, Broker, Connection
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.process import Process
from scroll_context.kernel.protocol import CallReply, CallRequest
from scroll_context.kernel.results import MemoryBlobs

SECONDS = 30.0  # far more than anything here takes, far less than the cells that have to be stopped
FOREVER = 600.0


class Gate:
    """A place where a thread of the host stops until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._opened.wait(SECONDS)

    def open(self) -> None:
        self._opened.set()


class SlowBlobs(MemoryBlobs):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def get(self, digest: str, /) -> bytes:
        self.gate.wait()
        return super().get(digest)


class InThread:
    """Something done in another thread, with what came of it."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._outcome: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._action()
        except KernelError as error:
            self._outcome = error

    def outcome(self) -> Any:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "it hangs"
        return self._outcome


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_cell_that_is_about_to_begin_can_be_interrupted_already(make_kernel) -> None:
    blobs = SlowBlobs()
    kernel = make_kernel(blobs=blobs)
    kernel.execute("kept = 'text ' * 1000")
    kernel.save()
    os.kill(kernel.start().pid, 9)
    kernel.variable_list()  # notices it; the next cell brings the namespace back first
    cell = InThread(lambda: kernel.execute("while True: pass", timeout=FOREVER))
    assert blobs.gate.reached.wait(SECONDS)
    assert kernel.interrupt()
    blobs.gate.open()
    assert cell.outcome().ended == "interrupted"
    assert kernel.execute("print(len(kept))").stdout == "5000\n", "the interrupt hit the restore"


def test_an_interrupt_is_for_cells_and_does_not_hit_a_save(make_kernel) -> None:
    gate = Gate()
    kernel = make_kernel({"wait": gate.wait})
    kernel.execute(
        "class Slow:\n    def __reduce__(self):\n        wait()\n        return Slow, ()\nslow = Slow()"
    )
    save = InThread(kernel.save)
    assert gate.reached.wait(SECONDS)
    assert not kernel.interrupt()
    gate.open()
    assert save.outcome().lost == ()


def test_closing_ends_the_cell_and_lets_nobody_else_begin_one(make_kernel) -> None:
    kernel = make_kernel({"began": (began := threading.Event()).set})
    cells = [
        InThread(lambda: kernel.execute("began()\nwhile True: pass", timeout=FOREVER))
        for _ in range(4)
    ]
    assert began.wait(SECONDS)
    InThread(kernel.close).outcome()
    outcomes = [cell.outcome() for cell in cells]
    assert sum(isinstance(one, KernelError) for one in outcomes) == 3
    assert {one.ended for one in outcomes if not isinstance(one, KernelError)} == {"interrupted"}


def test_closing_ends_a_save_too(make_kernel) -> None:
    gate = Gate()
    kernel = make_kernel({"wait": gate.wait})
    kernel.execute(
        "class Slow:\n    def __reduce__(self):\n        wait()\n        return Slow, ()\nslow = Slow()"
    )
    save = InThread(kernel.save)
    assert gate.reached.wait(SECONDS)
    InThread(kernel.close).outcome()
    gate.open()
    save.outcome()


def test_a_call_may_close_the_kernel_that_made_it(make_kernel) -> None:
    kernel = make_kernel({"leave": lambda: kernel.close()})
    cell = InThread(lambda: kernel.execute("leave()\nwhile True: pass", timeout=FOREVER))
    assert cell.outcome().ended == "interrupted"
    with pytest.raises(KernelError, match="not running"):
        kernel.execute("1")


def test_a_closed_kernel_can_be_started_again(make_kernel) -> None:
    kernel = make_kernel()
    for n in range(3):
        kernel.close()
        kernel.start()
        assert kernel.execute(f"print({n})").stdout == f"{n}\n"


def test_a_call_that_no_thread_has_taken_up_does_not_begin_after_the_end() -> None:
    gate, begun = Gate(), []

    def dispatch(call: Any) -> None:
        begun.append(call.capability)
        gate.wait()

    ours, theirs = socket.socketpair()
    with theirs:
        broker = Broker(dispatch, connection := Connection(ours), Process(0, None), SECONDS)
        for ident in range(1, MAX_OPEN + 2):
            broker.submit(
                CallRequest(ident, f"call {ident}", msgspec.Raw(b"\x92\x90\x80")),
                cell=1,
                until=math.inf,
            )
        until(lambda: len(begun) == MAX_OPEN)
        connection.close()
        threads = list(broker._threads)
        broker.close()
        gate.open()
        for thread in threads:
            thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert len(begun) == MAX_OPEN


def test_a_call_whose_result_finds_no_memory_is_refused(
    make_kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Connection.send

    def out_of_memory(self: Connection, message: Any) -> None:
        if isinstance(message, CallReply):
            raise MemoryError
        send(self, message)

    monkeypatch.setattr(Connection, "send", out_of_memory)
    kernel = make_kernel({"call": lambda: None})
    result = kernel.execute("call()", 10)
    assert result.error is not None and "no memory for the result" in result.error.message
    until(lambda: kernel._worker.broker._unfinished == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_closing_in_any_state_leaves_no_descriptor_and_no_thread(make_kernel) -> None:
    sources = [
        "1",
        "call()",
        "import os; os._exit(1)",
        "while True: pass",
        "call(); call()\nwhile True: pass",
    ]

    def once(source: str) -> None:
        kernel = make_kernel({"call": lambda: None})
        cell = InThread(lambda: kernel.execute(source, timeout=FOREVER))
        closings = [InThread(kernel.close) for _ in range(2)]
        for one in (cell, *closings):
            one.outcome()

    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    once("1")  # starts the fork server
    before = held()
    for source in sources * 2:
        once(source)
    until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


MANY = """
import resource, os
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
from scroll_context.kernel.kernel import Kernel
with Kernel() as kernel:
    print(kernel.execute("print('runs')").stdout, end="")
"""


def test_a_host_with_more_than_a_thousand_descriptors(tier) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if tier == "none" or 0 < hard < 1200:
        pytest.skip("needs a jail and a limit of 1,200 open files")
    done = subprocess.run(
        [sys.executable, "-c", MANY], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("runs\n", 0), done.stderr


LEAVES = """
import threading
from scroll_context.kernel import launcher
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.protocol import Prelude
gate, reached = threading.Event(), threading.Event()
asking = Prelude("asking", "def wait(): return call('wait')", ("wait",))
kernel = Kernel({"wait": lambda: (reached.set(), gate.wait())}, preludes=(asking,))
kernel.start()
cell = threading.Thread(target=lambda: kernel.execute("wait()", timeout=600), daemon=True)
cell.start()
reached.wait()
print(kernel._worker.enforcement.pid, launcher._shared._process.pid)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_an_interpreter_that_ends_without_closing_leaves_no_process(tier) -> None:
    if tier == "none":
        pytest.skip("needs a jail")
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for pid in done.stdout.split():
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists())


def test_two_threads_close_while_others_execute(make_kernel) -> None:
    for _ in range(5):
        kernel: Kernel = make_kernel({"echo": lambda v: v})

        def execute_often(kernel: Kernel = kernel) -> None:
            for _ in range(1000):
                kernel.execute("echo(1)")

        work = [InThread(execute_often) for _ in range(3)]
        closings = [InThread(kernel.close) for _ in range(2)]
        for one in closings:
            one.outcome()
        assert all(isinstance(one.outcome(), KernelError) for one in work)
