"""How a running cell is stopped from inside its own process. Worker only.

SIGINT and SIGXCPU may come at any moment, but an exception is raised only in code that is not the worker's own:
a frame of a module registered with `protect` is never interrupted, so frames on the wire stay whole and nothing
is caught half done. The two exceptions to that are `window`, through which the worker does its own waiting, and
`checkpoint`, which raises what was held back. Between cells signals end the threads that a cell left running.

A cell may swallow what is raised (a bare `except:` in a loop). From the third signal on, an exception is raised
at every line that is not the worker's, inside `except` and `finally` bodies too, until the cell has unwound. What
never returns to the interpreter (`sum(range(10**12))`) cannot be stopped this way: the host ends the process.
"""

import _signal  # type: ignore[import-not-found]  # `signal` wraps this in enumerations, which are slow
import ctypes
from collections.abc import Callable
from sys import _current_frames, _getframe
from threading import get_ident
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 2
"""How many signals a cell may swallow before it is stopped at every line."""

_SIGNALS = (_signal.SIGINT, _signal.SIGXCPU)

_api = ctypes.pythonapi
_api.PyEval_SetTrace.argtypes = [ctypes.c_void_p, ctypes.py_object]
_api.PyEval_SetTrace.restype = None
_api.PyThreadState_SetAsyncExc.argtypes = [ctypes.c_ulong, ctypes.py_object]
_raise_if_truth_fails = ctypes.cast(_api.PyObject_IsTrue, ctypes.c_void_p)


class CpuLimitExceeded(BaseException):
    """The cell used up its processor time. Not an Exception, so that `except Exception` does not hide it."""


def window(wait: Callable[..., T], *arguments: Any) -> T:
    """`wait(*arguments)`, the one place of the worker where a signal may raise."""
    return wait(*arguments)


class Interrupts:
    """The signal state of the one thread that runs cells."""

    def __init__(self) -> None:
        self._ours: set[int] = set()
        self._armed = False
        self._strikes = 0
        self._held: BaseException | None = None
        self._main = get_ident()
        self._handler = self._on_signal  # one object, so that it can be told from another
        self.protect(globals())

    def protect(self, module_globals: dict[str, Any]) -> None:
        """Never raise in functions of this module."""
        self._ours.add(id(module_globals))

    def install(self) -> None:
        """Take SIGINT and SIGXCPU; call again before each cell, in case the last one took them away."""
        for number in _SIGNALS:
            if _signal.getsignal(number) is not self._handler:
                _signal.signal(number, self._handler)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _SIGNALS)

    def arm(self) -> None:
        """From now on a signal raises. Called by the worker just before it runs a cell."""
        self._strikes, self._held = 0, None
        self._armed = True

    def disarm(self) -> None:
        """From now on signals raise nothing. Called by the worker when a cell has returned to it."""
        self._armed = False
        if self._strikes > PATIENCE:
            _api.PyEval_SetTrace(None, self)

    def checkpoint(self) -> None:
        """Raise what arrived while the worker's own code ran on behalf of the cell."""
        held = self._held
        if held is not None and self._armed and get_ident() == self._main:
            self._held = None
            raise held

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._armed:
            self._stop_threads()  # the time of the cell that left them running is over
            return
        self._strikes += 1
        exception: BaseException
        if number == _signal.SIGXCPU:
            exception = CpuLimitExceeded("the cell used up its processor time")
        else:
            exception = KeyboardInterrupt("the cell was interrupted")
            self._stop_threads()
        if self._strikes > PATIENCE:
            _api.PyEval_SetTrace(_raise_if_truth_fails, self)
        if frame is not None and id(frame.f_globals) in self._ours and frame.f_code is not window.__code__:
            self._held = exception
            return
        self._held = None
        raise exception

    def _stop_threads(self) -> None:
        """End the other threads of the cell as well, silently; one inside the worker's code is left alone."""
        for ident, frame in _current_frames().items():
            if ident != self._main and id(frame.f_globals) not in self._ours:
                _api.PyThreadState_SetAsyncExc(ident, SystemExit)

    def __bool__(self) -> bool:
        """The truth value that stops a cell at every line.

        A trace function written in Python is removed by the interpreter once it raises; one written in C is not.
        `PyObject_IsTrue` has the form of one: the interpreter calls it with this object at each line, it calls
        this method, and what is raised here is raised there.
        """
        frame = _getframe(1)
        if not self._armed or id(frame.f_globals) in self._ours:
            return False  # go on
        raise KeyboardInterrupt("the cell was interrupted, and went on; it was stopped at the next line")
