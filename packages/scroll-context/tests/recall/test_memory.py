"""The host half of `ms`: what it accepts, what it refuses, and what its rows hold."""

import datetime as dt
import math
from collections.abc import Collection
from typing import Any

import pytest

from scroll_context.errors import BadInput, PayloadDamaged, UnknownSeq
from scroll_context.events import Draft, Kind, Scope
from scroll_context.recall.lookup import EXPAND_BYTES, REMEMBERED
from scroll_context.recall.memory import Memory, NoSession
from scroll_context.recall.memory_tools import recall_tools
from scroll_context.store import Store


def memory_of(store: Store, reach: str = "all") -> Memory:
    return Memory(store, Scope("own", agent_id="me"), reach, NoSession())


def said(store: Store, content: str, **fields: Any) -> int:
    return store.append(
        Draft(
            **{"role": "user", "session_id": "own", "agent_id": "me", "content": content} | fields
        )
    )


def found(memory: Memory, query: str, **filters: Any) -> list[int]:
    return sorted(row["seq"] for row in memory.call("ms.search", query, **filters).value["rows"])


def test_a_hit_with_a_large_body_has_a_handle_on_it(store: Store) -> None:
    body = "needle " + "straw " * 10_000
    seq = said(store, body)
    (row,) = memory_of(store).call("ms.search", "needle").value["rows"]
    assert row["payload"]["seq"] == seq and row["payload"]["size"] == len(body)
    assert len(row["content"]) < len(body), "a hit carries the beginning; the handle has the rest"
    short = said(store, "a second needle")
    rows = {row["seq"]: row for row in memory_of(store).call("ms.search", "needle").value["rows"]}
    assert "payload" not in rows[short]


def test_a_reply_of_calls_alone_is_shown_by_its_headline(store: Store) -> None:
    said(store, "", role="assistant", headline="invoices | May left out | total June | running")
    (row,) = memory_of(store).call("ms.search", "invoices").value["rows"]
    assert row["content"] == "" and row["snippet"] == row["headline"] != ""


def test_days_months_and_times_bound_a_search(store: Store) -> None:
    june = said(store, "rain", created_at="2024-06-30T23:00:00+00:00")
    july = said(store, "rain", created_at="2024-07-01T09:00:00+00:00")
    memory = memory_of(store)
    assert found(memory, "rain", created_on=dt.date(2024, 6, 30)) == [june]
    assert found(memory, "rain", created_on="2024-07-01", created_from=None) == [july]
    assert found(memory, "rain", created_from="2024-07") == [july]
    assert found(memory, "rain", created_to=dt.datetime(2024, 7, 1, 8, 0)) == [june]
    assert found(memory, "rain", created_on="2024-06-30", created_to="2024-07-31") == [june, july]


def test_a_named_session_wins_over_the_word_session(store: Store) -> None:
    own, other = said(store, "tea"), said(store, "tea", session_id="other")
    memory = memory_of(store)
    assert found(memory, "tea", scope="session") == [own]
    assert found(memory, "tea", scope="session", session_id="other") == [other]
    assert found(memory, "tea", session_id=["own", "other"]) == [own, other]


def test_no_argument_crosses_the_grant(store: Store) -> None:
    own, foreign = said(store, "tea"), said(store, "tea", session_id="other", agent_id="somebody")
    memory = memory_of(store, reach="session")
    for filters in (
        {},
        {"scope": "all"},
        {"all_agents": True},
        {"session_id": "other"},
        {"agent_id": "somebody"},
    ):
        assert foreign not in found(memory, "tea", **filters), filters
    assert found(memory, "tea") == [own]
    assert [row["seq"] for row in memory.call("ms.expand", own, foreign).value["rows"]] == [own]
    assert memory.call("ms.sql_query", "SELECT seq FROM hist.events").value["rows"] == [
        {"seq": own}
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"k": 0},
        {"k": "many"},
        {"k": math.inf},
        {"k": math.nan},
        {"seq_range": 7},
        {"seq_range": (1, 2, 3)},
        {"seq_range": (1, math.inf)},
        {"kind": 7},
        {"role": {"user": 1}},
        {"session_id": ["own", None]},
        {"scope": "world"},
        {"scope": 7},
        {"created_on": 2024},
        {"created_from": "yesterday"},
        {"limit": 5},
    ],
)
def test_arguments_that_cannot_be_meant_are_named(store: Store, arguments: dict[str, Any]) -> None:
    said(store, "tea")
    store.index.catch_up()
    named = {
        "k": "k must",
        "seq_range": "seq",
        "limit": "no argument 'limit'",
        "scope": "the reach must be",
        "created_on": "is not a date",
        "created_from": "is not a date",
    }
    (name,) = arguments
    with pytest.raises(BadInput, match=named.get(name, f"{name} must be text")):
        memory_of(store).call("ms.search", "tea", **arguments)


def test_a_session_with_an_unknown_reach_is_refused_by_name(store: Store) -> None:
    with pytest.raises(BadInput, match="session, task, agent or all, not 'galaxy'"):
        memory_of(store, reach="galaxy")


def test_numbers_come_as_text_too_and_rows_are_announced_beside_the_rows(store: Store) -> None:
    seqs = [said(store, f"tea {n}", kind=Kind.CONVERSATION) for n in range(3)]
    memory = memory_of(store)
    assert len(memory.call("ms.search", "tea", k="2").value["rows"]) == 2
    assert [
        row["seq"] for row in memory.call("ms.expand", str(seqs[0]), str(seqs[1])).value["rows"]
    ] == seqs[:2]
    answer = memory.call("ms.expand", [seqs[0], 999]).value
    assert [row["seq"] for row in answer["rows"]] == seqs[:1] and "999" in answer["note"]


# what was asked for -----------------------------------------------------------------------------------------


def test_the_running_task_is_no_evidence_about_the_past(store: Store) -> None:
    old = said(store, "the heron nested at the weir")
    folded = said(
        store, "where did the heron nest?"
    )  # an earlier step of the running task, folded since
    request = said(store, "where did the heron and the ibis nest?")
    reply = said(
        store, "I look for the heron and the ibis.", role="assistant"
    )  # newer than what the view shows
    cell = said(store, "print('ibis')", role="assistant", kind=Kind.CELL)
    result = said(
        store, "ibis: none", role="tool", kind=Kind.TOOL_RESULT
    )  # of a tool called inside the cell
    memory = Memory(store, Scope("own", agent_id="me"), "all", View(request))
    assert found(memory, "heron") == [old, folded]
    answer = memory.call("ms.search", "ibis").value
    assert [row["seq"] for row in answer["rows"]] == [result]
    asked = "SELECT seq FROM hist.{} ORDER BY seq"
    seen = [
        row["seq"]
        for row in memory.call("ms.sql_query", asked.format("conversation_history")).value["rows"]
    ]
    assert seen == [old, folded, result]
    seen = [row["seq"] for row in memory.call("ms.sql_query", asked.format("events")).value["rows"]]
    assert seen == [old, folded, request, reply, cell, result]
    memory.facts = View(request, reply, cell)
    later = said(store, "and the stork?")
    assert memory.reader.running_seqs() == {later}
    memory.close()


def test_a_search_by_date_names_sessions_that_may_be_misdated(store: Store) -> None:
    days = ["2025-03-31", "2024-07-02", "2024-07-09", "2024-07-20", "2024-08-02", "2024-08-11"]
    for number, day in enumerate(days, 1):
        said(store, f"rain {number}", session_id=f"s{number}", created_at=f"{day}T10:00:00+00:00")
    memory = memory_of(store)
    note = memory.call("ms.search", "rain", created_to="2024-12-31").value["note"]
    assert "session 's1' is dated 2025-03-31" in note and "misdated" in note
    assert "misdated" not in memory.call("ms.search", "rain").value["note"]


def test_sessions_take_turns_on_request(store: Store) -> None:
    for name in ("a", "b"):
        for number in range(5):
            said(store, f"tea {number}", session_id=name)
    rows = memory_of(store).call("ms.search", "tea", per_session="1").value["rows"]
    assert sorted(row["session_id"] for row in rows) == ["a", "b"]
    with pytest.raises(BadInput, match="per_session"):
        memory_of(store).call("ms.search", "tea", per_session=0)


# faults -----------------------------------------------------------------------------------------------------


class View(NoSession):
    """A session whose view shows these events."""

    def __init__(self, *seqs: int) -> None:
        self._seqs = seqs

    def visible_seqs(self) -> Collection[int]:
        return self._seqs


def test_the_end_of_the_log_is_told_only_within_the_grant(store: Store) -> None:
    own = said(store, "tea")
    for _ in range(40):
        said(store, "foreign", session_id="other", agent_id="somebody")
    memory = memory_of(store, reach="session")
    for call in (
        lambda: memory.call("ms.expand", 12),
        lambda: memory.lookup.read_payload(12),
        lambda: memory.call("ms.expand", [40, 41]),
    ):
        with pytest.raises(UnknownSeq) as refused:
            call()
        assert "41" not in str(refused.value).replace("[40, 41]", "").replace("40, 41", "")
        assert f"seq {own}" in str(refused.value)
    memory = Memory(store, Scope("nobody"), "session", NoSession())
    with pytest.raises(UnknownSeq) as refused:
        memory.call("ms.expand", 12)
    assert "41" not in str(refused.value)


def test_expanding_one_event_often_gives_it_once_and_bytes_are_bounded(store: Store) -> None:
    one = said(store, "x" * 1_000_000)
    memory = memory_of(store)
    assert len(memory.call("ms.expand", [one] * 2_000).value["rows"]) == 1
    many = store.log.append_many(
        [Draft(session_id="own", content=f"{n}" + "x" * 1_000_000) for n in range(20)]
    )
    answer = memory.call("ms.expand", many).value
    assert sum(len(row["content"]) for row in answer["rows"]) <= EXPAND_BYTES
    assert len(answer["rows"]) == 16 and answer["truncated"]
    assert f"Continue from seq {many[16]}" in answer["note"]


def test_a_session_remembers_a_bounded_number_of_searches(store: Store) -> None:
    said(store, "tea")
    memory = memory_of(store)
    memory.call("ms.search", "tea")
    assert "call 2 of the same search" in memory.call("ms.search", "tea").value["note"]
    for number in range(3 * REMEMBERED):
        memory.lookup._repeated(f"query {number}" * 1_000, 10, {})
    assert len(memory.lookup._searches) == REMEMBERED


def test_a_body_is_verified_once_and_then_read_in_pieces(store: Store) -> None:
    body = bytes(range(256)) * (5 << 12)  # five pieces
    payload = store.payloads.put(body, "application/octet-stream")
    seq = store.append(
        Draft(session_id="own", agent_id="me", content="an artifact", payload=payload)
    )
    memory = memory_of(store)
    opened: list[int] = []
    check = store.payloads.check
    store.payloads.check = lambda digest: (opened.append(1), check(digest))[1]  # type: ignore[method-assign]
    pieces, more = b"", True
    while more:
        answer = memory.lookup.read_payload(seq, len(pieces)).value
        pieces += answer["piece"]
        more = answer["more"]
    assert pieces == body and opened == [1]


def test_a_damaged_body_is_not_given_out(store: Store) -> None:
    seq = said(store, "needle " * 20_000)
    (file,) = (store.payloads.path(digest) for digest in store.payloads.digests())
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-1] + b"X")
    with pytest.raises(PayloadDamaged):
        memory_of(store).lookup.read_payload(seq)


def test_hits_that_are_in_view_are_named(store: Store) -> None:
    one, two = said(store, "the zebra"), said(store, "zebra crossing")
    memory = Memory(store, Scope("own", agent_id="me"), "all", View(one, two))
    note = memory.call("ms.search", "zebra").value["note"]
    assert f"already shows match: seq {one}, {two}" in note
    assert note in memory.notes[0] and "no row contains" not in note
    assert "nothing within reach" in memory.call("ms.search", "giraffe").value["note"]
    assert any("giraffe" in note for note in memory.notes), "an empty search says so by itself"


def test_a_large_text_is_paged_to_its_end(store: Store) -> None:
    body = "".join(f"line {n:07} é\n" for n in range(150_000))
    seq = said(store, body)
    (expand,) = recall_tools(memory_of(store), ["expand"], "ms_")
    pages, start = [], 0
    while True:
        (row,) = expand(seq, start=start)["rows"]
        pages.append(row["content"])
        if "more" not in row:
            break
        assert f"ms_expand(seq={seq}, start=" in row["more"]
        start = int(row["more"].rpartition("start=")[2].partition(")")[0])
        if len(pages) == 3:  # on to the end
            start = len(body) - 30_000
            pages[-1] += body[3 * len(pages[0]) : start]
    assert "".join(pages) == body


def test_what_a_query_was_made_from_is_known_or_marked_unknown(store: Store) -> None:
    one, two = said(store, "tea"), said(store, "coffee")
    memory = memory_of(store)
    result = memory.call("ms.sql_query", "SELECT content FROM hist.events ORDER BY seq")
    assert result.seqs == (one, two) and not result.unknown
    result = memory.call("ms.sql_query", "SELECT 4 AS seq, 'made up' AS content")
    assert result.seqs == () and not result.unknown
    result = memory.call("ms.sql_query", "SELECT max(content) AS c, 4 AS seq FROM hist.events")
    assert result.seqs == () and result.unknown
    memory.close()


def test_events_with_much_metadata_are_read_in_small_pages(store: Store) -> None:
    note = "x" * 6_000_000
    seqs = [
        store.append(Draft(session_id="own", content=f"{n}", metadata={"note": note}))
        for n in range(9)
    ]
    memory = memory_of(store)
    loaded: list[int] = []
    get_many = store.log.get_many
    store.log.get_many = lambda page, *rest: (  # type: ignore[method-assign]
        loaded.append(len(page)),
        get_many(page, *rest),
    )[1]
    rows = memory.call("ms.expand", seqs).value["rows"]
    assert [row["seq"] for row in rows] == seqs
    assert sum(loaded) == 9 and max(loaded) == 2


def test_a_lost_body_does_not_make_a_range_unreadable(store: Store) -> None:
    lost, other = said(store, "precious " * 10_000), said(store, "tea")
    payload = store.log.get(lost).payload
    assert payload is not None
    store.payloads.path(payload.digest).unlink()
    rows = memory_of(store).call("ms.expand", [lost, other]).value["rows"]
    assert rows[0]["content"].startswith("precious") and rows[1]["content"] == "tea"
