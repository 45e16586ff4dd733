"""The public names of the gateway: one table, seen by type checkers too, and each name has an
example in its docstring that runs here.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import scroll_gateway
from public_names import failures_of_example, names_for_type_checkers, names_of_table

NEEDS = {"wrap": "openai"}
"""Names whose example needs an extra."""


def test_type_checkers_see_the_names_of_the_table_and_no_others() -> None:
    table = names_of_table(scroll_gateway)
    assert names_for_type_checkers(scroll_gateway) == table
    assert scroll_gateway.__all__ == sorted(table)


def test_public_names_are_the_objects_of_their_modules() -> None:
    for name, home in names_of_table(scroll_gateway).items():
        assert getattr(scroll_gateway, name) is getattr(importlib.import_module(home), name)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'wrp'"):
        scroll_gateway.wrp  # noqa: B018 - the access is the test


def test_importing_the_package_loads_no_heavy_module() -> None:
    heavy = ("httpx2", "starlette", "uvicorn", "openai", "anthropic", "sqlite3")
    code = f"import sys, scroll_gateway; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", scroll_gateway.__all__)
def test_a_public_name_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    assert failures_of_example(scroll_gateway, name) == ""
