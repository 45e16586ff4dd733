"""The command that a coding assistant runs at its events: it captures the transcript, and answers
with a hand-over or a brief.

`scroll hook ASSISTANT --store DIR` reads one event as JSON from standard input. At the start of a
session, and again after a compaction, it answers with a bounded context (handover.py). At a prompt,
and before a tool uses a file or a command, it answers with a brief of what bears on it, which is
mostly nothing (offers.py). At other events it only captures: it reads the assistant's transcript
from where the last capture stopped. It calls no model.

An assistant waits for its hooks, so this module imports next to nothing until it has to. A capture
continues in a forked process after the hook has answered. The transcript is on disk, so the next
capture reads whatever one misses. A hook never breaks the assistant: on any fault it writes a line
to the hook log, prints nothing, and exits 0.
"""

import gc
import json
import os
import sys
from typing import Any

from scroll_context.files import state_folder

ASSISTANTS = ("claude-code", "codex", "gemini", "cursor")
# The size of the hand-over.
TOKENS = 1_500
# How long a capture waits for a session that is being written. The next capture reads the rest.
LEASE_SECONDS = 0.1
# At the end of a session a capture tries often, since the next one may not come for a long time.
ATTEMPTS = 100
# The size of a brief, and the events that get one.
BRIEF_TOKENS = 600
BRIEFED = ("userpromptsubmit", "beforeagent", "pretooluse")
# Nothing is captured before a tool call: its result comes soon.
UNCAPTURED = ("pretooluse",)
# How long a capture may index what is new. The next capture, or a search, indexes the rest.
INDEX_SECONDS = 30.0
# Many of these events come in a second, so their captures pause. The other events, and the next one
# of these, read the rest.
FREQUENT = ("posttooluse", "aftertool")
PAUSE_SECONDS = 5.0
# When the hook log is larger than this, it starts again from empty.
LOG_BYTES = 256 << 10
# The variable in which `scroll wrap` names the store that its gateway records the session in.
GATEWAY_STORE = "SCROLL_GATEWAY_STORE"
USAGE = "scroll hook ASSISTANT --store DIR [--reach task|all] [--tokens N]"


def main(arguments: list[str]) -> int:
    """Handle one event.

    The status is always 0: anything else would be shown to the user, or stop the assistant.
    """
    # There is no garbage worth collecting in a tenth of a second.
    gc.disable()
    try:
        assistant, options = _parsed(arguments)
        event = json.loads(sys.stdin.buffer.read() or b"{}")
        if not isinstance(event, dict):
            raise ValueError("the event on standard input is not a JSON object")
        store = located(options["store"])
        if "://" not in store and not os.path.isdir(store):
            raise ValueError(f"there is no store in {store}")
        name = str(event.get("hook_event_name", "")).lower()
        transcript = _transcript(event)
        is_recorded = name in UNCAPTURED or os.environ.get(GATEWAY_STORE, "") == store
        if transcript and not is_recorded and (name not in FREQUENT or is_due(transcript)):
            attempts = ATTEMPTS if name == "sessionend" else 1
            _in_background(lambda: capture(assistant, store, transcript, attempts))
        if name == "sessionstart":
            text = context(store, event, options["reach"], int(options["tokens"]))
            _answer(assistant, event, text)
        elif name in BRIEFED:
            _answer(assistant, event, brief(store, event, options["reach"]))
    except Exception as error:  # noqa: BLE001 - whatever it is, the assistant must not notice
        record(error)
    return 0


def _parsed(arguments: list[str]) -> tuple[str, dict[str, str]]:
    """The assistant and the options.

    The command line was written by `scroll install`; click would take 40 ms.
    """
    options = {"store": os.environ.get("SCROLL_STORE", ""), "reach": "task", "tokens": str(TOKENS)}
    rest = list(arguments)
    names = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            names.append(word)
            continue
        name, separator, value = word[2:].partition("=")
        if name not in options or not (separator or rest):
            raise ValueError(f"{word} is not understood; a hook is called as: {USAGE}")
        options[name] = value if separator else rest.pop(0)
    if (
        len(names) != 1
        or names[0] not in ASSISTANTS
        or not options["store"]
        or options["reach"] not in ("task", "all")
    ):
        raise ValueError(f"a hook is called as: {USAGE}")
    return names[0], options


def _transcript(event: dict[str, Any]) -> str:
    """The file that the assistant writes, if this event names one that is there."""
    path = event.get("transcript_path")
    return path if isinstance(path, str) and os.path.isfile(path) else ""


def _answer(assistant: str, event: dict[str, Any], text: str) -> None:
    if not text:
        return
    if assistant == "cursor":
        answer: dict[str, Any] = {"additional_context": text}
    else:
        answer = {
            "hookSpecificOutput": {
                "hookEventName": event["hook_event_name"],
                "additionalContext": text,
            }
        }
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


# capture ------------------------------------------------------------------------------------------


def _in_background(work: Any) -> None:
    """Run the work in a forked process, which outlives this one and holds none of the assistant's
    pipes.

    Where the system cannot fork, the assistant waits for the work.
    """
    if not hasattr(os, "fork"):
        gc.enable()
        work()
        return
    if os.fork():
        return
    # The forked process must not return into its parent's code.
    try:
        os.setsid()
        gc.enable()
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        work()
    except BaseException as error:  # noqa: BLE001
        record(error)
    finally:
        os._exit(0)


def is_due(transcript: str) -> bool:
    """Whether the last capture at a frequent event was long enough ago. If so, this one becomes the
    last.
    """
    import time

    stamp = _stamp(transcript)
    try:
        if 0 <= time.time() - os.stat(stamp).st_mtime < PAUSE_SECONDS:
            return False
    except FileNotFoundError:
        pass
    _touch(stamp)
    return True


def _touch(stamp: str) -> None:
    os.makedirs(os.path.dirname(stamp), mode=0o700, exist_ok=True)
    with open(stamp, "ab"):
        os.utime(stamp)


def _stamp(transcript: str) -> str:
    """An empty file whose time is that of the last capture at a frequent event.

    It is named after the whole path: Gemini and Codex give transcripts of different projects the
    same file name.
    """
    import hashlib

    path = os.path.abspath(transcript).encode("utf-8", "surrogateescape")
    return os.path.join(state_folder(), "captures", hashlib.sha256(path).hexdigest()[:32])


def last_capture(assistant: str, store: str) -> str:
    """An empty file whose time is that of the last capture by a hook of an assistant.

    An import does not touch it.
    """
    import hashlib

    place = hashlib.sha256(located(store).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return os.path.join(state_folder(), "captured", f"{assistant}-{place}")


def located(store: str) -> str:
    """The address of a shared store as it is, or the absolute path of a folder."""
    return store if "://" in store else os.path.abspath(os.path.expanduser(store))


def capture(assistant: str, store: str, transcript: str, attempts: int = 1) -> None:
    """Record new lines of the transcript and of its sub-agents' transcripts."""
    from scroll_assistants.importers import capture as capture_file
    from scroll_assistants.offers import remove_old
    from scroll_context.store import Store

    with Store(store, lock_timeout=LEASE_SECONDS) as opened:
        for _ in range(attempts):
            report = capture_file(opened, transcript, wait=LEASE_SECONDS)
            if not report.left:
                _touch(last_capture(assistant, store))
                break
        # A brief reads the index as it is, so that no assistant waits for it.
        opened.index.catch_up(INDEX_SECONDS)
    if attempts > 1:
        remove_old()
    if attempts > 1 and os.path.exists(_stamp(transcript)):
        os.unlink(_stamp(transcript))


# context ------------------------------------------------------------------------------------------


def context(store: str, event: dict[str, Any], reach: str, tokens: int) -> str:
    """The hand-over for the project that the assistant was started in."""
    from scroll_assistants.handover import handover
    from scroll_assistants.offers import begin

    folder = _folder(event)
    session = _session(event)
    source = str(event.get("source") or "startup")
    query, close = _reader(store)
    try:
        begin(store, query, session, source)
        return handover(
            query,
            tasks=_tasks(folder, reach),
            session=session,
            source=source,
            tokens=tokens,
            folder=folder,
        )
    finally:
        close()


def brief(store: str, event: dict[str, Any], reach: str) -> str:
    """The earlier work that bears on a prompt, or on the file or command of a tool call."""
    from scroll_assistants.offers import offer
    from scroll_assistants.project import marked

    if "://" in store:
        # The replica of a shared store takes too long to open.
        return ""
    query, close = _reader(store)
    try:
        tasks = _tasks(_folder(event), reach)
        return marked(offer(store, query, event, _session(event), tasks, BRIEF_TOKENS))
    finally:
        close()


def _folder(event: dict[str, Any]) -> str:
    roots = event.get("workspace_roots") or [os.getcwd()]
    return str(os.environ.get("CLAUDE_PROJECT_DIR") or event.get("cwd") or roots[0])


def _session(event: dict[str, Any]) -> str:
    return str(event.get("session_id") or event.get("conversation_id") or "")


def _tasks(folder: str, reach: str) -> tuple[str, ...]:
    """The tasks of the project that a folder belongs to; none to reach all projects."""
    from scroll_context.projects import remember_project

    project = remember_project(folder)
    return () if reach == "all" else project.tasks


def _reader(store: str) -> tuple[Any, Any]:
    """A function that runs a SELECT on the log, and a function that closes it.

    The log file is read directly, since opening an EventLog takes 60 ms more.
    """
    import sqlite3

    from scroll_context.log.ownership import check_folder

    if "://" not in store:
        check_folder(store)
    path = os.path.join(store, "log.db")
    for character in "%?#":
        path = path.replace(character, f"%{ord(character):02x}")
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        database.execute("SELECT 1 FROM event LIMIT 1")
        return database.execute, database.close
    except sqlite3.DatabaseError:
        # The store is on a server, or on a medium that cannot be written.
        from scroll_context.store import open_log

        log = open_log(store)
        return log.query, log.close


# faults -------------------------------------------------------------------------------------------


def log_file() -> str:
    """The hook log, which lists faults of hooks. It never contains messages."""
    return os.path.join(state_folder(), "hooks.log")


def record(error: BaseException) -> None:
    """Write a line about a fault. If even that fails, there is nothing left to do."""
    import time

    try:
        path = log_file()
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        is_long = os.path.exists(path) and os.path.getsize(path) > LOG_BYTES
        mode = "w" if is_long else "a"
        with open(path, mode, encoding="utf-8", errors="backslashreplace") as file:
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            message = " ".join(str(error).split())[:500]
            file.write(f"{moment} {type(error).__name__}: {message}\n")
    except OSError:
        return
