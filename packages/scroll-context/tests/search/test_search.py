"""What a search finds, in which order, and what it shows."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.errors import BadInput
from scroll_context.events import BOOKKEEPING, Draft, Grant, Kind
from scroll_context.log.rows import LONGEST_ID
from scroll_context.search.ranking import LENT_NEAR, NEAR
from scroll_context.store import Store

EXPLAINED = "This is what a longer explanation of an assistant looks like. " * 8


def say(store: Store, *texts: str, role: str = "assistant", **fields: object) -> list[int]:
    return store.log.append_many([Draft(content=text, role=role, **fields) for text in texts])  # type: ignore[arg-type]


def found(store: Store, query: str, **options: object) -> list[int]:
    return [hit.seq for hit in store.index.search(query, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("C++", "I wrote it in C++."),
        ("c#", "ported to C# since"),
        ("g++", "use g++ -O2"),
        ("paths/like/this.py", "see paths/like/this.py:12"),
        ("this.py", "see paths/like/this.py:12"),
        ("call_9f3a", '{"id": "call_9f3a"}'),
        ("2024-11-05", "[Session 42 | 2024-11-05] user: hello"),
        ("v1.2.3", "released (v1.2.3)"),
        ("didn't", "she didn’t come"),
        ("didn’t", "she didn't come"),
        ("Pamela's", "Pamela came"),
        ("o'brien", "O'Brien came"),
        ("e-mail", "an e-mail address"),
        ("ZURICH", "Zürich"),
        ("naïve", "a naive approach"),
        ("ｗｉｄｅ", "wide letters"),
        ("wide", "ｗｉｄｅ letters"),
        ("79%", "it reached 79% in May"),
        ("79%", "it reached 79 percent"),
        ("79 percent", "it reached 79%"),
        ("16gb", "with 16 GB of memory"),
        ("16 gb", "with 16GB of memory"),
        ("FAILED", "\x1b[31mFAILED\x1b[0m tests"),
        ("\x1b[1mfailed", "it FAILED"),
        ("report", "\x1b]8;;https://x.org\x1b\\report\x1b]8;;\x1b\\ ready"),
        ("vendor", "three vendors"),
        ("error", "raise InternalError from cause"),
        ("errors", "raise InternalError from cause"),
        ("InternalError", "raise InternalError from cause"),
        ("internalerror", "raise InternalError from cause"),
        ("InternalError", "see internal_error below"),
        ("internal_error", "see internal_error below"),
        ("error", "see internal_error below"),
        ("element", "document.getElementById('x')"),
        ("server", "class HTTPServer:"),
        ("http", "class HTTPServer:"),
        ("studies", "to study"),
        ("vend*", "the vendor"),
        ("call_9f*", "call_9f3a"),
        ('"brief the vendors"', "she should brief the vendors"),
        ("https://example.org/a?b=c", "at https://example.org/a?b=c now"),
        ("東京", "昨日東京都に行きました"),
        ("京", "昨日東京都に行きました"),
        ("した", "昨日東京都に行きました"),
        ("カタカナ", "半角ｶﾀｶﾅです"),
        ("검색", "한국어 검색은 된다"),
        ("แมว", "ผมชอบแมวมาก"),
        ("budget 予算", "the 予算 is the budget"),
        ("GPT4で", "GPT4で書いた"),
        ("𠮷野家", "𠮷野家で食べた"),
        ("नमस्ते", "कहो नमस्ते दुनिया"),
        ("привет", "Привет, мир"),
    ],
)
def test_finds(store: Store, query: str, text: str) -> None:
    say(store, "nothing to see", text, "still nothing")
    assert found(store, query) == [2]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("C++", "vitamin C is good"),
        ("79%", "79 apples"),
        ("2024-11-05", "2024 05 11"),
        ("call_9f3a", "9f3a call"),
        ('"brief the vendors"', "the vendors brief"),
        ("vend*", "a lavender vest"),
        ("alpha AND beta", "alpha"),
        ("alpha NOT beta", "alpha beta"),
        ("(alpha OR beta) AND gamma", "alpha beta"),
        ('"alpha beta" gamma', "gamma beta alpha"),
        ("東京", "京東"),
        ("東京 AND 大阪", "東京だけ"),
        ("東京 NOT 大阪", "東京と大阪"),
        ("NOT alpha", "beta"),
        ("alpha OR NOT beta", "gamma"),
        ("*", "anything"),
        ("the", "the and of"),
        ("", "anything"),
        ("\x00", "anything"),
    ],
)
def test_does_not_find(store: Store, query: str, text: str) -> None:
    say(store, text)
    assert found(store, query) == []


def test_not_takes_away_what_was_named_and_no_more(store: Store) -> None:
    say(store, "a test", "we are testing a test")
    assert found(store, "test NOT testing") == [1]


def test_events_with_all_words_come_first_and_others_follow(store: Store) -> None:
    say(store, "alpha is here", "beta is here", "alpha then, and beta", "neither", "another beta")
    assert found(store, "alpha beta")[0] == 3
    assert sorted(found(store, "alpha beta")) == [1, 2, 3, 5]
    assert store.index.search("alpha beta").note == (
        "1 event has all words: seq 3. The other rows have some of them."
    )


def test_the_form_asked_for_comes_first(store: Store) -> None:
    say(store, "many vendors here", "this vendor here")
    assert found(store, "vendor") == [2, 1]
    assert found(store, "vendors") == [1, 2]


def test_ties_go_by_seq_however_many(store: Store) -> None:
    for _ in range(4):  # several commits, several segments
        say(store, *["ok thanks"] * 500)
        store.index.catch_up()
    assert found(store, "thanks", k=5) == [1, 2, 3, 4, 5]
    assert found(store, "than*", k=3, exclude=[1, 2]) == [3, 4, 5]


def scores(store: Store, query: str, **options: float) -> dict[int, float]:
    return {hit.seq: hit.score for hit in store.index.search(query, **options)}


def test_a_reply_lends_weight_to_the_turn_it_answers(store: Store) -> None:
    say(store, "what about the budget", role="user")
    say(store, f"the budget is fine, {EXPLAINED}", *["something else"] * NEAR)
    later = say(store, "what about the budget", role="user")[0]
    say(store, "no idea")
    plain = scores(store, "budget", user_weight=1.0, flow=0.0)
    assert scores(store, "budget", user_weight=1.0, flow=0.5)[1] == pytest.approx(
        plain[1] + 0.5 * plain[2]
    )
    assert scores(store, "budget", user_weight=3.0, flow=0.5)[1] == pytest.approx(
        3 * (plain[1] + 0.5 * plain[2])
    )
    assert scores(store, "budget", user_weight=1.0, flow=0.5)[later] == pytest.approx(plain[later])


def test_user_turns_close_to_each_other_lend_a_little(store: Store) -> None:
    say(store, "the budget", role="user")
    say(store, "fine")
    say(store, "the budget again, and in more words than before", role="user")
    say(store, "fine", *["something else"] * NEAR)
    lone = say(store, "the budget", role="user")[0]
    found = scores(store, "budget", user_weight=1.0, flow=0.0)
    weaker = found[3] - LENT_NEAR * found[lone]  # what the longer turn scores by itself
    assert found[1] == pytest.approx(found[lone] + LENT_NEAR * weaker)
    assert found[1] > found[lone] > found[3]


def test_reply_to_names_the_turn(store: Store) -> None:
    say(store, "budget question", "budget question", role="user")
    say(store, "the budget", reply_to=1)
    assert found(store, "budget")[0] == 1


def test_of_many_replies_the_best_counts(store: Store) -> None:
    say(store, "compile the parser", role="user")
    say(store, f"parser: {EXPLAINED}", "a longer text about the parser", "parser")
    say(store, f"{EXPLAINED} {EXPLAINED} about the parser")
    plain = scores(store, "parser", user_weight=1.0, flow=0.0)
    assert scores(store, "parser", user_weight=1.0, flow=0.5)[1] == pytest.approx(
        plain[1] + 0.5 * max(plain[seq] for seq in plain if seq > 1)
    )


def test_a_short_first_reply_is_a_turn_of_its_own(store: Store) -> None:
    """In a conversation both sides say what is asked for later; explanations only lend weight."""
    say(store, "where did you go for the budget talk?", role="user")
    short = say(store, "the budget talk was in Lisbon")[0]
    say(store, "and what did they say of the budget?", role="user")
    long = say(store, f"the budget: {EXPLAINED}")[0]
    plain = scores(store, "budget", user_weight=1.0, flow=0.0)
    doubled = scores(store, "budget", user_weight=2.0, flow=0.0)
    assert doubled[short] == pytest.approx(2 * plain[short])
    assert doubled[long] == pytest.approx(plain[long])


def test_an_agents_remarks_between_calls_are_no_turns(store: Store) -> None:
    say(store, "fix the parser", role="user")
    calls = {"tool_calls": [{"id": "a"}]}
    first = say(store, "I look at the parser", metadata=calls)[0]
    store.index.catch_up()  # what follows is another batch
    second = say(store, "the parser is short")[0]
    plain = scores(store, "parser", user_weight=1.0, flow=0.0)
    doubled = scores(store, "parser", user_weight=2.0, flow=0.0)
    assert doubled[first] == pytest.approx(plain[first])
    assert doubled[second] == pytest.approx(plain[second])


def test_a_word_beats_others_with_the_same_stem(store: Store) -> None:
    ported = say(store, "the serial port", "serial numbers", role="user", session_id="ports")
    about = say(store, f"{EXPLAINED} The serialization of dates is slow. {EXPLAINED}")
    forms = say(store, f"{EXPLAINED} both serializations agree {EXPLAINED}")
    assert found(store, "serialization")[:2] == [*about, *forms]
    assert found(store, "serialization slow")[0] == about[0]
    assert set(found(store, "serial")[:2]) == set(ported)


def test_a_part_of_a_compound_is_shown(store: Store) -> None:
    say(store, f"{EXPLAINED * 3} raise InternalErrorHandler(cause) {EXPLAINED * 3}")
    (hit,) = store.index.search("errors")
    assert "InternalErrorHandler" in hit.snippet


def test_merged_segments_give_the_same_answers(store: Store, tmp_path: Path) -> None:
    """Documents that tie at the cut are left out, whichever of them the engine happened to keep."""
    with Store(tmp_path / "other", create=True) as other:
        for batch in range(6):
            texts = [f"ok thanks {'again ' * (batch % 3)}" for _ in range(400)]
            for each in (store, other):
                say(each, "the plan, thanks", role="user")
                say(each, *texts, EXPLAINED)
            store.index.catch_up()  # six segments here, one there
        other.index.catch_up()
        assert store.index.stats().segments > other.index.stats().segments
        for query in ("thanks", "thanks again", "ok thanks", "plan thanks again"):
            ours, theirs = store.index.search(query, k=20), other.index.search(query, k=20)
            assert [hit.seq for hit in ours] == [hit.seq for hit in theirs]


def test_tool_results_and_other_sessions_lend_nothing(store: Store) -> None:
    say(store, "find the parser", role="user")
    say(store, "parser", kind=Kind.TOOL_RESULT, role="tool")
    say(store, "parser", kind=Kind.TOOL_CALL)
    say(store, "parser", session_id="another")
    assert scores(store, "parser", flow=0.5)[1] == pytest.approx(
        scores(store, "parser", flow=0.0)[1]
    )


def test_user_turns_weigh_more(store: Store) -> None:
    say(store, "the deadline moved")
    say(store, "the deadline moved", role="user")
    assert found(store, "deadline") == [2, 1]
    assert found(store, "deadline", user_weight=1.0, flow=0.0) == [1, 2]


def test_notices_bookkeeping_and_echoes_are_never_hits(store: Store) -> None:
    say(store, "secret word", kind=Kind.NOTICE, role="user")
    say(store, "secret word", kind=Kind.CELL, metadata={"echo": True})
    say(store, "secret word", kind=Kind.OBSERVATION, metadata={"echo": True})
    for kind in sorted(BOOKKEEPING):
        say(store, "secret word", kind=kind)
    seen = say(store, "secret word", kind=Kind.OBSERVATION)
    assert found(store, "secret", k=50) == seen
    store.index.rebuild()
    assert found(store, "secret", k=50) == seen


def test_excluded_events_make_room_for_others(store: Store) -> None:
    seqs = say(store, *["plain words"] * 30)
    assert found(store, "words", k=10, exclude=seqs[:15]) == seqs[15:25]


def test_a_prefix_of_very_many_words(store: Store) -> None:
    say(
        store,
        *[
            " ".join(f"id_x{number}" for number in range(at, at + 1_000))
            for at in range(0, 21_000, 1_000)
        ],
    )
    assert len(found(store, "x*", k=50)) == 21
    assert found(store, "id_x1234*") == [2, 13]
    assert found(store, "id_x*", k=50)
    assert found(store, "id_y*") == []


def test_names_and_headlines_are_found(store: Store) -> None:
    say(store, "{}", kind=Kind.TOOL_CALL, name="read_file")
    say(store, "done", headline="task: migrate the scheduler")
    assert found(store, "read_file") == [1]
    assert found(store, "scheduler") == [2]


def test_k_is_checked(store: Store) -> None:
    with pytest.raises(BadInput):
        store.index.search("x", k=0)
    assert found(store, "x", k=10**12) == []


# what was asked for ---------------------------------------------------------------------------------------


def test_a_mixed_query_falls_back_to_any_word_and_says_so(store: Store) -> None:
    say(
        store,
        "orchard plan and harvest",
        "orchard alone",
        "harvest alone",
        "pruning shears",
        "nothing of it",
    )
    hits = store.index.search("orchard harvest OR pruning saw")
    assert hits[0].seq == 1, "what has all words comes first"
    assert {hit.seq for hit in hits} == {1, 2, 3, 4}
    assert hits.note == (
        "1 event has all words: seq 1. The other rows have some of them. no row contains: saw."
    )
    assert found(store, "orchard AND harvest OR pruning AND saw") == [1], "AND holds"
    assert set(found(store, "(orchard OR pruning) (harvest OR shears)", k=2)) == {1, 4}


def test_words_without_a_row_are_named(store: Store) -> None:
    say(store, "we mixed the compound", session_id="mine")
    say(store, "synthesizing it took days", session_id="other")
    assert store.index.search("synthesizing compound").note == (
        "No event has all words; these rows have some of them."
    )
    hits = store.index.search("synthesizing compound", grant=Grant(session_id="mine"))
    assert hits.missing == ("synthesizing",) and "no row contains: synthesizing." in hits.note
    assert store.index.search("synthesizing", exclude=[2]).only_excluded == ("synthesizing",)
    assert store.index.search('"mixed compound" compound').missing == ("mixed compound",)
    assert store.index.search("zzz* comp*").missing == ("zzz*",)


@pytest.mark.parametrize(
    ("query", "meant", "not_meant"),
    [
        (
            "integrate",
            "how do I integrate the two services",
            "the integral of the integral over the integral",
        ),
        (
            "subscription",
            "cancel the subscription please",
            "a subscript and another subscript in the subscript",
        ),
        (
            "transformer",
            "the transformer has two layers",
            "transformation after transformation, transformations",
        ),
        (
            "preference",
            "state a preference for the date",
            "they prefer it, preferred it, preferring it",
        ),
    ],
)
def test_a_word_as_written_wins_over_its_stem(
    store: Store, query: str, meant: str, not_meant: str
) -> None:
    say(store, not_meant, meant)
    hits = store.index.search(query)
    assert [hit.seq for hit in hits] == [2, 1]
    assert hits[0].score > 1.2 * hits[1].score


def test_near_duplicates_do_not_fill_the_places(store: Store) -> None:
    again = "The ferry to the island leaves at nine from the northern pier, and the ticket office opens at eight"
    say(store, *[f"{again}{end}" for end in (".", "!", " .", "!!", "…")])
    say(
        store,
        "no ferry on Sundays",
        "the ferry costs 12 francs",
        "The ferry to the island leaves at ten",
    )
    assert set(found(store, "ferry", k=4)) >= {6, 7, 8}
    assert sorted(found(store, "ferry", k=20)) == list(range(1, 9)), (
        "they are found when there is room"
    )


def test_sessions_can_take_turns(store: Store) -> None:
    for name in ("a", "b", "c"):
        say(store, *[f"budget {name} {number}" for number in range(6)], session_id=name)
    hits = store.index.search("budget", k=10, per_session=1)
    assert sorted(hit.event.session_id for hit in hits) == ["a", "b", "c"]
    assert len(store.index.search("budget", k=10, per_session=2)) == 6


def test_standing_instructions_weigh_more(store: Store) -> None:
    say(store, "I wonder about the invoices in the currency of the client", role="user")
    say(store, *["something else"] * NEAR)
    say(store, "Always show the invoices in the currency of the client", role="user")
    assert found(store, "invoices currency client") == [NEAR + 2, 1]


def test_a_reply_of_calls_alone_is_not_found_by_their_arguments(store: Store) -> None:
    calls = {
        "tool_calls": [{"id": "1", "name": "exec", "arguments": {"headline": "look for the zebra"}}]
    }
    say(store, "", headline="look for the zebra | nothing yet", metadata=calls)
    assert found(store, "zebra") == []
    say(store, "I look for the zebra now.", headline="look for the zebra", metadata=calls)
    assert found(store, "zebra") == [2]


# snippets -------------------------------------------------------------------------------------------------


def test_a_snippet_begins_with_the_text_when_the_match_is_near_it(store: Store) -> None:
    text = (
        "[Session 37 | 2023-07-15] user: How can I make sure Pamela is aware of it? "
        + "And so on. " * 100
    )
    say(store, text)
    shown = store.index.search("Pamela")[0].snippet
    assert shown.startswith("[Session 37 | 2023-07-15] user: How can I make sure Pamela")
    assert shown.endswith(" ...")
    assert len(shown) <= 310


def test_a_snippet_shows_a_match_deep_in_the_text(store: Store) -> None:
    say(store, "Filler. " * 400 + "The Pamela budget was 900.\nNext line. " + "Filler. " * 400)
    shown = store.index.search("pamela budgets")[0].snippet
    assert shown.startswith(" ... ")
    assert "The Pamela budget was 900.\nNext line." in shown


def test_a_short_text_is_its_own_snippet(store: Store) -> None:
    say(store, " two lines\n of **text** <b>x</b> ")
    assert store.index.search("text")[0].snippet == " two lines\n of **text** <b>x</b> "


def test_a_snippet_of_a_phrase_and_of_a_spaceless_script(store: Store) -> None:
    say(store, "2024 " * 100 + "due on 2024-11-05 at noon " + "2024 " * 100)
    say(store, "これは長い文章です。" * 60 + "東京で会議。" + "これは長い文章です。" * 60)
    assert "due on 2024-11-05" in store.index.search("2024-11-05")[0].snippet
    assert "東京で会議" in store.index.search("東京")[0].snippet


def test_a_snippet_has_no_colours(store: Store) -> None:
    say(store, "\x1b[32m" + "Filler. " * 400 + "\x1b[31mFAILED\x1b[0m here. " + "Filler. " * 400)
    shown = store.index.search("failed")[0].snippet
    assert "FAILED here." in shown and "\x1b" not in shown


# payloads -------------------------------------------------------------------------------------------------


def test_the_whole_text_of_a_payload_is_searchable(store: Store) -> None:
    body = "line of filler text\n" * 20_000
    body = body[:200_000] + "\nthe needle_42 lies here\n" + body[200_000:]
    (seq,) = say(store, body, kind=Kind.TOOL_RESULT, role="tool")
    (hit,) = store.index.search("needle_42")
    assert hit.seq == seq
    assert "the needle_42 lies here" in hit.snippet
    assert hit.snippet.startswith(" ... ")
    assert hit.event.payload is not None and len(hit.event.content) < 5_000
    assert found(store, "filler") == [seq]  # several passages, one hit


def test_a_phrase_across_two_passages_is_found(store: Store) -> None:
    say(store, "x" * 63_990 + " " + "carved in two halves " * 40)
    assert found(store, '"carved in two"') == [1]


def test_a_binary_payload_is_found_by_its_preview(store: Store) -> None:
    payload = store.payloads.put(b"\x89PNG secret", "image/png")
    store.append(Draft(content="screenshot of the dashboard", payload=payload))
    assert found(store, "dashboard") == [1]
    assert found(store, "secret") == []


def test_a_lost_payload_leaves_the_preview_findable(store: Store) -> None:
    say(store, "preamble " * 10_000)
    for digest in list(store.payloads.digests()):
        store.payloads.path(digest).unlink()
    assert found(store, "preamble") == [1]


# filters --------------------------------------------------------------------------------------------------

_KINDS = ("conversation", "tool_result")
_ROLES = ("user", "assistant", "")
_NAMES = ("", "a", "b")
_TIMES = (
    "2024-06-30",
    "2024-07-01T00:00:00",
    "2024-07-31T23:59:59.999999+00:00",
    "2024-07-31T10:00:00Z",
    "2024-08-01",
)

_drafts = st.lists(
    st.builds(
        Draft,
        content=st.sampled_from(["alpha", "alpha beta", "beta", "gamma", "東京 alpha"]),
        kind=st.sampled_from([*_KINDS, Kind.NOTICE]),
        role=st.sampled_from(_ROLES),
        session_id=st.sampled_from(("s", "t", "x" * LONGEST_ID)),
        agent_id=st.sampled_from(_NAMES),
        task_id=st.sampled_from(_NAMES),
        created_at=st.sampled_from(_TIMES),
    ),
    min_size=1,
    max_size=25,
)
_several = st.one_of(
    st.none(), st.sampled_from(_NAMES), st.lists(st.sampled_from(_NAMES), max_size=2)
)
_options = st.fixed_dictionaries(
    {
        "kind": st.one_of(st.none(), st.sampled_from(_KINDS), st.just(_KINDS)),
        "role": st.one_of(st.none(), st.sampled_from(_ROLES)),
        "session_id": st.one_of(
            st.none(), st.sampled_from(("s", "t", "x" * LONGEST_ID, "x" * 2_001))
        ),
        "agent_id": _several,
        "task_id": _several,
        "seq_range": st.one_of(st.none(), st.tuples(st.integers(-3, 30), st.integers(-3, 30))),
        "created_from": st.one_of(
            st.none(), st.sampled_from(("2024", "2024-07", "2024-07-31", "2024-07-31T10:00:00"))
        ),
        "created_to": st.one_of(
            st.none(), st.sampled_from(("2023", "2024-06", "2024-07-31", "2024-07-31T10:00"))
        ),
        "exclude": st.sets(st.integers(1, 25), max_size=5),
        "grant": st.builds(
            Grant, session_id=st.sampled_from((None, "s")), agent_id=st.sampled_from((None, "a"))
        ),
    }
)


@settings(max_examples=form(20, 60))
@given(drafts=_drafts, options=_options)
def test_filters_against_brute_force(drafts: list[Draft], options: dict) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder) / "store", create=True) as store,
    ):
        store.log.append_many(drafts)
        expected = {
            event.seq
            for event in store.log.iterate(
                **{key: options[key] for key in options if key not in ("seq_range", "exclude")}
            )
            if event.is_searchable
            and "alpha" in event.content
            and event.seq not in options["exclude"]
            and (
                options["seq_range"] is None
                or options["seq_range"][0] <= event.seq <= options["seq_range"][1]
            )
        }
        assert set(found(store, "alpha", k=100, **options)) == expected


def test_a_query_without_a_word_to_search_for_says_so(store: Store) -> None:
    say(store, "what is it that you do")
    assert "no word to search for" in store.index.search("what is it").note
    assert found(store, '"what is it"') == [1]
    assert store.index.search("nothing such").note == "no row contains: nothing."
    assert store.index.search("do").note != ""


def test_a_date_that_is_none_is_refused(store: Store) -> None:
    say(store, "x")
    for bad in ("yesterday", "2024-7", "07/31/2024", ""):
        with pytest.raises(BadInput, match="is not a date"):
            store.index.search("x", created_to=bad)


def test_the_index_is_its_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Store(tmp_path / "open", create=True) as store:
            for number in range(10):  # enough commits for a merge
                say(store, f"secret {number} " * 20_000)
                store.index.catch_up()
            files = list((tmp_path / "open" / "index").rglob("*"))
            modes = {stat.S_IMODE(file.stat().st_mode) for file in files}
    finally:
        os.umask(before)
    assert len(files) > 5 and modes <= {0o700, 0o600, 0o400}


def test_every_event_with_all_words_is_told_however_many_there_are(store: Store) -> None:
    both = say(store, *(f"the red heron of lake {number}" for number in range(1_200)))
    red = say(store, "a red car", "Red again")
    filler = "padding " * 9_000
    (apart,) = say(
        store, f"a heron {filler} and something red"
    )  # in two passages of one large body
    assert store.index.every("red herons") == [*both, apart]
    assert store.index.every("red heron", any_word=True) == [*both, *red, apart]
    assert store.index.every("red NOT heron") == red
    assert store.index.every('"red heron" lake') == both
    assert (
        store.index.every("red heron lake car padding again something") == []
    )  # no word is left out of a question
    say(store, "another red heron", session_id="elsewhere")
    assert store.index.every("red heron", session_id="elsewhere") == [apart + 1]
    with pytest.raises(BadInput, match="no word to search for"):
        store.index.every("the of")
