"""The entry point of `scroll`: from the start of the process to its exit status.

`scroll --help` is answered from the table in commands.py, with next to nothing imported. Every
other command line goes to app.py, which imports the command that is called.
"""

import os
import sys

from scroll_context.cli.commands import INTERRUPTED, TERMINATED, overview
from scroll_context.plugins import entry_points


def main() -> None:
    """The entry point of the command. It ends the process."""
    status: str | int | None = 1
    try:
        import signal

        signal.signal(signal.SIGTERM, _terminate)
        status = _guarded()
        _leave(status)
    except KeyboardInterrupt:
        # Ctrl-C came before or after the command itself.
        status = INTERRUPTED
    except SystemExit as end:
        status = end.code
    _leave(status)


def _terminate(*_: object) -> None:
    """Exit as on Ctrl-C, so that open resources are closed."""
    raise SystemExit(TERMINATED)


def _leave(status: str | int | None) -> None:
    """Run the atexit handlers, then exit without shutting down the interpreter.

    Calls from a stopped cell may still run in threads, inside a database or an index. An
    interpreter that shuts down under them can crash, and a signal during the shutdown changes the
    status or prints a traceback.
    """
    import atexit
    import signal

    code = status if isinstance(status, int) else int(bool(status))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(code))
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # The reader of the pipe has ended.
            continue
    os._exit(code)


def _guarded() -> str | int | None:
    """Run the command with writable streams, and report lost output."""
    for name in ("stdin", "stdout", "stderr"):
        # A parent process may have closed the stream.
        stream = getattr(sys, name) or open(os.devnull, "r+")  # noqa: SIM115
        # A terminal may lack a letter.
        stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)
    status: str | int | None = 1
    try:
        status = _run()
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
