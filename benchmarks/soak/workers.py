"""What the soak runs, each in a process of its own, until it is told to stop: agents, writers and
readers.

Every worker goes on whatever happens: one of Scroll's own errors is reported by its name, the store
is closed and opened again, and the work continues. Any other exception ends the process, which the
driver counts as a violation. SIGTERM stops a worker after its piece of work. SIGUSR1 makes its
clock jump by up to a year to either side: the clock of the machine is not ours to set, so the one
function from which the store takes the time of an event is replaced.
"""

import contextlib
import datetime as dt
import itertools
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from notes import Diary, Ledger

from scroll_context.agent.agent import Agent, Limits
from scroll_context.errors import PayloadDamaged, ScrollError, UnknownSession
from scroll_context.events import Draft, Event, Kind
from scroll_context.log import log as log_module
from scroll_context.models import Reply, Request, ScriptedModel, answer, exec_cell
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.tools import tool

# The window in tokens is small, so that evictions are frequent.
WINDOW = 6_000
# An agent's session ends after so many steps, and the next one begins.
SESSION_STEPS = 250
# Events that the driver plants before anyone works, for searchers to find.
LANDMARKS = 20
# The pause after an error, in seconds.
PAUSE = 0.1
YEAR = 365 * 24 * 3600.0
# Blocked when a worker starts, until it can handle them.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
STAMP = re.compile(r"\bat (\d+\.\d{6})\b")
"""When a writer wrote, by the clock that never jumps."""

SEARCH = """hits = ms.search('{words}')
print('done', {number}, len(hits))
if 'not searchable yet' not in hits.note:
    assert [hit['content'][:{size}] for hit in hits] == ['{words}'], 'wrong answer'"""
EXPAND = """print('done', {number})
for line in ms.index()[:3]:
    for lo, hi in line['seqs']:
        rows = ms.expand(lo, min(hi, lo + 20))
        assert rows[0]['seq'] == lo, 'wrong answer'"""
# Some cells raise on purpose, so that there are errors too.
EXPECTED = "undefined_name"
# The error that the source of a cell raises on purpose.
ERROR = re.compile(r"(?:anything|above): (?:(?:CapabilityError|AssertionError): )?([\w ]+)")


class Orders(msgspec.Struct, frozen=True):
    """What a worker is told on its command line."""

    role: str
    name: str
    store: str
    notes: str
    # A file that names the payload that is damaged at the moment, if it exists.
    damaged: str
    seed: int
    # Seconds that a worker rests after a piece of work, on average.
    pace: float


def landmark(number: int) -> str:
    return f"lighthouse{number} stands where the road ends"


def record(number: int) -> str:
    """What the agents' tool returns; every twelfth is a payload."""
    return f"record {number} of the harbour: " + " ".join(
        f"crate{number * 7 + n}" for n in range(6_000 if number % 12 == 0 else 60)
    )


class Shift:
    """The store's clock in this process, and how far it is off."""

    def __init__(self, rng: random.Random, diary: Diary) -> None:
        self._rng = rng
        self._diary = diary
        self._off = dt.timedelta()
        log_module.utc_now = self._utc_now
        signal.signal(signal.SIGUSR1, self._jump)

    def _utc_now(self) -> str:
        return (dt.datetime.now(dt.UTC) + self._off).isoformat(timespec="microseconds")

    def _jump(self, *_: object) -> None:
        self._off = dt.timedelta(seconds=self._rng.uniform(-YEAR, YEAR))
        self._diary.tell("clock jumped", f"{self._off.total_seconds() / 86_400:+.1f} days")


class Worker:
    """One process of the soak.

    Its work yields after each piece, with whether that was done as it should be.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.diary = Diary(Path(orders.notes), orders.name)
        self.rng = random.Random(f"{orders.seed} {orders.name}")
        self._ledger = Ledger(Path(orders.notes), orders.name)
        self._ending = False
        signal.signal(signal.SIGTERM, self._end)
        Shift(self.rng, self.diary)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self.diary.tell("began")

    def _end(self, *_: object) -> None:
        self._ending = True

    def work(self, turns: Callable[[Store], Iterator[bool]]) -> None:
        while not self._ending:
            try:
                with Store(self.orders.store) as store:
                    self._ledger.watch(store)
                    for done in turns(store):
                        if done:
                            self.diary.ok()
                        if self._ending:
                            return
                        time.sleep(self.rng.uniform(0, 2 * self.orders.pace))
            except ScrollError as error:
                self.diary.tell(type(error).__name__, str(error))
                time.sleep(PAUSE)

    # writers -------------------------------------------------------------------------------------

    def write(self, store: Store) -> Iterator[bool]:
        """Appends of one to three events, every tenth with a payload."""
        for number in itertools.count():
            size = 40_000 if number % 10 == 0 else self.rng.randrange(10, 2_000)
            text = f"{self.orders.name} wrote {number} at {time.monotonic():.6f} "
            store.log.append_many(
                Draft(
                    session_id=self.orders.name,
                    role="user",
                    content=(text + f"{part} — ").ljust(size, "x"),
                )
                for part in range(number % 3 + 1)
            )
            yield True
            # The agents are to fill the log, not the writers.
            time.sleep(self.rng.uniform(0, 8 * self.orders.pace))

    # readers -------------------------------------------------------------------------------------

    def read(self, store: Store) -> Iterator[bool]:
        """Searches for what was planted, whole reads of random events, and a look at the payload
        that is damaged.
        """
        store.index.start()
        while True:
            # Nothing is damaged.
            with contextlib.suppress(FileNotFoundError):
                store.payloads.read(Path(self.orders.damaged).read_text())
            hits = self._search(store)
            for event in store.log.get_many([self.rng.randint(1, store.log.last_seq())]):
                try:
                    store.log.text(event)
                except PayloadDamaged as error:
                    self.diary.tell("PayloadDamaged", str(error))
            yield hits

    def _search(self, store: Store) -> bool:
        """Whether the one right answer was found; a search that cannot give it must say that it is
        incomplete.
        """
        number = self.rng.randrange(LANDMARKS)
        hits = store.index.search(f"lighthouse{number}", k=3)
        right = [hit.event.content for hit in hits] == [landmark(number)]
        if hits.trouble:
            self.diary.tell("IndexUnavailable", hits.trouble)
        elif not right and hits.behind:
            self.diary.tell("incomplete, and said so", f"{hits.behind} events behind")
        elif not right:
            self.diary.tell("wrong answer", f"lighthouse{number}: {[hit.seq for hit in hits]}")
        return right and not hits.trouble

    # agents --------------------------------------------------------------------------------------

    def act(self, store: Store) -> Iterator[bool]:
        """One session after the other; one that was cut off is resumed."""
        for number in itertools.count():
            name = f"{self.orders.name}-{number}"
            ended = [
                e
                for e in store.log.tail(1, session_id=name, kind=Kind.CONVERSATION)
                if e.content == "all done"
            ]
            if not ended:
                yield from self._session(store, name)

    def _session(self, store: Store, name: str) -> Iterator[bool]:
        # A planted event belongs to no worker.
        options = SessionOptions(reach="all")
        try:
            session = Session.resume(store, name, options=options, tools=[fetch])
        except UnknownSession:
            session = Session.open(
                store, session_id=name, agent_id=self.orders.name, options=options, tools=[fetch]
            )
        with session:
            session.subscribe(self._look)
            asked = any(e.kind == Kind.CONVERSATION and e.role == "user" for e in session.events())
            agent = Agent(
                session, ScriptedModel(script, window=WINDOW, keep=1), limits=Limits(steps=1)
            )
            if not asked:
                session.say("Read every record of the harbour, in order.")
            while agent.run().state == "steps":
                if trouble := session.environment.variables.save_trouble:
                    self.diary.tell("variables not saved", trouble)
                yield True

    def _look(self, event: Event) -> None:
        if event.kind != Kind.OBSERVATION or event.tool_state == "ok" or EXPECTED in event.content:
            return
        error = ERROR.search(event.content)
        what = error[1] if error else "cell failed"
        if event.tool_state == "killed":
            what = "KernelDied"
        self.diary.tell(what, event.content)


@tool
def fetch(number: int) -> str:
    """One record of the harbour."""
    return record(number)


def script(request: Request, _: int) -> Reply:
    """The scripted model: the next record, a search, a look at evicted events, or a mistake."""
    seen = [
        int(n) for message in request.messages for n in re.findall(r"\bdone (\d+)\b", message.text)
    ]
    number = max(seen, default=0) + 1
    if number > SESSION_STEPS:
        return answer("all done")
    source = f"r{number % 5} = fetch({number})\nprint('done', {number}, r{number % 5}[:400])"
    if number % 9 == 0:
        words = f"lighthouse{number % LANDMARKS}"
        source = SEARCH.format(number=number, words=words, size=len(words))
    elif number % 11 == 0:
        source = EXPAND.format(number=number)
    elif number % 14 == 0:
        source = f"print('done', {number})\n{EXPECTED}"
    return exec_cell(
        source, headline=f"read records | done {number - 1} | record {number} | running"
    )


def main() -> None:
    worker = Worker(msgspec.json.decode(sys.argv[1], type=Orders))
    worker.work(
        {"agent": worker.act, "writer": worker.write, "reader": worker.read}[worker.orders.role]
    )


if __name__ == "__main__":
    main()
