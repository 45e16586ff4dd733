"""Tools as functions inside a real kernel: large results, help, and many calls at once."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import BadInput, ToolFailed
from scroll_context.events import Kind
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools import recorder
from scroll_context.tools.tools import tool

meeting = threading.Barrier(8)


@tool
def rows(count: int) -> list[dict[str, Any]]:
    """Make rows.

    Each has a number and a text of a thousand characters.
    """
    return [{"n": n, "text": "y" * 1_000} for n in range(count)]


@tool
def table(count: int) -> dict[str, list[int]]:
    return {f"key {n}": [n] * 200 for n in range(count)}


@tool
def prose(lines: int) -> str:
    return "lots of text\n" * lines


@tool
def image(size: int) -> bytes:
    return bytes(size)


@tool
def meet(number: int, name: str = "") -> str:
    """Return when eight calls are here at the same time."""
    meeting.wait(timeout=30)
    return f"{number}{name}"


@tool
def lookup(key: int) -> Any:
    if key < 0:
        return "Error: no such key"
    return {"key": key, "tags": ["a", "b"]}


@tool(max_concurrent=1)
def alone(number: int) -> int:
    if number % 3 == 2:
        raise ToolFailed(f"{number} is not liked")
    return number * number


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = tmp_path_factory.mktemp("cells") / "store"
    with (
        Store(folder, create=True) as store,
        Session.open(
            store, session_id="s", tools=[rows, table, prose, image, meet, alone, lookup]
        ) as session,
    ):
        yield session


def cell(session: Session, source: str) -> str:
    return session.run(source, "c").content


@pytest.mark.parametrize("crossing", [16 << 20, 1 << 20], ids=["in one message", "in pieces"])
def test_a_large_result_is_what_the_signature_says(
    session: Session, monkeypatch: pytest.MonkeyPatch, crossing: int
) -> None:
    monkeypatch.setattr(recorder, "CROSSING", crossing)
    said = cell(
        session,
        """
import json
found = rows(6_000)
print(type(found).__name__, len(found), found[-1]["n"], sum(row["n"] for row in found), found[:1][0].keys())
print(found == [{"n": n, "text": "y" * 1_000} for n in range(6_000)], len(json.dumps(found)) > 6_000_000)
named = table(3_000)
print(type(named).__name__, len(named), named["key 7"][:2], "key 2999" in named, list(named)[:1])
text = prose(200_000)
print(type(text).__name__, len(text), text.count("lots"), text[:4], text == "lots of text\\n" * 200_000)
data = image(2_000_000)
print(type(data).__name__, len(data), data[0])
""",
    )
    assert said.rpartition(" ")[0].rpartition(" ")[0] == (
        "list 6000 5999 17997000 dict_keys(['n', 'text'])\n"
        "True True\n"
        "dict 3000 [7, 7] True ['key 0']\n"
        "str 2600000 200000 lots True\n"
        "bytes 2000000 0\n"
        "[4 tool calls,"
    )


def test_the_variable_list_shows_type_length_and_keys_of_a_large_result(session: Session) -> None:
    cell(session, "wide = rows(3_000)")
    (line,) = [line for line in session.environment.variable_list().split("\n") if "wide" in line]
    assert "list" in line and "3,000" in line and "{n, text}" in line


def test_help_prints_the_whole_description(session: Session) -> None:
    said = cell(session, "help(rows)")
    assert "rows(count: int) -> list[dict[str, Any]]" in said
    assert "Each has a number and a text of a thousand characters." in said
    assert "runs one call at a time" in cell(session, "help(alone)")


def test_map_calls_runs_calls_at_once_and_keeps_their_order(session: Session) -> None:
    said = cell(session, "print(map_calls(meet, [{'number': n, 'name': 'x'} for n in range(8)]))")
    assert said.startswith("['0x', '1x', '2x', '3x', '4x', '5x', '6x', '7x']\n[8 tool calls, ")


def test_map_calls_tells_errors_beside_the_results(session: Session) -> None:
    said = cell(session, "squares = map_calls(alone, range(6))\nprint(squares, squares.errors)")
    assert said.split("\n")[:-1] == [
        "map_calls: 2 of 6 calls failed; .errors[2]: ToolFailed: 2 is not liked",
        "[0, 1, None, 9, 16, None] {2: 'ToolFailed: 2 is not liked', 5: 'ToolFailed: 5 is not liked'}",
    ]
    assert cell(session, "print(map_calls(rows, []), map_calls(len, ['ab', 'c']))") == "[] [2, 1]"


def test_results_of_map_calls_are_restored_with_the_session(tmp_path: Path) -> None:
    with Store(tmp_path / "store", create=True) as store:
        with Session.open(store, session_id="s", tools=[alone]) as session:
            cell(session, "kept = map_calls(alone, [1, 2])")
        with Session.resume(store, "s", tools=[alone]) as again:
            assert (
                cell(again, "print(kept, kept.errors)")
                == "[1, None] {1: 'ToolFailed: 2 is not liked'}"
            )


def test_a_call_limit_holds_in_cells_and_after_a_resume(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(max_calls=3)
    def rare(number: int) -> int:
        ran.append(number)
        return number

    with Store(tmp_path / "store", create=True) as store:
        with Session.open(store, session_id="s", tools=[rare]) as session:
            assert cell(session, "print(rare(1), rare(2))").startswith("1 2\n")
        with Session.resume(store, "s", tools=[rare]) as again:
            assert cell(again, "print(rare(3))").startswith("3\n")
            text = cell(again, "rare(4)")
            assert "ToolFailed: rare was not run: it has used up its calls (3)" in text
            assert "Do not call it again in this session; use the results that you have" in text
        with Session.resume(store, "s", tools=[rare]) as last:
            said = cell(last, "try: rare(5)\nexcept ToolFailed as error: print('caught:', error)")
            assert said.startswith("caught: rare was not run: it has used up its calls (3)")
            results = [event for event in last.events() if event.kind == Kind.TOOL_RESULT]
    assert ran == [1, 2, 3]
    assert [result.tool_state for result in results] == ["ok"] * 3 + ["refused"] * 2
    assert results[-1].content.startswith("PermissionError: rare was not run")


def test_help_shows_the_observed_shape_after_a_call(session: Session) -> None:
    assert "Observed" not in cell(session, "help(lookup)")
    text = cell(session, "x = lookup(1)\nhelp(lookup)")
    assert "Observed result: dict {'key': int, 'tags': list of 2: str of length 1}" in text


def test_text_among_other_results_is_printed_as_a_possible_error(session: Session) -> None:
    text = cell(session, "x = lookup(1)\ny = lookup(-1)")
    assert text.startswith(
        "lookup: this result is text, and earlier ones were dict."
        " It may be an error message: 'Error: no such key'\n"
    )
    text = cell(session, "z = map_calls(lookup, [1, -1, 2])")
    assert text.startswith(
        "map_calls: 1 of 3 results are text where others are dict, perhaps error messages;"
        " [1]: 'Error: no such key'\n"
    )


def test_a_bound_path_is_a_variable_that_cells_find_again(tmp_path: Path) -> None:
    with (
        Store(tmp_path / "store", create=True) as store,
        Session.open(store, session_id="s", tools=[lookup]) as session,
    ):
        environment = session.environment
        environment.toolbox.bind("workspace", "/data/it's here")
        environment.tools_changed()
        assert cell(session, "print(workspace)") == "/data/it's here"
        cell(session, "workspace = 1")
        assert cell(session, "print(workspace)").startswith("/data/it's here")
        for name in ("lookup", "print", "no name", "class"):
            with pytest.raises(BadInput, match="cannot be bound for cells"):
                environment.toolbox.bind(name, "x")
