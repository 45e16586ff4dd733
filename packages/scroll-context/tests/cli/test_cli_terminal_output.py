"""Terminal output is safe, hints work as printed, and a run says what the model may read."""

import ast
import base64
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from damage import replace_with
from scroll_context.cli.app import app
from scroll_context.errors import BadInput
from scroll_context.events import Draft
from scroll_context.messages import ToolCall
from scroll_context.models import Reply, exec_cell
from scroll_context.store import Store
from scroll_context.tools.tools import Tool, tool
from terminal import Terminal, script, wait_for

FORGED = "  ? harmless() has side effects. Run it? [y/N] "
CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))

TOOLS = """
import time
from pathlib import Path
from scroll_context.tools.tools import tool

HERE = Path(__file__).parent

@tool
def wait() -> None:
    \"\"\"Say that the cell runs, and wait until it may go on.\"\"\"
    (HERE / "started").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)

@tool(effects=True)
def launch(rocket: str) -> str:
    \"\"\"Launch a rocket.\"\"\"
    (HERE / "launched").touch()
    return rocket + " is up"
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "my_tools.py"
    file.write_text(TOOLS)
    return file


def chat(folder: Path, model: str, *more: str, **settings: Any) -> Terminal:
    return Terminal(["chat", "--session", "s", "--model", model, *more], folder, **settings)


# 19: the terminal ---------------------------------------------------------------------------------


def test_names_cannot_steer_the_terminal_or_forge_a_question(folder: Path, tmp_path: Path) -> None:
    named = ToolCall(id="1", name=f"x{CLIPBOARD}\n{FORGED}\u202e", arguments={})
    model = script(tmp_path, Reply(text="Look.", tool_calls=(named,)), "Done.")
    with chat(folder, model, TERM="xterm-256color") as at:
        at.expect("›")
        at.type("Go.\n")
        at.expect("Done.")
        at.expect("›")
        at.type("\x04")
        shown = at.finish()
    assert CLIPBOARD not in shown and "\u202e" not in shown
    assert not any(line.startswith(FORGED[:16]) for line in shown.splitlines())
    for command in (["show", "1-20"], ["read", "s", "--steps"], ["sessions"], ["explain", "6"]):
        with Terminal(command, folder) as at:
            shown = at.finish()
        assert at.process.returncode == 0, shown
        assert "\x1b]" not in shown and "\u202e" not in shown and f"\n{FORGED[:16]}" not in shown


def test_a_question_shows_what_is_asked(folder: Path, tmp_path: Path, tools: Path) -> None:
    """Characters that reverse writing, or end the line, are spelt out in the question."""
    model = script(
        tmp_path, exec_cell("launch('safe\\u202eevil\\n  ? other() [y/N] \\x1b[2K')"), "Done."
    )
    with chat(folder, model, "--tools", str(tools)) as at:
        at.expect("›")
        at.type("Go.\n")
        asked = at.expect("Run it? [y/N] ")
        at.type("n\n")
        at.expect("Done.")
        at.finish_by("\x04")
    assert "\u202e" not in asked and "\x1b[2K" not in asked and "\\u202e" in asked
    assert "\n  ? other" not in asked.replace("\r", "")
    assert not tools.with_name("launched").exists()


def test_what_was_typed_before_a_question_does_not_answer_it(
    folder: Path, tmp_path: Path, tools: Path
) -> None:
    cell = exec_cell(
        "wait()\ntry:\n    print(launch('Ariane'))\nexcept ToolFailed:\n    print('was refused')"
    )
    with chat(folder, script(tmp_path, cell, "Done."), "--tools", str(tools)) as at:
        at.expect("›")
        at.type("Go.\n")
        wait_for(tools.with_name("started"), at.process)
        at.type("y\ny\n")
        at.expect("y\r\ny\r\n")  # the terminal has it
        tools.with_name("go").touch()
        at.expect("Run it? [y/N] ")
        at.type("n\n")
        at.expect("was refused")
        at.expect("Done.")
        at.finish_by("\x04")
    assert not tools.with_name("launched").exists()


@pytest.mark.parametrize(
    "name", ["x\x1b]0;owned\x07", "two words", "a.b c", "", "ev\u202eil", "a\nb"]
)
def test_a_tool_has_a_name_that_python_can_spell(name: str) -> None:
    @tool
    def plain() -> None:
        """Nothing."""

    with pytest.raises(BadInput, match="cannot be called"):
        Tool(
            plain, plain._launch, name=name, doc="", signature=plain.signature, schema=plain.schema
        )


def test_everything_that_is_printed_goes_through_one_place() -> None:
    """Only output.py and the Screen of watch.py may write to a terminal, and both escape what they
    write.
    """
    ways = {
        ("click", "echo"),
        ("click", "secho"),
        ("typer", "echo"),
        ("console", "print"),
        ("stdout", "write"),
    }
    for file in (Path(__file__).parents[2] / "src" / "scroll_context" / "cli").glob("*.py"):
        if file.name in ("output.py", "main.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                called = (
                    owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                )
                inside_screen = file.name == "watch.py" and called == "console"
                assert (called, node.func.attr) not in ways or inside_screen, (
                    f"{file.name}:{node.lineno}"
                )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{file.name}:{node.lineno}"


# 24: hints ----------------------------------------------------------------------------------------


def hints(text: str) -> Iterator[list[str]]:
    """The commands that a text advises, in backquotes or on lines of their own."""
    for quoted in re.findall(r"`(scroll [a-z][^`]*)`", text) + re.findall(
        r"^  (scroll .*)$", text, re.MULTILINE
    ):
        yield shlex.split(quoted)[1:]


def image(path: Path) -> Path:
    part = {
        "type": "image",
        "source": {
            "type": "base64",
            "media_type": "image/png",
            "data": base64.b64encode(PNG).decode(),
        },
    }
    path.write_text(json.dumps({"role": "user", "content": [part]}) + "\n")
    return path


def test_every_printed_hint_works_as_it_is_printed(
    tmp_path: Path, trip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCROLL_STORE", raising=False)
    monkeypatch.delenv("SCROLL_MODEL", raising=False)
    there = ["--store", "my store"]
    model = ["--model", script(tmp_path, exec_cell("x = 1"), "Done.")]
    cut_off = ["--model", script(tmp_path, exec_cell("x = 1"))]

    def run(*words: str, typed: str = "") -> Any:
        return CliRunner().invoke(app, words, input=typed, catch_exceptions=False)

    no_store = run("search", "x", *there)
    for file in (trip, image(tmp_path / "image.jsonl")):
        assert run("import", str(file), *there).exit_code == 0
    said = [
        no_store,
        run("run", "Go.", "--session", "my session", "--steps", "1", *model, *there),
        run("run", "Go.", "--session", "my session", *model, *there),
        run("run", "Go.", "--session", "broken", *cut_off, *there),
        run("resume", "nobody", *model, *there),
        run("read", "nobody", "--steps", *there),
        run("explain", "3", *there),
        run("fork", "my session", "2", *there),
        run("fork", "my session", "33", "--as", "other", *there),
        run("show", "31", *there),
        run("chat", "--session", "talk", *model, *there, typed="Hello.\n"),
        run("demo", "--fast", "--keep", "kept demo"),
    ]
    found = {tuple(hint) for result in said for hint in hints(result.output)}
    assert {hint[0] for hint in found} >= {
        "import",
        "resume",
        "sessions",
        "sql",
        "show",
        "read",
        "chat",
        "explain",
    }
    values = {"FILE": str(tmp_path / "new"), "PROMPT": "Go on.", "SPEC": model[1]}
    for hint in sorted(found, key=lambda words: words[0] == "import"):
        if hint[0] == "import":
            values["FILE"] = str(trip)
        if hint[:2] == ("resume", "broken"):
            hint = tuple(model[1] if word == cut_off[1] else word for word in hint)
        words = [values.get(word, word) for word in hint]
        done = run(*words, typed="")
        assert done.exit_code == 0, (hint, done.output)


def test_hints_of_damaged_stores_work(
    filled: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCROLL_STORE")

    def hinted(*words: str) -> list[str]:
        result = CliRunner().invoke(app, [*words, "--store", str(folder)], catch_exceptions=False)
        assert result.exit_code == 1
        [*_, last] = hints(result.stderr)
        return last

    segment = next(file for file in (folder / "index").rglob("*.store"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    replace_with(segment, bytes(data))
    assert CliRunner().invoke(app, hinted("verify")).exit_code == 0
    log = folder / "log.db"
    data = bytearray(log.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    log.write_bytes(data)
    # No terminal is there for the question that a repair of the log asks.
    assert CliRunner().invoke(app, [*hinted("sessions"), "--yes"]).exit_code == 0


def test_the_bytes_of_a_payload_come_out_as_they_went_in(
    scroll: Any, process: Any, folder: Path, tmp_path: Path
) -> None:
    assert scroll("import", image(tmp_path / "image.jsonl")).exit_code == 0
    assert "scroll show 1 --raw -o FILE" in scroll("show", 1, "--full").stdout
    assert process("show", "1", "--raw").communicate()[0] == PNG
    assert scroll("show", 1, "--raw", "-o", tmp_path / "it.png").exit_code == 0
    assert (tmp_path / "it.png").read_bytes() == PNG
    again = scroll("show", 1, "--raw", "-o", tmp_path / "it.png")
    assert again.exit_code == 1 and "not overwritten" in again.stderr
    with Terminal(["show", "1", "--raw"], folder) as at:
        shown = at.finish()
    assert at.process.returncode == 1
    assert "image/png" in shown and "PNG\r\n" not in shown and "\x89" not in shown
    assert scroll("show", 2, "--raw").exit_code == 1


@pytest.mark.parametrize(("key", "status"), [("n\n", 1), ("\x03", 130), ("y\n", 0)])
def test_nothing_is_destroyed_without_a_yes(
    filled: Any, folder: Path, key: str, status: int
) -> None:
    with Terminal(["erase", "1"], folder) as at:
        at.expect("[y/N]")
        at.press(key, "erased" if status == 0 else "nothing was changed")
        at.finish()
    assert at.process.returncode == status
    with Store(folder) as store:
        assert store.log.get(1).is_erased == (status == 0)


def test_a_long_list_of_sessions_goes_to_the_pager(
    filled: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGER", "sed s/^/paged:/")
    with Store(folder) as store:
        for number in range(60):
            store.append(Draft(session_id=f"s-{number}", role="user", content="hello there"))
    with Terminal(["sessions"], folder) as at:
        assert "paged:s-59" in at.finish()
    with Terminal(["sessions", "--limit", "2"], folder) as at:
        assert "paged:" not in at.finish()


# 3: what the model may read -----------------------------------------------------------------------


def test_a_run_and_a_chat_say_what_the_model_may_read(scroll: Any, tmp_path: Path) -> None:
    model = ["--model", script(tmp_path, "Done.", "Done.")]
    ran = scroll("run", "Go.", "--session", "r", *model)
    assert "may read this session and nothing else (--reach session)" in ran.stderr
    ran = scroll("run", "Go.", "--session", "a", "--agent", "mine", *model)
    assert "may read everything recorded by agent 'mine' (--reach agent)" in ran.stderr
    assert "may read" not in scroll("run", "Go.", "-q", *model).stderr
    talked = scroll("chat", "--session", "c", "--reach", "session", *model, input="Hello.\n")
    assert "may read this session and nothing else (--reach session)" in " ".join(
        talked.stdout.split()
    )
