"""The texts that the model reads: short, complete, and true of what there is."""

import re
from importlib import resources
from pathlib import Path

import pytest

from scroll_context.session.context import Actions
from scroll_context.session.prompt import part, system_prompt
from scroll_context.session.session import Session, SessionOptions
from scroll_context.store import Store
from scroll_context.view.tokens import estimate

PARTS = Actions().prompts
WAS = 1_215
"""Tokens of the same texts, by the same estimate, before the memory had grep, outline, gist and the
others.
"""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_the_prompt_has_not_grown() -> None:
    assert sum(estimate(part(name)) for name in PARTS) <= WAS


def test_every_function_that_is_named_exists_and_every_function_is_named() -> None:
    text = "\n".join(map(part, PARTS))
    named = set(re.findall(r"\bms\.(\w+)", text))
    source = resources.files("scroll_context.recall").joinpath("ms_prelude.py").read_text()
    there = set(re.findall(r"^def ([a-z]\w*)", source, re.M))
    assert named == there


@pytest.mark.parametrize(
    "rule",
    [
        "1,000 rows",
        "always a list",
        "the whole question, a few",
        "standing instructions",
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
    assert "\n".join(map(part, PARTS)).replace("\n   ", " ").count(rule) == (
        2 if rule == "standing instructions" else 1
    )


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
