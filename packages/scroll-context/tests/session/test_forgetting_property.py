"""Random histories of live sessions, with erasures and kills in between: nothing erased is left,
nothing else changes.

Sessions talk, run cells, are closed, resumed and forked; words are erased, by this process or by
another one that is killed somewhere in the midst; the store moves through an export into a new one.
After every step the addresses stand, the log verifies, no erased word is in any file, and sessions
that were open all along go on. `make fuzz FUZZ_ONLY=random_histories` tries further examples for as
long as you want.
"""

import contextlib
import io
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from forms import form
from killed_at import run_killed
from scroll_context.agent.agent import Agent
from scroll_context.events import STORE_SESSION, Kind
from scroll_context.importing.run import import_file
from scroll_context.models import ScriptedModel, exec_cell
from scroll_context.session.session import Session
from scroll_context.session.session import fork as fork_session
from scroll_context.store import Store
from scroll_context.upkeep.erase import finish
from scroll_context.upkeep.integrity import verify
from scroll_context.upkeep.transfer import export

WORDS = ["alpha-one-bird", "beta-two-fish", "gamma-three-frog"]

FOUND = """
import sys
from scroll_context.store import Store
folder, word = sys.argv[1:3]
store = Store(folder)
seqs = [event.seq for event in store.log.iterate() if word in event.content]
"""
ERASED = """
if seqs:
    store.erase(seqs=seqs, words=[word], copies=True)
"""

session_names = st.sampled_from(["s", "t"])
words = st.sampled_from(WORDS)
steps = st.one_of(
    st.tuples(st.just("turn"), session_names, words, st.booleans()),
    st.tuples(st.just("turn"), session_names, words, st.booleans()),
    st.tuples(st.just("cell"), session_names, words),
    st.tuples(st.just("fork"), session_names),
    st.tuples(st.just("close"), session_names),
    st.tuples(st.just("erase"), words),
    st.tuples(st.just("erase"), words),
    st.tuples(st.just("kill"), words, st.integers(1, 12_000)),
    st.tuples(st.just("move")),
)

pytestmark = pytest.mark.usefixtures("key_file")


class World:
    """A store with sessions, and what is known about it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moves = 0
        self.store = Store(self.folder, create=True)
        self.live: dict[str, Session] = {}
        self.names = {"s": "s", "t": "t"}  # the session that goes by a name now: the newest fork
        self.known: dict[int, str] = {}  # what each address says
        self.gone: set[str] = set()

    @property
    def folder(self) -> Path:
        return self.root / f"store-{self.moves}"

    def session(self, name: str) -> Session:
        name = self.names[name]
        if name not in self.live:
            begun = self.store.log.tail(1, session_id=name)
            self.live[name] = (Session.resume if begun else Session.open)(
                self.store, session_id=name
            )
        return self.live[name]

    def turn(self, name: str, word: str, large: bool) -> None:
        self.gone.discard(word)
        text = f"a {word} was here " * (3_000 if large else 1)
        assert (
            Agent(self.session(name), ScriptedModel([f"I see {word}"], window=60_000))
            .run(text)
            .answer
        )

    def cell(self, name: str, word: str) -> None:
        """A variable that holds the word, large enough to be a payload.

        The kernel is ended: it is out of reach.
        """
        self.gone.discard(word)
        session = self.session(name)
        steps = [exec_cell(f"v = 'a {word} was here ' * 500\nprint(v[:30])"), "done"]
        assert (
            Agent(session, ScriptedModel(steps, window=60_000)).run("remember it").answer == "done"
        )
        self.close(name)

    def fork(self, name: str) -> None:
        parent = self.session(name)
        newest = self.store.log.tail(1, session_id=parent.scope.session_id)[0]
        child = fork_session(self.store, parent.scope.session_id, newest.seq)
        self.close(name)
        self.names[name] = child.scope.session_id
        self.live[child.scope.session_id] = child

    def close(self, name: str) -> None:
        if (session := self.live.pop(self.names[name], None)) is not None:
            session.close()

    def erase(self, word: str) -> None:
        finish(self.store)
        seqs = [one.seq for one in self.store.log.iterate() if word in one.content]
        if seqs:
            assert self.store.erase(seqs=seqs, words=[word], copies=True).unfinished == ""
        self.gone.add(word)

    def kill(self, word: str, at: int) -> None:
        """Another process erases the word and is killed; then it is erased here."""
        done = run_killed(FOUND, ERASED, str(self.folder), word, at=at)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        event("killed" if done.returncode else "not killed")
        assert verify(self.store.log).ok
        self.erase(word)

    def move(self) -> None:
        """Go on in a new store with the same addresses."""
        self.close("s")
        self.close("t")
        out = io.BytesIO()
        export(self.store.log, out)
        head = self.store.stats().head
        self.store.close()
        self.moves += 1
        self.store = Store(self.folder, create=True)
        import_file(self.store, io.BytesIO(out.getvalue()), trust=True)
        assert self.store.stats().head == head

    def check(self) -> None:
        log = self.store.log
        assert verify(log).ok
        events = list(log.iterate())
        assert [one.seq for one in events] == list(range(1, len(events) + 1))
        for one in events:
            assert one.is_erased or self.known.get(one.seq, one.content) == one.content
            self.known[one.seq] = one.content
        self.store.index.catch_up()
        for file in filter(Path.is_file, self.folder.rglob("*")):
            with contextlib.suppress(
                FileNotFoundError
            ):  # the index merges its files away meanwhile
                held = file.read_bytes()
                assert not [word for word in self.gone if word.encode() in held], file
        for session in self.live.values():
            shown = session.view("system").messages
            assert not [word for word in self.gone for message in shown if word in message.text]

    def end(self) -> None:
        for name in self.names:
            self.session(name).say("goes on")
            self.close(name)
        self.check()
        self.store.close()
        with Store(self.folder) as again:
            assert verify(again.log).ok and not [
                one for one in again.log.iterate() if one.session_id == ""
            ]
            if self.gone and any(self.known[seq] == "[erased]" for seq in self.known):
                assert list(again.log.iterate(session_id=STORE_SESSION, kind=Kind.ERASURE))


@settings(
    max_examples=form(5, 16),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(steps, min_size=3, max_size=9))
def test_random_histories_keep_their_promises(history: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        try:
            for name, *values in history:
                event(name)
                getattr(world, name)(*values)
                world.check()
            world.end()
        finally:
            for session in world.live.values():
                session.close()
            world.store.close()
