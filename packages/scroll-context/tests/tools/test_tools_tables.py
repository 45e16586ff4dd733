"""Data frames and arrays that tools return arrive in cells as such, or the cell is told."""

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools import recorder
from scroll_context.tools.tools import tool

numpy = pytest.importorskip("numpy")
pandas = pytest.importorskip("pandas")


def cell(session: Session, source: str) -> str:
    return session.run(source, "c").content


@tool
def frame(count: int) -> pandas.DataFrame:
    days = pandas.date_range("2026-07-03", periods=count)
    return pandas.DataFrame({"day": days, "n": range(count)}, index=[f"r{n}" for n in range(count)])


@tool
def nested(count: int) -> dict[str, Any]:
    return {"matrix": numpy.ones((count, 2), "float32"), "name": "ones"}


class Grade(enum.Enum):
    """A class that no kernel can import."""

    GOOD = "good"


@tool
def odd() -> pandas.DataFrame:
    return pandas.DataFrame({"a": [1], "b": [Grade.GOOD]})


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = tmp_path_factory.mktemp("tables") / "store"
    tools = [frame, nested, odd]
    with (
        Store(folder, create=True) as store,
        Session.open(store, session_id="s", tools=tools) as session,
    ):
        if "Error" in cell(session, "import numpy, pandas"):
            pytest.skip("this kernel has no pandas")
        yield session


def test_a_data_frame_arrives_as_a_data_frame(tables: Session) -> None:
    source = "f = frame(3)\nprint(type(f).__name__, list(f.index), f.n.sum(), f.dtypes['day'].kind)"
    assert cell(tables, source).startswith("DataFrame ['r0', 'r1', 'r2'] 3 M\n")
    assert "def frame(count: int) -> DataFrame:" in tables.environment.toolbox.describe()
    text = cell(tables, "help(frame)")
    assert "Observed result: DataFrame of shape (3, 2) with columns day, n" in text


def test_an_array_inside_a_result_arrives_as_an_array(tables: Session) -> None:
    source = "m = nested(2)\nprint(type(m['matrix']).__name__, m['matrix'].dtype, m['name'])"
    assert cell(tables, source).startswith("ndarray float32 ones\n")


def test_a_frame_that_the_kernel_cannot_load_arrives_as_records_and_says_so(
    tables: Session,
) -> None:
    text = cell(tables, "print(odd())")
    assert "odd: the DataFrame arrives as lists, because this kernel cannot load it" in text
    assert "[{'a': 1, 'b': " in text


def test_a_frame_that_is_too_large_to_cross_arrives_as_records_and_says_so(
    tables: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CROSSING", 1_000)
    text = cell(tables, "print(type(frame(2_000)).__name__)")
    assert "so it arrives as the log has it: DataFrame as lists, dates as text" in text
    assert "\nlist\n" in text
