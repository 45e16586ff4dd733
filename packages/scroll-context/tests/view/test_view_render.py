"""Rendering: an order that caches, messages that every provider accepts, nothing of the frame in
the history.
"""

import pytest

from scroll_context.events import Kind
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import BEGIN, BLANK, CELLS, CONTINUE, NO_RESULT, SEAM
from scroll_context.view.working import Rendered, render
from view_histories import Scribe, shared_prefix

WINDOW = 100_000


def scribe() -> Scribe:
    one = Scribe(WINDOW)
    one.user("Find flights.")
    return one


def roles(rendered: Rendered) -> list[str]:
    return [message.role for message in rendered.messages]


def step(one: Scribe, n: int, result: str = "rows") -> None:
    reply = one.reply(f"part {n}", [(f"c{n}", "exec", {"code": "print(rows)"})])
    one.cell(reply, f"c{n}", result)


def test_the_order_and_the_digest_last() -> None:
    one = scribe()
    step(one, 1)
    sent = render(one.view, "the rules", "rows: list[3]")
    assert roles(sent) == ["system", "user", "assistant", "tool"]
    assert [message.text for message in sent.messages] == [
        "the rules",
        "Find flights.",
        "part 1",
        "rows",
    ]
    assert [message.tail for message in sent.messages] == ["", "", "", "rows: list[3]"]
    call = sent.messages[2].tool_calls[0]
    assert (call.id, call.name, call.arguments) == ("c1", "exec", {"code": "print(rows)"})
    assert sent.messages[3].tool_call_id == "c1" and sent.messages[3].name == "exec"


def test_the_next_request_begins_with_this_one() -> None:
    one = scribe()
    before = render(one.view, "the rules", "rows: list[3]")
    for n in range(20):
        step(one, n, "x" * 300)
        after = render(one.view, "the rules", f"rows: list[{n}]")
        earlier = len(before.messages) - 1
        assert after.messages[:earlier] == before.messages[:earlier]
        assert after.messages[earlier].text == before.messages[earlier].text
        assert after.messages[earlier].tail == ""
        if n:
            assert shared_prefix(before, after) > 1 - 450 / sum(
                len(message.text) for message in after.messages
            )
        before = after


def test_shared_prefix_counts_from_the_front() -> None:
    one, other = Scribe(WINDOW), Scribe(WINDOW)
    one.user("a" * 1000)
    other.user("a" * 500 + "b" * 500)
    assert shared_prefix(render(one.view), render(one.view)) == 1.0
    assert 0.49 < shared_prefix(render(one.view), render(other.view)) < 0.52


def test_index_and_seam_stand_before_the_live_turns() -> None:
    one = Scribe(3_000)
    one.user("Find flights.")
    for n in range(40):
        one.ask()
        step(one, n, "x" * 1200)
    sent = one.ask()
    *index, seam, request, marker = sent.messages[1].text.split("\n\n")
    index = "\n\n".join(index)
    assert index.startswith(CELLS.header) and "- seq 3-" in index
    assert seam == SEAM and request == "Find flights." and "moved to the index" in marker
    assert roles(sent)[:3] == ["system", "user", "assistant"]


def test_ids_are_unique_even_when_a_provider_repeats_them() -> None:
    one = scribe()
    for n in range(3):
        reply = one.reply(
            "", [("same", "read", {"n": n}), ("same", "read", {"n": -n}), ("", "read", {})]
        )
        for part in range(3):
            one.native(reply, ("same", "same", "")[part], "read", f"result {n}.{part}")
    sent = render(one.view)
    ids = [call.id for message in sent.messages for call in message.tool_calls]
    assert len(set(ids)) == 9
    answers = {
        message.tool_call_id: message.text for message in sent.messages if message.role == "tool"
    }
    assert [answers[id] for id in ids] == [
        f"result {n}.{part}" for n in range(3) for part in range(3)
    ]


def test_an_id_that_looks_like_ours_and_is_taken_is_changed_too() -> None:
    one = scribe()
    own = f"call_{one.log[-1].seq + 4}_0"  # what the second reply's call would be named
    for n in range(2):
        one.native(one.reply("", [(own, "read", {})]), own, "read", f"result {n}")
    sent = render(one.view)
    ids = [call.id for message in sent.messages for call in message.tool_calls]
    assert ids == [own, f"{own}_"]
    assert [message.tool_call_id for message in sent.messages if message.role == "tool"] == ids


def test_results_that_come_out_of_order_find_their_calls() -> None:
    one = scribe()
    reply = one.reply("", [("same", "read", {}), ("same", "read", {})])
    calls = [
        one.write(Kind.TOOL_CALL, "{}", tool_call_id="same", reply_to=reply.seq) for _ in range(2)
    ]
    for n in (1, 0):
        one.write(Kind.TOOL_RESULT, f"result {n}", reply_to=calls[n].seq, tool_call_id="same")
    assert [message.text for message in render(one.view).messages[2:]] == ["result 0", "result 1"]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ("{broken", {"arguments": "{broken"}),
        ("[1, 2]", {"arguments": [1, 2]}),
        (None, {"arguments": None}),
        ({"a": "é"}, {"a": "é"}),
    ],
)
def test_arguments_are_always_an_object(arguments: object, sent: dict) -> None:
    one = scribe()
    one.native(one.reply("", [("a", "read", arguments)]), "a", "read", "ok")
    assert render(one.view).messages[1].tool_calls[0].arguments == sent


def test_no_text_is_blank() -> None:
    one = Scribe(WINDOW)
    one.user(" \n")
    one.native(one.reply("  ", [("a", "read", {})]), "a", "read", "")
    one.reply("")
    one.user("")
    sent = render(one.view, "  ", "  ")
    assert [message.text for message in sent.messages] == [BLANK, "", BLANK, BLANK, BLANK]
    assert not any(message.tail for message in sent.messages)


def test_a_call_that_never_returned_still_has_a_result() -> None:
    one = scribe()
    reply = one.reply("", [("a", "read", {}), ("b", "read", {})])
    one.native(reply, "b", "read", "late but there")
    one.user("What happened?")
    sent = render(one.view)
    assert roles(sent) == ["user", "assistant", "tool", "tool", "user"]
    assert [message.text for message in sent.messages[2:4]] == [NO_RESULT, "late but there"]


def test_a_result_without_a_call_never_reaches_a_provider() -> None:
    one = scribe()
    one.write(Kind.TOOL_RESULT, "orphan", tool_call_id="a", reply_to=77)
    one.reply("done")
    one.write(Kind.OBSERVATION, "orphan", tool_call_id="a")
    one.user("thanks")
    assert roles(render(one.view)) == ["user", "assistant", "user"]


def test_turns_alternate_whatever_was_said() -> None:
    one = Scribe(WINDOW)
    one.reply("hello")
    one.reply("still there?")
    one.user("yes")
    one.write(Kind.NOTICE, "one step left")
    one.user("go on")
    one.reply("done")
    sent = render(one.view)
    assert roles(sent) == ["user", "assistant", "user", "assistant", "user", "assistant", "user"]
    assert [message.text for message in sent.messages[::2]] == [
        BEGIN,
        CONTINUE,
        "yes\n\n[scroll: notice] one step left\n\ngo on",
        CONTINUE,
    ]


def test_an_empty_view_can_be_sent() -> None:
    assert roles(render(Scribe(WINDOW).view, "the rules")) == ["system", "user"]


def test_visible_is_what_is_shown_in_full() -> None:
    one = scribe()
    reply = one.reply("", [("a", "exec", {"code": "fetch()"})])
    printed = one.cell(reply, "a", "rows", inner=2)
    cell = next(event for event in one.log if event.kind == Kind.CELL)
    assert render(one.view).visible == {1, reply.seq, cell.seq, printed.seq}
    one.write(Kind.REQUEST, metadata={"upto": one.view.last_seq})
    one.reply("ok")
    one.view.clip(1, 0)
    assert one.view.fold(printed.seq) is False, "a stub would not be smaller"
    assert printed.seq in render(one.view).visible


def test_the_estimate_is_near_the_text_that_is_sent() -> None:
    one = scribe()
    for n in range(30):
        step(one, n, "supplier owes 12.50 EUR\n" * 30)
    sent = render(one.view, "the rules " * 50, "rows: list[3]")
    text = "".join(
        m.text + m.tail + "".join(str(call.arguments) for call in m.tool_calls)
        for m in sent.messages
    )
    assert estimate(text) < sent.tokens < 1.2 * estimate(text)


def test_the_hash_tells_any_two_requests_apart() -> None:
    one = scribe()
    hashes = {
        render(one.view).hash,
        render(one.view, "rules").hash,
        render(one.view, "rules", "digest").hash,
    }
    one.user("and hotels")
    assert len(hashes | {render(one.view).hash}) == 4
