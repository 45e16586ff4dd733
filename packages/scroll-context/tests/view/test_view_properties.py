"""What holds for every history: budget, pairs, reachability, the request, what is unread, and
replay.
"""

import math

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.events import Kind
from scroll_context.session.explain import departures
from scroll_context.view.entries import UserMessage, passages
from scroll_context.view.eviction import FLOOR_TOKENS
from scroll_context.view.index import WIDTH
from scroll_context.view.passage import Form
from scroll_context.view.steps import Step
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.working import Message, Rendered, WorkingView, render
from view_histories import SYSTEM, Scribe, blocks, check_reachable

ALPHABETS = ("abc def ghi\n", '0123456789,.{}"', "東京の天気は晴れです。", "Привет мир ", "🙂é漢a ")
DIGEST = "flights: list[212]"

texts = st.builds(
    lambda alphabet, size: (alphabet * (size // len(alphabet) + 1))[:size],
    st.sampled_from(ALPHABETS),
    st.one_of(st.integers(0, 60), st.integers(200, 1500), st.sampled_from([4_000, 20_000, 80_000])),
)
calls = st.fixed_dictionaries(
    {
        "cell": st.booleans(),
        "result": st.one_of(texts, texts, texts, st.none()),
        "code": st.one_of(st.just("x = 1"), st.just("not json"), texts),
        "inner": st.integers(0, 2),
        "state": st.sampled_from(["ok", "ok", "error: NameError", ""]),
    }
)
operations = st.one_of(
    st.tuples(st.just("user"), texts, st.booleans()),
    st.tuples(st.just("notice"), texts),
    st.tuples(st.just("refused")),
    st.tuples(st.just("overflow")),
    *[
        st.tuples(
            st.just("step"),
            texts,
            st.lists(calls, max_size=3),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        )
        for _ in range(4)
    ],
)


class Checked(Scribe):
    """A scribe that checks every request it sends."""

    def __init__(self, window: int, gap: int, share: float) -> None:
        overhead = estimate(SYSTEM) + estimate(DIGEST) + 2 * MESSAGE_TOKENS
        super().__init__(window, gap, overhead=overhead, index_share=share)
        self.read = 0  # the last seq that an answered request held
        self.shown: set[int] = set()  # every seq that was ever part of a request
        self.moments: list[tuple[int, str]] = []

    def ask(self, digest: str = DIGEST) -> Rendered:
        planned = len(self.plans)
        rendered = super().ask(digest)
        for entry in self.view.entries:
            self.shown |= set(entry.seqs) if isinstance(entry, Step) else {entry.seq}
        self.moments.append((rendered.upto, rendered.hash))
        self.check_budget(planned < len(self.plans))
        self.check_unread()
        self.check_thinking()
        self.check_questions()
        check_valid(rendered.messages)
        self.check_request(rendered)
        check_reachable(self.shown, self.view, rendered)
        return rendered

    def check_budget(self, planned: bool) -> None:
        total = self.view.tokens + self.budget.overhead
        if not planned:
            assert total <= self.view.gauge.raw_for(int(self.budget.window * self.budget.high))
            return
        plan = self.plans[-1]
        assert plan.after == total
        assert plan.over_budget == (total > plan.limit)
        if plan.over_budget:
            event("over budget")
            waiting = {
                one.turn
                for one in self.view.entries
                if isinstance(one, Step) and one.last > self.read
            }
            for entry in self.view.entries:
                held = isinstance(entry, UserMessage) and entry.turn in {*waiting, self.view.turn}
                assert held or entry.last > self.read, "something that was read could still leave"
            assert self.view.index.extended([], 0) == self.view.index, (
                "the index could still shrink"
            )
            for entry in self.view.entries:
                sizes = [one.tokens for one in passages(entry)]
                sizes += (
                    [entry.reply.tokens // (1 + len(entry.reply.calls))]
                    if isinstance(entry, Step)
                    else []
                )
                assert all(size <= 2 * FLOOR_TOKENS for size in sizes), (
                    "a text could still be clipped"
                )

    def check_unread(self) -> None:
        """Nothing that no answered request held was folded or evicted."""
        entries = {
            seq: entry
            for entry in self.view.entries
            for seq in ([entry.seq] if not isinstance(entry, Step) else entry.seqs)
        }
        for one in self.log:
            if one.seq > self.read and one.seq in self.shown:
                entry = entries[one.seq]
                assert all(
                    text.form is not Form.FOLDED for text in passages(entry) if text.seq == one.seq
                )

    def check_thinking(self) -> None:
        """After an eviction only the newest reply of that moment, and later ones, may carry signed
        thinking.
        """
        plans = [one.seq for one in self.log if one.kind == Kind.EVICTION]
        replies = [
            one.seq for one in self.log if one.role == "assistant" and plans and one.seq < plans[-1]
        ]
        for entry in self.view.entries:
            if isinstance(entry, Step) and entry.reply.thinking and replies:
                assert entry.seq >= replies[-1]

    def check_questions(self) -> None:
        """No answer without its question."""
        shown = {entry.seq for entry in self.view.entries if isinstance(entry, UserMessage)}
        assert all(entry.turn in shown for entry in self.view.entries if isinstance(entry, Step))

    def check_request(self, rendered: Rendered) -> None:
        requests = [one for one in self.log if one.kind == Kind.CONVERSATION and one.role == "user"]
        if requests:
            newest = requests[-1]
            entry = self.view.get(newest.seq)
            assert isinstance(entry, UserMessage) and entry.turn == self.view.turn
            sent = [
                block
                for message in rendered.messages
                if message.role == "user"
                for block in (message.text, *message.text.split("\n\n"))
            ]
            if newest.content.strip():
                assert any(newest.content[:20] in block for block in sent)
            if newest.content.strip() and not any(newest.content in block for block in sent):
                assert any(f"clipped seq {newest.seq} " in block for block in sent)


def check_valid(messages: tuple[Message, ...]) -> None:
    """What providers demand of a request."""
    assert messages[0].role == "system" and messages[1].role == "user"
    assert messages[-1].role in ("user", "tool")
    waiting: list[str] = []
    ids: list[str] = []
    for before, message in zip((None, *messages), messages, strict=False):
        if message.role == "tool":
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert not waiting, "a call without its result"
        if message.role == "assistant":
            assert before and before.role in ("user", "tool")
            waiting = [call.id for call in message.tool_calls]
            ids += waiting
        if message.role == "user":
            assert before and before.role != "user"
        assert message.text.strip() or message.tool_calls
        assert message.text == "" or message.text.strip()
        assert message.tail == (DIGEST if message is messages[-1] else "")
    assert not waiting and len(ids) == len(set(ids))


def perform(scribe: Checked, history: list[tuple]) -> None:
    for n, operation in enumerate(history):
        match operation:
            case ("user", text, continues):
                scribe.user(text, continues=continues)
            case ("notice", text):
                scribe.write(Kind.NOTICE, text)
            case ("refused",):
                scribe.ask()
            case ("overflow",):
                scribe.ask()
                plan = scribe.fit(overflowed=True)
                assert plan and (plan.over_budget or plan.after <= plan.before * 3 // 4)
            case ("step", text, made, thinking, named, cut):
                sent = scribe.ask()
                cut = cut and named
                if not cut:
                    scribe.read = sent.upto
                ids = [f"call{n}-{i}" if named else "call" for i in range(len(made))]
                requested = [
                    (
                        id,
                        "exec" if call["cell"] else "fetch",
                        "not json" if call["code"] == "not json" else {"code": call["code"]},
                    )
                    for id, call in zip(ids, made, strict=True)
                ]
                blocks = (
                    [{"type": "thinking", "text": f"hm {n}", "signature": "s"}] if thinking else []
                )
                headline = f"task {n} | state | next | ok" if named else ""
                reply = scribe.reply(
                    text,
                    requested,
                    headline,
                    thinking=blocks,
                    cut=cut,
                    usage={"input_tokens": sent.tokens},
                )
                for id, call in zip(ids, made, strict=True):
                    if call["result"] is None:
                        continue
                    if call["cell"]:
                        scribe.cell(reply, id, call["result"], call["inner"], call["state"])
                    else:
                        scribe.native(reply, id, "fetch", call["result"], call["state"])


@settings(
    max_examples=form(50, 150),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.lists(operations, min_size=1, max_size=25),
    st.integers(1, 8),
    st.sampled_from([1_500, 3_000, 8_000, 20_000]),
    st.sampled_from([1, 1, 50]),
    st.sampled_from([0.1, 0.1, 0.4]),
    st.data(),
)
def test_any_history(
    history: list[tuple], rounds: int, window: int, gap: int, share: float, data: st.DataObject
) -> None:
    scribe = Checked(window, gap, share)
    scribe.user("Find the cheapest flight to Lisbon in May.")
    perform(scribe, history * rounds)
    scribe.ask()

    evicted = sum(len(plan.evicted) for plan in scribe.plans)
    event(f"evicted {min(evicted, 30) // 10 * 10}+")
    assert blocks(scribe.view.index) <= WIDTH * (2 + math.log(max(evicted, 1), WIDTH - 1))

    replayed = WorkingView.replay(scribe.log)
    assert render(replayed, SYSTEM, DIGEST) == render(scribe.view, SYSTEM, DIGEST)
    upto, digest = data.draw(st.sampled_from(scribe.moments))
    assert render(WorkingView.replay(scribe.log, upto), SYSTEM, DIGEST).hash == digest

    left = departures(scribe.log, scribe.view)
    assert len(left) == sum(
        len(plan.folded) + len(plan.clipped) + len(plan.evicted) for plan in scribe.plans
    )
    gone = ("index", "shown as a stub", "shown clipped")
    assert all(
        one.now.startswith(gone) or one.how == "clipped" for one in left
    )  # a reply may lose thinking alone
