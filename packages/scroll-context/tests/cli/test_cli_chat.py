"""A chat at a real terminal: replies as they arrive, folded cells, the status line, commands,
names.
"""

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from openai_server import USAGE, chunk
from provider_server import Exchange, Play, ProviderServer
from scroll_context.models import exec_cell
from terminal import Terminal, script

LONG = (
    "\n".join(f"value_{number} = {number}" for number in range(20))
    + "\nfor n in range(30):\n    print('line', n)"
)


def chat(folder: Path, *words: str, **settings: Any) -> Terminal:
    return Terminal(["chat", *words], folder, **{"TERM": "xterm-256color", **settings})


def begun(released: threading.Event, first: str, rest: str) -> Play:
    """An answer whose rest is not given before it is released."""

    def play(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.send(chunk({"content": first}))
        released.wait(120)
        exchange.send(chunk({"content": rest}))
        exchange.send(chunk({}, "stop"))
        exchange.send(chunk(None, usage=USAGE))
        exchange.send("[DONE]")
        exchange.end_stream()

    return play


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_reply_appears_as_it_is_written_and_the_status_line_follows(folder: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="the models extra is not installed")
    released = threading.Event()
    with ProviderServer(begun(released, "A **bold** word.", " And the rest.")) as server:
        options = ["--model", "openai:tiny", "--base-url", f"{server.url}/v1", "--window", "8000"]
        with chat(folder, "--session", "s", *options, SCROLL_API_KEY="none") as at:
            at.expect("›")
            at.type("Hello\r")
            at.expect("A **bold** word.")
            released.set()
            at.expect("And the rest.")
            at.expect("120 of 8,000 tokens (2%) · 0 evictions · 0 variables")
            at.type("/quit\r")
            at.finish()
        assert at.process.returncode == 0


def test_cells_are_folded_and_slash_commands_show_the_rest(folder: Path, tmp_path: Path) -> None:
    model = script(tmp_path, exec_cell(LONG), "Done.", "Again.")
    with chat(folder, "--session", "s", "--model", model) as at:
        at.expect("›")
        at.type("Count the zebras.\r")
        cell = at.expect("more lines at seq")
        assert "value_7" in plain(cell) and "value_8" not in plain(cell)
        printed = plain(at.expect("more lines at seq"))
        assert "│ line 7" in printed and "line 8" not in printed
        at.expect("Done.")
        at.expect("21 variables")
        seq = re.search(r"cell (\d+)", plain(cell))
        assert seq
        at.type(f"/show {seq[1]}\r")
        assert "value_19 = 19" in plain(at.expect("print('line', n)"))
        at.type("/search zebra\r")
        assert "user  s" in plain(at.expect("Count the zebras."))
        at.type("/search nothingsuch\r")
        at.expect("nothing found for 'nothingsuch'")
        at.type("value_1")
        at.expect("value_1")
        at.press("\x03", "again leaves")
        at.type("/show 99999\r")
        at.expect("scroll: no event")
        at.type("/modle\r")
        at.expect("did you mean /model?")
        other = script(tmp_path, "From the other.")
        at.type(f"/model {other}\r")
        at.expect(f"{other.removeprefix('scripted:')[:30]}")
        at.type("And now?\r")
        at.expect("From the other.")
        at.type("/model nonsense\r")
        at.expect("scroll: ")
        at.type("\x1b[A\x1b[A\r")  # the arrow goes back to what was said: /model nonsense, And now?
        at.expect("have been played")
        at.type("/quit\r")
        shown = at.finish()
    assert at.process.returncode == 0
    assert "`scroll chat --session s" in plain(shown)


def test_a_session_that_goes_on_shows_where_it_stood(folder: Path, tmp_path: Path) -> None:
    model = script(tmp_path, "The mountain pass is closed.\n⟦ pass | closed | none | done ⟧")
    with chat(folder, "--session", "trip", "--model", model) as at:
        at.expect("›")
        at.type("Which way shall we go?\r")
        at.expect("closed.")
        at.finish_by("\x04")
    with chat(folder, "--session", "trip", "--model", model) as at:
        shown = plain(at.expect("›"))
        assert "2 messages so far" in shown
        assert (
            "you: Which way shall we go?" in shown
            and "agent: The mountain pass is closed." in shown
        )
        assert "⟦" not in shown
        at.type("\x04")
        at.finish()


@pytest.mark.parametrize(
    ("answer", "opened"),
    [
        ("1", "session trip-1-ideas."),
        ("\r", "session trip-1-ideas."),
        ("n", "session trip-1-idea."),
    ],
)
def test_a_misspelt_name_is_asked_about(
    filled: Any, folder: Path, tmp_path: Path, answer: str, opened: str
) -> None:
    with chat(folder, "--session", "trip-1-idea", "--model", script(tmp_path, "x")) as at:
        asked = plain(at.expect("[1] "))
        assert "There is no session 'trip-1-idea'" in asked and "1  trip-1-ideas" in asked
        at.type(answer + "\n")
        assert opened in " ".join(plain(at.expect("lists the commands")).split())
        at.finish_by("\x04")


def test_a_name_like_no_other_is_not_asked_about(filled: Any, folder: Path, tmp_path: Path) -> None:
    with chat(folder, "--session", "quite-another", "--model", script(tmp_path, "x")) as at:
        assert "session quite-another." in plain(at.expect("›"))
        at.type("\x04")
        at.finish()


def test_a_dumb_terminal_gets_plain_text(folder: Path, tmp_path: Path) -> None:
    model = script(tmp_path, exec_cell("print(1)"), "A **bold** word.")
    with chat(folder, "--model", model, "--window", "8000", TERM="dumb", columns=40) as at:
        at.expect("› ")
        at.type("Go.\n")
        at.expect("A **bold** word.")
        at.expect(" variables")
        at.expect("› ")
        at.type("\x04")
        shown = at.finish()
    assert "\x1b" not in shown


def test_no_colour_where_none_is_wanted(folder: Path, tmp_path: Path) -> None:
    model = script(tmp_path, exec_cell("print(1)"), "A **bold** word.")
    with chat(folder, "--model", model, NO_COLOR="1") as at:
        at.expect("›")
        at.type("Go.\r")
        at.expect("word.")
        at.finish_by("\x04")
        shown = at.everything.decode()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown)
