"""verify, repair, backup, export, demo."""

import json
import os
import shutil
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from damage import replace_with
from scroll_context.events import Draft
from scroll_context.store import Store


def alter(log: Path, seq: int) -> None:
    """Change a row behind Scroll's back, as an editor of the file could."""
    database = sqlite3.connect(log)
    database.executescript(
        "DROP TRIGGER event_no_update; UPDATE event SET content = 'forged' WHERE seq "
        f"= {seq}; PRAGMA wal_checkpoint;"
    )
    database.close()


def test_verify_a_whole_store(filled: Any) -> None:
    result = filled("verify")
    assert result.exit_code == 0
    assert "30 events, 0 payloads, head " in result.stdout
    found = json.loads(filled("verify", "--json").stdout)
    assert found["ok"] is True
    assert found["head"] == json.loads(filled("stats", "--json").stdout)["head"]


def test_verify_names_what_was_altered(filled: Any, folder: Path) -> None:
    alter(folder / "log.db", 12)
    result = filled("verify")
    assert result.exit_code == 1
    assert "bad: seq 12: altered" in result.stdout
    assert "the first at seq 12" in result.stderr
    result = filled("verify", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["bad"][0][0] == 12


@pytest.mark.parametrize("kind", ["idx", "pos", "term", "fieldnorm", "fast", "store"])
def test_verify_names_a_flipped_bit_in_the_index(filled: Any, folder: Path, kind: str) -> None:
    assert filled("repair", "--index").exit_code == 0
    (file,) = (folder / "index").glob(f"v*/*.{kind}")
    whole = file.read_bytes()
    replace_with(file, bytes([whole[0] ^ 4]) + whole[1:])
    result = filled("verify")
    assert result.exit_code == 1
    assert file.name in result.stderr
    assert f"`scroll repair --store {folder}` rebuilds it" in result.stderr
    assert "intact" not in result.stdout
    assert json.loads(filled("verify", "--json").stdout)["damaged_index_files"] == [file.name]
    assert filled("repair", "--index").exit_code == 0
    assert "intact" in filled("verify").stdout


def test_an_intact_store_is_not_repaired(filled: Any, folder: Path) -> None:
    assert "are intact" in filled("repair").stdout
    assert not list(folder.glob("log.db.*"))
    rebuilt = filled("repair", "--log", "--yes").stdout
    assert "recovered every event: 30; the old log is kept as" in rebuilt


def test_repair_of_a_damaged_log(filled: Any, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    path.write_text(
        "".join(
            json.dumps({"role": "user", "content": f"{n} " + "word " * 300}) + "\n"
            for n in range(200)
        )
    )
    filled("import", path)
    log = folder / "log.db"
    data = bytearray(log.read_bytes())
    page = 4096 * (len(data) // 4096 // 2)
    data[page : page + 4096] = b"\xff" * 4096
    log.write_bytes(data)
    assert filled("verify").exit_code == 1
    planned = filled("repair", "--dry-run")
    assert planned.exit_code == 0 and "The log" in planned.stdout
    refused = filled("repair")
    assert refused.exit_code == 1 and "pass --yes" in refused.stderr
    assert log.read_bytes() == bytes(data), "neither of them changed the store"
    report = json.loads(filled("repair", "--yes", "--json").stdout)
    assert report["indexed_seq"]
    assert 200 < report["recovered"] < 230
    assert report["lost"]
    assert Path(report["kept_as"]).read_bytes() == bytes(data)
    result = filled("verify")
    assert result.exit_code == 0, result.output
    assert "known: seq" in result.stdout
    assert "are intact" in filled("repair").stdout


def test_a_new_index_gives_the_same_answers(filled: Any, folder: Path) -> None:
    before = filled("search", "economy cabin", "--json").stdout
    shutil.rmtree(folder / "index")
    assert json.loads(filled("repair", "--index", "--json").stdout)["indexed_seq"] == 30
    assert filled("search", "economy cabin", "--json").stdout == before
    assert "indexed up to seq 30" in filled("repair", "--index").stdout


def test_backup_is_a_store(filled: Any, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "copy"
    report = json.loads(filled("backup", target, "--json").stdout)
    assert report["events"] == 30
    with Store(folder) as one, Store(target) as two:
        assert list(one.log.iterate()) == list(two.log.iterate())
    assert filled("search", "budget", "--store", target).exit_code == 0
    again = filled("backup", target)
    assert again.exit_code == 1
    assert "not empty" in again.stderr


def test_export_to_stdout_and_to_a_file_are_the_same(filled: Any, tmp_path: Path) -> None:
    target = tmp_path / "all.jsonl"
    result = filled("export", target)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "30 events" in result.stderr
    assert filled("export").stdout_bytes == target.read_bytes()
    assert filled("export", "-").stdout_bytes == target.read_bytes()
    header, *events, end = [json.loads(line) for line in target.read_text().splitlines()]
    assert (header["scroll_export"], len(events), end["end"]) == (2, 30, 30)


def test_export_overwrites_nothing_and_leaves_no_litter(
    filled: Any, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "all.jsonl"
    target.write_text("mine")
    result = filled("export", target)
    assert result.exit_code == 1
    assert "not overwritten" in result.stderr
    assert target.read_text() == "mine"
    result = filled("export", tmp_path / "no" / "such" / "folder.jsonl")
    assert result.exit_code == 1
    assert result.stderr.startswith("scroll: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "store"]


def test_files_that_commands_write_are_private_whatever_the_umask(
    filled: Any, tmp_path: Path, folder: Path
) -> None:
    pytest.importorskip("scroll_inspector", reason="scroll-inspector is not installed")
    before = os.umask(0)
    try:
        commands: list[tuple[str | Path, ...]] = [
            ("export", tmp_path / "export.jsonl"),
            ("show", "1", "--raw", "-o", tmp_path / "raw"),
            ("read", "trip-2-booking", "-o", tmp_path / "read.md"),
            ("read", "trip-2-booking", "--steps", "--json", "--out", tmp_path / "steps.json"),
            ("serve", "trip-2-booking", "--export", tmp_path / "session.html"),
        ]
        for words in commands:
            done = filled(*words)
            assert done.exit_code == 0, (words, done.stderr)
            assert stat.S_IMODE(Path(words[-1]).stat().st_mode) == 0o600, words
        with Store(folder) as store:
            seq = store.append(Draft(content="a body " * 10_000))
            reference = store.ref(store.log.get(seq))
            assert reference is not None
            store.payloads.save_as(reference.digest, tmp_path / "body")
        assert stat.S_IMODE((tmp_path / "body").stat().st_mode) == 0o600
    finally:
        os.umask(before)
