"""The command `scroll`: the list of its commands, and its entry point.

`scroll --help` is answered from this table, with next to nothing imported. Every other command line goes to app.py,
which imports the command that is called. To add one, write a function whose docstring is its help, and name it in
COMMANDS.
"""

import os
import sys

INTERRUPTED = 130
TERMINATED = 143

COMMANDS = {  # name: (module and function, the first line of its help)
    "import": ("importing.import_", "Add messages to a store; creates the store if there is none."),
    "search": ("reading.search", "Find events by their words, best first."),
    "show": ("reading.show", "Show the event at an address, or a range of them."),
    "sessions": ("reading.sessions", "List the sessions, oldest first."),
    "stats": ("reading.stats", "Show the store in numbers."),
    "sql": ("reading.sql", "Run a read-only SQL query on the history, as a model may."),
    "verify": ("upkeep.verify", "Check events, payloads and the search index against their hashes."),
    "salvage": ("upkeep.salvage", "Make a new log from whatever is legible in a damaged one."),
    "reindex": ("upkeep.reindex", "Build the search index anew from the log."),
    "backup": ("upkeep.backup", "Copy the store to a new folder."),
    "export": ("upkeep.export", "Write everything as JSON Lines: events, hashes and payloads."),
    "doctor": ("kernel_commands.doctor", "Show what the kernel's sandbox enforces here, and how."),
    "repl": ("kernel_commands.repl", "Write Python in the jailed kernel yourself."),
    "chat": ("agent_commands.chat", "Talk to an agent whose memory is the store."),
    "run": ("agent_commands.run", "Give an agent one task, in a new session."),
    "resume": ("agent_commands.resume", "Go on with a session, whatever ended it."),
    "fork": ("agent_commands.fork", "Make a new session that shares another's past up to a seq."),
    "explain": ("agent_commands.explain", "Show what a model saw at a request, and what had left."),
    "trajectory": ("agent_commands.trajectory", "Show the steps of a session: reasoning, action, observation."),
    "eval": ("eval_commands.app", "Rerun the paper's benchmarks on your own model."),
    "demo": ("demo.demo", "See an agent work in a window far too small for it."),
}

OVERVIEW = """\
Usage: scroll COMMAND [OPTIONS] [ARGS]...

  Scroll keeps the whole history of your agents: nothing is summarised away,
  everything can be found.

  A store is a folder. Commands use the one named by --store, else by
  SCROLL_STORE, else .scroll here.

  Begin with:
    scroll import chat.jsonl
    scroll search 'toll-free route'
    scroll show 12

  `scroll COMMAND --help` explains a command, with examples.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
"""


def overview() -> str:
    """What `scroll --help` prints."""
    return OVERVIEW + "".join(f"  {name:<12}{line}\n" for name, (_, line) in COMMANDS.items())


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
    """End the process with what it has registered for its end, but without taking the interpreter down.

    Calls of a cell that was stopped may still run in threads, inside a database or an index: an interpreter that is
    taken down under them can crash, and a signal in the midst of it changes the status or prints a traceback.
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
        except (OSError, ValueError):  # nobody reads it
            continue
    os._exit(code)


def _guarded() -> str | int | None:
    """Run the command, with streams that can be written to, and none of its output lost unnoticed."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "r+")  # noqa: SIM115 - closed by whoever started us
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
    from scroll_context.cli.app import app

    try:
        app(prog_name="scroll")
    except SystemExit as end:
        return end.code
    return 0
