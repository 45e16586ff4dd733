"""The host half of `ms`: what it accepts, what it refuses, and what its rows hold."""

import datetime as dt
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Kind, Scope
from scroll_context.store.store import Store
from scroll_context.surface.memory import MemorySurface, NoSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", create=True) as store:
        yield store


def surface(store: Store, reach: str = "all") -> MemorySurface:
    return MemorySurface(store, Scope("own", agent_id="me"), reach, NoSession())


def said(store: Store, content: str, **fields: Any) -> int:
    return store.append(Draft(**{"role": "user", "session_id": "own", "agent_id": "me", "content": content} | fields))


def found(memory: MemorySurface, query: str, **filters: Any) -> list[int]:
    return sorted(row["seq"] for row in memory.search(query, **filters).value["rows"])


def test_a_hit_with_a_large_body_has_a_handle_on_it(store: Store) -> None:
    body = "needle " + "straw " * 10_000
    seq = said(store, body)
    (row,) = surface(store).search("needle").value["rows"]
    assert row["payload"]["seq"] == seq and row["payload"]["size"] == len(body)
    assert len(row["content"]) < len(body), "a hit carries the beginning; the handle has the rest"
    short = said(store, "a second needle")
    rows = {row["seq"]: row for row in surface(store).search("needle").value["rows"]}
    assert "payload" not in rows[short]


def test_a_reply_of_calls_alone_is_shown_by_its_headline(store: Store) -> None:
    said(store, "", role="assistant", headline="invoices | May left out | total June | running")
    (row,) = surface(store).search("invoices").value["rows"]
    assert row["content"] == "" and row["snippet"] == row["headline"] != ""


def test_days_months_and_times_bound_a_search(store: Store) -> None:
    june = said(store, "rain", created_at="2024-06-30T23:00:00+00:00")
    july = said(store, "rain", created_at="2024-07-01T09:00:00+00:00")
    memory = surface(store)
    assert found(memory, "rain", created_on=dt.date(2024, 6, 30)) == [june]
    assert found(memory, "rain", created_on="2024-07-01", created_from=None) == [july]
    assert found(memory, "rain", created_from="2024-07") == [july]
    assert found(memory, "rain", created_to=dt.datetime(2024, 7, 1, 8, 0)) == [june]
    assert found(memory, "rain", created_on="2024-06-30", created_to="2024-07-31") == [june, july]


def test_a_named_session_wins_over_the_word_session(store: Store) -> None:
    own, other = said(store, "tea"), said(store, "tea", session_id="other")
    memory = surface(store)
    assert found(memory, "tea", scope="session") == [own]
    assert found(memory, "tea", scope="session", session_id="other") == [other]
    assert found(memory, "tea", session_id=["own", "other"]) == [own, other]


def test_no_argument_crosses_the_grant(store: Store) -> None:
    own, foreign = said(store, "tea"), said(store, "tea", session_id="other", agent_id="somebody")
    memory = surface(store, reach="session")
    for filters in ({}, {"scope": "all"}, {"all_agents": True}, {"session_id": "other"}, {"agent_id": "somebody"}):
        assert foreign not in found(memory, "tea", **filters), filters
    assert found(memory, "tea") == [own]
    assert [row["seq"] for row in memory.expand(own, foreign).value["rows"]] == [own]
    assert memory.sql_query("SELECT seq FROM hist.events").value["rows"] == [{"seq": own}]


@pytest.mark.parametrize(
    "arguments",
    [
        {"k": 0}, {"k": "many"}, {"k": math.inf}, {"k": math.nan}, {"seq_range": 7}, {"seq_range": (1, 2, 3)},
        {"seq_range": (1, math.inf)}, {"kind": 7}, {"role": {"user": 1}}, {"session_id": ["own", None]},
        {"scope": "world"}, {"scope": 7}, {"created_on": 2024}, {"created_from": "yesterday"}, {"limit": 5},
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant_are_named(store: Store, arguments: dict[str, Any]) -> None:
    said(store, "tea")
    store.index.catch_up()
    named = {
        "k": "k must",
        "seq_range": "seq",
        "limit": "no argument 'limit'",
        "scope": "a reach is",
        "created_on": "is not a date",
        "created_from": "is not a date",
    }
    (name,) = arguments
    with pytest.raises(BadInput, match=named.get(name, f"{name} is a text")):
        surface(store).search("tea", **arguments)


def test_a_session_with_an_unknown_reach_is_refused_by_name(store: Store) -> None:
    with pytest.raises(BadInput, match="session, task, agent or all, not 'galaxy'"):
        surface(store, reach="galaxy")


def test_numbers_come_as_text_too_and_rows_are_announced_beside_the_rows(store: Store) -> None:
    seqs = [said(store, f"tea {n}", kind=Kind.CONVERSATION) for n in range(3)]
    memory = surface(store)
    assert len(memory.search("tea", k="2").value["rows"]) == 2
    assert [row["seq"] for row in memory.expand(str(seqs[0]), str(seqs[1])).value["rows"]] == seqs[:2]
    answer = memory.expand([seqs[0], 999]).value
    assert [row["seq"] for row in answer["rows"]] == seqs[:1] and "999" in answer["note"]
