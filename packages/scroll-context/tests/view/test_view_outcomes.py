"""What the view says about work is true: how a step ended, and whether a text is all of it."""

import pytest

from scroll_context.events import Kind, Payload
from scroll_context.view.index import joined
from scroll_context.view.passage import Form
from scroll_context.view.working import render
from view_histories import Scribe

SENT = "mail the members | sent 240 mails | report | done"


def evicted(*states: str | None, headline: str = SENT) -> tuple[str, str]:
    """The index line and the marker of a turn whose one step made a call of each state; None is no
    result.
    """
    scribe = Scribe(10**6)
    request = scribe.user("Mail the members.")
    reply = scribe.reply(
        "", [(f"c{n}", "exec", {"source": "send_all()"}) for n in range(len(states))], headline
    )
    for n, state in enumerate(states):
        if state is not None:
            scribe.cell(reply, f"c{n}", "printed", state=state)
    line = scribe.view.evict(reply.seq)
    scribe.view.add_to_index([line], 10**6)
    entry = scribe.view.get(request.seq)
    assert entry is not None
    shown = render(scribe.view).messages[0].text
    assert line.text in shown
    assert shown.count("Task: ") == 1 and shown.index("Task: ") < shown.index(line.text)
    return line.text, entry.messages[0].text


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        (("error",), "failed"),
        (("timeout",), "failed: timeout"),
        (("memory",), "failed: memory"),
        (("killed",), "killed"),
        (("interrupted",), "failed: interrupted"),
        (("refused",), "refused"),
        (("unknown",), "unknown"),
        ((None,), "unknown"),
        (("ok", "error"), "1 of 2 failed"),
        (("ok", None, "ok"), "1 of 3 unknown"),
        (("refused", "error"), "refused, failed"),
    ],
)
def test_a_headline_stays_an_intention_where_its_step_did_not_succeed(
    states: tuple[str | None, ...], outcome: str
) -> None:
    line, marker = evicted(*states)
    assert f": intended: sent 240 mails | next: report | {outcome}" in line
    assert "not to be done again" not in marker and "did not succeed" in marker


def test_a_step_that_succeeded_says_so() -> None:
    line, marker = evicted("ok", "ok")
    assert line.endswith(": sent 240 mails | next: report | ok, done; printed")
    assert marker.endswith("moved to the index; not to be done again]")


def test_a_made_headline_carries_the_outcome_too() -> None:
    assert evicted("ok", headline="")[0].endswith("exec(send_all()) | ok: printed")
    assert evicted("killed", headline="")[0].endswith("exec(send_all()) | killed: printed")


def test_calls_that_failed_inside_a_cell_are_counted() -> None:
    scribe = Scribe(10**6)
    scribe.user("Mail the members.")
    reply = scribe.reply("", [("c", "exec", {"source": "send_all()"})], SENT)
    cell = scribe.write(Kind.CELL, "code", tool_call_id="c", reply_to=reply.seq)
    for state in ("ok", "error", "refused", "ok"):
        call = scribe.write(Kind.TOOL_CALL, "{}", name="send", metadata={"inside_cell": cell.seq})
        scribe.write(
            Kind.TOOL_RESULT,
            "",
            reply_to=call.seq,
            tool_state=state,
            metadata={"inside_cell": cell.seq},
        )
    scribe.write(Kind.OBSERVATION, "sent", reply_to=cell.seq, tool_call_id="c", tool_state="ok")
    line = scribe.view.evict(reply.seq)
    assert line.text.endswith(": sent 240 mails | next: report | ok, 2 calls failed; sent")


def test_of_several_steps_the_marker_tells_which_are_done() -> None:
    scribe = Scribe(10**6)
    request = scribe.user("Mail the members.")
    for n, state in enumerate(("ok", "error", "ok")):
        reply = scribe.reply("", [(f"c{n}", "exec", {})], SENT)
        scribe.cell(reply, f"c{n}", "", state=state)
        scribe.view.add_to_index([scribe.view.evict(reply.seq)], 10**6)
    entry = scribe.view.get(request.seq)
    assert entry is not None and entry.messages[0].text.endswith(
        "seq 2-10, moved to the index; 1 did not succeed, the others are not to be done again]"
    )


def test_a_merged_line_counts_what_did_not_succeed() -> None:
    scribe = Scribe(10**6)
    scribe.user("Mail the members.")
    lines = []
    for n, state in enumerate(("error", "ok", "ok")):
        reply = scribe.reply("", [(f"c{n}", "exec", {})], f"mail {n} | sent | next | done")
        scribe.cell(reply, f"c{n}", "", state=state)
        lines.append(scribe.view.evict(reply.seq))
    assert joined(lines).text.endswith("[1 of 3 did not succeed]")
    assert joined(lines[1:]).text.endswith("[ok, done]")
    assert joined([joined(lines[:2]), *lines[2:]]).text.endswith("[1 of 3 did not succeed]")


def test_a_text_that_is_shown_whole_is_not_called_clipped() -> None:
    text = "東京の天気は" * 2_000
    scribe = Scribe(10**6)
    event = scribe.write(
        Kind.CONVERSATION, text, role="user", payload=Payload("0" * 64, len(text.encode()))
    )
    entry = scribe.view.get(event.seq)
    assert entry is not None and entry.body.form is Form.FULL
    assert "clipped" not in render(scribe.view).messages[0].text
    assert event.seq in render(scribe.view).visible


def test_a_preview_and_a_label_stay_clipped() -> None:
    scribe = Scribe(10**6)
    preview = scribe.write(Kind.CONVERSATION, "東京", role="user", payload=Payload("0" * 64, 7))
    image = scribe.write(
        Kind.CONVERSATION, "a cat", role="user", payload=Payload("0" * 64, 5, "image/png")
    )
    for event in (preview, image):
        entry = scribe.view.get(event.seq)
        assert entry is not None and entry.body.form is Form.CLIPPED
