"""The entry point of `scroll`: from the start of the process to its exit status.

`scroll --help` is answered from the table in commands.py, with next to nothing imported. Every
other command line goes to app.py, which imports the command that is called.
"""

import os
import sys

from scroll_context.cli.commands import overview
from scroll_context.cli.statuses import INTERRUPTED, TERMINATED
from scroll_context.plugins import entry_points


def main() -> None:
    """The entry point of the command. It ends the process."""
    status: str | int | None = 1
    try:
        import signal

        signal.signal(signal.SIGTERM, _terminate)
        status = _guarded()
        _leave(status)
    except KeyboardInterrupt:  # where no command was running, before or after it
        status = INTERRUPTED
    except SystemExit as end:
        status = end.code
    _leave(status)


def _terminate(*_: object) -> None:
    """End as by Ctrl-C, so that whatever is open is closed."""
    raise SystemExit(TERMINATED)


def _leave(status: str | int | None) -> None:
    """End the process with what it has registered for its end, but without taking the interpreter
    down.

    Calls of a cell that was stopped may still run in threads, inside a database or an index: an
    interpreter that is taken down under them can crash, and a signal in the midst of it changes the
    status or prints a traceback.
    """
    import atexit
    import signal

    code = status if isinstance(status, int) else 1 if status else 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(code))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader has gone
            continue
    os._exit(code)


def _guarded() -> str | int | None:
    """Run the command, with streams that can be written to, and none of its output lost unnoticed."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "r+")  # noqa: SIM115 - closed by the process that started this one
        stream.reconfigure(errors="backslashreplace")  # for a terminal that lacks a letter
        setattr(sys, name, stream)
    status: str | int | None = 1
    try:
        status = _run()
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed once more
        status = status or 1
        if not isinstance(error, BrokenPipeError):
            print(f"scroll: the output could not be written: {error.strerror}", file=sys.stderr)
    return status


def _run() -> str | int | None:
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(overview())
        return 0
    if sys.argv[1:2] == ["hook"] and not {"-h", "--help"} & set(sys.argv):
        return _hook(sys.argv[2:])
    from scroll_context.cli.app import app

    try:
        app(prog_name="scroll")
    except SystemExit as end:
        return end.code
    return 0


def _hook(arguments: list[str]) -> int:
    """Handle an event of an assistant, which waits for it, so click is not imported.

    The status is 0 even if no installed package can handle hooks: another status can stop the
    assistant that calls the hook.
    """
    point = next(entry_points("scroll_context.hooks"), None)
    if point is not None:
        try:
            point.load()(arguments)
        except Exception:  # noqa: BLE001
            # A package that is half removed or cannot be imported must not stop the assistant.
            return 0
    return 0
