"""Faults of files, disks and processes: one clear line, a status, and nothing lost."""

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from damage import replace_with
from scroll_context.cli.output import live
from scroll_context.log.file_backend import FileBackend
from scroll_context.log.log import EventLog
from scroll_context.store import Store

MAIN = "from scroll_context.cli.main import main; main()"
HOLD_THE_LOCK = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def finish(started: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    out, err = started.communicate(timeout=300)
    return started.returncode, (out or b"").decode(), err.decode()


def many(path: Path, count: int, length: int = 40) -> Path:
    lines = (
        json.dumps({"role": "user", "content": f"message {n} " + "x" * length}) + "\n"
        for n in range(count)
    )
    path.write_text("".join(lines))
    return path


def events_in(folder: Path) -> int:
    log = EventLog(FileBackend(folder))
    try:
        return log.last_seq()
    finally:
        log.close()


def one_line(text: str) -> bool:
    return text.startswith("scroll: ") and text.count("\n") == 1


COMMANDS = [
    ["search", "x"],
    ["show", "1"],
    ["sessions"],
    ["stats"],
    ["sql", "SELECT 1"],
    ["verify"],
    ["export"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_what_is_not_a_store_is_refused(scroll: Any, folder: Path, command: list[str]) -> None:
    folder.write_text("just a file")
    result = scroll(*command)
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "is a file, not a store" in result.stderr
    folder.unlink()
    folder.mkdir()
    sqlite3.connect(folder / "log.db").execute("CREATE TABLE mine (x)").connection.close()
    result = scroll(*command)
    assert result.exit_code == 1
    assert "not a Scroll log" in result.stderr
    (folder / "log.db").write_bytes(b"no database at all " * 300)
    result = scroll(*command)
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert (folder / "log.db").read_bytes() == b"no database at all " * 300


def test_import_does_not_touch_a_folder_that_is_not_a_store(
    scroll: Any, folder: Path, trip: Path
) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    result = scroll("import", trip)
    assert result.exit_code == 1
    assert "holds other files, but no store" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_import_puts_no_empty_log_in_place_of_a_lost_one(
    filled: Any, folder: Path, trip: Path
) -> None:
    (folder / "log.db").unlink()
    result = filled("import", trip)
    assert result.exit_code == 1
    assert "will not put an empty log in its place" in result.stderr
    assert not (folder / "log.db").exists()


@pytest.mark.parametrize(
    "command", [*COMMANDS, ["import", "TRIP"], ["repair", "--index"], ["backup", "COPY"]]
)
def test_a_store_of_a_newer_format_is_refused(
    filled: Any, folder: Path, trip: Path, tmp_path: Path, command: list[str]
) -> None:
    database = sqlite3.connect(folder / "log.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    names = {"TRIP": str(trip), "COPY": str(tmp_path / "copy")}
    result = filled(*(names.get(word, word) for word in command))
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "format 99" in result.stderr
    assert not (tmp_path / "copy").exists()


def test_a_damaged_log_is_named_with_its_remedy(filled: Any, folder: Path) -> None:
    log = folder / "log.db"
    data = bytearray(log.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    log.write_bytes(data)
    result = filled("sessions")
    assert result.exit_code == 1
    assert one_line(result.stderr)
    assert "scroll repair" in result.stderr
    assert log.read_bytes() == bytes(data)


def test_a_damaged_index_is_built_again(filled: Any, folder: Path) -> None:
    expected = filled("search", "budget", "--json").stdout
    for file in list((folder / "index").rglob("*")):
        if file.is_file():
            replace_with(file, b"garbage")
    result = filled("search", "budget", "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout == expected


def test_a_lock_held_by_another_process(filled: Any, folder: Path, tmp_path: Path) -> None:
    path = many(tmp_path / "more.jsonl", 3)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(folder / "log.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, holder.stdin:
        assert holder.stdout.readline() == b"held\n"
        result = filled("import", path, "--lock-timeout", "0.05")
        assert result.exit_code == 1
        assert one_line(result.stderr)
        assert "write lock" in result.stderr
        assert filled("show", "1-30").exit_code == 0
        assert filled("search", "budget").exit_code == 0
    assert filled("import", path).exit_code == 0
    assert events_in(folder) == 33


def test_arguments_that_are_not_utf8(
    process: Any, folder: Path, trip: Path, tmp_path: Path
) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    with open(odd, "w") as file:
        file.write('{"role": "user", "content": "zebra"}\n')
    for command in (
        ["import", odd, "--json"],
        ["import", trip, "--agent", b"\xe9"],
        ["search", b"zebra \xe9"],
    ):
        started = process(*(os.fsdecode(word) for word in command))
        status, out, err = finish(started)
        assert (status, err) == (0, "")
    assert "zebra" in out
    assert "caf?" in out
    status, out, err = finish(process("sql", os.fsdecode(b"SELECT 'caf\xe9' AS x")))
    assert (status, out, err) == (0, "x\ncaf?\n", "")


# processes that end early -------------------------------------------------------------------------


def cut_short(
    process: Any, folder: Path, path: Path, number: int
) -> tuple[int, "subprocess.Popen[bytes]"]:
    """An import of so many messages, ended by a signal after its first batch; more of them until it
    comes in time.
    """
    for count in (8_000, 30_000, 120_000, 480_000):
        started = process("import", many(path, count))
        while started.poll() is None and not (
            (folder / "log.db").exists() and events_in(folder) > 0
        ):
            time.sleep(0.005)
        started.send_signal(number)
        started.wait(300)
        if events_in(folder) < count:
            return count, started
        shutil.rmtree(folder)
    raise AssertionError("every import was done before it could be ended")


def test_a_killed_import_is_completed_by_running_it_again(
    scroll: Any, process: Any, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "many.jsonl"
    count, started = cut_short(process, folder, path, signal.SIGKILL)
    assert finish(started)[0] == -signal.SIGKILL
    assert events_in(folder) > 0
    assert scroll("verify").exit_code == 0
    (report,) = json.loads(scroll("import", path, "--json").stdout)
    assert report["added"] + report["known"] == count
    assert report["known"] > 0
    assert events_in(folder) == count
    assert scroll("verify").exit_code == 0


def test_an_interrupt_ends_with_130_and_breaks_nothing(
    scroll: Any, process: Any, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "many.jsonl"
    count, started = cut_short(process, folder, path, signal.SIGINT)
    assert finish(started) == (130, "", "scroll: interrupted\n")
    assert scroll("verify").exit_code == 0
    assert scroll("import", path).exit_code == 0
    assert events_in(folder) == count


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_very_end_changes_nothing(number: signal.Signals) -> None:
    slow = (
        "import atexit, threading; atexit.register(lambda: print('ending', flush=True) "
        "or threading.Event().wait())"
    )
    command = [sys.executable, "-c", f"{slow}; {MAIN}", "--version"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert (
            started.stdout.readline().startswith(b"scroll ")
            and started.stdout.readline() == b"ending\n"
        )
        started.send_signal(number)
        assert finish(started) == (0, "", "")


class Interrupted(io.StringIO):
    """A terminal at which Ctrl-C is pressed when the cursor has just been hidden."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\x1b[?25l") == 1 and "\x1b[?25l" in text:
            raise KeyboardInterrupt
        return written


def test_an_interrupt_leaves_the_cursor_visible() -> None:
    terminal = Interrupted()
    console = Console(file=terminal, force_terminal=True, force_interactive=True)
    with pytest.raises(KeyboardInterrupt), live(Progress(console=console)):
        pass
    shown = terminal.getvalue()
    assert 0 <= shown.rfind("\x1b[?25l") < shown.rfind("\x1b[?25h")


def test_a_reader_that_stops_reading_is_no_error_message(
    scroll: Any, process: Any, tmp_path: Path
) -> None:
    scroll("import", many(tmp_path / "many.jsonl", 3_000, 200))
    for command in (
        ["export"],
        ["show", "1-3000"],
        ["show", "1-3000", "--json"],
        ["stats"],
        ["sessions"],
    ):
        read_end, write_end = os.pipe()
        started = process(*command, stdout=write_end)
        os.close(write_end)
        if command[0] in ("export", "show"):
            assert os.read(read_end, 10)
        os.close(read_end)
        assert (finish(started)[2], started.returncode) == ("", 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "prefix", [(), ("env", "PYTHONUNBUFFERED=1")], ids=["buffered", "unbuffered"]
)
def test_output_that_cannot_be_written_is_told(
    filled: Any, process: Any, prefix: tuple[str, ...]
) -> None:
    for command in (
        ["export"],
        ["show", "1"],
        ["sessions"],
        ["stats", "--json"],
        ["--help"],
        ["search", "toll"],
    ):
        with open("/dev/full", "wb") as full:
            status, _, err = finish(process(*command, stdout=full, prefix=prefix))
        assert status == 1
        assert one_line(err)
        assert "No space left" in err


def test_a_command_without_open_streams_does_its_work(
    filled: Any, process: Any, tmp_path: Path
) -> None:
    closed = ("sh", "-c", '"$@" <&- >&- 2>&-', "sh")
    copy = tmp_path / "copy"
    assert finish(process("backup", copy, prefix=closed))[0] == 0
    assert events_in(copy) == 30
    for command in (["--help"], ["sessions"], ["show", "1", "--json"], ["search", "toll"]):
        assert finish(process(*command, prefix=closed))[0] == 0


# file systems -------------------------------------------------------------------------------------


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = "mount -t tmpfs tmpfs /mnt && mount -o remount,ro /mnt"
    return (
        subprocess.run(
            ["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False
        ).returncode
        == 0
    )


needs_mounts = pytest.mark.skipif(
    not can_mount(), reason="needs unshare and mounts in a user namespace"
)


def read_only(folder: Path) -> tuple[str, ...]:
    """A prefix that runs a command with the folder on a read-only mount, which binds root too."""
    script = (
        f"mount --bind '{folder}' '{folder}' && mount -o remount,ro,bind '{folder}' && exec \"$@\""
    )
    return ("unshare", "-rm", "sh", "-c", script, "sh")


@needs_mounts
def test_a_read_only_folder_can_be_read_and_not_written(
    filled: Any, process: Any, folder: Path, trip: Path, tmp_path: Path
) -> None:
    prefix = read_only(folder)
    for command, said in (
        (["show", "7"], "no toll roads"),
        (["sessions"], "trip-1-ideas"),
        (["stats"], "30 (conversation 30)"),
        (["sql", "SELECT count(*) AS n FROM hist.events"], "30"),
        (["verify"], "intact"),
        (["backup", str(tmp_path / "copy")], "30 events"),
    ):
        status, out, err = finish(process(*command, prefix=prefix))
        assert (status, err) == (0, ""), command
        assert said in out
    status, out, err = finish(
        process("search", "toll roads", prefix=prefix)
    )  # the engine may want a lock file
    assert "no toll roads" in out if status == 0 else one_line(err) and "index" in err
    more = many(tmp_path / "more.jsonl", 3)
    for command in (["import", str(more)], ["repair", "--index"], ["repair", "--log", "--yes"]):
        status, out, err = finish(process(*command, prefix=prefix))
        assert status == 1, command
        assert one_line(err)
        assert out == ""
    assert events_in(folder) == 30
    assert filled("search", "toll roads").exit_code == 0


@needs_mounts
def test_a_store_cannot_be_created_in_a_read_only_folder(
    process: Any, folder: Path, trip: Path, tmp_path: Path
) -> None:
    readonly = tmp_path / "readonly"
    readonly.mkdir()
    status, _, err = finish(
        process("import", trip, "--store", readonly / "store", prefix=read_only(readonly))
    )
    assert status == 1
    assert one_line(err)
    assert "cannot create a store" in err
    assert not list(readonly.iterdir())


@needs_mounts
def test_a_full_disk_loses_nothing_that_was_there(
    process: Any, folder: Path, trip: Path, tmp_path: Path
) -> None:
    path = many(tmp_path / "many.jsonl", 20_000, 400)
    copy, small = tmp_path / "copy", tmp_path / "small"
    small.mkdir()
    script = f"""mount -t tmpfs -o size=14m tmpfs '{small}' &&
    scroll() {{ {sys.executable} -c '{MAIN}' "$@"; }}
    export SCROLL_STORE='{small}/store'
    scroll import '{trip}' || exit 10
    scroll import '{path}' && exit 11
    scroll verify || exit 12
    scroll show 7 || exit 13
    scroll backup '{copy}' || exit 14"""
    prefix = ("unshare", "-rm", "sh", "-c", script, "sh")
    status, out, err = finish(process(prefix=prefix))
    assert status == 0, (status, out, err)
    assert err.count("\n") == 1
    assert "no room left" in err or "bytes are free" in err
    assert "no toll roads" in out
    with Store(copy) as store:
        assert store.log.last_seq() >= 30
