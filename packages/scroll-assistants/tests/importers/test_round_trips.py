"""Every format: imported, imported again, grown, and killed in the middle, without loss or
doubling.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samples import SAMPLES, answered, asked
from scroll_assistants.importers.capture import capture
from scroll_context.errors import BadInput
from scroll_context.importing.run import BATCH_EVENTS, import_file
from scroll_context.store import Store

IMPORT = """
import sys
from scroll_context.importing.run import import_file
from scroll_context.store import Store
with Store(sys.argv[1]) as store:
    import_file(store, sys.argv[2])
"""


def said(store: Store) -> list[str]:
    """What was said, without what some samples add to it."""
    return [event.content.split("\n")[0] for event in store.log.iterate()]


def turns(count: int) -> list[str]:
    return [text for n in range(count) for text in (asked(n), answered(n))]


@pytest.mark.parametrize("name", SAMPLES)
def test_import_again_and_grow(store: Store, tmp_path: Path, name: str) -> None:
    write, title = SAMPLES[name]
    path = write(tmp_path, 3)
    report = import_file(store, path)
    assert (report.format, report.added, report.known, report.bad) == (title, 6, 0, 0)
    assert said(store) == turns(3)
    roles = [event.role for event in store.log.iterate()]
    assert roles in (["user", "assistant"] * 3, ["speaker"] * 6, ["user"] * 6)
    assert len({event.session_id for event in store.log.iterate()}) == 1
    again = import_file(store, path)
    assert (again.added, again.known, again.renamed) == (0, 6, {})
    report = import_file(store, write(tmp_path, 5))
    assert (report.added, report.known, report.renamed) == (4, 6, {})
    assert sorted(said(store)) == sorted(turns(5))


@pytest.mark.parametrize(
    "name",
    (
        "claude-code codex gemini gemini-json qwen-code pi copilot opencode opencode-v2 cursor "
        "cursor-agent qwenpaw"
    ).split(),
)
def test_a_history_is_captured_as_it_grows(store: Store, tmp_path: Path, name: str) -> None:
    write, title = SAMPLES[name]
    report = capture(store, write(tmp_path, 3))
    assert (report.format, report.added, report.left) == (title.split(", messages")[0], 6, "")
    assert capture(store, write(tmp_path, 3)).added == 0
    assert capture(store, write(tmp_path, 5)).added == 4
    assert sorted(said(store)) == sorted(turns(5))
    assert import_file(store, write(tmp_path, 5)).added == 0


@pytest.mark.parametrize("name", ["chatgpt", "whatsapp", "markdown", "text", "csv"])
def test_a_file_that_no_assistant_writes_is_not_captured(
    store: Store, tmp_path: Path, name: str
) -> None:
    """What is captured counts as the user's own: a chat with others must not become that."""
    with pytest.raises(
        BadInput, match="is not a history of an assistant; `scroll import` reads it"
    ):
        capture(store, SAMPLES[name][0](tmp_path, 3))
    assert store.log.last_seq() == 0


@pytest.mark.parametrize("name", ["claude-code", "opencode", "whatsapp", "slack.zip"])
def test_an_import_that_was_killed_is_completed_by_the_next(
    folder: Path, tmp_path: Path, name: str
) -> None:
    write, _ = SAMPLES[name]
    count = BATCH_EVENTS + 200  # turns of two messages: three batches
    path = write(tmp_path, count)
    with Store(folder, create=True) as store:
        child = subprocess.Popen([sys.executable, "-c", IMPORT, str(folder), str(path)])
        deadline = time.monotonic() + 60
        while not store.log.last_seq():  # it is in the middle of its work
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert store.log.last_seq() >= BATCH_EVENTS
        report = import_file(store, path)
        assert report.added + report.known == 2 * count and report.known >= BATCH_EVENTS
        assert len(set(said(store))) == store.log.last_seq() == 2 * count
        assert import_file(store, path).added == 0
