"""The contract with the events: what each kind does to a view, and what leaves it alone."""

import pytest

from scroll_context.contents import EvictionPlan
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.session.explain import departures, whereabouts
from scroll_context.view.entries import UserMessage
from scroll_context.view.steps import Step
from scroll_context.view.working import WorkingView, render
from view_histories import Scribe

ROOM = 10**6


def only_step(scribe: Scribe) -> Step:
    (found,) = [entry for entry in scribe.view.entries if isinstance(entry, Step)]
    return found


def test_calls_made_inside_a_cell_belong_to_its_step_and_are_not_shown() -> None:
    scribe = Scribe(ROOM)
    reply = scribe.reply("", [("a", "exec", {"code": "x"})])
    printed = scribe.cell(reply, "a", "printed", inner=3)
    made = only_step(scribe)
    assert (made.seq, made.last) == (reply.seq, printed.seq)
    assert [message.text for message in render(scribe.view).messages[2:]] == ["printed"]
    cell = next(event for event in scribe.log if event.kind == Kind.CELL)
    late = scribe.write(
        Kind.TOOL_RESULT, "x", tool_call_id="in", metadata={"inside_cell": cell.seq}
    )
    assert only_step(scribe).last == late.seq


def test_only_an_answered_request_makes_its_contents_read() -> None:
    scribe = Scribe(ROOM)
    request = scribe.user("first")
    scribe.ask()
    assert scribe.view.seen == 0, "sent, and not answered"
    queued = scribe.user("while you work", continues=True)
    scribe.reply("brok", cut=True)
    assert scribe.view.seen == 0, "the reply broke off"
    scribe.reply("answer")
    assert request.seq <= scribe.view.seen < queued.seq
    scribe.reply("another")
    assert scribe.view.seen == scribe.log[-2].seq, (
        "without a request on record, what came before was read"
    )


def test_a_message_may_continue_the_running_turn() -> None:
    scribe = Scribe(ROOM)
    first = scribe.user("first")
    second = scribe.user("and also", continues=True)
    third = scribe.user("now this")
    turns = [entry.turn for entry in scribe.view.entries if isinstance(entry, UserMessage)]
    assert turns == [first.seq, first.seq, third.seq]
    assert scribe.view.turn == third.seq > second.seq


def test_a_late_result_of_a_step_that_left_is_not_given_to_another() -> None:
    scribe = Scribe(ROOM)
    scribe.user("first")
    early = scribe.reply("", [("same", "read", {})])
    call = scribe.write(Kind.TOOL_CALL, "{}", tool_call_id="same", reply_to=early.seq)
    scribe.reply("", [("same", "read", {})])
    scribe.view.add_to_index([scribe.view.evict(early.seq)], 1000)
    scribe.write(Kind.TOOL_RESULT, "too late", tool_call_id="same", reply_to=call.seq)
    assert only_step(scribe).results == (None,)
    scribe.write(Kind.TOOL_RESULT, "in time", tool_call_id="same")
    scribe.write(Kind.TOOL_RESULT, "twice", tool_call_id="same")
    (result,) = only_step(scribe).results
    assert result and result.body.shown == "in time"


def test_a_call_without_a_result_belongs_to_the_span_of_its_step() -> None:
    scribe = Scribe(ROOM)
    reply = scribe.reply("", [("a", "read", {})])
    call = scribe.write(Kind.TOOL_CALL, "{}", tool_call_id="a", reply_to=reply.seq)
    assert (only_step(scribe).last, scribe.view.get(call.seq)) == (call.seq, only_step(scribe))


def test_a_reply_belongs_to_the_turn_that_was_asked() -> None:
    scribe = Scribe(ROOM)
    first = scribe.user("first")
    scribe.ask()
    scribe.user("something else, while you work")
    scribe.reply("about the first")
    scribe.reply("about the second")
    turns = [entry.turn for entry in scribe.view.entries if isinstance(entry, Step)]
    assert turns == [first.seq, scribe.view.turn]


@pytest.mark.parametrize(
    "kind", [Kind.SESSION, Kind.SNAPSHOT, Kind.FORK, Kind.SALVAGE, "beam_chat_turn", "anything"]
)
def test_other_kinds_leave_the_view_alone(kind: str) -> None:
    scribe = Scribe(ROOM)
    scribe.user("first")
    before = render(scribe.view).hash
    scribe.write(kind, "text", role="user")
    scribe.write(Kind.CONVERSATION, "text", role="system")
    assert render(scribe.view).hash == before


def test_the_provider_count_teaches_the_gauge() -> None:
    scribe = Scribe(ROOM)
    scribe.user("first " * 100)
    sent = scribe.ask()
    scribe.reply("answer", usage={"input_tokens": 2 * sent.tokens})
    assert scribe.view.gauge.ratio == 2.0
    scribe.ask()
    scribe.reply("answer", usage={"input_tokens": 0})
    scribe.reply("answer", usage={"input_tokens": None})
    assert scribe.view.gauge.ratio == 2.0


def test_events_come_in_order() -> None:
    view = WorkingView()
    view.add(Event(seq=5, recorded_at="", role="user", content="first"))
    with pytest.raises(BadInput, match="order of their seqs"):
        view.add(Event(seq=5, recorded_at="", role="user", content="again"))
    assert len(view) == 1


@pytest.mark.parametrize("metadata", [{}, {"plan": None}, {"plan": {"folded": "x"}}, {"plan": []}])
def test_an_unreadable_plan_is_an_error_that_says_what_remains(metadata: dict) -> None:
    with pytest.raises(BadInput, match="still be expanded"):
        WorkingView().add(Event(seq=1, recorded_at="", kind=Kind.EVICTION, metadata=metadata))


def pressed() -> Scribe:
    scribe = Scribe(4_000)
    scribe.user("Total the invoices.")
    for n in range(60):
        scribe.ask()
        reply = scribe.reply(
            f"part {n}",
            [(f"c{n}", "exec", {"code": f"rows_{n} = 1"})],
            thinking=[{"signature": "s"}],
        )
        scribe.cell(reply, f"c{n}", "row\n" * 300)
    return scribe


def test_a_plan_applied_again_changes_nothing() -> None:
    scribe = pressed()
    for n in range(40):
        plan = scribe.fit()
        if plan:
            break
        scribe.ask()
        scribe.cell(scribe.reply("", [("more", "exec", {"code": str(n)})]), "more", "row\n" * 300)
    assert plan and plan.evicted
    before = render(scribe.view)
    scribe.view.apply(plan)
    assert render(scribe.view) == before


def test_a_plan_reads_back_from_its_event() -> None:
    for plan in pressed().plans:
        assert EvictionPlan.from_metadata(plan.metadata()) == plan


def test_a_copy_is_a_view_of_its_own() -> None:
    scribe = pressed()
    before = render(scribe.view)
    twin = scribe.view.copy()
    twin.add(Event(seq=10**6, recorded_at="", role="user", content="elsewhere"))
    twin.add_to_index(
        [twin.evict(next(entry.seq for entry in twin.entries if isinstance(entry, Step)))], 1000
    )
    assert render(scribe.view) == before != render(twin)


def test_explain_says_when_and_why_and_where() -> None:
    scribe = pressed()
    left = departures(scribe.log, scribe.view)
    plans = {event.seq for event in scribe.log if event.kind == Kind.EVICTION}
    assert {one.plan for one in left} == plans
    assert {one.how for one in left} == {"folded", "evicted"}
    first = next(one for one in left if one.how == "evicted")
    assert first.now.startswith("index: seq ") and first.reason == "above the high mark"
    before = [event for event in scribe.log if event.seq < first.plan]
    early = departures(before, WorkingView.replay(before))
    assert early and all(one.plan < first.plan for one in early)
    stub = next(one for one in reversed(left) if one.how == "folded" and scribe.view.get(one.seq))
    assert stub.now == whereabouts(scribe.view, stub.seq) == "shown as a stub"
    assert whereabouts(scribe.view, 1) == "shown in full"
    assert whereabouts(scribe.view, 10**9) == "not part of the view"
