"""The demonstration, act by act. Everything in it is real except the words of the model, and every
claim is checked.

A tour through Portugal is planned in a window that holds a fraction of it. What leaves the view is
asked about later, the process is killed in the middle of a booking, and at the end the log itself
tells what the model saw and what it cost. `Story.play` returns how many claims turned out false: it
must be 0.

`python -m scroll_context.demo.story STORE BOOK` is the process that gets killed: it resumes the
session, books rooms until an answer never comes, and prints a line then. The booking is made, and
its answer is not in the log.
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
from scroll_context.contents import EvictionPlan, usage_of
from scroll_context.demo import script, world
from scroll_context.demo.script import WINDOW
from scroll_context.demo.stage import Stage
from scroll_context.events import Event, Kind
from scroll_context.importing.run import import_file
from scroll_context.messages import canonical
from scroll_context.models.scripted import quarter_of_characters
from scroll_context.session.accounts import accounts
from scroll_context.session.explain import explain
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import lineage
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.toolbox import ToolUse
from scroll_context.upkeep.integrity import verify
from scroll_context.view.headline import parse_field
from scroll_context.view.tokens import estimate
from scroll_context.view.working import WorkingView, render

SESSION = "trip-4-september"
# The booking, counted in the process that is killed, whose answer never comes.
SLOW_AT = 3


class Story:
    """The acts, and what they share: a stage, a store, the office that books, and a witness.

    The witness takes the hash of each event's text at the moment it is recorded, so that the end of
    the demonstration can compare what the log gives back with what went in.
    """

    def __init__(self, stage: Stage, folder: Path, book: Path) -> None:
        self.stage = stage
        self.folder = folder
        self.book = book
        self.office = world.Office(book)
        self.flights = world.search_flights("ZRH", "OPO", dt.date.fromisoformat(script.DAY))
        # The originals by seq.
        self.witness: dict[int, str] = {}
        # Requests during the tour.
        self.requests = self.largest = self.folded = self.evicted = 0

    def play(self) -> int:
        """Tell the whole story in a new store; returns how many claims were false."""
        with Store(self.folder, create=True) as store:
            self.import_the_past(store)
            # The imported conversations are sessions of their own.
            options = SessionOptions(reach="all")
            with Session.open(
                store,
                session_id=SESSION,
                options=options,
                tools=self.office.tools(),
                confirm=self.confirm,
            ) as session:
                lines = [*script.flight_and_road(), *script.tour(), *script.second_choice()]
                agent = Agent(session, script.model(lines))
                self.three_cells(agent)
                self.the_tour(agent)
                asked_at = self.what_was_evicted(agent)
        self.killed_while_booking()
        with Store(self.folder) as store:
            self.on_after_the_kill(store)
            self.what_the_model_saw(store, asked_at)
            self.totals(store)
        return self.stage.failures

    def ask(self, agent: Agent, message: str | None, show: Callable[[Store, Event], None]) -> str:
        """Let the agent answer, and show everything that it records."""
        store = agent.session.store

        def on_event(event: Event) -> None:
            self.witness[event.seq] = hashlib.sha256(store.log.text(event).encode()).hexdigest()
            show(store, event)

        if message is not None:
            self.stage.says("user", message)
        unwatch = agent.session.subscribe(on_event)
        answer = agent.run(message).answer
        unwatch()
        self.stage.says("agent", answer)
        return answer

    def show_cell(self, store: Store, event: Event) -> None:
        """A cell, the results of its calls, and its output."""
        if event.kind == Kind.CELL:
            self.stage.cell(event)
        elif event.kind == Kind.OBSERVATION:
            for call in store.log.span(event.reply_to or event.seq, event.seq):
                if call.kind == Kind.TOOL_RESULT and call.name.startswith(("search", "find")):
                    size = len(store.log.text(call).encode())
                    self.stage.fact(f"→ {call.name}: {size:,} bytes, recorded at seq {call.seq}")
            self.stage.printed(event.content)
        elif event.kind == Kind.EVICTION:
            self.stage.fact(f"↓ {event.content}")

    def show_step(self, _: Store, event: Event) -> None:
        """A step as one line: its action, and how full the window was at its request."""
        if event.kind == Kind.EVICTION:
            plan = EvictionPlan.from_metadata(event.metadata)
            self.folded += len(plan.folded)
            self.evicted += len(plan.evicted)
            lists = ((plan.folded, "folded"), (plan.evicted, "evicted"))
            parts = ", ".join(f"{len(seqs)} {how}" for seqs, how in lists if seqs)
            self.stage.fact(f"↓ {parts:<28} {plan.before:,} → {plan.after:,} tokens, by estimate")
        elif event.kind == Kind.CONVERSATION and event.role == "assistant":
            tokens = usage_of(event).input_tokens
            self.requests += 1
            self.largest = max(self.largest, tokens)
            if (headline := parse_field(event.headline)) is not None:
                self.stage.bar(headline.task, tokens)

    def confirm(self, use: ToolUse) -> bool:
        """Tools with effects ask first. The demonstration says yes, visibly."""
        self.stage.fact(
            f"? {use.name}({', '.join(map(str, use.arguments.values()))})  the user says: yes",
            "magenta",
        )
        return True

    def import_the_past(self, store: Store) -> None:
        self.stage.act(
            "1  A history",
            "Months ago, a traveller planned a trip. These three conversations are imported:",
        )
        imported = import_file(
            store,
            Path(str(resources.files("scroll_context") / "bundled" / "trip.jsonl")),
            mine=True,
        )
        for past in store.log.sessions():
            span = f"{past.first_seq:>2}-{past.last_seq:<2}"
            self.stage.fact(f"{past.session_id:<16} seq {span}  {past.first_at[:10]}", "")
        addressed = store.log.last_seq() == imported.messages
        self.stage.check(f"{imported.messages} messages, each with an address", addressed)

    def three_cells(self, agent: Agent) -> None:
        """The figure of the paper: bind much, print little, recall exactly, compute over both."""
        stage, log = self.stage, agent.session.store.log
        stage.act(
            "2  Bind, recall, compute",
            "The model writes cells. Only their printed output enters its view.",
        )
        answer = self.ask(agent, script.FIRST, self.show_cell)
        events = list(agent.session.events())
        bulk = sum(
            len(log.text(event).encode()) for event in events if event.kind == Kind.TOOL_RESULT
        )
        printed = sum(
            len(event.content.encode()) for event in events if event.kind == Kind.OBSERVATION
        )
        fares = [flight for flight in self.flights if flight["cabin"] == "economy"]
        cheapest = min(fares, key=lambda flight: int(flight["price_chf"]))["flight"]
        stage.check(
            f"{bulk:,} bytes of results are in variables; {printed:,} bytes were shown",
            printed * 20 < bulk,
        )
        stage.check("cheapest economy fare, as the user asked at seq 5", cheapest in answer)
        booked = [flight["item"] for flight in self.office.entries]
        stage.check("the flight is booked once", booked == [f"flight {cheapest}"])

    def the_tour(self, agent: Agent) -> None:
        """More steps than fit, so that results fold, steps leave, and the index rolls up."""
        stage, store = self.stage, agent.session.store
        title = f"3  A long tour in a window of {WINDOW:,} tokens"
        stage.act(
            title, "Above the mark ┊, old results fold to stubs and old steps move to an index."
        )
        self.ask(agent, script.SECOND, self.show_step)
        index = explain(store, store.log.last_seq()).messages[1].text.splitlines()
        stage.line(
            "The index of earlier work that the model now sees, coarsest lines first:", "cyan"
        )
        for line in [line for line in index if line.startswith("- seq")][:5]:
            stage.fact(line, "dim")
        claim = f"the view stayed within {WINDOW:,} tokens at each of {self.requests} requests"
        stage.check(claim, self.largest <= WINDOW)
        claim = f"{self.folded} results folded, {self.evicted} steps evicted"
        stage.check(claim, self.folded > 0 < self.evicted)
        rolled_up = any(re.match(r"- seq [^:]+\(\d+\):", line) for line in index)
        stage.check("the index has merged lines: one line covers several steps", rolled_up)

    def what_was_evicted(self, agent: Agent) -> int:
        """A question whose answer is in no variable and no longer in view; returns the seq of its
        first request.
        """
        stage, store = self.stage, agent.session.store
        explained = "No variable holds the rows any more. The index names their seqs."
        stage.act("4  A question about evicted results", explained)
        start = store.log.last_seq()
        answer = self.ask(agent, script.THIRD, self.show_cell)
        asked = next(
            event.seq for event in store.log.iterate(after=start) if event.kind == Kind.REQUEST
        )
        rooms = world.find_rooms("Porto")
        quiet = [
            room for room in rooms if room["quiet"] and room["parking"] and room["rating"] >= 8.5
        ]
        second = sorted(quiet, key=lambda room: int(room["price_chf"]))[1]
        stage.check("the answer is right", f"{second['name']}, {second['price_chf']} CHF" in answer)
        request_text = canonical(explain(store, asked).messages).decode()
        stage.check(
            "and it was not in the view when the question came",
            second["name"] not in request_text,
        )
        return asked

    def killed_while_booking(self) -> None:
        """Another process resumes the session, and is killed while a tool with effects runs."""
        stage = self.stage
        stage.act("5  kill -9", "Another process resumes the session and books the rooms.")
        stage.says("user", script.FOURTH)
        # With -P the interpreter imports nothing from the folder that the demo is shown in.
        command = [
            sys.executable,
            "-P",
            "-m",
            "scroll_context.demo.story",
            str(self.folder),
            str(self.book),
        ]
        # What a killed process leaves goes with the scratch.
        litter = {
            **os.environ,
            "TMPDIR": str(self.book.parent),
        }
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=litter
        ) as child:
            assert child.stdout is not None and child.stderr is not None
            try:
                heard = child.stdout.readline().strip()
            finally:
                # This holds whatever ends the demonstration.
                child.kill()
            status = child.wait()
            if heard != "silent":
                stage.fact(child.stderr.read()[-400:], "red")
        with Store(self.folder) as store:
            for event in store.log.iterate(after=max(self.witness), session_id=SESSION):
                if event.kind == Kind.CELL:
                    stage.cell(event)
                elif event.kind == Kind.TOOL_RESULT:
                    stage.fact(f"→ book: {event.content}")
        killed = f"SIGKILL while it was waiting for booking {SLOW_AT} of {len(world.towns())}"
        stage.fact(f"process {child.pid}: {killed}", "bold red")
        stage.check(
            "the process is dead, in the middle of a cell",
            heard == "silent" and status == -signal.SIGKILL,
        )

    def on_after_the_kill(self, store: Store) -> None:
        """Resume: variables are back, and what may have happened is looked up instead of done
        again.
        """
        stage = self.stage
        with Session.resume(
            store, SESSION, tools=self.office.tools(), confirm=self.confirm
        ) as session:
            notice = next(
                event
                for event in reversed(store.log.tail(9, session_id=SESSION))
                if event.kind == Kind.NOTICE
            )
            stage.line("Resumed from the log. The model is told:", "cyan")
            stage.printed(notice.content)
            answer = self.ask(
                Agent(session, script.model(script.after_the_kill())), None, self.show_cell
            )
            cell = session.environment.kernel.execute(
                "import json; print(json.dumps(flights))"
            ).printed
            same = msgspec.json.decode(cell) == self.flights
            stage.check("`flights`, bound two processes ago, is restored, every row", same)
            items, rooms = [entry["item"] for entry in self.office.entries], len(world.towns())
            once = (
                len(items) == len(set(items)) == rooms + 1
                and self.office.entries[-1]["reference"] in answer
            )
            stage.check(f"{rooms} rooms and 1 flight booked, none of them twice", once)
            self.compare_departures(session)

    def compare_departures(self, session: Session) -> None:
        """Expand through `ms`, in the kernel, everything that ever left the view, and compare it
        with what it was.
        """
        left = explain(session.store, session.store.log.last_seq()).departures
        seqs = sorted(
            seq
            for departure in left
            for seq in range(departure.seq, departure.last + 1)
            if seq in self.witness
        )
        source = (
            f"import hashlib\nfor row in ms.expand({seqs}):\n"
            '    print(row["seq"], hashlib.sha256(row["content"].encode()).hexdigest())'
        )
        printed = session.environment.kernel.execute(source).printed.decode()
        pairs = map(str.split, printed.splitlines())
        originals = {int(seq): digest for seq, digest in pairs}
        same = bool(seqs) and originals == {seq: self.witness[seq] for seq in seqs}
        self.stage.check(
            f"all {len(seqs)} events that left the view expand to the same bytes", same
        )

    def what_the_model_saw(self, store: Store, asked_at: int) -> None:
        """`scroll explain`, in short."""
        stage = self.stage
        stage.act(
            "6  One request, explained",
            f"scroll explain {asked_at}   (the question about Porto)",
        )
        explanation = explain(store, asked_at)
        system, index, *live = (
            estimate(canonical(message).decode()) for message in explanation.messages
        )
        seen = (
            f"{len(explanation.messages)} messages, {explanation.reported:,} tokens, "
            f"{explanation.cached:,} of them from cache"
        )
        stage.fact(seen, "")
        stage.fact(
            f"by estimate: system prompt {system:,}, index {index:,}, conversation {sum(live):,}",
            "",
        )
        for how in ("folded", "evicted"):
            left = [departure for departure in explanation.departures if departure.how == how]
            stage.fact(
                f"{len(left)} {how}; the last of them, seq {left[-1].seq}-{left[-1].last}:", ""
            )
            stage.fact(f"  why: plan {left[-1].plan}, {left[-1].reason}", "dim")
            stage.fact(f"  now: {left[-1].now}", "dim")
        stage.check(
            "the request, rebuilt from the log, has the recorded hash", explanation.verified
        )

    def totals(self, store: Store) -> None:
        """The cost of the run, and the cost if everything had stayed in the prompt.

        All from the log.
        """
        stage = self.stage
        stage.act("7  Totals")
        events = list(lineage(store, SESSION))
        spent = accounts(events)
        sizes, bulk = without_eviction(events, store)
        for name, value, remark in (
            (
                f"tokens sent in {spent.requests} requests",
                f"{spent.input_tokens:,}",
                f"largest {spent.largest:,}",
            ),
            ("the same without evictions", f"{sum(sizes):,}", f"largest {max(sizes):,}"),
            ("without evictions, with all results", f"{sum(bulk):,}", f"largest {max(bulk):,}"),
            (
                "input that repeats the cached prefix",
                f"{spent.reuse:.0%}",
                f"with {spent.evictions} evictions",
            ),
        ):
            stage.fact(f"{name:<36}{value:>11}  {remark}", "")
        verdict = verify(store.log)
        stage.check(f"no request exceeded the window of {WINDOW:,} tokens", spent.largest <= WINDOW)
        stage.check(f"the hash chain over all {verdict.events:,} events is intact", not verdict.bad)


def without_eviction(events: list[Event], store: Store) -> tuple[list[int], list[int]]:
    """Tokens of each request, had nothing left the view; then the same with tool results in it."""
    view = WorkingView()
    system = tools = ""
    results = 0
    sizes: list[int] = []
    bulk: list[int] = []
    for event in events:
        if event.kind == Kind.SESSION and "tools" in event.metadata:
            system = store.log.text(event)
            tools = canonical(event.metadata["tools"]).decode()
        elif event.kind == Kind.TOOL_RESULT:
            results += quarter_of_characters(store.log.text(event))
        elif event.kind == Kind.REQUEST:
            messages = render(view, system, event.metadata["digest"]).messages
            texts = (tools, *(canonical(message).decode() for message in messages))
            sizes.append(sum(map(quarter_of_characters, texts)))
            bulk.append(sizes[-1] + results)
        if event.kind != Kind.EVICTION:
            view.add(event)
    return sizes, bulk


def book_until_silence(folder: Path, book: Path) -> None:
    """The work of the process that is killed."""
    office = world.Office(book, SLOW_AT, lambda: print("silent", flush=True))
    with Store(folder) as store, Session.resume(store, SESSION, tools=office.tools()) as session:
        Agent(session, script.model(script.all_rooms())).run(script.FOURTH)


if __name__ == "__main__":
    book_until_silence(Path(sys.argv[1]), Path(sys.argv[2]))
