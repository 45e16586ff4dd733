"""Times in filters: one reading for all callers, whatever their zone and precision."""

import datetime as dt
from typing import Any

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Scope
from scroll_context.log import times
from scroll_context.recall.memory import Memory, NoSession
from scroll_context.store import Store

ZONE = dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2024", "2024", "2024"),
        ("2024-07", "2024-07", "2024-07"),
        ("20240731", "2024-07-31", "2024-07-31"),
        ("2024-07-31 10:30", "2024-07-31T10:30", "2024-07-31T10:30"),
        ("2024-07-31T10:30:05,25", "2024-07-31T10:30:05.25", "2024-07-31T10:30:05.25"),
        ("2024-07-31T10:30Z", "2024-07-31T10:30:00", "2024-07-31T10:30:59"),
        ("2024-07-31T10:30+02:00", "2024-07-31T08:30:00", "2024-07-31T08:30:59"),
        ("2024-07-31T10+05:30", "2024-07-31T04:30:00", "2024-07-31T05:29:59"),
        ("2024-07-31T23:30:00-0330", "2024-08-01T03:00:00", "2024-08-01T03:00:00"),
        ("2024-07-31T10:30:00.5+02", "2024-07-31T08:30:00.500000", "2024-07-31T08:30:00.599999"),
    ],
)
def test_a_filter_means_its_first_and_its_last_moment_in_utc(
    text: str, first: str, last: str
) -> None:
    assert (times.bound(text, upper=False), times.bound(text, upper=True)) == (first, last)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2024-13",
        "2024-02-30",
        "2024-07-31T25",
        "2024-07-31T10:30+99:00",
        "0000",
        "2024-07-31+02:00",
        "0001-01-01T00:00+02:00",
        "9" * 1_000,
        "\u0662\u0660\u0662\u0664",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match="is not a date or time: write one such as 2024-07"):
        times.bound(text, upper=True)


def test_dates_and_times_of_python_are_read_too() -> None:
    assert times.bound(dt.date(2024, 7, 31), upper=True) == "2024-07-31"
    assert (
        times.bound(dt.datetime(2024, 7, 31, 10, 30, tzinfo=ZONE), upper=False)
        == "2024-07-31T08:30:00"
    )


def test_a_time_with_a_zone_is_recorded_in_utc(store: Store) -> None:
    for text, kept in (
        ("2024-07-31T10:30:00+02:00", "2024-07-31T08:30:00+00:00"),
        ("2024-07-31T10:30:00Z", "2024-07-31T10:30:00Z"),
        ("2024-07-31T10:30:00", "2024-07-31T10:30:00"),
        ("2024-07-31", "2024-07-31"),
    ):
        assert (
            store.log.get(store.append(Draft(session_id="s", created_at=text))).created_at == kept
        )


FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({"created_from": "2024-07-31T12:00:00+02:00"}, [2, 3]),
    ({"created_from": "2024-07-31T12:00:01+02:00"}, [3]),
    ({"created_to": "2024-07-31T12:00+02:00"}, [1, 2]),
    ({"created_to": "2024-07-31T11:59+02:00"}, [1]),
    ({"created_from": dt.datetime(2024, 7, 31, 12, 0, tzinfo=ZONE)}, [2, 3]),
    ({"created_on": "2024-07-31 10"}, [2]),
    ({"created_from": "20240801"}, [3]),
]


@pytest.mark.parametrize(("filters", "seqs"), FILTERS)
def test_every_method_honours_a_zone(
    store: Store, filters: dict[str, Any], seqs: list[int]
) -> None:
    for at in ("2024-07-31T09:00:00+00:00", "2024-07-31T12:00:00+02:00", "2024-08-01T00:00:00Z"):
        store.append(Draft(session_id=at, role="user", content="rain in the valley", created_at=at))
    memory = Memory(store, Scope("own"), "all", NoSession())
    assert (
        sorted(row["seq"] for row in memory.call("ms.search", "rain", **filters).value["rows"])
        == seqs
    )
    hits = memory.call("ms.grep", "rain", **filters).value["rows"]
    assert sorted(seq for row in hits for seq in (row["seq"], *row.get("also", ()))) == seqs
    assert sum(
        row["hits"] for row in memory.call("ms.timeline", "rain", **filters).value["rows"]
    ) == len(seqs)
    if "created_on" not in filters:
        assert [
            row["seqs"][0] for row in memory.call("ms.outline", **filters).value["rows"]
        ] == seqs


def test_a_time_that_cannot_be_read_is_refused_by_every_method(store: Store) -> None:
    memory = Memory(store, Scope("own"), "all", NoSession())
    for method in ("ms.search", "ms.grep", "ms.timeline"):
        with pytest.raises(BadInput, match="'soon' is not a date or time"):
            memory.call(method, "rain", created_from="soon")
    for method in ("ms.outline", "ms.gist"):
        with pytest.raises(BadInput, match="'soon' is not a date or time"):
            memory.call(method, created_to="soon")
