"""Who writes when several threads append at once: a caller that gets the lead at an awkward moment
holds nobody up.
"""

import contextlib
import ctypes
import threading
from types import TracebackType
from typing import Any

import pytest

from scroll_context.errors import StoreError
from scroll_context.events import Draft
from scroll_context.log.log import EventLog
from waiting import join, wait_for


class Delayed:
    """A lock that keeps the thread "second" waiting just after it has let go of it for the first
    time.
    """

    def __init__(self, inner: Any, joined: threading.Event, go_on: threading.Event) -> None:
        self.inner, self.joined, self.go_on = inner, joined, go_on

    def __enter__(self) -> None:
        self.inner.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.inner.release()
        if threading.current_thread().name == "second" and not self.joined.is_set():
            self.joined.set()
            assert self.go_on.wait(60)


def test_a_lead_that_comes_while_a_caller_is_about_to_wait(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second joins while the first writes, and gets the lead before it begins to wait; the
    third waits for it.
    """
    joined, writing, queued = threading.Event(), threading.Event(), threading.Event()
    write, said = log.backend.write, {}
    monkeypatch.setattr(log.commits, "_lock", Delayed(log.commits._lock, joined, queued))

    def slowly(rows: list[Any]) -> Any:
        if threading.current_thread().name == "first":
            writing.set()
            assert joined.wait(60)
        return write(rows)

    def append() -> None:
        name = threading.current_thread().name
        said[name] = log.append(Draft(content=name))

    monkeypatch.setattr(log.backend, "write", slowly)
    first, second, third = (
        threading.Thread(target=append, name=n, daemon=True) for n in ("first", "second", "third")
    )
    first.start()
    assert writing.wait(60)
    second.start()
    first.join(60)
    third.start()
    while log.commits.waiting < 2:
        assert third.is_alive()
    queued.set()
    for thread in (second, third):
        thread.join(60)
    assert said == {"first": 1, "second": 2, "third": 3}


class Poke(BaseException):
    """What stands for Ctrl-C in threads that are not the main one."""


def test_interrupts_at_any_moment_hold_nobody_up_and_lose_nothing(log: EventLog) -> None:
    """Some come between two instructions of the queue, the transaction or the rollback."""
    acknowledged: dict[int, str] = {}
    done = threading.Event()

    def write(name: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            with contextlib.suppress(Poke, StoreError), contextlib.suppress(Poke, StoreError):
                content = f"{name}, {number}"
                acknowledged[log.append(Draft(content=content))] = content

    writers = [threading.Thread(target=write, args=(name,), daemon=True) for name in range(3)]
    for writer in writers:
        writer.start()
    for round_ in range(300):
        before = len(acknowledged)
        poke = ctypes.c_ulong(writers[round_ % 3].ident or 0), ctypes.py_object(Poke)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(*poke) == 1
        wait_for(lambda before=before: len(acknowledged) >= before + 2)
    done.set()
    join(*writers)
    assert {event.seq: event.content for event in log.iterate()}.items() >= acknowledged.items()
