"""One value of filters means the same to the log, to the index and to an exhaustive scan."""

from pathlib import Path

import pytest

from scroll_context import Draft, Grant, Store
from scroll_context.events import Kind, Scope
from scroll_context.log.filters import NO_FILTERS, SearchFilters, conditions
from scroll_context.recall.memory import Memory, NoSession
from scroll_context.search.grep import Scan
from scroll_context.search.grep_pattern import pattern


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(tmp_path / "store", create=True)
    for number in range(24):
        is_tool = number % 4 == 3
        opened.append(
            Draft(
                kind=Kind.TOOL_RESULT if is_tool else Kind.CONVERSATION,
                role="tool" if is_tool else ("user", "assistant")[number % 2],
                session_id=f"session-{number % 3}",
                agent_id=f"agent-{number % 2}",
                task_id="project" if number % 5 else "",
                content=f"harbour note {number}",
                created_at=f"2024-{1 + number // 3:02}-11T10:00:00.000000+00:00",
            )
        )
    return opened


CASES = [
    SearchFilters.of(role="user"),
    SearchFilters.of(role=["user", "tool"], kind=[Kind.CONVERSATION]),
    SearchFilters.of(session_id=("session-0", "session-2"), agent_id="agent-1"),
    SearchFilters.of(task_id="project", seq_range=(5, 17)),
    SearchFilters.of(task_id=""),
    SearchFilters.of(created_from="2024-03", created_to="2024-05-11"),
    SearchFilters.of(kind=[]),
    NO_FILTERS,
]


@pytest.mark.parametrize("filters", CASES, ids=str)
@pytest.mark.parametrize("grant", [Grant(), Grant(agent_id="agent-0")], ids=str)
def test_log_index_scan_and_sql_agree(store: Store, filters: SearchFilters, grant: Grant) -> None:
    by_log = [event.seq for event in store.log.iterate(grant=grant, filters=filters)]
    hits = store.index.search("harbour", k=100, grant=grant, filters=filters)
    assert sorted(hit.seq for hit in hits) == by_log
    matches = Scan(store.log).rows(pattern("harbour"), grant=grant, filters=filters)
    assert [match.seq for match in matches] == by_log
    where, values = conditions(grant, filters)
    rows = store.log.query(f"SELECT seq FROM event WHERE {where} ORDER BY seq", values)
    assert [seq for (seq,) in rows] == by_log
    every = store.index.every("harbour", filters=filters)
    assert [event.seq for event in store.log.get_many(every, grant)] == by_log


def test_a_field_that_is_none_changes_nothing_and_a_later_one_replaces() -> None:
    filters = SearchFilters.of(role="user", kind=None)
    assert filters == SearchFilters(role=("user",))
    assert filters.narrowed(role=None) is filters
    assert filters.narrowed(role=["tool"]).role == ("tool",)
    assert SearchFilters.of(seq_range=(1, 2)).without_range() == NO_FILTERS


def test_an_unknown_filter_is_refused(store: Store) -> None:
    with pytest.raises(TypeError):
        store.index.search("harbour", rolle="user")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        list(store.log.iterate(rolle="user"))  # type: ignore[call-arg]


def test_a_gist_of_words_of_others_says_so(tmp_path: Path) -> None:
    with Store(tmp_path / "imported", create=True) as store:
        store.append(
            Draft(
                session_id="chat",
                role="user",
                content="The harbour map needs new soundings near the pier.",
                source_key="import:chat:1",
                metadata={"imported": "chat.jsonl"},
            )
        )
        memory = Memory(store, Scope("own"), "all", NoSession())
        answer = memory.call("ms.gist").value
        assert [row["seq"] for row in answer["rows"]] == [1]
        assert "words of others" in answer["note"]
