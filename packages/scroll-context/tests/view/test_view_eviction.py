"""Planning: the order in which things leave, and what stays."""

from itertools import pairwise

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Kind
from scroll_context.view.entries import UserMessage
from scroll_context.view.eviction import Budget, plan_eviction, prepare_ahead
from scroll_context.view.passage import Form
from scroll_context.view.standing import standing_limit
from scroll_context.view.steps import Step
from scroll_context.view.working import render
from view_histories import Scribe, long_run


def converse(scribe: Scribe, turns: int, size: int = 400) -> None:
    """Short turns: a question, one cell, an answer."""
    for n in range(turns):
        scribe.user(f"Question {n}: " + "what about this? " * 6)
        scribe.ask()
        reply = scribe.reply("", [(f"c{n}", "exec", {"code": f"rows_{n} = fetch({n})"})])
        scribe.cell(reply, f"c{n}", "x" * size)
        scribe.ask()
        scribe.reply(f"Answer {n}: " + "it is so. " * 20)


def test_nothing_leaves_below_the_high_mark() -> None:
    scribe = Scribe(100_000)
    converse(scribe, 20)
    assert scribe.plans == []


def test_results_fold_first_then_steps_leave_then_users_words() -> None:
    scribe = Scribe(12_000)
    converse(scribe, 200, size=1500)
    roles = {event.seq: event.role for event in scribe.log}
    kinds = []
    for plan in scribe.plans:
        first_roles = {roles[lo] for lo, _ in plan.evicted}
        kinds.append((bool(plan.folded), "assistant" in first_roles, "user" in first_roles))
    assert kinds[0] == (True, False, False)
    assert kinds.index((True, True, False)) < next(i for i, kind in enumerate(kinds) if kind[2])
    questions = [entry for entry in scribe.view.entries if isinstance(entry, UserMessage)]
    steps = [entry for entry in scribe.view.entries if isinstance(entry, Step)]
    assert len(questions) > len({step.turn for step in steps}), "questions outlive their answers"
    assert {step.turn for step in steps} <= {question.seq for question in questions}, (
        "no answer without its question"
    )


def test_one_batch_frees_room_for_many_steps() -> None:
    log = long_run(32_000, 200, printed=1_000).scribe.log
    sent = [event.kind for event in log if event.kind in (Kind.EVICTION, Kind.REQUEST)]
    plans = [n for n, kind in enumerate(sent) if kind == Kind.EVICTION]
    assert len(plans) > 4 and min(later - earlier for earlier, later in pairwise(plans)) > 15


def test_steps_of_the_running_turn_leave_and_the_request_stays() -> None:
    run = long_run(32_000, 300, printed=1_000)
    request = run.scribe.view.get(1)
    assert isinstance(request, UserMessage) and request.body.form is Form.FULL
    evicted = [span for plan in run.scribe.plans for span in plan.evicted]
    assert request.gone == (evicted[0][0], evicted[-1][1], len(evicted)) and len(evicted) > 150


def test_a_request_larger_than_the_window_keeps_head_and_tail() -> None:
    scribe = Scribe(8_000)
    scribe.user("Summarise this: " + "lorem ipsum " * 10_000 + "in one sentence.")
    sent = scribe.ask()
    text = sent.messages[1].text
    assert text.startswith("Summarise this: ") and text.endswith("in one sentence.")
    assert "clipped seq 1 " in text and sent.tokens <= 6_400 and not scribe.plans[-1].over_budget


@pytest.mark.parametrize("code", ["y = 1\n" * 400, "y = 1\n"])
@pytest.mark.parametrize("length", range(20_000, 44_000, 4_000))
def test_the_newest_message_is_shown_completely_if_it_fits(code: str, length: int) -> None:
    """Recent steps that were read give way to it: their long results, and their long calls too."""
    scribe = Scribe(16_000)
    scribe.user("Work.")
    for n in range(5):
        scribe.ask()
        scribe.cell(scribe.reply("", [(f"c{n}", "exec", {"code": code})]), f"c{n}", f"{n} " * 1_000)
    scribe.ask()
    scribe.reply("Done.")
    message = scribe.user("Look at this: " + "a word " * (length // 7))
    sent = scribe.ask()
    assert message.content in [each.text for each in sent.messages]
    assert sent.tokens <= 16_000 and not any(plan.over_budget for plan in scribe.plans)


def test_an_unread_result_is_shown_completely_if_it_fits() -> None:
    scribe = Scribe(16_000)
    scribe.user("Work.")
    for n in range(5):
        scribe.ask()
        scribe.cell(
            scribe.reply("", [(f"c{n}", "exec", {"code": "y = 1\n" * 400})]),
            f"c{n}",
            f"{n} " * 1_000,
        )
    scribe.ask()
    result = scribe.native(scribe.reply("", [("a", "read", {})]), "a", "read", "a word " * 5_500)
    assert scribe.ask().messages[-1].text == result.content


def test_a_long_request_gives_way_before_the_recent_steps_do() -> None:
    scribe = Scribe(8_000)
    scribe.user("Follow these rules. " * 1_000)
    for n in range(8):
        scribe.ask()
        scribe.cell(scribe.reply("", [(f"c{n}", "exec", {"code": "x = 1\n" * 200})]), f"c{n}", "ok")
    scribe.ask()
    request = scribe.view.get(1)
    assert (
        isinstance(request, UserMessage)
        and request.body.form is Form.CLIPPED
        and request.tokens > 3_000
    )
    assert len(scribe.view) > 3


def test_past_requests_leave_with_their_steps_when_nothing_else_can() -> None:
    scribe = Scribe(1_800, keep_steps=20)
    for n in range(20):
        scribe.user(f"Question {n}: " + "and this? " * 9)
        scribe.reply("Yes.")
    for n in range(7):
        scribe.user(f"Part {n}: " + "unread words " * 60, continues=True)
    plan = scribe.fit()
    assert plan and not plan.over_budget
    asked = {event.seq for event in scribe.log if event.role == "user"}
    assert any(lo in asked for lo, _ in plan.evicted)


def test_an_unread_result_is_clipped_and_then_folds_once_read() -> None:
    scribe = Scribe(8_000)
    scribe.user("Read it.")
    scribe.ask()
    result = scribe.native(scribe.reply("", [("a", "read", {})]), "a", "read", "line\n" * 40_000)
    sent = scribe.ask()
    assert (
        sent.messages[-1].text.startswith("line\n")
        and f"clipped seq {result.seq} " in sent.messages[-1].text
    )
    scribe.ask()
    assert "clipped" in render(scribe.view).messages[-1].text, "that request failed: still unread"
    for n in range(2):
        scribe.native(scribe.reply("", [(f"b{n}", "read", {})]), f"b{n}", "read", "line\n" * 40_000)
        scribe.ask()
    entry = scribe.view.get(result.seq)
    assert (
        isinstance(entry, Step) and entry.results[0] and entry.results[0].body.form is Form.FOLDED
    )


def test_a_result_that_arrives_after_a_later_request_was_answered_stays_until_it_is_read() -> None:
    scribe = Scribe(6_000)
    scribe.user("Read it, and work on.")
    scribe.ask()
    asked = scribe.reply("", [("slow", "read", {})])
    call = scribe.write(Kind.TOOL_CALL, "{}", name="read", tool_call_id="slow", reply_to=asked.seq)
    for n in range(8):
        scribe.ask()
        scribe.cell(
            scribe.reply("", [(f"c{n}", "exec", {"code": f"y = {n}\n" * 100})]),
            f"c{n}",
            f"{n} " * 50,
        )
    assert not scribe.plans and scribe.view.seen > call.seq
    answer = "the slow answer " * 20
    scribe.write(Kind.TOOL_RESULT, answer, name="read", reply_to=call.seq, tool_call_id="slow")
    scribe.user("And consider this: " + "more words " * 1_100, continues=True)
    plan = scribe.fit()
    assert plan and plan.evicted and asked.seq not in dict(plan.evicted)
    assert answer in [message.text for message in render(scribe.view).messages]


def test_a_huge_result_that_arrives_late_is_clipped_and_the_rest_of_the_view_stays() -> None:
    scribe = Scribe(20_000)
    scribe.user("Read it, and work on.")
    scribe.ask()
    asked = scribe.reply("", [("slow", "read", {})])
    call = scribe.write(Kind.TOOL_CALL, "{}", name="read", tool_call_id="slow", reply_to=asked.seq)
    for n in range(30):
        scribe.ask()
        scribe.cell(
            scribe.reply("", [(f"c{n}", "exec", {"code": f"y = {n}\n" * 60})]),
            f"c{n}",
            f"{n} " * 50,
        )
    late = scribe.write(
        Kind.TOOL_RESULT, "line\n" * 40_000, name="read", reply_to=call.seq, tool_call_id="slow"
    )
    plan = scribe.fit()
    assert plan and dict(plan.clipped)[late.seq] > 10_000 and not plan.over_budget
    assert len(scribe.view) == 2 + scribe.budget.keep_steps, (
        "the request, the late step and the newest ones"
    )
    middle = (scribe.budget.high + scribe.budget.low) / 2 * scribe.budget.window
    assert plan.after > middle, "the room that is left is used"


def test_a_huge_result_does_not_empty_the_rest_of_the_view() -> None:
    scribe = Scribe(32_000)
    scribe.user("Read them.")
    for n in range(30):
        scribe.ask()
        scribe.native(
            scribe.reply(f"part {n}", [("a", "read", {})]), "a", "read", "line\n" * 40_000
        )
    scribe.ask()
    assert len(scribe.view) > 20 and not any(plan.over_budget for plan in scribe.plans)


def test_more_than_can_fit_is_said() -> None:
    scribe = Scribe(1_000, overhead=300)
    for n in range(60):
        scribe.user(f"Part {n}: " + "unread words " * 50, continues=True)
    plan = scribe.fit()
    assert plan and plan.over_budget and plan.after > plan.limit
    assert "still above the limit" in plan.summary()
    again = plan_eviction(scribe.view, scribe.budget)
    assert again and again.over_budget and not again.shrinks


def test_the_providers_word_wins() -> None:
    scribe = Scribe(32_000)
    converse(scribe, 30)
    before = scribe.view.tokens
    assert plan_eviction(scribe.view, scribe.budget) is None
    plan = scribe.fit(overflowed=True)
    assert plan and plan.shrinks and scribe.view.tokens <= before // 2
    assert scribe.view.gauge.ratio > 1


@pytest.mark.parametrize("reported", [0.6, 1.6, 2.5])
def test_a_provider_that_counts_otherwise_is_kept_within_its_window(reported: float) -> None:
    run = long_run(32_000, 150, printed=1_000, reported=reported)
    assert run.scribe.plans and run.largest * reported <= 0.8 * 32_000 + 2
    assert run.largest <= 32_000, "the window holds by our own estimate too"
    assert run.largest * max(reported, 1) > 0.7 * 32_000, "and its window is used"


def test_thinking_leaves_older_replies_at_an_eviction() -> None:
    scribe = Scribe(6_000)
    scribe.user("Total the invoices.")
    for n in range(40):
        planned = len(scribe.plans)
        sent = scribe.ask()
        thinking = [
            bool(message.thinking) for message in sent.messages if message.role == "assistant"
        ]
        if n:
            assert thinking[-1]
        if len(scribe.plans) > planned:
            assert thinking.count(True) == 1
        reply = scribe.reply(
            "", [(f"c{n}", "exec", {"code": "x"})], thinking=[{"thinking": "hm", "signature": "s"}]
        )
        scribe.cell(reply, f"c{n}", "row\n" * 200)
    assert scribe.plans


def work_and_talk(scribe: Scribe, prepares: bool) -> None:
    """Turns with edits, test runs, thinking, instructions and plain answers."""
    for n in range(60):
        scribe.user(f"Please always log pump {n}. Is its valve {n % 7} tight?")
        scribe.ask()
        edit = {"file_path": f"/plant/pump_{n % 5}.py", "old_string": "a", "new_string": "a\nb"}
        calls = [
            (f"r{n}", "read", {"file_path": f"/plant/pump_{n % 3}.py"}),
            (f"e{n}", "edit", edit),
        ]
        reply = scribe.reply("", calls, thinking=[{"thinking": "hm", "signature": "s"}])
        scribe.native(reply, f"r{n}", "read", f"pressure {n}\n" * 90)
        scribe.native(reply, f"e{n}", "edit", "done", state="error" if n % 4 == 0 else "ok")
        if prepares:
            prepare_ahead(scribe.view)
        scribe.ask()
        scribe.reply(f"Valve {n % 7} held {n * 3} bar during the test of pump {n}. " * 4)
        if prepares:
            prepare_ahead(scribe.view)


def test_entries_that_were_prepared_leave_as_the_others_do() -> None:
    prepared, unprepared = Scribe(4_000), Scribe(4_000)
    work_and_talk(prepared, prepares=True)
    work_and_talk(unprepared, prepares=False)
    assert len(prepared.plans) > 3
    assert any(plan.topics for plan in prepared.plans)
    assert any(plan.standing for plan in prepared.plans)
    assert prepared.plans == unprepared.plans
    assert prepared.sent == unprepared.sent


def test_an_eviction_finds_the_lines_facts_and_stubs_of_prepared_steps() -> None:
    scribe = Scribe(100_000)
    work_and_talk(scribe, prepares=True)
    steps = [entry for entry in scribe.view.entries if isinstance(entry, Step)]
    with_calls = [step for step in steps if step.reply.calls]
    assert with_calls
    for step in with_calls:
        assert {"line", "facts"} <= step.kept.keys()
        form = step.without_thinking
        assert vars(form)["folded_forms"][step.results[0].body.seq].kept is step.kept
    for step in steps:
        if step not in with_calls:
            assert {"topic_terms", "topic_sentences"} <= vars(step.reply.body).keys()


def test_a_step_that_changes_after_it_was_prepared_leaves_as_it_then_is() -> None:
    scribe = Scribe(4_000)
    scribe.user("Run both checks.")
    reply = scribe.reply("", [("a", "check", {}), ("b", "check", {})])
    scribe.native(reply, "a", "check", "fine " * 200)
    prepare_ahead(scribe.view)
    scribe.native(reply, "b", "check", "error: the seal is broken", state="error")
    scribe.ask()
    for n in range(30):
        later = scribe.reply("", [(f"c{n}", "look", {})])
        scribe.native(later, f"c{n}", "look", "quiet " * 200)
        scribe.ask()
    assert "check(): error: the seal is broken" in scribe.view.index.render()


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": True},
        {"window": 3.5},
        {"overhead": -1},
        {"low": 0.9},
        {"low": 0},
        {"high": 1.2},
        {"high": "0.8"},
        {"high": 0},
        {"keep_steps": 0},
        {"index_share": -0.1},
        {"index_share": 0.8},
        {"high": float("nan")},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused_with_what_is_wrong(wrong: dict) -> None:
    (name,) = wrong
    with pytest.raises(BadInput, match=rf"{name} must be .*, and is {wrong[name]!r}"):
        Budget(**{"window": 32_000, **wrong})


def test_planning_changes_nothing() -> None:
    scribe = Scribe(6_000)
    scribe.user("Read it.")
    scribe.native(scribe.reply("", [("a", "read", {})]), "a", "read", "line\n" * 40_000)
    before = render(scribe.view)
    first, second = (plan_eviction(scribe.view, scribe.budget) for _ in range(2))
    assert first == second is not None
    assert render(scribe.view) == before


@pytest.mark.parametrize("kept", [2, 3, 6])
def test_the_newest_steps_stay_whole(kept: int) -> None:
    scribe = Scribe(20_000, keep_steps=kept)
    scribe.user("Work.")
    for n in range(300):
        scribe.ask()
        scribe.cell(
            scribe.reply("", [(f"c{n}", "exec", {"code": f"x = {n}"})]), f"c{n}", f"{n} " * 300
        )
        steps = [entry for entry in scribe.view.entries if isinstance(entry, Step)]
        whole = [
            all(one is None or one.body.form is Form.FULL for one in step.results)
            for step in steps[-kept - 1 :]
        ]
        assert len(whole) == min(n, kept) + 1 and all(whole[1:])
    assert len(scribe.plans) > 3


def test_no_more_is_folded_than_frees_the_room() -> None:
    scribe = Scribe(20_000)
    scribe.user("Work.")
    while not scribe.plans:
        scribe.ask()
        n = len(scribe.log)
        scribe.cell(
            scribe.reply("", [(f"c{n}", "exec", {"code": "y = 2"})]), f"c{n}", f"{n} " * 400
        )
    (plan,) = scribe.plans
    results = [entry for entry in scribe.view.entries if isinstance(entry, Step)]
    tail = scribe.budget.keep_steps + 1
    assert plan.evicted == () and 3 < len(plan.folded) < len(results) - tail, (
        "some older results are still whole"
    )
    assert plan.after > scribe.budget.low * scribe.budget.window * 0.8


def test_a_long_past_message_is_clipped_only_when_folding_was_not_enough() -> None:
    scribe = Scribe(20_000)
    scribe.user("A long story. " * 400)
    scribe.ask()
    scribe.reply("Noted.")
    scribe.user("Work.")
    while not scribe.plans:
        scribe.ask()
        n = len(scribe.log)
        scribe.cell(
            scribe.reply("", [(f"c{n}", "exec", {"code": "y = 2"})]), f"c{n}", f"{n} " * 400
        )
    assert scribe.plans[0].folded and scribe.plans[0].clipped == ()


def test_standing_instructions_have_a_small_share_of_the_window() -> None:
    assert [standing_limit(window) for window in (5_000, 10_000, 30_000, 1_000_000)] == [
        100,
        200,
        600,
        600,
    ]
    assert standing_limit(10_000, 2.0) == 100, "tokens as the provider counts them"
