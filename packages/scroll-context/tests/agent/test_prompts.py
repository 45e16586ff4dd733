"""The texts that the model reads: short, complete, and true of what there is.

Every sentence of the prompt about `ms` is checked here against the code: the examples are run on the
data that they speak of, and keys, limits and filters are compared with their definitions.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from printed_cells import printed_cells, session_about_a_trip
from scroll_context.kernel.kernel import KernelOptions
from scroll_context.recall.arguments import FILTER_ARGUMENTS
from scroll_context.recall.mentions import MOST_MATCHES
from scroll_context.recall.reader import ROW_KEYS
from scroll_context.session.context import Actions
from scroll_context.session.options import SessionOptions
from scroll_context.session.prompt import (
    HEADLINE,
    PROMPT_TOKENS,
    exec_spec,
    part,
    system_prompt,
)
from scroll_context.session.session import Session
from scroll_context.sql.guard import SqlLimits
from scroll_context.store import Store
from scroll_context.tools.plain import HEADING
from scroll_context.view.tokens import estimate

PARTS = Actions().prompts
TEXT = "\n\n".join(map(part, PARTS))
MEMORY = part("memory")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session on the data that the examples of the prompt speak of."""
    with session_about_a_trip(tmp_path_factory.mktemp("prompt") / "store") as session:
        yield session


def test_prompt_and_schema_stay_within_the_budget_that_stands_beside_them() -> None:
    schema = msgspec.json.encode(exec_spec("exec")).decode()
    assert estimate(TEXT) + estimate(schema) <= PROMPT_TOKENS


def examples() -> list[tuple[str, str]]:
    """The cells of the prompt and their outputs."""
    return printed_cells(MEMORY.split("```")[1])


@pytest.mark.parametrize(("source", "output"), examples(), ids=lambda text: text[:40])
def test_each_example_prints_what_the_prompt_says(
    session: Session, source: str, output: str
) -> None:
    assert session.run(source).content == output


def test_every_call_that_the_prompt_names_has_an_example_and_exists(session: Session) -> None:
    named = set(re.findall(r"\bms\.(\w+)\(", TEXT))
    shown = {name for source, _ in examples() for name in re.findall(r"\bms\.(\w+)\(", source)}
    assert named == shown
    listed = session.run("help(ms)").content
    for name in ("outline", "gist", "index", "days_between", "provenance", *named):
        assert f"ms.{name}(" in listed, "help(ms) lists the other calls"


def test_rows_have_the_keys_that_the_prompt_lists(session: Session) -> None:
    assert f"`{', '.join(ROW_KEYS)}`" in MEMORY
    calls = ("search('hotel')", "grep('hotel')", "expand(1)", "turns(1, 4)", "standing()", "gist()")
    for call in calls:
        keys = session.run(f"print(*ms.{call}[0])").content.split("\n")[0].split()
        assert set(ROW_KEYS) <= set(keys), call
        assert ("match" in keys) == (call.split("(")[0] in ("grep", "standing", "gist")), call


def test_a_row_that_lacks_a_key_names_the_keys_it_has(session: Session) -> None:
    shown = session.run("ms.grep('hotel')[0]['text']").content
    assert "no 'text' in this row; its keys are seq, session_id, role, kind" in shown


def test_limits_are_those_of_the_code() -> None:
    assert f"up to {MOST_MATCHES:,} rows" in MEMORY
    assert f"at most {SqlLimits().rows:,} rows" in MEMORY
    assert f"at most {KernelOptions().output_chars:,} characters" in part("system")
    assert f"at most {KernelOptions().output_chars:,} characters" in exec_spec("exec").description


def test_long_output_shows_its_beginning_and_end(session: Session) -> None:
    assert "longer output is cut in the middle" in part("system")
    shown = session.run("print('a' * 20_000 + 'b' * 20_000 + 'end')").content
    assert shown.startswith("aaa") and shown.endswith("bend") and shown.count("[cut: ") == 1


def test_filters_exist_and_narrow_as_the_prompt_says(session: Session) -> None:
    filters = set(re.findall(r"`(\w+)=", MEMORY.partition("Filters:")[2]))
    assert filters == FILTER_ARGUMENTS - {"agent_id"}
    assert "in search `scope=`" in MEMORY
    source = """print([len(ms.search("hotel", **one)) for one in (
    {"role": "user"}, {"kind": "conversation"}, {"session_id": "trip"}, {"seq_range": (1, 2)},
    {"created_on": "2024-05-03"}, {"created_from": "2024-06-01"}, {"created_to": "2024-05-03"},
    {"scope": "session"}, {"scope": "session", "all_agents": True})])"""
    assert session.run(source).content.split("\n")[0] == "[2, 3, 3, 2, 2, 1, 2, 0, 3]"


@pytest.mark.parametrize(
    ("claim", "source", "seqs"),
    [
        ("all words, else any", "ms.search('trains euros')", {1, 2, 3}),
        ("OR,", "ms.search('needs OR trains')", {1, 3}),
        ("AND,", "ms.search('Devin AND Tejo', k=1)", {4}),
        ("NOT,", "ms.search('hotel NOT tejo')", {1}),
        ('"phrase"', "ms.search('\"needs parking\"')", {1}),
        ("prefix*", "ms.search('pric*')", {1}),
        ("regex=True", "ms.grep('T.jo', regex=True)", {2, 4}),
        ("or turns(session_id)", "ms.turns('trip')", {1, 2, 3, 4}),
        ("(seq)", "ms.expand(2)", {2}),
        ("([seqs])", "ms.expand([1, 3])", {1, 3}),
        ("(lo, hi)", "ms.expand(2, 4)", {2, 3, 4}),
    ],
)
def test_the_remarks_beside_the_examples_hold(
    session: Session, claim: str, source: str, seqs: set[int]
) -> None:
    assert claim in MEMORY
    printed = session.run(f"print({{row['seq'] for row in {source}}})").content.split("\n")[0]
    assert printed == str(seqs)


def test_the_last_expression_is_not_shown_and_variables_are_listed_last(session: Session) -> None:
    assert "not the value of a last expression" in part("system")
    assert "6 * 7" not in session.run("answer = 6 * 7\nanswer").content
    assert "Your variables are listed at the end of each message" in part("system")
    session.say("How much is it?")
    assert "answer: int = 42" in session.view("").messages[-1].tail


def test_tools_are_described_as_they_behave(tmp_path: Path) -> None:
    text = part("tools")
    with (
        Store(tmp_path / "store", create=True) as store,
        Session.open(store, tools=[add]) as session,
    ):
        assert "A failed call raises `ToolFailed`" in text
        failed = session.run("try:\n    add('x', 2)\nexcept ToolFailed:\n    print('failed')")
        assert failed.content == "failed"
        assert "the shape of its result is listed below your\nvariables and in `help(f)`" in text
        assert "Observed result: int" in session.run("total = add(1, 2)\nhelp(add)").content
        session.say("Go on.")
        variables, _, shapes = session.view("").messages[-1].tail.partition(HEADING)
        assert "total: int = 3" in variables and "add: int" in shapes


def test_a_large_body_is_read_through_its_handle(session: Session) -> None:
    assert '`row["payload"]`: `.text()`, `.json()`, `.lines()`, `.bytes()`' in MEMORY
    seq = session.record("tool_result", role="tool", content='["' + "x" * 2_000_000 + '"]').seq
    source = f"""body = ms.expand({seq})[0]["payload"]
print(len(body.text()), len(body.json()[0]), len(list(body.lines())), len(body.bytes()))"""
    assert session.run(source).content == "2000004 2000000 1 2000004"


def test_a_note_prints_once(session: Session) -> None:
    source = "rows = ms.grep('hotel')\nprint(rows)\nms.show(rows)"
    assert session.run(source).content.count("[note]") == 1
    assert session.run("rows = ms.grep('absent'); print(rows.note)").content.count("absent") == 3


def test_headlines_have_one_wording() -> None:
    assert HEADLINE in part("headline")
    assert HEADLINE in exec_spec("exec").parameters["properties"]["headline"]["description"]


@pytest.mark.parametrize(
    "rule",
    [
        "always a list",
        "the complete question, a few",
        "both said and denied",
        "first or initial",
        "what did you recommend",
        "To count",
        "merge neighbours",
        "never evidence",
        "read back",
        "`scope=`",
        "`all_agents=True`",
    ],
)
def test_each_rule_stands_once(rule: str) -> None:
    assert TEXT.replace("\n   ", " ").count(rule) == 1


@pytest.mark.parametrize(
    ("reach", "tools", "rules"),
    [("all", [add], True), ("session", [add], False), ("all", [], True)],
)
def test_an_environment_s_task_gets_no_rules_about_a_user_s_history(
    folder: Path, reach: str, tools: list, rules: bool
) -> None:
    with (
        Store(folder, create=True) as store,
        Session.open(
            store, options=SessionOptions(reach=reach, cell_timeout=45), tools=tools
        ) as session,
    ):
        text = system_prompt(session, ("run_cell",))
    assert ("## The user's history" in text) == rules
    assert ("sample one result of each" in text) == bool(tools)
    assert "`run_cell` runs one Python cell, for at most 45 seconds" in text
    assert not re.search(r"\{\w+\}", text), "every place is filled in"
