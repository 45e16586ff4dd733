"""The public names: one table for each public module, seen by type checkers too, and each name has
an example in its docstring that runs here.

Each example runs in an empty folder with a real store, a real kernel and a `ScriptedModel`.
"""

import ast
import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import scroll_context
import scroll_context.hosts

MODULES = (scroll_context, scroll_context.hosts)
NAMES = [(module, name) for module in MODULES for name in module.__all__]
HOMES = [(module, home) for module in MODULES for home in module.PUBLIC]
NEEDS = {"connect": "pydantic_ai", "wrap": "openai"}
"""Names whose example needs an extra."""
HOMES_THAT_NEED = {"hosts.sdk_client": "httpx2"}
"""Modules of public names that cannot be imported without an extra."""


def examples_of(module: ModuleType, name: str) -> list[doctest.Example]:
    """The examples in the docstring of a public name."""
    return doctest.DocTestParser().get_examples(inspect.getdoc(getattr(module, name)) or "")


def names_for_type_checkers(module: ModuleType) -> dict[str, str]:
    """The names that a module imports for type checkers only, with their modules."""
    tree = ast.parse(inspect.getsource(module))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    pairs = [(alias, node.module) for node in imports for alias in node.names]
    assert all(alias.asname == alias.name for alias, _ in pairs), "an import without `as`"
    return {alias.name: str(home) for alias, home in pairs}


@pytest.mark.parametrize("module", MODULES)
def test_type_checkers_see_the_names_of_the_table_and_no_others(module: ModuleType) -> None:
    table = {
        name: f"scroll_context.{home}" for home, names in module.PUBLIC.items() for name in names
    }
    assert names_for_type_checkers(module) == table
    assert module.__all__ == sorted(table)


@pytest.mark.parametrize(("module", "home"), HOMES, ids=[home for _, home in HOMES])
def test_public_names_are_the_objects_of_their_modules(module: ModuleType, home: str) -> None:
    if home in HOMES_THAT_NEED:
        pytest.importorskip(HOMES_THAT_NEED[home])
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
    examples = examples_of(module, name)
    assert any(example.want for example in examples), f"{name} has no example in its docstring"
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTest(examples, {}, name, None, None, None)
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not result.failed, "".join(report)
