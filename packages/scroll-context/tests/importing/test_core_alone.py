"""The core imports messages and its own exports without any other package."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context import import_file
from scroll_context.errors import BadInput
from scroll_context.importing import layouts
from scroll_context.store import Store

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
CLAUDE = {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "hi"}}


@pytest.fixture(autouse=True)
def no_importers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(layouts, "entry_points", lambda _group: iter(()))
    layouts.importers.cache_clear()
    yield
    layouts.importers.cache_clear()


def test_messages_are_imported(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, MESSAGES)))
    (tmp_path / "b.json").write_text(json.dumps(MESSAGES, indent=1))
    with Store(tmp_path / "store", create=True) as store:
        assert import_file(store, tmp_path / "a.jsonl").added == 2
        assert import_file(store, tmp_path / "b.json").added == 2
        assert import_file(store, tmp_path / "a.jsonl", layout="jsonl").known == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.md", "# Notes\n\nhello"),
        ("chat.txt", "[01.02.26, 10:00] Ada: hi"),
        ("session.jsonl", json.dumps(CLAUDE)),
        ("langchain.jsonl", '{"type": "human", "content": "hi"}'),
        ("history.db", "SQLite format 3\x00"),
    ],
)
def test_another_format_names_the_package_to_install(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with (
        Store(tmp_path / "store", create=True) as store,
        pytest.raises(BadInput, match=r"pip install ./packages/scroll-assistants"),
    ):
        import_file(store, tmp_path / name)


def test_a_named_format_that_is_not_installed_names_the_package() -> None:
    with pytest.raises(BadInput, match=r"pip install ./packages/scroll-assistants"):
        layouts.layout_named("codex")


def test_the_command_line_works_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, MESSAGES)))
    code = """
import sys
from scroll_context import plugins
plugins._search_path = list
sys.modules["scroll_assistants"] = None
from scroll_context.cli.main import main
main()
"""

    def scroll(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = scroll("import", "a.jsonl", "--store", "store")
    assert done.returncode == 0 and "2 events added" in done.stdout
    for refused in (
        scroll("import", "--all", "--store", "store"),
        scroll("import", "a.jsonl", "--format", "codex", "--store", "store"),
    ):
        assert refused.returncode and "pip install ./packages/scroll-assistants" in refused.stderr
    assert scroll("doctor", "--json").stdout
