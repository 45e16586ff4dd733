"""The demonstration, act by act. Everything in it is real but the words of the model, and every claim is checked.

A tour through Portugal is planned in a window that holds a fraction of it. What leaves the view is asked about later,
the process is killed in the middle of a booking, and at the end the log itself tells what the model saw and what it
cost. `Story.play` returns how many claims turned out false: it must be 0.

`python -m scroll_context.demo.story STORE BOOK` is the process that gets killed: it resumes the session, books rooms
until an answer never comes, and prints a line then. The booking is made, and its answer is not in the log.
"""

import datetime as dt
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import msgspec

from scroll_context.agent.agent import Agent
from scroll_context.demo import script, world
from scroll_context.demo.script import WINDOW
from scroll_context.demo.stage import ShowCells, ShowSteps, Stage
from scroll_context.events import Event, Kind
from scroll_context.importers import import_file
from scroll_context.messages import canonical
from scroll_context.models.scripted import quarter_of_characters
from scroll_context.session.explain import accounts, explain
from scroll_context.session.history import lineage
from scroll_context.session.session import Session, SessionOptions
from scroll_context.store.integrity import verify
from scroll_context.store.store import Store
from scroll_context.surface.toolbox import ToolUse
from scroll_context.view.tokens import estimate
from scroll_context.view.working import WorkingView, render

SESSION = "trip-4-september"
SLOW_AT = 3  # the booking, counted in the process that is killed, whose answer never comes
PACE = 0.012  # seconds between two pieces of a streamed answer, for a person who watches


class Story:
    """The acts, and what they share: a stage, a store, the office that books, and a witness.

    The witness takes the hash of each event's text at the moment it is recorded, so that the end of the demonstration
    can compare what the log gives back with what went in.
    """

    def __init__(self, stage: Stage, folder: Path, book: Path) -> None:
        self.stage = stage
        self.folder = folder
        self.book = book
        self.office = world.Office(book)
        self.flights = world.search_flights("ZRH", "OPO", dt.date.fromisoformat(script.DAY))
        self.witness: dict[int, str] = {}  # by seq
        self.pace = PACE if stage.paced else 0.0
        self.unwatch: Callable[[], None] = lambda: None

    def play(self) -> int:
        """Tell the whole story in a new store; returns how many claims were false."""
        with Store(self.folder, create=True) as store:
            self.import_the_past(store)
            with Session.open(
                store,
                session_id=SESSION,
                options=SessionOptions(reach="all"),  # the imported conversations are sessions of their own
                tools=self.office.tools(),
                confirm=self.confirm,
            ) as session:
                lines = [*script.flight_and_road(), *script.tour(), *script.second_choice()]
                agent = Agent(session, script.model(lines, pace=self.pace), on_text=self.stage.speak)
                self.three_cells(agent)
                self.the_tour(agent)
                asked_at = self.what_was_evicted(agent)
        self.killed_while_booking()
        with Store(self.folder) as store:
            self.on_after_the_kill(store)
            self.what_the_model_saw(store, asked_at)
            self.the_sums(store)
        return self.stage.failures

    def watch(self, session: Session, show: Callable[[Event], None]) -> None:
        """Show what a session records from now on, and witness it."""

        def on_event(event: Event) -> None:
            text = session.store.log.text(event)
            self.witness[event.seq] = hashlib.sha256(text.encode()).hexdigest()
            show(event)

        self.unwatch()
        self.unwatch = session.subscribe(on_event)

    def confirm(self, use: ToolUse) -> bool:
        """Tools with effects ask first. The demonstration says yes, visibly."""
        self.stage.fact(f"? {use.name}({', '.join(map(str, use.arguments.values()))})  the user says: yes", "magenta")
        return True

    def import_the_past(self, store: Store) -> None:
        self.stage.act("1  A history", "Months ago a traveller talked about a trip. Three conversations, imported:")
        file = Path(str(resources.files("scroll_context") / "bundled" / "trip.jsonl"))
        imported = import_file(store, file)
        for past in store.log.sessions():
            self.stage.fact(
                f"{past.session_id:<16} seq {past.first_seq:>2}-{past.last_seq:<2}  {past.first_at[:10]}", ""
            )
        self.stage.check(
            f"{imported.messages} messages, each with an address", store.log.last_seq() == imported.messages
        )

    def three_cells(self, agent: Agent) -> None:
        """The figure of the paper: bind much, print little, recall exactly, compute over both."""
        stage, store = self.stage, agent.session.store
        stage.act("2  Bind, recall, compute", "The model writes cells. Only what they print enters its view.")
        self.watch(agent.session, ShowCells(stage, store))
        stage.user(script.FIRST)
        run = agent.run(script.FIRST)
        stage.end_line()
        results = [event for event in agent.session.events() if event.kind == Kind.TOOL_RESULT]
        printed = [event for event in agent.session.events() if event.kind == Kind.OBSERVATION]
        bulk = sum(len(store.log.text(event).encode()) for event in results)
        shown = sum(len(event.content.encode()) for event in printed)
        fares = [one for one in self.flights if one["cabin"] == "economy"]
        cheapest = min(fares, key=lambda one: int(one["price_chf"]))
        stage.check(f"{bulk:,} bytes of results are in variables; {shown:,} bytes were shown", shown * 20 < bulk)
        stage.check("cheapest economy fare, by what was said at seq 5", cheapest["flight"] in run.answer)
        booked = [one["item"] for one in self.office.entries]
        stage.check("the flight is booked once", booked == [f"flight {cheapest['flight']}"])

    def the_tour(self, agent: Agent) -> None:
        """More steps than fit, so that results fold, steps leave, and the index rolls up."""
        stage = self.stage
        stage.act(
            f"3  A long tour in a window of {WINDOW:,} tokens",
            "Above the mark ┊, old results fold to stubs and old steps move to an index.",
        )
        steps = ShowSteps(stage, WINDOW)
        self.watch(agent.session, steps)
        stage.user(script.SECOND)
        agent.run(script.SECOND)
        stage.end_line()
        view = explain(agent.session.store, agent.session.store.log.last_seq())
        index = view.messages[1].text.splitlines()
        stage.tell("What the model now sees of its earlier work, oldest and coarsest first:")
        for line in [line for line in index if line.startswith("- seq")][:5]:
            stage.fact(line, "dim")
        claim = f"the view stayed within {WINDOW:,} tokens at each of {steps.requests} requests"
        stage.check(claim, steps.largest <= WINDOW)
        claim = f"{steps.folded} results folded, {steps.evicted} steps evicted"
        stage.check(claim, steps.folded > 0 < steps.evicted)
        stage.check(
            "the index rolled up: one line stands for several steps",
            any(re.match(r"- seq [^:]+\(\d+\):", line) for line in index),
        )

    def what_was_evicted(self, agent: Agent) -> int:
        """A question whose answer is in no variable and no longer in view; returns the seq of its first request."""
        stage, store = self.stage, agent.session.store
        stage.act(
            "4  A question about what left", "The rows are in no variable any more. The index says where they stand."
        )
        self.watch(agent.session, ShowCells(stage, store))
        stage.user(script.THIRD)
        start = store.log.last_seq()
        run = agent.run(script.THIRD)
        stage.end_line()
        asked = next(event.seq for event in store.log.iterate(after=start) if event.kind == Kind.REQUEST)
        quiet = [
            room for room in world.find_rooms("Porto") if room["quiet"] and room["parking"] and room["rating"] >= 8.5
        ]
        second = sorted(quiet, key=lambda room: int(room["price_chf"]))[1]
        stage.check("the answer is right", f"{second['name']}, {second['price_chf']} CHF" in run.answer)
        shown = canonical(explain(store, asked).messages).decode()
        stage.check("and it was nowhere in the view when the question came", second["name"] not in shown)
        return asked

    def killed_while_booking(self) -> None:
        """Another process goes on with the session, and is killed while a tool with effects runs."""
        stage = self.stage
        stage.act("5  kill -9", "Another process resumes the session and books the rooms.")
        stage.user(script.FOURTH)
        command = [sys.executable, "-m", "scroll_context.demo.story", str(self.folder), str(self.book)]
        litter = {**os.environ, "TMPDIR": str(self.book.parent)}  # what a killed process leaves goes with the scratch
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=litter) as child:
            assert child.stdout is not None and child.stderr is not None
            try:
                heard = child.stdout.readline().strip()
            finally:
                child.kill()  # whatever ends the demonstration, too
            status = child.wait()
            if heard != "silent":
                stage.fact(child.stderr.read()[-400:], "red")
        with Store(self.folder) as store:
            for event in store.log.iterate(after=max(self.witness), session_id=SESSION):
                if event.kind == Kind.CELL:
                    stage.cell(event.seq, event.content)
                elif event.kind == Kind.TOOL_RESULT:
                    stage.fact(f"→ book: {event.content}")
        stage.fact(
            f"process {child.pid}: SIGKILL while it waited for booking {SLOW_AT} of {len(world.towns())}", "bold red"
        )
        stage.check("the process is dead, in the middle of a cell", heard == "silent" and status == -signal.SIGKILL)

    def on_after_the_kill(self, store: Store) -> None:
        """Resume: variables are back, and what may have happened is looked up instead of done again."""
        stage = self.stage
        with Session.resume(store, SESSION, tools=self.office.tools(), confirm=self.confirm) as session:
            told = next(event for event in reversed(store.log.tail(9, session_id=SESSION)) if event.kind == Kind.NOTICE)
            stage.tell("Resumed from the log. What the model is told:")
            stage.printed(told.content)
            self.watch(session, ShowCells(stage, store))
            Agent(session, script.model(script.after_the_kill(), pace=self.pace), on_text=stage.speak).run()
            stage.end_line()
            kernel = session.environment.kernel
            kept = kernel.execute("import json; print(json.dumps(flights))").printed
            same = msgspec.json.decode(kept) == self.flights
            stage.check("`flights`, bound two processes ago, is there, row for row", same)
            items = [one["item"] for one in self.office.entries]
            rooms = len(world.towns())
            once = len(items) == len(set(items)) == rooms + 1
            stage.check(f"{rooms} rooms and 1 flight booked, none of them twice", once)
            self.compare_departures(session)

    def compare_departures(self, session: Session) -> None:
        """Expand through `ms`, in the kernel, everything that ever left the view, and compare it with what it was."""
        store = session.store
        left = explain(store, store.log.last_seq()).departures
        seqs = sorted(seq for one in left for seq in range(one.seq, one.last + 1) if seq in self.witness)
        source = (
            f"import hashlib\nfor row in ms.expand({seqs}):\n"
            '    print(row["seq"], hashlib.sha256(row["content"].encode()).hexdigest())'
        )
        lines = session.environment.kernel.execute(source).printed.decode().splitlines()
        found = {int(seq): digest for seq, digest in (line.split() for line in lines)}
        self.stage.check(
            f"all {len(seqs)} events that left the view expand to the same bytes",
            bool(seqs) and found == {seq: self.witness[seq] for seq in seqs},
        )

    def what_the_model_saw(self, store: Store, asked_at: int) -> None:
        """`scroll explain`, in short."""
        stage = self.stage
        stage.act("6  What did the model see, and why?", f"scroll explain {asked_at}   (the question about Porto)")
        found = explain(store, asked_at)
        system, index, *live = (estimate(canonical(message).decode()) for message in found.messages)
        stage.fact(
            f"{len(found.messages)} messages, {found.reported:,} tokens, {found.cached:,} of them from cache", ""
        )
        stage.fact(f"by estimate: system prompt {system:,}, index {index:,}, conversation {sum(live):,}", "")
        for how in ("folded", "evicted"):
            left = [one for one in found.departures if one.how == how]
            stage.fact(f"{len(left)} {how}; the last of them, seq {left[-1].seq}-{left[-1].last}:", "")
            stage.fact(f"  why: plan {left[-1].plan}, {left[-1].reason}", "dim")
            stage.fact(f"  now: {left[-1].now}", "dim")
        stage.check("rebuilt from the log, the request has the hash that was recorded", found.verified)

    def the_sums(self, store: Store) -> None:
        """What it cost, beside what it would have cost to keep everything in the prompt. All from the log."""
        stage = self.stage
        stage.act("7  The sums")
        events = list(lineage(store, SESSION))
        spent = accounts(events)
        kept, bulk = without_eviction(events, store)
        stage.row(f"tokens sent in {spent.requests} requests", f"{spent.input_tokens:,}", f"largest {spent.largest:,}")
        stage.row("the same, had nothing been evicted", f"{sum(kept):,}", f"largest {max(kept):,}")
        stage.row("and with tool results in the prompt", f"{sum(bulk):,}", f"largest {max(bulk):,}")
        stage.row("of the input, repeated prefix", f"{spent.reuse:.0%}", f"in spite of {spent.evictions} evictions")
        verdict = verify(store.log)
        stage.check(f"no request was over the window of {WINDOW:,} tokens", spent.largest <= WINDOW)
        stage.check(f"the hash chain over all {verdict.events:,} events holds", not verdict.bad)


def without_eviction(events: list[Event], store: Store) -> tuple[list[int], list[int]]:
    """Tokens of each request, had nothing left the view; then the same with tool results in it."""
    view, system, tools, results = WorkingView(), "", "", 0
    kept: list[int] = []
    bulk: list[int] = []
    for event in events:
        if event.kind == Kind.SESSION and "tools" in event.metadata:
            system, tools = store.log.text(event), canonical(event.metadata["tools"]).decode()
        elif event.kind == Kind.TOOL_RESULT:
            results += quarter_of_characters(store.log.text(event))
        elif event.kind == Kind.REQUEST:
            messages = render(view, system, event.metadata["digest"]).messages
            texts = (tools, *(canonical(message).decode() for message in messages))
            kept.append(sum(map(quarter_of_characters, texts)))
            bulk.append(kept[-1] + results)
        if event.kind != Kind.EVICTION:
            view.add(event)
    return kept, bulk


def book_until_silence(folder: Path, book: Path) -> None:
    """What the process does that is killed."""
    office = world.Office(book, SLOW_AT, lambda: print("silent", flush=True))
    with Store(folder) as store, Session.resume(store, SESSION, tools=office.tools()) as session:
        Agent(session, script.model(script.all_rooms())).run(script.FOURTH)


if __name__ == "__main__":
    book_until_silence(Path(sys.argv[1]), Path(sys.argv[2]))
