"""Files made to hurt: memory, disk, the store's own session and kinds, names that are no names."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scroll_context.errors import BadInput
from scroll_context.importers import import_file
from scroll_context.store.foreign import RESERVED_KINDS
from scroll_context.store.store import Store


def refusal(tmp_path: Path, line: object) -> str:
    """Why a file of this line is refused; nothing may be recorded."""
    path = tmp_path / "chat.jsonl"
    path.write_text(f"{line if isinstance(line, str) else json.dumps(line)}\n")
    with Store(tmp_path / "store", create=True) as store:
        with pytest.raises(BadInput) as refused:
            import_file(store, path)
        assert store.log.last_seq() == 0
        return str(refused.value)


def said(**fields: object) -> dict[str, object]:
    return {"role": "user", "content": "x", **fields}


@pytest.mark.parametrize("kind", sorted(RESERVED_KINDS))
def test_no_kind_of_the_store_itself_is_taken(tmp_path: Path, kind: str) -> None:
    assert "reserved" in refusal(tmp_path, said(kind=str(kind)))


def test_the_session_of_the_store_itself_takes_no_messages(tmp_path: Path) -> None:
    assert "one of Scroll's own" in refusal(tmp_path, said(session_id="scroll.store"))


def test_a_name_without_end_is_refused(tmp_path: Path) -> None:
    assert "100,000 characters" in refusal(tmp_path, said(session_id="x" * 100_000))


@pytest.mark.parametrize(
    "line",
    [
        '{"role":"user","content":' + "[" * 200_000 + "]" * 200_000 + "}",
        '{"role":"user","content":"x","n":' + "9" * 5_000 + "}",
        "\0" * 1_000,
    ],
    ids=["nested", "number", "zeros"],
)
def test_what_breaks_parsers_is_a_fault_of_its_line(tmp_path: Path, line: str) -> None:
    assert re.search(r"(line |:)1\b", refusal(tmp_path, line))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (1_600 << 20, 1_600 << 20))
from scroll_context.errors import BadInput
from scroll_context.importers import import_file
from scroll_context.store.store import Store
with Store(sys.argv[1], create=True) as store:
    try:
        import_file(store, sys.argv[2])
    except BadInput as error:
        print(store.log.last_seq(), error)
"""


def test_a_small_archive_with_an_endless_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.jsonl.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as packed:
        for _ in range(700):
            packed.write(b"\0" * (1 << 20))
    assert bomb.stat().st_size < 4 << 20
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "store", bomb], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 ") and "longer than 256 MiB" in done.stdout
