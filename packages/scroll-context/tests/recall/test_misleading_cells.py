"""Cells that failed or misled strong models, rebuilt on made-up data."""

from collections.abc import Callable, Iterator

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Scope
from scroll_context.recall.memory import Memory, NoSession
from scroll_context.recall.memory_tools import (
    MAX_ROWS,
    RECALL_TOOLS,
    call_tool,
    recall_tools,
    tool_specs,
)
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store

Run = Callable[[str], str]


class Shown(NoSession):
    """A session whose view shows some seqs."""

    def __init__(self, *seqs: int) -> None:
        self._seqs = seqs

    def visible_seqs(self) -> tuple[int, ...]:
        return self._seqs


def said(store: Store, content: str, session_id: str = "chat", day: int = 1, **fields: str) -> int:
    draft = Draft(
        **{"role": "user", "session_id": session_id, "content": content} | fields,
        created_at=f"2024-07-{day:02}",
    )
    return store.append(draft)


@pytest.fixture
def run(store: Store) -> Iterator[Run]:
    """Runs cells in a session that may read everything."""
    with Session.open(store, session_id="probe", options=SessionOptions(reach="all")) as session:
        yield lambda source: session.run(source).content


def test_the_first_cell_reads_content_of_grep_rows(store: Store, run: Run) -> None:
    seq = said(store, "Devin moved to Porto")
    source = "for row in ms.grep('devin'):\n    print(row['seq'], row['role'], row['content'])"
    assert run(source).startswith(
        f"{seq} user Devin moved to Porto\n[note] ms.grep('devin'): 1 row"
    )


def test_a_count_is_every_match_and_repeats_are_kept(store: Store, run: Run) -> None:
    for n in range(120):
        said(store, f"ran {n % 3} km along the river in the morning with the dog")
    shown = run("rows = ms.grep('km')\nprint(len(rows), sum('repeats' in r for r in rows))")
    assert shown.startswith("120 117\n")
    assert "117 of them nearly repeat an earlier row" in shown


def test_more_rows_than_the_maximum_are_announced_first(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scroll_context.recall import mentions

    monkeypatch.setattr(mentions, "MOST_MATCHES", 7)
    seqs = [said(store, f"needle {n}") for n in range(12)]
    shown = run("rows = ms.grep('needle')\nprint(len(rows), rows.truncated)")
    note = (
        "only the first 7 of 12 rows that contain 'needle' within reach are here: "
        f"continue with seq_range=({seqs[6] + 1}, …)"
    )
    assert shown == f"7 True\n[note] ms.grep('needle'): {note}"


@pytest.mark.parametrize(
    ("limit", "params", "is_noted"),
    [
        ("LIMIT 3", "()", True),
        ("limit ?", "[3]", True),
        ("LIMIT 9", "()", False),
        ("", "()", False),
    ],
)
def test_the_models_own_limit_is_named_when_it_was_reached(
    store: Store, run: Run, limit: str, params: str, is_noted: bool
) -> None:
    for n in range(5):
        said(store, f"turn {n}")
    query = f"SELECT seq FROM hist.conversation_history WHERE role = 'user' {limit}"
    shown = run(f"print(len(ms.sql_query({query!r}, {params})))")
    assert ("LIMIT 3 of your query was reached: there may be more rows" in shown) == is_noted


def test_which_came_first_is_one_call(store: Store, run: Run) -> None:
    texts = ("the red kayak", "a tent", "the kayak and a canoe", "tents")
    one, two, three, four = [said(store, text, day=day) for day, text in enumerate(texts, 1)]
    rows = "ms.timeline(['canoe', 'tent', 'kayak', 'yacht'])"
    keys = "['term', 'hits', 'first_seq', 'last_seq']"
    shown = run(f"for row in {rows}:\n    print(*[row.get(key) for key in {keys}])")
    assert shown.splitlines()[:4] == [
        f"kayak 2 {one} {three}",
        f"tent 2 {two} {four}",
        f"canoe 1 {three} {three}",
        "yacht 0 None None",
    ]
    assert "by first mention: kayak < tent < canoe; 0 events have 'yacht'" in shown


def test_keywords_in_context_need_no_loop(store: Store, run: Run) -> None:
    seq = said(store, "x " * 100 + "Devin " + "y " * 100 + "DEVIN again")
    other = said(store, "nobody")
    shown = run(f"ms.show(ms.turns({seq}, {other}), around='devin', width=15)")
    assert shown.splitlines() == [
        f"{seq} 2024-07-01 user: … x x Devin y y …",
        f"{seq} 2024-07-01 user: … y y DEVIN agai…",
        "… 1 row without 'devin'",
    ]


def test_printed_rows_are_never_found_again(store: Store, run: Run) -> None:
    seq = said(store, "the zeppelin landed")
    run("rows = ms.search('zeppelin')")
    run("ms.show(rows)")
    assert run("print([row['seq'] for row in ms.search('zeppelin')])").startswith(f"[{seq}]\n")


@pytest.mark.parametrize("method", ["outline", "timeline", "gist"])
def test_the_running_session_is_not_counted(store: Store, method: str) -> None:
    old = said(store, "the lighthouse keeper left a note about the lighthouse")
    asked = said(store, "what did the lighthouse keeper say about the lighthouse?", "own", 2)
    memory = Memory(store, Scope("own"), "all", Shown(asked))
    arguments = {
        "outline": {},
        "timeline": {"query": "lighthouse"},
        "gist": {"query": "lighthouse"},
    }
    answer = memory.call(f"ms.{method}", **arguments[method])
    assert str(asked) not in str([row.get("seq") for row in answer.value["rows"]])
    assert len(answer.value["rows"]) == 1 and set(answer.seqs) == {old}
    note = answer.value["note"]
    assert "1 session" in note or note.startswith("1 event has")


def test_queries_are_read_alike_by_search_outline_and_timeline(store: Store) -> None:
    both = said(store, "the copper kettle", "a")
    copper = said(store, "copper wire", "b", 2)
    memory = Memory(store, Scope("own"), "all", NoSession())
    for query, seqs in (("copper kettle", [both]), ("copper canary", [both, copper])):
        timeline = memory.call("ms.timeline", query)
        assert list(timeline.seqs) == seqs
        outline = memory.call("ms.outline", query=query).value
        assert [row["hits"] for row in outline["rows"]] == [1] * len(seqs)
        assert ("no event has all words" in outline["note"]) == (len(seqs) > 1)
    note = memory.call("ms.search", "copper kettle").value["note"]
    assert f"1 event has all words: seq {both}. The other rows have some of them." in note


LONG = (
    "We have been looking at a number of places near the old harbour for the party in autumn, "
    "with terraces and without, by boat and on foot, and after all of that I prefer small gluten-free buffets."
)


def test_a_preference_is_shown_and_found_by_parts_of_hyphenated_words(store: Store) -> None:
    seq = said(store, LONG)
    for n in range(13):
        said(store, f"Always mention item {n} when I ask about shop {n}.")
    memory = Memory(store, Scope("own"), "all", NoSession())
    rows = memory.call("ms.standing", "food without gluten").value["rows"]
    [row] = [row for row in rows if row["seq"] == seq]
    assert "I prefer small gluten-free buffets" in row["match"] and len(row["match"]) <= 160
    assert row["stance"] == "preference" and row["content"] == LONG


def test_conflicting_statements_stand_together(store: Store) -> None:
    tabs = said(store, "Always use tabs for indentation.")
    said(store, "I love sailing at night.")
    spaces = said(store, "Always use spaces for indentation.")
    memory = Memory(store, Scope("own"), "all", NoSession())
    rows = memory.call("ms.standing").value["rows"]
    at = [row["seq"] for row in rows]
    assert at.index(spaces) == at.index(tabs) + 1
    assert rows[at.index(tabs)]["replaced_by"] == spaces


# without a kernel ---------------------------------------------------------------------------------


def test_plain_tools_page_through_everything_and_say_how(store: Store) -> None:
    for n in range(70):
        said(store, f"needle {n} " + "straw " * 10, f"s{n}")
    memory = Memory(store, Scope("own"), "all", NoSession())
    tools = recall_tools(memory)
    assert tuple(spec.name for spec in tool_specs(tools)) == RECALL_TOOLS
    first = call_tool(tools, "grep", {"text": "needle"})
    assert len(first["rows"]) == MAX_ROWS
    assert "only the first 60 of 70 rows" in first["note"] and "after_seq=60" in first["note"]
    rest = call_tool(tools, "grep", {"text": "needle", "after_seq": "60"})
    assert [row["seq"] for row in rest["rows"]] == list(range(61, 71))
    page = call_tool(tools, "outline", {})
    assert page["note"] == "only 60 of 70 sessions: continue with after=60"
    assert [row["n"] for row in call_tool(tools, "outline", {"after": 60})["rows"]] == [
        *range(61, 71)
    ]
    events = call_tool(tools, "expand", {"seq": 1, "last": 70})
    assert len(events["rows"]) == 60 and "continue with seq=61" in events["note"]
    same = memory.call("ms.search", "needle straw", 3).value["note"]
    assert call_tool(tools, "search", {"query": "needle straw", "k": 3})["note"].startswith(same)


def test_plain_tools_name_the_call_that_exists(store: Store) -> None:
    said(store, "z" * 30_000)
    tools = recall_tools(Memory(store, Scope("own"), "all", NoSession()), ["expand"], "memory_")
    [row] = call_tool(tools, "memory_expand", {"seq": 1})["rows"]
    assert (
        row["more"] == "30,000 characters in all; continue with memory_expand(seq=1, start=24000)"
    )
    with pytest.raises(
        BadInput, match="there is no recall tool 'ms_expand'; there are memory_expand"
    ):
        call_tool(tools, "ms_expand", {"seq": 1})
    with pytest.raises(BadInput, match="parameter 'seq' must be int"):
        call_tool(tools, "memory_expand", {"seq": "first"})
