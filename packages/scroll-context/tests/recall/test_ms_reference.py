"""docs/MS.md: it has every call of `ms`, with the parameters, fields and output that the code has."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from printed_cells import TURNS, printed_cells, session_about_a_trip
from scroll_context.recall.arguments import FILTER_ARGUMENTS
from scroll_context.recall.lookup import Lookup
from scroll_context.recall.mentions import MOST_MATCHES, MOST_TERMS
from scroll_context.session.session import Session
from scroll_context.sql.messages import SqlLimits
from scroll_context.sql.statement import COLUMNS

PRELUDE = Path(inspect.getfile(Lookup)).with_name("ms_prelude.py")
PAGE = (Path(__file__).parents[4] / "docs" / "MS.md").read_text()
SECTIONS = dict(re.findall(r"^### ms\.(\w+)\n(.+?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"^```\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ROW_OF = {
    "search": 'ms.search("hotel")[0]',
    "grep": 'ms.grep("hotel")[0]',
    "timeline": 'ms.timeline("hotel")[0] | ms.timeline("hotel", by="day")[0]'
    ' | ms.timeline("hotel", by="month")[0] | ms.timeline(["car"])[0]',
    "standing": "ms.standing()[0]",
    "expand": "ms.expand(1)[0]",
    "turns": "ms.turns(1, 4)[0]",
    "outline": 'ms.outline(query="hotel")[0]',
    "gist": "ms.gist()[0]",
    "provenance": 'ms.provenance("bound")',
}
"""A row of each call that has fields of its own."""


def prelude_signatures() -> dict[str, str]:
    """The calls of `ms` by name. The prelude runs in the jail and cannot be imported here."""
    tree = ast.parse(PRELUDE.read_text())
    signatures = {}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
            for node in ast.walk(function.args):
                if isinstance(node, ast.arg):
                    node.annotation = None
            signatures[function.name] = f"ms.{function.name}({ast.unparse(function.args)})"
    return signatures


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with session_about_a_trip(tmp_path_factory.mktemp("reference") / "store") as session:
        session.run("bound = 1")
        yield session


def test_the_page_has_every_call_with_its_signature() -> None:
    signatures = prelude_signatures()
    # The prelude passes this one on among its filters.
    parameters = inspect.signature(Lookup.search).parameters
    assert parameters["per_session"].default is None
    signatures["search"] = signatures["search"].replace("**filters", "per_session=None, **filters")
    assert SECTIONS.keys() == signatures.keys()
    for name, signature in signatures.items():
        assert SECTIONS[name].startswith(f"\n`{signature}`\n")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_describes_every_parameter_and_has_an_example(name: str) -> None:
    _, signature, text = SECTIONS[name].split("\n", 2)
    arguments = ast.parse(signature.strip("`"), mode="eval").body
    assert isinstance(arguments, ast.Call)
    names = [ast.unparse(argument).lstrip("*") for argument in arguments.args]
    names += [keyword.arg for keyword in arguments.keywords if keyword.arg is not None]
    described = text.partition("```")[0]
    assert [parameter for parameter in names if f"`{parameter}" not in described] == []
    assert f"ms.{name}(" in text.partition("```")[2]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[4:40])
def test_the_cells_of_a_block_print_what_the_page_says(session: Session, block: str) -> None:
    cells = printed_cells(block)
    assert cells
    for source, output in cells:
        assert session.run(source).content == output


@pytest.mark.parametrize("name", ROW_OF)
def test_every_field_of_a_row_is_described(session: Session, name: str) -> None:
    keys = session.run(f"print(*({ROW_OF[name]}))").content.split("\n")[0].split()
    rows = PAGE.partition("## Rows")[2].partition("## Filters")[0]
    text = SECTIONS[name] + (rows if "Event rows" in SECTIONS[name] else "")
    assert len(keys) > 5
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_the_tables_list_the_filters_and_the_columns_of_the_code() -> None:
    filters = PAGE.partition("## Filters")[2].partition("```")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", filters, re.MULTILINE)) == FILTER_ARGUMENTS
    table = PAGE.partition("| column | content |")[2].partition("\n\n")[0]
    first_cells = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(COLUMNS)


def test_the_page_shows_the_messages_and_limits_that_the_code_has() -> None:
    for seq, (role, day, text) in enumerate(TURNS, 1):
        assert f"| {seq} | {day} | {role} | {text} |" in PAGE
    limits = SqlLimits()
    assert f"{limits.seconds:.0f} seconds, {limits.rows:,} rows" in PAGE
    assert f"{limits.result_bytes >> 20} MiB" in PAGE
    assert f"at most {MOST_MATCHES:,} or `limit`" in PAGE
    assert f"up to {MOST_TERMS} terms" in PAGE
