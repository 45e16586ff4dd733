"""The methods of `ms` that cover rather than rank: they find everything within the grant, and
nothing else.
"""

import datetime as dt
from collections.abc import Callable, Collection
from typing import Any

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Kind, Scope
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.results import UNKNOWN_SEQ, CapabilityCall, CapabilityResult
from scroll_context.log.payloads import CHUNK
from scroll_context.recall.memory import Memory, NoSession, memory_prelude
from scroll_context.recall.memory_tools import recall_tools
from scroll_context.search.grep import OVERLAP, PAGE, Scan
from scroll_context.search.grep_pattern import MOST_COUNTED, pattern
from scroll_context.store import Store
from scroll_context.tools.handles import handles_prelude

SENTENCES = (
    "I moved the {} meeting to {}.",
    "ok cool, but how do I plan {} for {}?",
    "Can you help me with {}, Priya and {}?",
)


class Shown(NoSession):
    """A session whose view shows some seqs."""

    def __init__(self, *seqs: int) -> None:
        self._seqs = seqs

    def visible_seqs(self) -> Collection[int]:
        return self._seqs


def memory_of(store: Store, reach: str = "all", *visible: int) -> Memory:
    return Memory(store, Scope("own", agent_id="me"), reach, Shown(*visible))


def said(store: Store, content: str, **fields: Any) -> int:
    return store.append(
        Draft(
            **{"role": "user", "session_id": "own", "agent_id": "me", "content": content} | fields
        )
    )


def ask(memory: Memory, method: str, *args: Any, **kwargs: Any) -> CapabilityResult:
    return memory.call(f"ms.{method}", *args, **kwargs)


def rows(memory: Memory, method: str, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(memory, method, *args, **kwargs).value["rows"]
    return found


def seqs(memory: Memory, method: str, *args: Any, **kwargs: Any) -> list[int]:
    return [row["seq"] for row in rows(memory, method, *args, **kwargs)]


def note(memory: Memory, method: str, *args: Any, **kwargs: Any) -> str:
    return str(ask(memory, method, *args, **kwargs).value["note"])


def session(store: Store, number: int, subject: str, day: str, turns: int = 8) -> list[int]:
    return [
        said(
            store,
            SENTENCES[n % 3].format(subject, f"{subject} part {n}"),
            session_id=f"s{number}",
            created_at=day,
        )
        for n in range(turns)
    ]


# grep ---------------------------------------------------------------------------------------------------


def test_grep_finds_every_row_in_order_and_says_how_many(store: Store) -> None:
    wanted = [
        said(store, f"row {n}: the Vendor sent {n} boxes")
        for n in range(0, 130, 2)
        if not said(store, "no") < 0
    ]
    memory = memory_of(store)
    assert seqs(memory, "grep", "vendor sent", limit=1_000) == wanted
    told = note(memory, "grep", "vendor sent", limit=10)
    assert told.startswith("only the first 10 of 65 rows that contain 'vendor sent'")
    assert f"seq_range=({wanted[9] + 1}, …)" in told
    assert note(memory, "grep", "vendor sent") == "65 rows contain 'vendor sent' within reach"
    assert (
        seqs(memory, "grep", "vendor sent", seq_range=(wanted[10], 10**6), limit=1_000)
        == wanted[10:]
    )
    assert ask(memory, "grep", "vendor", limit=3).seqs == tuple(wanted[:3]), (
        "provenance: what was given away"
    )


def test_grep_says_that_there_is_nothing(store: Store) -> None:
    said(store, "boxes")
    memory = memory_of(store)
    assert "no row contains 'crates' within reach; every row was looked at" in note(
        memory, "grep", "crates"
    )
    assert "these filters" in note(memory, "grep", "boxes", role="assistant")


@pytest.mark.parametrize(
    ("text", "options", "hits"),
    [
        ("79%", {}, ["scored 79% today"]),
        ("c++", {}, ["I like C++ and C#"]),
        ("(x_1", {}, ["f(x_1, y)"]),
        ("heat equation", {}, ["the heat\n equation", "Heat Equation"]),
        ("heat equation", {"case": True}, ["the heat\n equation"]),
        ("über", {}, ["Über den Wolken"]),
        ("本の", {}, ["日本の山"]),
        (r"heat.{0,3}equation", {"regex": True}, ["Heat Equation"]),
        (r"\bscored \d+%", {"regex": True}, ["scored 79% today"]),
        (r"(?:C#|wolken)", {"regex": True}, ["I like C++ and C#", "Über den Wolken"]),
        (r"to?day|colou?r", {"regex": True}, ["scored 79% today"]),
        (r"^f\(", {"regex": True}, ["f(x_1, y)"]),
        ("100_", {}, []),
        ("%", {}, ["scored 79% today"]),
    ],
)
def test_grep_takes_text_as_it_is_and_expressions_when_asked(
    store: Store, text: str, options: dict[str, Any], hits: list[str]
) -> None:
    texts = [
        "scored 79% today",
        "I like C++ and C#",
        "f(x_1, y)",
        "the heat\n equation",
        "Heat Equation",
        "Über den Wolken",
        "日本の山",
        "1000",
    ]
    at = {said(store, one): one for one in texts}
    assert [at[seq] for seq in seqs(memory_of(store), "grep", text, **options)] == hits


def test_grep_looks_into_the_whole_of_large_bodies(store: Store) -> None:
    long = "straw " * (CHUNK // 6 - 2) + "needle haystack needle" + " straw" * (CHUNK // 6)
    seq = said(store, long)
    edge = said(
        store,
        "x" * (CHUNK - 3) + "needle" + "y" * CHUNK,
        role="tool",
        kind=Kind.TOOL_RESULT,
        name="read",
    )
    memory = memory_of(store)
    first, second = rows(memory, "grep", "needle")
    assert (first["seq"], first["count"]) == (seq, 2), "none is counted twice where pieces overlap"
    assert (second["seq"], second["count"], second["name"]) == (edge, 1, "read")
    assert "haystack" in first["match"]
    assert OVERLAP < CHUNK


def test_grep_says_which_payloads_it_could_not_read(store: Store) -> None:
    seq = said(store, "needle " + "straw " * 10_000)
    payload = store.log.get(seq).payload
    assert payload is not None
    store.payloads.path(payload.digest).unlink()
    answer = ask(memory_of(store), "grep", "needle").value
    assert [row["seq"] for row in answer["rows"]] == [seq], "the preview holds it"
    assert f"the payloads of [{seq}] cannot be read" in answer["note"]


def test_grep_marks_near_duplicates_and_removes_none(store: Store) -> None:
    line = "the pump of the northern station stopped and was restarted by hand"
    first = said(store, line)
    again = [said(store, line + mark) for mark in ("!", ".", "…", "?!")]
    other = said(store, f"{line} 17 times")
    answer = ask(memory_of(store), "grep", "pump")
    found = answer.value["rows"]
    assert [row["seq"] for row in found] == [first, *again, other], "len(rows) is the count"
    assert [row.get("repeats") for row in found] == [None, *[first] * 4, None], (
        "another number is another fact"
    )
    assert answer.value["note"] == (
        "6 rows contain 'pump' within reach; 4 of them nearly repeat an earlier row "
        "(its seq is in `repeats`)"
    )


def test_grep_filters_and_shows_as_much_as_asked(store: Store) -> None:
    mine = said(
        store, "alpha " * 30 + "needle" + " omega" * 30, created_at="2024-07-01T10:00:00+00:00"
    )
    reply = said(
        store,
        "needle",
        role="assistant",
        session_id="other",
        created_at="2024-08-01T10:00:00+00:00",
    )
    memory = memory_of(store)
    assert seqs(memory, "grep", "needle", role="assistant") == [reply]
    assert seqs(memory, "grep", "needle", session_id="own") == [mine]
    assert seqs(memory, "grep", "needle", session_id=2) == [reply], "by its number in the outline"
    assert seqs(memory, "grep", "needle", created_to=dt.date(2024, 7, 1)) == [mine]
    assert seqs(memory, "grep", "needle", created_from="2024-08") == [reply]
    [row] = rows(memory, "grep", "needle", width=10, session_id="own")
    assert row["match"] == "…pha alpha needle omega ome…"


@pytest.mark.parametrize(
    ("args", "kwargs", "said_so"),
    [
        (("",), {}, "a non-empty text"),
        ((7,), {}, "a non-empty text"),
        (("x" * 2_000,), {}, "at most 1,000"),
        (("(a",), {"regex": True}, "missing )"),
        (("(?=a)",), {"regex": True}, "Look-around"),
        (("a",), {"limit": "many"}, "limit must be a whole number"),
        (("a",), {"wrong": 1}, "has no argument 'wrong'"),
        (("a",), {"session_id": "nowhere"}, "no session 'nowhere'"),
    ],
)
def test_grep_refuses_what_it_cannot_do(store: Store, args: Any, kwargs: Any, said_so: str) -> None:
    with pytest.raises(BadInput, match=said_so.replace("(", r"\(").replace(")", r"\)")):
        ask(memory_of(store), "grep", *args, **kwargs)


def test_grep_takes_linear_time_whatever_the_expression(store: Store) -> None:
    said(store, "a" * 30_000)
    assert note(memory_of(store), "grep", "(a|aa)+$x|(a*)*b", regex=True).startswith("no row")


def test_a_scan_stops_at_its_deadline_and_says_where(store: Store) -> None:
    store.log.append_many([Draft(role="user", content="needle") for _ in range(PAGE + 5)])
    scan = Scan(store.log, seconds=0)
    assert len(list(scan.rows(pattern("needle")))) == PAGE == scan.stopped_at
    counted = Scan(store.log, detailed=1)
    said(store, "dot " * (MOST_COUNTED + 9))
    assert [found.count for found in counted.rows(pattern("dot"))] == [MOST_COUNTED]


# outline and timeline -----------------------------------------------------------------------------------


def test_the_outline_has_a_row_a_session_that_says_what_it_was_about(store: Store) -> None:
    kitchen = session(store, 1, "kitchen renovation", "2024-07-01")
    session(store, 2, "sourdough baking", "2024-07-05")
    session(store, 3, "marathon training", "2024-07-09", turns=5)
    memory = memory_of(store)
    first, second, third = rows(memory, "outline")
    assert (first["n"], first["session_id"], first["from"]) == (1, "s1", "2024-07-01")
    assert first["seqs"] == [kitchen[0], kitchen[-1]] and third["turns"] == 5
    assert any("kitchen renovation" in term for term in first["terms"])
    assert any("sourdough" in term for term in second["terms"]) and "marathon" in third["title"]
    assert note(memory, "outline") == "3 sessions"


def test_the_outline_of_a_query_counts_its_hits(store: Store) -> None:
    for number, subject in enumerate(
        ("kitchen renovation", "sourdough baking", "kitchen renovation"), 1
    ):
        session(store, number, subject, f"2024-07-0{number}")
    memory = memory_of(store)
    assert [
        (row["n"], row["hits"]) for row in rows(memory, "outline", query="kitchens renovations")
    ] == [
        (1, 8),
        (3, 8),
    ]
    assert [
        row["n"]
        for row in rows(memory, "outline", created_from="2024-07-02", created_to="2024-07-02")
    ] == [2]


def test_the_outline_follows_the_log(store: Store) -> None:
    session(store, 1, "kitchen renovation", "2024-07-01")
    memory = memory_of(store)
    assert len(rows(memory, "outline")) == 1
    session(store, 2, "sourdough baking", "2024-07-02")
    assert [row["turns"] for row in rows(memory, "outline")] == [8, 8]
    said(store, "One more word on the kitchen sink", session_id="s2")
    assert [row["turns"] for row in rows(memory, "outline")] == [8, 9]
    said(store, "And on the kitchen again", session_id="s1")
    assert [row["turns"] for row in rows(memory, "outline")] == [9, 9]
    assert rows(memory, "outline") == rows(memory_of(store), "outline"), (
        "read in parts or at once, it is the same"
    )


def test_a_session_without_a_user_still_has_a_line(store: Store) -> None:
    for _ in range(3):
        said(
            store,
            "Nightly backup of warehouse database finished",
            role="assistant",
            session_id="cron",
        )
    [row] = rows(memory_of(store), "outline")
    assert row["turns"] == 0 and any("backup" in term.lower() for term in row["terms"])


def test_the_line_of_a_session_without_a_user_keeps_to_the_grant(store: Store) -> None:
    said(store, "compiled the lighthouse report", role="assistant", session_id="shared")
    said(
        store,
        "transferred the hidden treasure",
        role="assistant",
        session_id="shared",
        agent_id="somebody",
    )
    said(
        store,
        "buried the hidden treasure",
        role="tool",
        kind=Kind.TOOL_RESULT,
        session_id="shared",
        agent_id="else",
    )
    memory = memory_of(store, "agent")
    [row] = rows(memory, "outline")
    assert row["turns"] == 0 and "lighthouse" in f"{row['terms']} {row['title']}"
    assert "treasure" not in str(row)


def test_sessions_whose_date_contradicts_their_neighbours_are_marked(store: Store) -> None:
    for number, day in enumerate(
        ("2025-03-31", "2024-07-02", "2024-07-03", "2024-07-04", "2024-07-05"), 1
    ):
        session(store, number, "kitchen", day)
    memory = memory_of(store)
    marked = rows(memory, "outline")
    assert "dated 2025-03-31, but what comes after it is dated 2024-07-02" in marked[0]["misdated"]
    assert not any("misdated" in row for row in marked[1:])
    assert "session 1 is dated 2025-03-31" in note(memory, "outline")
    assert any("misdated" in told for told in memory.notes), "the reader of the cell is told"


def test_the_timeline_counts_by_session_day_and_month(store: Store) -> None:
    for number, day in enumerate(("2024-07-01", "2024-07-20", "2024-09-02"), 1):
        session(store, number, "kitchen renovation" if number != 2 else "taxes", day, turns=number)
    memory = memory_of(store)
    told = rows(memory, "timeline", "kitchen renovation")
    assert [(row["n"], row["session_id"], row["hits"], row["first_seq"]) for row in told] == [
        (1, "s1", 1, 1),
        (3, "s3", 3, 4),
    ]
    assert [
        (row["month"], row["hits"]) for row in rows(memory, "timeline", "kitchen", by="month")
    ] == [
        ("2024-07", 1),
        ("2024-09", 3),
    ]
    assert "first mention seq 1 (2024-07-01), last 6 (2024-09-02)" in note(
        memory, "timeline", "kitchen"
    )
    with pytest.raises(BadInput, match="'session', 'day' or 'month'"):
        ask(memory, "timeline", "kitchen", by="year")
    with pytest.raises(BadInput, match="no word to look for"):
        ask(memory, "timeline", "what was the")


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ("baking bread", {1}),
        ("bread OR bicycle", {1, 2, 4}),
        ('"baking breads"', {1}),
        ('"baking bread"', set()),
        ("bread NOT baking", {2}),
        ("What did I ever say about repairing the old bicycle of my uncle?", {4}),
        ("heat", {3}),
    ],
)
def test_queries_of_timelines_take_all_words_alternatives_phrases_and_exceptions(
    store: Store, query: str, hits: set[int]
) -> None:
    for number, text in enumerate(
        (
            "Baking breads at home",
            "bread from the shop",
            "the heat wave",
            "my uncle's bicycle is repaired",
            "wheat beer",
        ),
        1,
    ):
        said(store, text, session_id=f"s{number}")
    assert {row["n"] for row in rows(memory_of(store), "timeline", query)} == hits


# turns, gist, standing -------------------------------------------------------------------------


def test_turns_are_the_stored_texts_complete_or_cut_as_asked(store: Store) -> None:
    first = said(store, "[Session 1 | 2024-07-01] user: Where is the key?", session_id="a")
    reply = said(
        store,
        "[Session 1 | 2024-07-01] assistant: Under the mat.",
        role="assistant",
        session_id="a",
    )
    said(store, "{}", role="assistant", kind=Kind.TOOL_CALL, session_id="a")
    long = said(store, "long " * 20_000, session_id="b")
    memory = memory_of(store)
    assert [row["content"] for row in rows(memory, "turns", "a")] == [
        "[Session 1 | 2024-07-01] user: Where is the key?",
        "[Session 1 | 2024-07-01] assistant: Under the mat.",
    ], "what is stored is never altered on reading"
    assert rows(memory, "turns", first, long, role="user", chars=9)[0]["content"] == "[Session …"
    assert seqs(memory, "turns", 1, role="assistant") == [reply]
    assert seqs(memory, "turns", first, long) == [first, reply, long]
    assert len(rows(memory, "turns", session_id="b")[0]["content"]) == 100_000, "the whole body"
    assert seqs(memory, "turns", reply, long, session_id="a") == [reply], "a part of a session"
    assert "nothing was said there" in note(memory, "turns", "a", role="tool")
    for wrong in ((), (1, 2, 3), ("nowhere",), (99,)):
        with pytest.raises(BadInput):
            ask(memory, "turns", *wrong)
    with pytest.raises(BadInput):
        ask(memory, "turns", "a", session_id="b")


def test_the_note_of_cut_turns_names_a_call_that_continues_in_the_same_session(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scroll_context.recall.overview.MOST_MESSAGES", 2)
    first = [said(store, f"message {number}", session_id="a") for number in range(3)]
    said(store, "elsewhere", session_id="b")
    last = said(store, "message 4", session_id="a")
    memory = memory_of(store)
    assert seqs(memory, "turns", "a", role="user") == first[:2]
    assert note(memory, "turns", "a", role="user").endswith(
        f"continue with ms.turns({first[2]}, {last}, session_id='a', role=['user'])"
    )
    assert seqs(memory, "turns", first[2], last, session_id="a", role=["user"]) == [first[2], last]


def test_search_takes_a_session_by_its_number_too(store: Store) -> None:
    said(store, "green tea", session_id="a")
    second = said(store, "black tea", session_id="b")
    memory = memory_of(store)
    assert seqs(memory, "search", "tea", session_id=2) == [second]
    assert seqs(memory, "search", "tea", session_id="nowhere") == []
    with pytest.raises(BadInput, match="no session 9 within reach"):
        ask(memory, "search", "tea", session_id=9)


def test_the_gist_covers_a_session_a_range_and_a_subject(store: Store) -> None:
    kitchen = session(store, 1, "kitchen renovation", "2024-07-01", turns=30)
    bread = session(store, 2, "sourdough baking", "2024-07-05", turns=30)
    said(
        store,
        "A renovation of the kitchen takes eight weeks in Ghent.",
        role="assistant",
        session_id="s1",
    )
    memory = memory_of(store)
    one = seqs(memory, "gist", session_id="s1", chars=1_000)
    assert set(one) <= set(kitchen) and min(one) < kitchen[10] and max(one) > kitchen[20]
    assert set(seqs(memory, "gist", seq_range=(bread[0], bread[5]))) <= set(bread[:6])
    assert set(seqs(memory, "gist", query="sourdough")) <= set(bread)
    assert any(
        "Ghent" in row["match"] for row in rows(memory, "gist", session_id="s1", role="assistant")
    )
    assert sum(len(row["match"]) for row in rows(memory, "gist", chars=800)) <= 800
    assert {row["created_at"][:10] for row in rows(memory, "gist")} == {"2024-07-01", "2024-07-05"}


def test_standing_lists_instructions_and_preferences_newest_last(store: Store) -> None:
    old = said(store, "Always use tabs for indentation.")
    said(store, "I always get this error. Why?")
    said(store, "Always use tabs for indentation.", role="assistant")
    price = said(store, "Always include the price when I ask about flights.")
    seat = said(store, "I prefer window seats, can you book one?")
    new = said(store, "Never use tabs for indentation.")
    memory = memory_of(store)
    told = rows(memory, "standing")
    assert [row["seq"] for row in told] == [price, seat, old, new], "conflicting ones together"
    assert [row["stance"] for row in told] == [
        "instruction",
        "preference",
        "instruction",
        "instruction",
    ]
    assert [row.get("replaced_by") for row in told] == [None, None, new, None]
    assert "1 was restated or changed later" in note(memory, "standing")
    assert seqs(memory, "standing", "cheap flights") == [price, seat, old, new], (
        "a few are listed whatever the topic"
    )
    for thing in (
        "hotels",
        "trains",
        "bikes",
        "boats",
        "cars",
        "taxis",
        "ferries",
        "buses",
        "trams",
        "skates",
    ):
        said(store, f"Always mention the colour when I ask about {thing}.")
    about = seqs(memory, "standing", "cheap flights")
    assert about == [price, old, new], "one always holds"
    later = said(store, "From now on, call me Sam.")
    assert seqs(memory, "standing")[-1] == later


# the grant, echoes and the running task -----------------------------------------------------------------

CALLS: list[tuple[str, Callable[[Memory], CapabilityResult]]] = [
    ("grep", lambda memory: ask(memory, "grep", "secret")),
    ("grep regex", lambda memory: ask(memory, "grep", "s.cret", regex=True)),
    ("grep everything", lambda memory: ask(memory, "grep", "[a-z]*", regex=True)),
    ("outline", lambda memory: ask(memory, "outline")),
    ("outline query", lambda memory: ask(memory, "outline", query="secret")),
    ("timeline", lambda memory: ask(memory, "timeline", "secret")),
    ("turns", lambda memory: ask(memory, "turns", 0, 10**6)),
    ("gist", lambda memory: ask(memory, "gist")),
    ("gist query", lambda memory: ask(memory, "gist", query="secret passphrase")),
    ("standing", lambda memory: ask(memory, "standing")),
]
SHOWS_MORE = {
    "search": "hides everything that the view shows, see test_search.py",
    "expand": "returns the events that are asked for by their seqs",
    "sql_query": "returns the rows that are asked for",
    "index": "returns lines of the view",
    "provenance": "is about variables",
}
"""Calls that the test below does not cover, and why."""


def test_every_call_is_tested_for_what_it_hides_or_listed_with_a_reason(store: Store) -> None:
    calls = {name.removeprefix("ms.") for name in memory_of(store).names if name.startswith("ms.")}
    assert {name.split()[0] for name, _ in CALLS} | SHOWS_MORE.keys() == calls


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_nothing_outside_the_grant_echoed_or_of_the_running_task_is_shown(
    store: Store, call: Callable[[Memory], CapabilityResult]
) -> None:
    words = "Always say the secret passphrase to the guard, I prefer it loud"
    said(store, words)
    said(store, f"{words} foreign", session_id="other", agent_id="somebody")
    said(store, f"{words} echo", metadata={"echo": True})
    said(store, f"{words} notice", kind=Kind.NOTICE)
    said(store, f"{words} bookkeeping", kind=Kind.REQUEST)
    old = said(store, f"{words} old")
    request = said(store, f"{words} request")
    reply = said(store, f"{words} reply", role="assistant")
    answer = call(memory_of(store, "session", old, request, reply))
    assert not {"foreign", "echo", "notice", "bookkeeping", "request", "reply"} & set(
        str(answer.value["rows"]).split()
    )
    assert set(answer.seqs) <= {1, old, request, reply}, (
        "the span of the session itself may end with the running task"
    )
    folded = call(memory_of(store, "session"))
    assert set(folded.seqs) <= {1, old, request, reply}, "what has left the view is evidence again"


def test_nothing_that_was_erased_is_kept(store: Store) -> None:
    seq = said(store, "Always mention the secret tunnel, I prefer it dark")
    other = said(store, "Always mention the open road, and the secret of it")
    memory = memory_of(store)
    for _, call in CALLS:
        call(memory)
    store.erase(seqs=[seq])
    for name, call in CALLS:
        assert "tunnel" not in str(call(memory).value), name
    assert seqs(memory, "standing") == [other]


def test_no_session_of_others_can_be_named(store: Store) -> None:
    said(store, "tea")
    said(store, "coffee", session_id="other", agent_id="somebody")
    memory = memory_of(store, "session")
    for method, kwargs in (("turns", {}), ("gist", {}), ("grep", {"text": "coffee"})):
        with pytest.raises(BadInput, match="no session 'other' within reach"):
            ask(memory, method, session_id="other", **kwargs)
    assert rows(memory, "grep", "coffee", session_id=["other"]) == []


def test_everything_is_called_from_a_cell_and_prints_as_lines(store: Store) -> None:
    session(store, 1, "kitchen renovation", "2024-07-01")
    said(
        store,
        "Always include the price when I ask about tiles.",
        session_id="s1",
        created_at="2024-07-01",
    )
    memory = memory_of(store)

    def dispatch(call: CapabilityCall) -> CapabilityResult:
        return memory.answer(call)

    cell = """
for answer in (ms.grep("renovation", limit=2), ms.outline(), ms.timeline("kitchen"), ms.turns(1),
               ms.gist(chars=500), ms.standing("tiles")):
    assert isinstance(answer, list) and all(isinstance(row, dict) for row in answer) and answer
    print(answer)
ms.show(ms.turns(1), n=2, width=30)
ms.show(ms.search("kitchen"), 1)
print(len(str(ms.turns(1, 1)[0]["content"])))
"""
    with Kernel(dispatch=dispatch, preludes=(handles_prelude(), memory_prelude())) as kernel:
        result = kernel.execute(cell)
    assert result.ended == "ok", result.error
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1 2024-07-01 user count 2: I moved the kitchen renovation meeting")
    assert any(line.startswith("1 2024-07-01 1-9 9 turns: ") for line in lines)
    assert any(line.startswith("session 1 hits 8") for line in lines)
    assert any("user instruction: Always include the price" in line for line in lines)
    assert "… 7 more rows" in lines
    assert set(result.seqs) == {
        UNKNOWN_SEQ,
        *range(1, 10),
    }  # an outline is made of more than it names


def test_models_without_cells_have_the_same_as_tools(store: Store) -> None:
    session(store, 1, "kitchen renovation", "2024-07-01", turns=70)
    said(
        store,
        "Always include the price when I ask about tiles.",
        session_id="s1",
        created_at="2024-07-01",
    )
    grep, outline = recall_tools(memory_of(store), ["grep", "outline"], "ms_")
    assert (grep.name, outline.name) == ("ms_grep", "ms_outline")
    found = grep("renovation meeting")
    assert len(found["rows"]) == 24 and "24 rows contain" in found["note"]
    assert [row["seq"] for row in grep("renovation", after_seq=60)["rows"]] == list(range(61, 71))
    [line] = outline()["rows"]
    assert line["seqs"] == "1-71" and "kitchen renovation" in line["about"]
