"""Tools at the border: refused calls, observers that raise, names, descriptions, numbers and
effects.
"""

import json
import logging
from typing import Any

import msgspec
import pytest

from open_journals import journal_of
from scroll_context.errors import BadInput, ToolFailed
from scroll_context.events import Event, Kind, Scope
from scroll_context.log.log import EventLog
from scroll_context.tools.mcp_values import doc_of
from scroll_context.tools.toolbox import Toolbox
from scroll_context.tools.tools import Tool, tool

SCOPE = Scope("trip", "planner", "travel")


def toolbox(log: EventLog, *tools: Any, **options: Any) -> Toolbox:
    return Toolbox(tools, journal=journal_of(log, SCOPE), **options)


# 11 ---------------------------------------------------------------------------------------------------------


def test_a_refused_call_is_recorded_without_its_whole_arguments(log: EventLog) -> None:
    @tool(max_calls=1)
    def save(text: str) -> int:
        return len(text)

    box = toolbox(log, save, confirm=lambda _: False)
    box.call("save", ("short",))
    large = "x" * 2_000_000
    for name, kwargs in (
        ("no_such_tool", {"text": large}),
        ("n" * 500_000, {}),
        ("save", {"text": large, "more": 1}),
    ):
        with pytest.raises(ToolFailed) as caught:
            box.call(name, kwargs=kwargs)
        assert len(str(caught.value)) < 2_000
    with pytest.raises(ToolFailed, match=r"used up its calls \(1\)"):
        box.call("save", (large,))
    refused = list(log.iterate())[2:]
    assert len(refused) == 8
    for event in refused:
        assert event.payload is None
        assert len(event.content) + len(event.name) < 5_000
    said = json.loads(refused[0].content)
    assert said["characters"] == len(large) + len('{"text": ""}')
    assert said["beginning"].startswith('{"text": "xxx')


def test_small_arguments_of_a_refused_call_are_kept(log: EventLog) -> None:
    with pytest.raises(ToolFailed):
        toolbox(log).call("no_such_tool", (1,), {"text": "a"})
    assert json.loads(log.tail(2)[0].content) == {"*": [1], "text": "a"}


# 14 ---------------------------------------------------------------------------------------------------------


def test_an_observer_that_raises_changes_no_call(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    booked: list[str] = []

    @tool(effects=True)
    def book(flight: str) -> str:
        booked.append(flight)
        return f"booked {flight}"

    def broken(event: Event) -> None:
        raise RuntimeError("the listener is broken")

    journal_of(log, SCOPE).subscribe(broken)
    outcome = toolbox(log, book).call("book", ("OS 1",))
    assert (outcome.value, booked) == ("booked OS 1", ["OS 1"])
    assert log.get(outcome.result_seq).tool_state == "ok"
    assert "the listener is broken" in caplog.text


def test_tracebacks_of_tools_are_logged(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def divide(by: int) -> float:
        return 1 / by

    with (
        caplog.at_level(logging.INFO, "scroll_context.tools"),
        pytest.raises(ToolFailed, match="division by zero"),
    ):
        toolbox(log, divide).call("divide", (0,))
    (record,) = [record for record in caplog.records if record.name == "scroll_context.tools"]
    assert "divide" in record.getMessage()
    assert "return 1 / by" in caplog.text


# 19 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "two words",
        "x\x1b]52;c;AAAA\x07",
        "a\u202eb",
        "a.b.c",
        "class",
        "a.class",
        "",
        "print",
        "a-b",
        "a" * 64,
    ],
)
def test_names_that_are_no_identifiers_are_refused(name: str) -> None:
    @tool
    def good(a: int) -> int:
        return a

    with pytest.raises(BadInput, match="cannot be called"):
        Tool(good, good.start, name=name, doc="", signature=good.signature, schema={})


def test_descriptions_hold_nothing_that_a_terminal_or_a_model_obeys_unseen() -> None:
    @tool
    def good(a: int) -> int:
        return a

    hidden = "Reads \x1b[31mfiles\x1b[0m.\x1b]52;c;AAAA\x07\u202e gnp.exe \U000e0041\U000e0042\u200b\r\n\tMore."
    schema = {"properties": {"a": {"type": "integer", "description": "which\u2066 one\x07"}}}
    made = Tool(
        good, good.start, name="server.read", doc=hidden, signature=good.signature, schema=schema
    )
    assert made.doc == "Reads files. gnp.exe \n\tMore."
    assert made.spec.parameters["properties"]["a"]["description"] == "which one"
    assert "\u2066" not in msgspec.json.encode(made.spec).decode()


# 25 ---------------------------------------------------------------------------------------------------------


def test_integers_stay_integers(log: EventLog) -> None:
    @tool
    def kinds(
        one: float, many: list[float], table: dict[str, float | None], maybe: float | None = None
    ) -> list[str]:
        return [repr(value) for value in (one, many, table, maybe)]

    box = toolbox(log, kinds)
    arguments = {"one": 1, "many": [1, 2.0], "table": {"a": 3, "b": None}, "maybe": 4}
    assert box.call("kinds", kwargs=arguments).value == [
        "1",
        "[1, 2.0]",
        "{'a': 3, 'b': None}",
        "4",
    ]
    result = box.call_native("kinds", {"one": 2.5, "many": [], "table": {}}, tool_call_id="x")
    assert json.loads(result.content) == ["2.5", "[]", "{}", "None"]


# 26 ---------------------------------------------------------------------------------------------------------


def test_only_what_has_effects_is_not_to_be_repeated(log: EventLog) -> None:
    def act(a: int) -> int:
        """Act."""
        return a

    box = toolbox(
        log,
        tool(act, name="reads"),
        tool(act, name="sends", effects=True),
        tool(act, name="sets", effects=True, idempotent=True),
    )
    for limit in (10_000, 650, 620):
        assert box.describe(limit).count("never repeat") == 1
        told = {part.partition("(")[0]: part for part in box.describe(limit).split("def ")[1:]}
        assert "effects" not in told["reads"]
        assert "has effects" in told["sends"]
        assert "never repeat" not in told["sets"]
        assert "has effects; the same call again changes nothing more" in told["sets"]
    assert log.tail(1) == []
    assert [log.get(box.call("sends", (1,)).call_seq).kind] == [Kind.TOOL_CALL]


# relatives --------------------------------------------------------------------------------------------------


def test_a_coroutine_that_exits_does_not_end_the_loop_of_all_others(log: EventLog) -> None:
    @tool
    async def leave() -> None:
        raise SystemExit("enough")

    @tool
    async def stay() -> str:
        return "here"

    box = toolbox(log, leave, stay, default_timeout=20.0)
    with pytest.raises(ToolFailed, match="SystemExit: enough"):
        box.call("leave")
    assert box.call("stay").value == "here"


def test_a_server_cannot_fill_the_prompt_with_one_description() -> None:
    assert len(doc_of("word " * 1_000_000, {})) < 21_000
