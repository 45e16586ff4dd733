"""Questions to a second model: recorded, answered from the log when asked again, within the budget
of the session.
"""

import math
import threading
from collections.abc import Callable

import pytest

from open_journals import journal_of
from scroll_context.errors import BadInput, LimitReached, ModelUnavailable
from scroll_context.events import Event, Kind, Scope
from scroll_context.store import Store
from scroll_context.tools.ask import CONTEXT_LIMIT, Ask, AskBudget, AskModel, AskReply
from scroll_context.tools.recorder import unfinished_calls
from scroll_context.work import Work

SCOPE = Scope("s", "me")


def model(answer: Callable[[str, str], AskReply], name: str = "small") -> AskModel:
    return AskModel(name, answer)


def asking(store: Store, **budget: int) -> Ask:
    def answer(prompt: str, context: str) -> AskReply:
        return AskReply(f"{prompt} {len(context)}", 10)

    return Ask(model(answer), journal_of(store.log, SCOPE), AskBudget(**budget))


def one(ask: Ask, context: str) -> object:
    return ask.methods(7, Work(math.inf))["ask.one"]("length", context).value


def test_the_answer_of_one_model_is_not_given_for_another(store: Store) -> None:
    first = Ask(model(lambda *_: AskReply("yes"), "small"), journal_of(store.log, SCOPE))
    assert one(first, "a") == "yes"
    assert (
        one(Ask(model(lambda *_: AskReply("no"), "large"), journal_of(store.log, SCOPE)), "a")
        == "no"
    )
    assert (
        one(Ask(model(lambda *_: AskReply("other"), "small"), journal_of(store.log, SCOPE)), "a")
        == "yes"
    ), "from the log"
    assert (
        one(Ask(lambda *_: AskReply("who knows"), journal_of(store.log, SCOPE)), "a") == "who knows"
    )
    assert (
        one(Ask(lambda *_: AskReply("not the same"), journal_of(store.log, SCOPE)), "a")
        == "not the same"
    )
    results = [event for event in store.log.iterate() if event.kind == Kind.TOOL_RESULT]
    assert [(event.metadata["model"], event.content) for event in results[:2]] == [
        ("small", "yes"),
        ("large", "no"),
    ]


@pytest.mark.parametrize("budget", [{"calls": 2}, {"tokens": 20}])
def test_the_budget_is_that_of_the_session_not_of_the_process(
    store: Store, budget: dict[str, int]
) -> None:
    assert one(asking(store, **budget), "a") == "length 1"
    later = asking(store, **budget)
    assert one(later, "bb") == "length 2"
    assert one(later, "a") == "length 1", "an answer from the log costs nothing"
    with pytest.raises(LimitReached, match="2 calls, 20 tokens"):
        one(later, "ccc")
    assert (
        one(
            Ask(lambda *_: AskReply("other"), journal_of(store.log, Scope("another session"))),
            "ccc",
        )
        == "other"
    )


def test_a_search_finds_the_text_and_not_the_question_about_it(store: Store) -> None:
    text = "the heron stands at the weir"
    said = store.append(SCOPE.draft(Kind.CONVERSATION, role="user", content=text))
    one(asking(store), text)
    assert [hit.seq for hit in store.index.search("heron weir")] == [said]


def test_events_are_told_as_they_are_recorded(store: Store) -> None:
    told: list[Event] = []

    def answer(prompt: str, context: str) -> AskReply:
        assert [event.kind for event in told] == [Kind.TOOL_CALL]
        return AskReply("yes")

    journal = journal_of(store.log, SCOPE)
    journal.subscribe(told.append)
    one(Ask(answer, journal), "a")
    call, result = told
    assert (result.kind, result.reply_to, result.metadata["inside_cell"]) == (
        Kind.TOOL_RESULT,
        call.seq,
        7,
    )


def test_a_question_that_got_no_answer_is_recorded_counted_and_can_be_asked_again(
    store: Store,
) -> None:
    def broken(prompt: str, context: str) -> AskReply:
        raise ModelUnavailable("busy")

    with pytest.raises(ModelUnavailable, match="busy"):
        one(Ask(broken, journal_of(store.log, SCOPE)), "a")
    call, result = store.log.tail(2)
    assert (result.reply_to, result.tool_state, result.content) == (
        call.seq,
        "error",
        "ModelUnavailable: busy",
    )
    assert unfinished_calls(store.log, SCOPE) == []
    assert one(asking(store, calls=2), "a") == "length 1"
    with pytest.raises(LimitReached, match="2 calls"):
        one(asking(store, calls=2), "b")


def test_what_cannot_be_asked_is_refused_before_it_is_recorded(store: Store) -> None:
    methods = asking(store).methods(7, Work(math.inf))
    with pytest.raises(BadInput, match="both as text"):
        methods["ask.one"]("length", 7)
    with pytest.raises(BadInput, match="a list of contexts"):
        methods["ask.many"]("length", "abc")
    with pytest.raises(BadInput, match="Split it"):
        one(asking(store), "x" * (CONTEXT_LIMIT + 1))
    assert store.log.last_seq() == 0


def test_the_same_question_at_the_same_time_is_asked_once(store: Store) -> None:
    asked: list[str] = []
    release = threading.Event()

    def answer(prompt: str, context: str) -> AskReply:
        asked.append(context)
        if (
            len(asked) == 2
        ):  # both different questions are on their way, so the equal ones wait by now or come later
            release.set()
        assert release.wait(60)
        return AskReply(context.upper())

    ask = Ask(answer, journal_of(store.log, SCOPE))
    found = ask.methods(7, Work(math.inf))["ask.many"]("shout", ["a", "a", "a", "b"])
    assert found.value == ["A", "A", "A", "B"] and sorted(asked) == ["a", "b"]
    assert unfinished_calls(store.log, SCOPE) == []


def test_a_question_that_another_process_answered_first_has_a_result_too(store: Store) -> None:
    def answer(prompt: str, context: str) -> AskReply:
        one(Ask(model(lambda *_: AskReply("first")), journal_of(store.log, SCOPE)), context)
        return AskReply("second")

    assert one(Ask(model(answer), journal_of(store.log, SCOPE)), "a") == "second"
    assert unfinished_calls(store.log, SCOPE) == []
    assert one(asking(store), "a") == "first", "which is the answer from now on"


def test_a_cell_that_has_ended_asks_nothing_more(store: Store) -> None:
    work = Work(math.inf)
    asked: list[str] = []

    def answer(prompt: str, context: str) -> AskReply:
        asked.append(context)
        work.stop()
        return AskReply("yes")

    ask = Ask(answer, journal_of(store.log, SCOPE), AskBudget(parallel=1))
    with pytest.raises(LimitReached, match="has ended"):
        ask.methods(7, work)["ask.many"]("length", ["a", "b", "c"])
    assert asked == ["a"]
