"""Every example of every help text works as it is printed, in the store of `scroll demo --keep`.

Examples that need a server, another program or somebody at the keyboard are only parsed.
"""

import gzip
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from scroll_context.cli.app import app
from scroll_context.cli.commands import commands, overview

# A command keeps the help option that it was first asked for, so this must be the real one.
CONTEXT = click.Context(app, info_name="scroll", help_option_names=["-h", "--help"])
# The model of an example, which the test replaces by a scripted one.
MODEL = re.compile(r"(anthropic|openai):[\w.-]+")
ONLY_PARSED = ("postgresql://", "npx", "scroll doctor --tier", "scroll serve", "scroll demo")
ONLY_PARSED += ("scroll gateway --", "scroll wrap", "scroll mcp", "scroll hook", "scroll watch")
ALWAYS_RUN = ("--export", "--once")
# Examples of `scroll import` with one of these words need importers of scroll-assistants.
FOREIGN = ("--all", "WhatsApp Chat with Bo.txt")


def members(name: str) -> Iterator[click.Command]:
    command = app.get_command(CONTEXT, name)
    assert command is not None
    yield command
    if isinstance(command, click.Group):
        yield from command.commands.values()


def examples(text: str) -> Iterator[list[str]]:
    """The words behind `scroll` of each example, without the rest of a pipeline."""
    _, _, block = re.split(r"(Examples?|Begin with):\n", text, maxsplit=1)
    for line in block.rstrip().partition("\n\n")[0].replace("\\\n", "").splitlines():
        match = re.search(r"\bscroll (.*)", line)
        assert match is not None, line
        # A pipeline, a redirection, or the end of a command inside $(…).
        part = re.split(r" \| | >> | > |\)\"", match[1])[0]
        yield shlex.split(part)


EXAMPLES = [
    words
    for name in commands()
    if name != "eval"
    for command in members(name)
    for words in examples(command.help or "")
]


def test_examples_are_found() -> None:
    assert len(EXAMPLES) > 60
    assert ["search", "toll-free route"] in EXAMPLES


@pytest.fixture(scope="module")
def trip_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "trip"
    done = CliRunner().invoke(app, ["demo", "--fast", "--keep", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def packed_export(trip_store: Path) -> bytes:
    exported = CliRunner().invoke(app, ["export", "--store", str(trip_store)])
    assert exported.exit_code == 0, exported.output
    return gzip.compress(exported.stdout_bytes)


@pytest.fixture
def workplace(
    trip_store: Path,
    packed_export: bytes,
    trip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A home folder with the demo's store, and with the files that examples name."""
    shutil.copytree(trip_store, tmp_path / "trip")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCROLL_STORE", str(tmp_path / "trip"))
    monkeypatch.chdir(tmp_path)
    shutil.copy(trip, "chat.jsonl")
    for name in ("notes", "copy", "original"):
        (tmp_path / name).mkdir()
    shutil.copy(trip, "notes/monday.jsonl")
    Path("WhatsApp Chat with Bo.txt").write_text(
        "31/12/2025, 21:30 - Bo: Happy new year!\n31/12/2025, 21:31 - Ada: And to you.\n"
    )
    Path("history.jsonl.gz").write_bytes(packed_export)
    Path("my_tools.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    with Path("my_tools.py").open("a") as file:
        file.write('__all__ = ["add"]\n')
    Path("script.json").write_text(json.dumps(["Done."]))
    return tmp_path


def standard_input(words: list[str]) -> str:
    if words[0] == "import":
        return json.dumps({"role": "user", "content": "hello"})
    return 'print(len(ms.search("toll")))' if words[0] == "repl" else "Go."


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_every_example_works_as_printed(words: list[str], workplace: Path) -> None:
    if words[0] == "import" and any(part in words for part in FOREIGN):
        pytest.importorskip("scroll_assistants", reason="scroll-assistants is not installed")
    line = shlex.join(["scroll", *words])
    command = app.get_command(CONTEXT, words[0])
    assert command is not None
    only_parsed = any(part in line for part in ONLY_PARSED)
    if only_parsed and not any(part in words for part in ALWAYS_RUN):
        with command.make_context(words[0], words[1:], parent=CONTEXT) as context:
            assert not context.args or isinstance(command, click.Group)
        return
    words = [MODEL.sub("scripted:script.json", word) for word in words]
    is_asked = any(parameter.name == "yes" for parameter in command.params)
    if is_asked and not {"--yes", "--dry-run"} & set(words):
        words.append("--yes")
    done = CliRunner().invoke(app, words, input=standard_input(words), catch_exceptions=False)
    assert done.exit_code == 0, (words, done.output)


def test_the_first_commands_work_in_an_empty_home(
    trip_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = examples(overview())
    assert first == ["demo", "--keep", "trip"]
    shutil.copytree(trip_store, tmp_path / "trip")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SCROLL_STORE", raising=False)
    for words in others:
        done: Any = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0 and "walnut" in done.stdout, words
