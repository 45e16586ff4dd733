"""A view rebuilt from its events is the live one, whatever order the events came in, after each of
them.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from forms import form
from scroll_context.contents import EarlierWork, Standing, Topic
from scroll_context.events import Event, Kind, Payload
from scroll_context.view.index import outline
from scroll_context.view.steps import Step
from scroll_context.view.tokens import MESSAGE_TOKENS, estimate
from scroll_context.view.working import RENDERER_VERSION, Rendered, WorkingView, render
from view_histories import DIGEST, SYSTEM, Scribe, check_reachable

STATES = ("ok", "", "error", "timeout", "killed", "refused", "unknown")
KINDS = (
    "user user reply reply reply start start result result result inside inside notice ask ask ask refused fork other"
).split()
operations = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(0, 99)),
    min_size=8,
    max_size=60,
)


class Replayed(Scribe):
    """A scribe whose live view is compared with a rebuilt one after every event."""

    def __init__(self, window: int) -> None:
        super().__init__(window, overhead=estimate(SYSTEM) + estimate(DIGEST) + 2 * MESSAGE_TOKENS)
        self.replies: list[Event] = []
        self.started: list[Event] = []  # calls and cells
        self.shown: set[int] = set()

    def write(self, kind: str, content: str = "", **fields: Any) -> Event:
        written = super().write(kind, content, **fields)
        rebuilt = WorkingView.replay(self.log)
        assert vars(rebuilt) == vars(self.view)
        return written

    def ask(self, digest: str = DIGEST) -> Rendered:
        sent = super().ask(digest)
        rebuilt = WorkingView.replay(self.log, sent.upto)
        assert render(rebuilt, SYSTEM, digest).messages == sent.messages
        assert sent.metadata()["renderer"] == RENDERER_VERSION
        for entry in self.view.entries:
            self.shown |= set(entry.seqs) if isinstance(entry, Step) else {entry.seq}
        check_reachable(self.shown, self.view, sent)
        return sent

    def start(self, sessions: int) -> None:
        """Start from earlier sessions, whose seqs come before."""
        self._seq = 10 * sessions
        topics = [
            Topic(((10 * n + 1, 10 * n + 9),), 9, terms=(f"term {n}",)) for n in range(sessions)
        ]
        standing = tuple(Standing(10 * n + 2, text(5 * n + 1)) for n in range(min(sessions, 5)))
        work = EarlierWork(outline(topics, self.budget.window // 20), standing)
        self.write(Kind.SESSION, work.summary(), metadata={"earlier": msgspec.to_builtins(work)})
        self.shown |= {span[0] for topic in topics for span in topic.spans}

    def fork(self, at: int) -> None:
        """Go on from an earlier moment, as a session does that was forked there."""
        self.log = self.log[: at + 1]
        self.view = WorkingView.replay(self.log)
        kept = {one.seq for one in self.log}
        self.replies = [one for one in self.replies if one.seq in kept]
        self.started = [one for one in self.started if one.seq in kept]
        self.shown = {seq for seq in self.shown if seq in kept or seq < self.log[0].seq}


def text(n: int) -> str:
    unit = ("row 12.50\n", "東京の天気は晴れ", "Привет ", "a | b ⟦c⟧ ")[n % 4]
    return unit * (0, 1, 6, 40, 300)[n % 5]


def perform(scribe: Replayed, kind: str, a: int, b: int) -> None:
    match kind:
        case "user":
            scribe.user(text(a), continues=b % 3 == 0)
        case "reply":
            calls = [
                (("same", f"c{a}-{n}")[b % 2], "exec", {"source": text(a + n)})
                for n in range(a % 4)
            ]
            headline = f"task {a} | sent {b} mails | next | done" if b % 3 else ""
            usage = {"input_tokens": 50 * a}
            scribe.replies.append(
                scribe.reply(text(b), calls, headline, cut=b % 7 == 0, usage=usage)
            )
        case "start" if scribe.replies:
            reply = scribe.replies[-1 if a % 3 else a % len(scribe.replies)]
            made = reply.metadata["tool_calls"]
            id = made[b % len(made)]["id"] if made else "stray"
            kind = Kind.CELL if b % 2 else Kind.TOOL_CALL
            scribe.started.append(scribe.write(kind, "code", tool_call_id=id, reply_to=reply.seq))
        case "result" if (
            scribe.started
        ):  # of any call: answered already, evicted already, of a turn long past
            call = scribe.started[-1 if a % 3 else a % len(scribe.started)]
            body = text(b)
            payload = (
                Payload("0" * 64, len(body.encode()) + (a % 2) * 10_000) if b % 4 == 0 else None
            )
            scribe.write(
                Kind.OBSERVATION if call.kind == Kind.CELL else Kind.TOOL_RESULT,
                body,
                payload=payload,
                reply_to=call.seq if a % 5 else None,
                tool_call_id=call.tool_call_id,
                tool_state=STATES[b % len(STATES)],
                metadata={"bound": [f"x{a}"]},
            )
        case "inside" if (
            scribe.started
        ):  # also after the observation of the cell, and after its step has left
            cell = scribe.started[a % len(scribe.started)]
            inside = {"inside_cell": cell.seq}
            call = scribe.write(Kind.TOOL_CALL, "{}", name="fetch", metadata=inside)
            scribe.write(
                Kind.TOOL_RESULT,
                text(b),
                reply_to=call.seq,
                tool_state=STATES[b % len(STATES)],
                metadata=inside,
            )
        case "notice":
            scribe.write(Kind.NOTICE, text(a))
        case "ask":
            scribe.ask()
        case "refused":
            scribe.ask()
            scribe.fit(overflowed=True)
        case "fork" if scribe.log:
            scribe.fork(a * len(scribe.log) // 100)
        case "other":
            scribe.write(
                (Kind.SESSION, Kind.SNAPSHOT, Kind.FORK, "imported")[a % 4], text(b), role="user"
            )


@settings(max_examples=form(80, 300), suppress_health_check=[HealthCheck.too_slow])
@given(
    operations,
    st.sampled_from([1_800, 3_000, 12_000]),
    st.sampled_from([0, 0, 3, 40]),
)
def test_a_rebuilt_view_is_the_live_one_after_every_event(
    drawn: list[tuple[str, int, int]], window: int, earlier: int
) -> None:
    scribe = Replayed(window)
    if earlier:
        scribe.start(earlier)
    for kind, a, b in drawn:
        perform(scribe, kind, a, b)
    scribe.ask()
    event(f"plans: {min(len(scribe.plans), 3)}")
