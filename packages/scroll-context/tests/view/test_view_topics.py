"""The index says what happened: earlier sessions by their topics, plain turns by their terms, and
what stands.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.contents import EarlierWork, EntryTopic, Standing, Topic
from scroll_context.events import Event, Kind
from scroll_context.text.stance import Statement, statements
from scroll_context.view.entries import UserMessage
from scroll_context.view.index import (
    LINE_CHARS,
    TERMS,
    EvictionIndex,
    joined,
    line_for,
    outline,
    topic_line,
)
from scroll_context.view.standing import (
    PREFERENCES_TOKENS,
    STANDING_TOKENS,
    chosen_statements,
    newest_standing,
    standing_line,
    standing_text,
)
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import CELLS, MARK, PREFERENCES, STANDING, tool_words
from scroll_context.view.working import WorkingView, render
from view_histories import DIGEST, SYSTEM, Scribe


def topic(n: int, **fields: Any) -> Topic:
    told: dict[str, Any] = {"first": f"2024-{n % 12 + 1:02}-01", "last": f"2024-{n % 12 + 1:02}-01"}
    terms = tuple(f"subject{n} part{k}x" for k in range(TERMS))
    return Topic(
        **({"spans": ((10 * n + 1, 10 * n + 8),), "turns": 4, "terms": terms} | told | fields)
    )


EARLIER = EarlierWork(
    topics=(topic(0), topic(1, title="kettle cost 31 euros", terms=("kettle",))),
    standing=(Standing(3, "Always use metric units."), Standing(14, "Never fly.", imported=True)),
    unlisted=2,
)


def opened(earlier: EarlierWork = EARLIER, window: int = 10**6) -> Scribe:
    scribe = Scribe(window, gap=100)
    scribe.write(
        Kind.SESSION, earlier.summary(), metadata={"earlier": msgspec.to_builtins(earlier)}
    )
    scribe.user("Plan the trip.")
    return scribe


def test_a_session_starts_from_what_its_event_carries() -> None:
    scribe = opened()
    text = scribe.ask().messages[1].text
    standing, _, lines = text.partition(CELLS.header)
    assert standing.splitlines()[1:3] == [
        "- seq 3: Always use metric units.",
        '- seq 14: "Never fly."',
    ]
    assert "2 older ones: ms.standing(topic)." in standing
    assert lines.splitlines()[1:3] == [
        "- seq 1-8 (2024-01-01): subject0 part0x, subject0 part1x, subject0 part2x, subject0 part3x, subject0 part4x",
        "- seq 11-18 (2024-02-01): kettle cost 31 euros",
    ]
    replayed = WorkingView.replay(scribe.log)
    assert render(replayed, SYSTEM, DIGEST) == render(scribe.view, SYSTEM, DIGEST)
    assert scribe.view.begun


@pytest.mark.parametrize("earlier", [None, 3, {"topics": 1}, {"topics": [{"spans": "x"}]}])
def test_what_cannot_be_read_is_left_out(earlier: object) -> None:
    scribe = Scribe(10**6)
    scribe.write(Kind.SESSION, metadata={"earlier": earlier})
    assert scribe.view.begun and scribe.view.index.is_empty


def test_the_tokens_of_a_view_count_what_it_starts_from() -> None:
    scribe = opened()
    shown = sum(estimate(message.text) for message in render(scribe.view).messages)
    assert shown <= scribe.view.tokens <= shown + 40


def test_one_line_a_session_while_there_is_room() -> None:
    topics = [topic(n) for n in range(60)]
    assert [one.spans for one in outline(topics, 10**6)] == [one.spans for one in topics]
    narrow = outline(topics, EvictionIndex(topics=tuple(topics)).tokens * 8 // 10)
    assert len(narrow) == 60 and all(TERMS - 2 <= len(one.terms) < TERMS for one in narrow)


@given(st.integers(0, 800), st.integers(200, 4_000))
def test_any_number_of_sessions_fits_with_every_address(n: int, limit: int) -> None:
    topics = [topic(i) for i in range(n)]
    kept = outline(topics, limit)
    index = EvictionIndex(topics=kept)
    assert index.tokens <= limit or len(kept) <= 2
    assert sum(one.sessions for one in kept) == n and sum(one.turns for one in kept) == 4 * n
    for one in topics:
        found = index.find(one.spans[0][0])
        assert found is not None and found.terms
    spans = [span for one in kept for span in one.spans]
    assert spans == sorted(spans)
    starts, ends = {one.spans[0][0] for one in topics}, {one.spans[0][1] for one in topics}
    assert all(lo in starts and hi in ends for lo, hi in spans), "no seq outside is claimed"
    if limit >= 1_000:
        assert len(kept) >= min(n, 10), "detail fades gradually"
        assert [one.sessions for one in kept] == sorted(
            (one.sessions for one in kept), reverse=True
        ) or len(kept) == n


def test_sessions_without_end_leave_few_lines() -> None:
    few, many = (len(outline([topic(i) for i in range(n)], 2_000)) for n in (1_000, 10_000))
    assert 10 < few <= many <= few * 1.3


def test_joined_topics_share_their_terms_and_dates() -> None:
    topics = [topic(n, terms=("heat equation", f"term{n}")) for n in range(200)]
    first = outline(topics, 1_000)[0]
    assert first.terms[0] == "heat equation" and first.sessions > 1
    text = topic_line(first).text
    assert (
        f"({first.sessions} sessions, {first.first} to {first.last})" in text
        and first.first < first.last
    )


def test_a_topic_names_its_session_and_marks_a_doubtful_date() -> None:
    sessions = [topic(n, numbers=(n + 1, n + 1), terms=("heat",)) for n in range(200)]
    assert topic_line(sessions[4]).text.startswith("- seq 41-48 (session 5, 2024-05-01): ")
    doubtful = topic(5, numbers=(6, 6), first="1970-01-01", last="1970-01-01", is_misdated=True)
    assert "(session 6, 1970-01-01, which may be misdated): " in topic_line(doubtful).text
    merged = outline([*sessions[:5], doubtful, *sessions[6:]], 1_000)[0]
    text = topic_line(merged).text
    assert f"(sessions 1-{merged.numbers[1]}, 2024-01-01 to " in text
    assert "1970" not in text and "misdated" not in text


def test_topics_give_way_when_the_index_must_shrink() -> None:
    index = EvictionIndex(topics=tuple(topic(n) for n in range(60)))
    small = index.extended([], 1_000)
    assert small.tokens <= 1_000 and len(small.topics) > 2
    assert len(index.extended([], 0).topics) == 2
    assert sum(one.sessions for one in small.topics) == 60


# evicted turns ------------------------------------------------------------------------------------------


def chatted(turns: int, window: int = 3_000) -> Scribe:
    subjects = ("the heat equation", "a ferry to Naxos", "sourdough starters", "tax on dividends")
    scribe = Scribe(window)
    for n in range(turns):
        subject = subjects[n * len(subjects) // turns]
        scribe.user(
            f"I'm trying to understand {subject}, chapter {n}. Ok cool, but how does {subject} behave?"
        )
        scribe.ask("")
        scribe.reply(f"Sure! Let me explain {subject} once more, chapter {n}. " * 6)
    scribe.ask("")
    return scribe


def test_lines_of_plain_turns_are_no_openers() -> None:
    scribe = chatted(80)
    assert scribe.plans and all(plan.topics for plan in scribe.plans if plan.evicted)
    lines = list(scribe.view.index.lines)
    assert all(line.description.strip() for line in lines)
    assert (
        "I'm trying" not in scribe.view.index.render() and "Sure!" not in scribe.view.index.render()
    )
    coarse = [line for line in lines if line.entries > 1]
    for word in ("heat equation", "Naxos", "sourdough starters"):
        assert any(word in line.description for line in coarse), word
    fine = next(line for line in reversed(lines) if line.entries == 1)
    assert (
        fine.description.startswith(("user: ", "reply: "))
        and "tax on dividends" in fine.description
    )


def test_the_view_shows_what_the_plan_carries_and_reads_nothing_itself() -> None:
    scribe = chatted(20)
    changed = []
    for event in scribe.log:
        if event.kind == Kind.EVICTION:
            text = msgspec.json.encode(event).decode().replace("heat equation", "hot potatoes")
            event = msgspec.json.decode(text, type=Event)
        changed.append(event)
    shown = WorkingView.replay(changed).index.render()
    assert "hot potatoes" in shown and "heat equation" not in shown


terms = st.lists(st.text(min_size=1, max_size=40), max_size=8).map(tuple)


@given(st.lists(st.tuples(terms, st.booleans()), min_size=1, max_size=12), st.data())
def test_lines_with_and_without_notes_join_within_bounds(
    drawn: list[tuple[tuple[str, ...], bool]], data: Any
) -> None:
    lines = []
    for n, (said, noted) in enumerate(drawn):
        scribe = Scribe(10**6)
        entry = scribe.view.get(scribe.user(f"Question {n}.").seq)
        assert isinstance(entry, UserMessage)
        lines.append(line_for(entry, None if noted else EntryTopic(entry.seq, f"title {n}", said)))
    middle = data.draw(st.integers(0, len(lines)))
    one = joined([joined(part) for part in (lines[:middle], lines[middle:]) if part])
    assert one.description.strip() and len(one.description) <= LINE_CHARS
    assert one.noted or one.terms
    assert len(one.terms) <= 2 * TERMS


# standing instructions ----------------------------------------------------------------------------------


def test_an_instruction_that_leaves_the_view_stands_before_it() -> None:
    scribe = Scribe(3_000)
    first = scribe.user("Always answer in metric units. Now, how far is Porto?")
    for n in range(30):
        scribe.ask("")
        scribe.reply(f"It is far, and further still, {n}. " * 12)
        scribe.user(f"And Lisbon, for the time number {n}?")
    assert scribe.view.get(first.seq) is None
    assert f"- seq {first.seq}: Always answer in metric units." in scribe.ask("").messages[1].text
    plans = [plan for plan in scribe.plans if plan.standing is not None]
    assert len(plans) == 1, "recorded once, where it left"
    replayed = WorkingView.replay(scribe.log)
    assert replayed.index == scribe.view.index


def test_the_newest_of_two_instructions_on_one_subject_stands() -> None:
    scribe = Scribe(3_000)
    for say in ("Always answer in metric units.", "Never answer in metric units."):
        scribe.user(say)
        for n in range(60):
            scribe.ask("")
            scribe.reply(f"It is far, and further still, {n}. " * 12)
            scribe.user(f"Go on to the part {n}. " * 8)
    assert [one.words for one in scribe.view.index.standing] == ["Never answer in metric units."]


def test_instructions_are_bounded_and_the_rest_is_counted() -> None:
    many = [
        Standing(n, f"Always mention the number {n} when I ask about arithmetic.")
        for n in range(200)
    ]
    kept, dropped = newest_standing(many, STANDING_TOKENS)
    assert kept[-1] is many[-1] and len(kept) + dropped == 200 and dropped > 100
    assert sum(estimate(standing_line(one)) + 1 for one in kept) <= STANDING_TOKENS


# preferences --------------------------------------------------------------------------------------


def _said(*texts: str) -> list[tuple[int, Statement]]:
    return [(n, said) for n, text in enumerate(texts, 1) for said in statements(text)]


def test_preferences_that_fit_stand_below_the_instructions() -> None:
    said = _said(
        "I prefer window seats on trains.", "Always use metric units.", "Let's go with Porto."
    )
    standing, unlisted = chosen_statements(said, 600)
    assert standing_text(standing, unlisted, CELLS).splitlines() == [
        f"{MARK}{STANDING}]",
        "- seq 2: Always use metric units.",
        f"{MARK}{PREFERENCES} ms.standing(topic) has all.]",
        "- seq 1, preference: I prefer window seats on trains.",
        "- seq 3, decision: Let's go with Porto.",
    ]
    plain = standing_text(standing, 0, tool_words())
    assert "ms." not in plain, "a model without cells is not told of a call that it does not have"


def test_conflicting_preferences_stand_together_or_not_at_all() -> None:
    said = _said(
        "I prefer window seats on trains.",
        "I hate olives on pizza.",
        "I prefer aisle seats on trains.",
    )
    standing, _ = chosen_statements(said, 600)
    assert [standing_line(value) for value in standing] == [
        "- seq 2, preference: I hate olives on pizza.",
        "- seq 1, preference: I prefer window seats on trains. (restated or changed at seq 3)",
        "- seq 3, preference: I prefer aisle seats on trains.",
    ]
    tight = PREFERENCES_TOKENS + sum(estimate(standing_line(value)) + 1 for value in standing[1:])
    assert [value.seq for value in chosen_statements(said, tight)[0]] == [1, 3]
    assert [value.seq for value in chosen_statements(said, tight - 1)[0]] == [2]


def test_a_preference_about_an_instructions_subject_stands_beside_it() -> None:
    said = _said(
        "Always book window seats on trains.", "Never fly.", "I prefer window seats on trains."
    )
    standing, _ = chosen_statements(said, 600)
    assert [value.seq for value in standing] == [2, 1, 3]


def test_instructions_and_preferences_share_one_bound() -> None:
    said = _said(*(f"Always mention the number {n} when I ask about item{n}." for n in range(200)))
    said += _said(*(f"I prefer thing{n} to object{n}." for n in range(2_000)))
    standing, unlisted = chosen_statements(sorted(said, key=lambda item: item[0]), 600)
    assert sum(estimate(standing_line(value)) + 1 for value in standing) <= 600
    assert not any(value.stance for value in standing), "instructions come first"
    assert len(standing) + unlisted == 200
    few, _ = chosen_statements(said[-2_000:], 600)
    assert PREFERENCES_TOKENS + sum(estimate(standing_line(value)) + 1 for value in few) <= 600
    assert few[-1].words == "I prefer thing1999 to object1999."


def test_a_preference_that_leaves_the_view_is_listed_and_replays() -> None:
    scribe = Scribe(6_000)
    scribe.user("I prefer window seats on trains. How far is Porto?")
    for n in range(100):
        scribe.ask("")
        scribe.reply(f"It is far, and further still, {n}. " * 12)
        change = "I prefer aisle seats on trains." if n == 20 else ""
        scribe.user(f"{change} And Lisbon, for the time number {n}?")
    first, second = scribe.view.index.standing
    assert (first.words, second.words) == (
        "I prefer window seats on trains.",
        "I prefer aisle seats on trains.",
    )
    assert first.replaced_by == second.seq
    assert standing_line(second) in scribe.ask("").messages[1].text
    recorded = [plan for plan in scribe.plans if plan.standing is not None]
    assert len(recorded) == 2, "the list changes only where a statement leaves"
    assert WorkingView.replay(scribe.log).index == scribe.view.index
