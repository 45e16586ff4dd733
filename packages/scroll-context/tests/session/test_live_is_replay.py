"""The view is a fold of one stream: at every request the view rebuilt from the log is the live one,
byte for byte.

Hypothesis drives a real store and real journals through any interleaving of turns, cells, calls
inside them, results that come late and from other threads, evictions, kills, resumes and forks.
Cells are recorded as the session records them, without a kernel process, so that hundreds of
histories can be tried; `test_turn.py` has the real kernel.
"""

import tempfile
import threading
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forms import form
from scroll_context.events import Event, Excerpt, Kind
from scroll_context.messages import ToolCall, canonical
from scroll_context.models import Reply, Usage
from scroll_context.session.context import WindowedContext
from scroll_context.session.explain import explain
from scroll_context.session.host import HostMessage
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.session.session import Session, fork
from scroll_context.store import Store

WINDOW = 3_000


class NativeContext(WindowedContext):
    """Scroll's own view for a model that writes no cells: no kernel is started."""

    actions = WindowedContext.actions.__class__(exec=False, ms=False, prompts=())


KINDS_OF_TEXT = (
    "a",
    "word " * 30,
    "long " * 200,
    "漢字 " * 60,
    "line\nline\n" * 40,
    "in a payload\n" * 3_000,
)
TEXTS = st.sampled_from(range(len(KINDS_OF_TEXT))).map(KINDS_OF_TEXT.__getitem__)


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self._folder.name) / "store", create=True)
        self.session = Session.open(self.store, session_id="s0", agent_id="me", options=OPTIONS)
        self.open_calls: list[tuple[str, int]] = []  # ids and seqs of calls without a result
        self.late: list[int] = []  # cells that have ended, in which a call is still under way
        self.names = 0
        self.sent: list[tuple[str, int, bytes]] = []

    def teardown(self) -> None:
        self.session.close()
        self.store.close()
        self._folder.cleanup()

    def _record(self, kind: str, **fields: Any) -> Event:
        """Append from another thread, as the calls of a cell do."""
        made: list[Event] = []
        thread = threading.Thread(target=lambda: made.append(self.session.record(kind, **fields)))
        thread.start()
        thread.join()
        return made[0]

    @rule(text=TEXTS)
    def user(self, text: str) -> None:
        self.session.say(text)

    @rule(text=TEXTS)
    def notice(self, text: str) -> None:
        self.session.notice(text)

    @rule(
        text=TEXTS,
        calls=st.integers(0, 3),
        tokens=st.sampled_from([0, 500, 2_000]),
        cut=st.booleans(),
    )
    def reply(self, text: str, calls: int, tokens: int, cut: bool) -> None:
        self.names += 1
        made = tuple(ToolCall(f"c{self.names}-{n}", "look", {"n": n}) for n in range(calls))
        reason = "stopped" if cut else "stop"
        self.session.replied(
            Reply(
                text=text, tool_calls=made, usage=Usage(input_tokens=tokens), finish_reason=reason
            )
        )
        self.open_calls = [(call.id, 0) for call in made]

    @precondition(lambda self: self.open_calls)
    @rule(text=TEXTS, late=st.booleans())
    def cell(self, text: str, late: bool) -> None:
        call_id, _ = self.open_calls.pop(0)
        cell = self.session.record(
            Kind.CELL, role="assistant", name="exec", tool_call_id=call_id, content="x = 1"
        )
        inside = {"inside_cell": cell.seq}
        call = self._record(
            Kind.TOOL_CALL, role="assistant", name="look", content="{}", metadata=inside
        )
        if not late:
            self._record(
                Kind.TOOL_RESULT, role="tool", content=text, reply_to=call.seq, metadata=inside
            )
        else:
            self.late.append(cell.seq)
        self.session.record(
            Kind.OBSERVATION,
            role="tool",
            name="exec",
            tool_call_id=call_id,
            reply_to=cell.seq,
            content=text,
            tool_state="ok",
            metadata={"bound": ["x"]},
        )

    @precondition(lambda self: self.late)
    @rule(text=TEXTS)
    def late_result(self, text: str) -> None:
        cell = self.late.pop(0)
        self._record(Kind.TOOL_RESULT, role="tool", content=text, metadata={"inside_cell": cell})

    @precondition(lambda self: self.open_calls)
    @rule(text=TEXTS, state=st.sampled_from(["ok", "error", "refused"]))
    def native_result(self, text: str, state: str) -> None:
        call_id, _ = self.open_calls.pop()
        self.session.answer(ToolCall(call_id, "look"), text, state)

    @rule(texts=st.lists(TEXTS, max_size=3))
    def host_history(self, texts: list[str]) -> None:
        self.session.follow([HostMessage(role="user", text=text) for text in texts], window=WINDOW)

    @rule(overflowed=st.booleans())
    def request(self, overflowed: bool) -> None:
        if overflowed and len(self.session.context.view) < 4:  # type: ignore[attr-defined]
            return
        try:
            request = self.session.view(
                "You work.", window=WINDOW, model_name="m", overflowed=overflowed
            )
        except Exception as error:
            if "nothing more can leave" not in str(error):
                raise
            return
        seq = self.store.log.tail(1, session_id=self.session.scope.session_id, kind=Kind.REQUEST)[
            0
        ].seq
        self.sent.append((self.session.scope.session_id, seq, canonical(request.messages)))

    @rule(killed=st.booleans())
    def resume(self, killed: bool) -> None:
        if killed:  # nothing is saved or said at the end; only the system gives the lease back
            self.session.journal.close()
        self.session.close()
        self.open_calls, self.late = [], []
        self.session = Session.resume(self.store, self.session.scope.session_id)

    @rule(back=st.integers(0, 12))
    def fork(self, back: int) -> None:
        events = [e for e in self.session.events() if e.session_id == self.session.scope.session_id]
        at = events[max(0, len(events) - 1 - back)].seq
        parent = self.session.scope.session_id
        self.session.close()
        self.names += 1
        self.open_calls, self.late = [], []
        self.session = fork(self.store, parent, at, session_id=f"s{self.names}")

    @invariant()
    def the_rebuilt_view_is_the_live_one(self) -> None:
        rebuilt = NativeContext(self.store.log.excerpt)
        for event in lineage(self.store, self.session.scope.session_id):
            rebuilt.add(event)
        live = self.session.context.render("You work.", "digest")
        assert rebuilt.render("You work.", "digest") == live

    @invariant()
    def the_newest_request_is_explained_and_verified(self) -> None:
        if self.sent:
            session_id, seq, sent = self.sent[-1]
            found = explain(self.store, seq)
            assert (found.session_id, found.verified) == (session_id, True)
            assert canonical(found.messages) == sent


OPTIONS = SessionOptions(context="native-for-tests")


def setup_module() -> None:
    from scroll_context.session import context, past, session

    known = context.context_class

    def with_native(name: str) -> type[WindowedContext] | None:
        return NativeContext if name == "native-for-tests" else known(name)

    NativeContext.name = "native-for-tests"
    for module in (context, past):
        module.context_class = with_native  # type: ignore[attr-defined]
    assert (
        session.make_context("native-for-tests", lambda event, _: Excerpt(event.content))
        is not None
    )


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=form(12, 40),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
