"""A store on a medium that cannot be written: it opens, reads and searches, and refuses appends by
name.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scroll_context.events import Draft
from scroll_context.store import Store

READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'

SCRIPT = """
import sys
from scroll_context.errors import StoreReadOnly
from scroll_context.events import Draft
from scroll_context.store import Store
with Store(sys.argv[1]) as store:
    hits = store.index.search("toll roads")
    print([hit.seq for hit in hits], hits.note)
    print(["deep in a payload" in hit.snippet for hit in store.index.search("deep in a payload")])
    try:
        store.append(Draft(content="refused"))
    except StoreReadOnly as error:
        print("cannot be opened or written" in str(error))
"""


def on_read_only_mount(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(folder), *command],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def shelved(folder: Path) -> Path:
    """A closed store with an index, on a machine where it can be mounted read-only."""
    if shutil.which("unshare") is None or on_read_only_mount(folder.parent, "true").returncode:
        pytest.skip("needs unshare and mounts in a user namespace")
    with Store(folder, create=True) as store:
        store.log.append_many(
            [
                Draft(content="no toll roads"),
                Draft(content="padding " * 9_000 + "deep in a payload"),
            ]
        )
        store.index.catch_up()
    return folder


def test_a_store_that_cannot_be_written_is_searched(shelved: Path) -> None:
    done = on_read_only_mount(shelved, sys.executable, "-c", SCRIPT, str(shelved))
    first, *others = done.stdout.splitlines()
    assert first.startswith("[1] 1 event has all words"), done.stderr
    assert others == ["[True]", "True"]


def test_what_its_index_lacks_is_said(shelved: Path) -> None:
    with Store(shelved) as store:
        store.append(Draft(content="toll roads again"))
    done = on_read_only_mount(shelved, sys.executable, "-c", SCRIPT, str(shelved))
    first = done.stdout.splitlines()[0]
    assert first.startswith("[1] ") and "The newest event is not searchable yet" in first
    assert "Read-only file system" in first
