"""Archives: read as what they hold, bounded, and never written outside their folder."""

import gzip
import json
import tempfile
import zipfile
from pathlib import Path

import pytest

from samples import SAMPLES, claude_code, markdown, messages, table, whatsapp
from scroll_context.errors import BadInput, UnreadableMessages
from scroll_context.importing import sources
from scroll_context.importing.run import import_file
from scroll_context.store import Store


def packed(path: Path, files: dict[str, bytes | Path]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content.read_bytes() if isinstance(content, Path) else content)
    return path


def test_an_archive_of_many_kinds_is_read_file_by_file(store: Store, tmp_path: Path) -> None:
    files: dict[str, bytes | Path] = {
        "chats/a.md": markdown(tmp_path, 1),
        "chats/b.csv": table(tmp_path, 2),
        "c/chat.jsonl": messages(tmp_path, 3),
        "c/s-1.jsonl.gz": gzip.compress(claude_code(tmp_path, 1).read_bytes()),
        "settings.json": b'{"theme": "dark"}',
        "photo.png": b"\x89PNG",
        "__MACOSX/c/._chat.jsonl": b"\x00\x05",
    }
    report = import_file(store, packed(tmp_path / "all.zip", files))
    assert report.format == "archive: JSON Lines, Claude Code transcript, Markdown, CSV"
    assert (report.added, report.skipped) == (14, ("settings.json",))
    assert {event.session_id for event in store.log.iterate()} == {
        "chats/a",
        "chats/b",
        "c/chat",
        "s-1",
    }
    assert import_file(store, tmp_path / "all.zip").added == 0


def test_an_export_of_chatgpt_in_its_archive(store: Store, tmp_path: Path) -> None:
    talks = SAMPLES["chatgpt"][0](tmp_path, 2)
    files: dict[str, bytes | Path] = {
        "conversations.json": talks,
        "user.json": b'{"id": 1}',
        "chat.html": b"<p>",
        "message_feedback.json": b"[]",
        "notes.md": b"# no\n",
    }
    report = import_file(store, packed(tmp_path / "export.zip", files))
    assert (report.format, report.added, report.skipped) == ("archive: ChatGPT export", 4, ())


def test_a_chat_of_whatsapp_has_the_name_of_its_archive(store: Store, tmp_path: Path) -> None:
    import_file(
        store,
        packed(
            tmp_path / "Chat with Bo.zip",
            {"_chat.txt": whatsapp(tmp_path, 1), "1.jpg": b"\xff\xd8"},
        ),
    )
    assert {event.session_id for event in store.log.iterate()} == {"Chat with Bo"}


def test_a_fault_inside_an_archive_names_its_file(store: Store, tmp_path: Path) -> None:
    path = packed(
        tmp_path / "a.zip", {"x/chat.jsonl": b'{"role": "user", "content": "hi"}\n{torn\n'}
    )
    with pytest.raises(UnreadableMessages, match=r"a\.zip:2: x/chat\.jsonl: not JSON"):
        import_file(store, path)
    assert import_file(store, path, skip_bad=True).added == 1


def test_names_in_an_archive_lead_nowhere_else(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    line = json.dumps({"role": "user", "content": "hi"}).encode()
    path = packed(
        tmp_path / "a.zip",
        {"../../out.jsonl": line, "/abs/out.jsonl": line, "C:\\x\\out.jsonl": line},
    )
    assert import_file(store, path).messages == 3
    assert not list(tmp_path.rglob("out.jsonl")) and not list((tmp_path / "temporary").iterdir())


def test_archives_are_bounded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(sources, "MAX_ENTRIES", 10)
    bomb = b" " * (3 << 20)
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(bomb))
    many: dict[str, bytes | Path] = {f"{n}.json": b"[]" for n in range(11)}
    inner = packed(tmp_path / "inner.zip", {"chat.jsonl": b'{"role": "user", "content": "hi"}'})
    for path, reason in (
        (packed(tmp_path / "bomb.zip", {"a.json": bomb}), "more than 1 MiB"),
        (tmp_path / "bomb.jsonl.gz", "more than 1 MiB"),
        (packed(tmp_path / "gz.zip", {"a.json.gz": gzip.compress(bomb)}), "more than 1 MiB"),
        (packed(tmp_path / "many.zip", many), "it holds 11 files; at most 10 are read"),
        (packed(tmp_path / "outer.zip", {"inner.zip": inner}), "has no file of a known format"),
    ):
        with pytest.raises(BadInput, match=reason):
            import_file(store, path)
    (tmp_path / "zip.gz").write_bytes(gzip.compress(inner.read_bytes()))
    assert import_file(store, tmp_path / "zip.gz").added == 1


def test_a_damaged_archive_is_refused(store: Store, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.zip", {"chat.jsonl": b'{"role": "user", "content": "hi"}' * 99})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadInput, match="zip archive, damaged"):
        import_file(store, path)
    assert store.log.last_seq() == 0
