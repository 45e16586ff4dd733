"""The public names: one table for each public module, seen by type checkers too, and each name has
an example in its docstring that runs here.

Each example runs in an empty folder with a real store, a real kernel and a `ScriptedModel`.
"""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import scroll_context
import scroll_context.hosts
from public_names import failures_of_example, names_for_type_checkers, names_of_table

MODULES = (scroll_context, scroll_context.hosts)
NAMES = [(module, name) for module in MODULES for name in module.__all__]
HOMES = [(module, home) for module in MODULES for home in module.PUBLIC]
NEEDS = {"connect": "pydantic_ai"}
"""Names whose example needs an extra."""


@pytest.mark.parametrize("module", MODULES)
def test_type_checkers_see_the_names_of_the_table_and_no_others(module: ModuleType) -> None:
    table = names_of_table(module)
    assert names_for_type_checkers(module) == table
    assert module.__all__ == sorted(table)


@pytest.mark.parametrize(("module", "home"), HOMES, ids=[home for _, home in HOMES])
def test_public_names_are_the_objects_of_their_modules(module: ModuleType, home: str) -> None:
    defining = importlib.import_module(f"scroll_context.{home}")
    for name in module.PUBLIC[home]:
        assert getattr(module, name) is getattr(defining, name)


@pytest.mark.parametrize("module", MODULES)
def test_a_misspelt_name_is_an_attribute_error(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Agnt'"):
        module.Agnt  # noqa: B018 - the access is the test


def test_the_top_level_stays_small() -> None:
    assert len(scroll_context.__all__) <= 27


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_public_name_has_an_example_that_runs(
    module: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    assert failures_of_example(module, name) == ""
