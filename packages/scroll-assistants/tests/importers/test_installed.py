"""What the assistants of a machine have kept: found on every system, imported at once, followed as
it grows.
"""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from samples import SAMPLES, answered, asked, claude_code
from scroll_assistants.importers.capture import capture_all, installed, watch
from scroll_context.importing.records import ImportReport
from scroll_context.store import Store

LINUX = {
    ".claude/projects/-home-ada-api": "claude-code",
    ".codex/sessions/2026/03/01": "codex",
    ".gemini": "gemini",
    ".local/share/opencode": "opencode",
    ".config/Cursor/User": "cursor",
    ".cursor/projects/home-ada-api": "cursor-agent",
    ".qwen": "qwen-code",
    ".pi/agent": "pi",
    ".copilot": "copilot",
    ".qwenpaw/workspaces/default": "qwenpaw",
}
ELSEWHERE = {
    "darwin": "Library/Application Support",
    "win32": "AppData/Roaming",
    "linux": ".config",
}


def machine(home: Path, turns: int, platform: str = "linux") -> list[Path]:
    written = []
    for folder, name in LINUX.items():
        place = home / folder.replace(".config", ELSEWHERE[platform])
        place.mkdir(parents=True, exist_ok=True)
        written.append(SAMPLES[name][0](place, turns))
    return written


@pytest.mark.parametrize("platform", ELSEWHERE)
def test_every_assistant_is_found_and_imported(store: Store, tmp_path: Path, platform: str) -> None:
    written = machine(tmp_path, 3, platform)
    (tmp_path / ".claude" / "projects" / "-home-ada-api" / "empty.jsonl").touch()
    histories = installed(tmp_path, {}, platform)
    assert [history.assistant for history in histories] == [
        "Claude Code",
        "Codex",
        "Gemini CLI",
        "opencode",
        "Cursor",
        "Cursor agent",
        "Qwen Code",
        "Pi",
        "Copilot CLI",
        "QwenPaw",
    ]
    files = [file for history in histories for file in history.files]
    assert sorted(files) == sorted(map(str, written))
    assert sum(history.bytes for history in histories) == sum(
        file.stat().st_size for file in written
    )
    reports: list[ImportReport] = []
    capture_all(store, files, on_report=reports.append)
    assert [report.added for report in reports] == [6] * len(files) and not any(
        report.error for report in reports
    )
    agents = {event.agent_id for event in store.log.iterate()}
    assert agents == set(LINUX.values()) - {"cursor-agent"}
    machine(tmp_path, 4, platform)
    capture_all(store, files, on_report=reports.append)
    assert [report.added for report in reports[len(files) :]] == [2] * len(files)


def test_folders_that_variables_name_and_files_that_cannot_be_read(
    store: Store, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere" / "projects" / "p"
    place.mkdir(parents=True)
    path = claude_code(place, 1)
    (history,) = installed(tmp_path, {"CLAUDE_CONFIG_DIR": str(tmp_path / "elsewhere")})
    assert history.files == (str(path),) and history.first == history.last
    reports: list[ImportReport] = []
    capture_all(store, [str(tmp_path / "gone.jsonl"), str(path)], on_report=reports.append)
    assert "No such file" in reports[0].error and reports[1].added == 2


@pytest.mark.parametrize("reported", [False, True])
def test_what_is_added_is_recorded_until_it_is_stopped(
    store: Store, tmp_path: Path, reported: bool
) -> None:
    if reported:
        pytest.importorskip("watchfiles")
    path = claude_code(tmp_path, 1)
    stop, heard = threading.Event(), threading.Semaphore(0)

    def told(report: ImportReport) -> None:
        if report.added:
            heard.release()

    folders = [tmp_path] if reported else []
    every = (
        600.0 if reported else 0.05
    )  # where changes are reported, nothing waits for the next look
    listing = lambda: [str(path)]  # noqa: E731
    thread = threading.Thread(
        target=watch,
        args=(store, listing),
        kwargs={"stop": stop, "on_report": told, "folders": folders, "every": every},
    )
    thread.start()
    try:
        assert heard.acquire(timeout=30)
        for turns in (2, 3):
            deadline = time.monotonic() + 30
            while not heard.acquire(
                timeout=1
            ):  # the system may begin to report a moment after the first look
                assert time.monotonic() < deadline
                claude_code(tmp_path, turns)
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not thread.is_alive()
    assert [event.content for event in store.log.iterate()] == [
        text(n) for n in range(3) for text in (asked, answered)
    ]


def test_a_watcher_that_was_killed_is_followed_by_one_that_loses_nothing(
    folder: Path, tmp_path: Path
) -> None:
    machine(tmp_path, 1)
    start = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]
    command = [*start, "watch", "--store", str(folder), "--every", "0.1"]
    environment = {"HOME": str(tmp_path), "PATH": "", "SCROLL_KEY_FILE": str(tmp_path / "key")}
    turns = 1
    for _ in range(2):
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        expected, turns = 7 * 2 * turns, turns + 2
        while not (folder / "log.db").exists():
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.01)
        with Store(folder) as store:
            while store.log.last_seq() < expected:
                assert time.monotonic() < deadline and child.poll() is None
                time.sleep(0.01)
        machine(tmp_path, turns)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert (
        subprocess.run(
            [*command, "--once"], env=environment, capture_output=True, timeout=60
        ).returncode
        == 0
    )
    with Store(folder) as store:
        said = [event.content for event in store.log.iterate()]
        assert sorted(said) == sorted(
            [text(n) for n in range(turns) for text in (asked, answered)] * len(LINUX)
        )


def test_what_could_not_be_recorded_is_tried_again(store: Store, tmp_path: Path) -> None:
    path = claude_code(tmp_path, 1)
    (tmp_path / "young.jsonl").write_text('{"type": "summary", "summary": "no message yet"}\n')
    held = store.log.backend.take_lease("s-1")
    stop, reports = threading.Event(), list[ImportReport]()

    def told(report: ImportReport) -> None:
        reports.append(report)
        if report.left:
            held.release()
        if report.added:
            stop.set()

    watch(
        store,
        lambda: [str(path), str(tmp_path / "young.jsonl")],
        stop=stop,
        on_report=told,
        every=0.05,
    )
    assert [(bool(one.left), one.added) for one in reports if one.format] == [(True, 0), (False, 2)]
    assert (
        sum(one.file.endswith("young.jsonl") for one in reports) == 1
    )  # and is not looked at until it changes
