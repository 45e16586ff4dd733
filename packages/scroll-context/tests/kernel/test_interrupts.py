"""Cells that do not stop by themselves: whatever they do, the host gets its answer, and most keep
their namespace.
"""

import os
import threading
import time

import pytest

from scroll_context.jail.spec import JailLimits
from scroll_context.kernel import worker_process
from scroll_context.kernel.kernel import Kernel

SURVIVES = {
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(1000)",
    "regex": "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
    "wait for a capability": "never()",
    "wait for a capability in threads": (
        "import threading\nts = [threading.Thread(target=never, daemon=True) for _ in range(5)]\n"
        "for t in ts: t.start()\nfor t in ts: t.join()"
    ),
    "lock": "import threading\nl = threading.Lock(); l.acquire(); l.acquire()",
    "bare except": "while True:\n    try:\n        while True: pass\n    except: pass",
    "bare except around a sleep": "import time\nwhile True:\n    try:\n        time.sleep(1000)\n    except: pass",
    "bare except around a capability": "while True:\n    try:\n        never()\n    except: pass",
    "nested bare excepts": (
        "def f(n):\n    while True:\n        try:\n            f(n - 1) if n else None\n            while True: pass\n"
        "        except: pass\nf(5)"
    ),
    "finally continue": "while True:\n    try:\n        while True: pass\n    finally:\n        continue",
    "suppress": (
        "import contextlib\nwhile True:\n    with contextlib.suppress(BaseException):\n        while True: pass"
    ),
    "printing": "while True:\n    try:\n        print(end='')\n    except: pass",
    "await": "import asyncio\nawait asyncio.sleep(1000)",
    "await in a loop": "import asyncio\nwhile True:\n    try:\n        await asyncio.sleep(0.01)\n    except: pass",
    "busy threads": (
        "import threading\ndef spin():\n    while True: pass\n"
        "ts = [threading.Thread(target=spin) for _ in range(3)]\nfor t in ts: t.start()\nfor t in ts: t.join()"
    ),
    "exception that describes itself for ever": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
    ),
    "handler of its own": "import signal\nsignal.getsignal(signal.SIGINT)\nwhile True: pass",
}


@pytest.mark.parametrize("name", SURVIVES)
def test_a_timeout_ends_the_cell_and_keeps_the_namespace(
    make_kernel, monkeypatch, name: str
) -> None:
    monkeypatch.setattr(worker_process, "GRACE_SECONDS", 20.0)  # for machines with much else to do
    forever = threading.Event()
    kernel = make_kernel({"never": lambda: forever.wait(60)})
    kernel.execute("import asyncio, contextlib, re, threading, time\nkept = {'a': 1}")
    result = kernel.execute(SURVIVES[name], timeout=0.2)
    forever.set()
    assert (result.ended, result.restore) == ("timeout", None), result
    assert result.duration >= 0.2
    assert kernel.execute("print(kept)").stdout == "{'a': 1}\n"


@pytest.mark.parametrize("name", ["await", "await in a loop"])
def test_awaiting_works_again_after_an_interrupt(kernel: Kernel, name: str) -> None:
    kernel.execute("import asyncio\nawait asyncio.sleep(0)")
    assert kernel.execute(SURVIVES[name], timeout=0.1).ended == "timeout"
    assert kernel.execute("print(await asyncio.sleep(0, 'again'))").stdout == "again\n"


def test_what_cannot_be_interrupted_is_killed_and_restored(kernel: Kernel) -> None:
    kernel.execute("kept = [1, 2]")
    kernel.save()
    kernel.execute("later = 3\nkept.append(3)")
    for seconds in (0.1, 1, 10):  # until it has begun in time
        result = kernel.execute("print('begun')\nsum(range(10**12))", timeout=seconds)
        if result.ended == "killed":
            break
    assert result.ended == "killed"
    assert result.stdout == "begun\n"
    assert "did not stop within 2 s" in result.error.message
    assert result.restore.restored == ()
    assert [loss.name for loss in result.restore.stale] == ["kept"]
    assert [loss.name for loss in result.restore.lost] == ["later"]
    assert kernel.execute("print(kept)").stdout == "[1, 2]\n"


def test_interrupt_from_another_thread(make_kernel) -> None:
    kernel = make_kernel({"stop": lambda: kernel.interrupt()})
    assert kernel.interrupt() is False, "there is nothing to interrupt"
    result = kernel.execute("x = 1\nstop()\nwhile True: pass")
    assert (result.ended, result.error.type) == ("interrupted", "KeyboardInterrupt")
    assert kernel.execute("print(x)").stdout == "1\n"


def test_signals_between_cells_do_no_harm(kernel: Kernel) -> None:
    kernel.execute("x = 5")
    pid = kernel.start().pid
    for _ in range(200):
        os.kill(pid, 2)
        assert kernel.execute("").ended in ("ok", "error")  # a signal may also hit the cell itself
    assert kernel.execute("print(x)").restore is None


def test_a_storm_of_signals_never_breaks_the_protocol(make_kernel) -> None:
    kernel = make_kernel({"add": lambda a, b: a + b})
    pid = kernel.start().pid
    kernel.execute("kept = 1")
    stop = threading.Event()

    def storm() -> None:
        while not stop.is_set():
            os.kill(pid, 2)
            time.sleep(0.0005)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(50):
            kernel.execute(
                "for i in range(50):\n    try:\n        print(add(i, 1))\n    except BaseException: pass"
            )
    finally:
        stop.set()
        thread.join()
    result = kernel.execute("print(kept, add(1, 2))")
    assert (result.stdout, result.restore) == ("1 3\n", None)


def test_the_cpu_budget_is_per_cell_and_keeps_the_namespace(make_kernel, tier) -> None:
    if tier == "none":
        pytest.skip("tier none has no CPU limit")
    kernel = make_kernel(limits=JailLimits(cpu_seconds=1))
    for _ in range(2):
        result = kernel.execute(
            "x = 1\nwhile True:\n    try:\n        while True: pass\n    except Exception: pass"
        )
        assert (result.ended, result.error.type) == ("timeout", "CpuLimitExceeded")
    assert kernel.execute("print(x)").stdout == "1\n"


def test_running_out_of_memory_keeps_the_namespace(make_kernel, tier) -> None:
    if tier == "none":
        pytest.skip("tier none has no memory limit")
    kernel = make_kernel(limits=JailLimits(memory_bytes=256 << 20))
    kernel.execute("x = 1")
    for source in ("b'x' * (1 << 30)", "hog = []\nwhile True: hog.append(bytes(1 << 16))"):
        result = kernel.execute(source)
        assert (result.ended, result.error.type, result.restore) == ("memory", "MemoryError", None)
    assert kernel.execute("hog = None\nprint(x)").stdout == "1\n"


def test_a_process_that_kills_itself_is_replaced(kernel: Kernel) -> None:
    kernel.execute("kept = 'here'")
    kernel.save()
    for source in (
        "import os; os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.closerange(3, 50)",
    ):
        result = kernel.execute("print('last words')\n" + source)
        assert result.ended == "killed"
        assert result.stdout == "last words\n"
        assert result.restore.restored == ("kept",)
        assert kernel.execute("print(kept)").stdout == "here\n"
        kernel.save()


def test_kill_minus_nine_in_the_middle_of_a_cell(make_kernel) -> None:
    kernel = make_kernel({"die": lambda: os.kill(pid, 9)})
    kernel.execute("kept = list(range(5))")
    kernel.save()
    pid = kernel.start().pid
    result = kernel.execute("die()\nwhile True: pass")
    assert (result.ended, result.duration < 30) == ("killed", True)
    assert "the kernel process ended" in result.error.message
    assert kernel.execute("print(kept)").stdout == "[0, 1, 2, 3, 4]\n"


def test_kill_minus_nine_between_cells_is_noticed_by_the_next(kernel: Kernel) -> None:
    kernel.execute("kept = 1")
    kernel.save()
    os.kill(kernel.start().pid, 9)
    result = kernel.execute("print(kept)")
    if (
        result.ended == "killed"
    ):  # the cell was sent before the end was seen; the namespace is back for the next
        result = kernel.execute("print(kept)")
    assert result.stdout == "1\n"
    assert "kept" in kernel.variable_list()
