"""Between cells: threads that a cell leaves running have its deadline and its processor time, and
no more.
"""

import os
import select
import sys
import time
from pathlib import Path

import pytest

from scroll_context.jail.spec import JailLimits
from scroll_context.kernel.kernel import Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")

BURN = "import threading\ndef burn():\n    while True: pass\n"
NATIVE = "import hashlib, threading\ndef burn(): hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2_000_000_000)\n"
START = "kept = [1]\nthreading.Thread(target=burn, daemon=True).start()"


def ends(kernel: Kernel, within: float = 120.0) -> bool:
    """Whether the process of a kernel ends by itself."""
    ended = os.pidfd_open(kernel.start().pid)
    try:
        return bool(select.select([ended], [], [], within)[0])
    finally:
        os.close(ended)


def needs_a_jail(kernel: Kernel) -> None:
    if kernel.start().tier == "none":
        pytest.skip("tier none limits nothing")


def test_threads_stop_at_the_deadline_of_their_cell(kernel: Kernel) -> None:
    needs_a_jail(kernel)
    assert kernel.execute(BURN + START, timeout=1.0).ended == "ok"
    tasks = Path(f"/proc/{kernel.start().pid}/task")
    deadline = time.monotonic() + 60
    while len(list(tasks.iterdir())) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list(tasks.iterdir())) == 1, "a thread outlived the deadline of its cell"
    result = kernel.execute("print(kept)")
    assert (result.stdout, result.restore) == ("[1]\n", None)


def test_a_thread_that_does_not_stop_at_the_deadline_costs_the_process(kernel: Kernel) -> None:
    needs_a_jail(kernel)
    assert kernel.execute(NATIVE + START, timeout=1.0).ended == "ok"
    kernel.save()
    assert ends(kernel), "a thread outlived the deadline of its cell"
    result = kernel.execute("print(kept)")
    assert (result.ended, result.stdout) == ("ok", "[1]\n")
    assert result.restore is not None and "kept" in {loss.name for loss in result.restore.stale}


def test_processor_time_is_limited_while_the_session_is_idle(make_kernel) -> None:
    kernel = make_kernel(limits=JailLimits(cpu_seconds=1))
    needs_a_jail(kernel)
    assert kernel.execute(NATIVE + START, timeout=600).ended == "ok"
    assert ends(kernel), "threads went on after their processor time was used up"


def test_work_between_cells_has_processor_time_of_its_own(make_kernel) -> None:
    """A save after a cell that used all of its time must not cost the process."""
    kernel = make_kernel(limits=JailLimits(cpu_seconds=1))
    needs_a_jail(kernel)
    assert kernel.execute("while True: pass", timeout=60).ended == "timeout"
    kernel.execute(
        "import time\nclass Slow:\n    def __reduce__(self):\n        begun = time.process_time()\n"
        "        while time.process_time() - begun < 0.3: pass\n        return int, ()\nslow = Slow()"
    )
    for _ in range(5):
        assert kernel.save(full=True).lost == ()
    assert kernel.execute("print(type(slow).__name__)").stdout == "Slow\n"
