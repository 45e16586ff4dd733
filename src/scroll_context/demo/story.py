"""The demonstration, act by act. Everything in it is real but the words of the model, and every claim is checked.

A tour through Portugal is planned in a window that holds a fraction of it. What leaves the view is asked about later,
the process is killed in the middle of a booking, and at the end the log itself tells what the model saw and what it
cost. `play` returns how many claims turned out false: it must be 0.
"""

import os
import re
import signal
import subprocess
import sys
from importlib import resources
from pathlib import Path

import msgspec

from scroll_context.agent.agent import Agent
from scroll_context.demo import script, world
from scroll_context.demo.cast import SESSION, SLOW_AT, WINDOW, model
from scroll_context.demo.scene import Compact, Scene, Whole
from scroll_context.demo.stage import Stage
from scroll_context.demo.sums import show_sums
from scroll_context.events import Kind
from scroll_context.importers import import_file
from scroll_context.messages import canonical
from scroll_context.session.explain import explain
from scroll_context.session.session import Session
from scroll_context.store.store import Store
from scroll_context.view.tokens import estimate

PACE = 0.012  # seconds between two pieces of a streamed answer, for a person who watches


def play(stage: Stage, folder: Path, book: Path) -> int:
    """Tell the whole story in a new store at `folder`; returns how many claims were false."""
    scene = Scene(stage, folder, book)
    with Store(folder, create=True) as store:
        import_the_past(scene, store)
        with Session.open(store, session_id=SESSION, tools=scene.office.tools(), confirm=scene.confirm) as session:
            lines = [*script.flight_and_road(), *script.tour(), *script.second_choice()]
            agent = Agent(session, model(lines, pace=PACE if stage.paced else 0.0), on_text=stage.speak)
            three_cells(scene, agent)
            the_tour(scene, agent)
            asked_at = what_was_evicted(scene, agent)
    killed_while_booking(scene)
    with Store(folder) as store:
        on_after_the_kill(scene, store)
        what_the_model_saw(scene, store, asked_at)
        show_sums(scene, store)
    return stage.failures


def import_the_past(scene: Scene, store: Store) -> None:
    scene.stage.act(
        "1  A history",
        "Months ago a traveller talked about a trip. Three conversations, imported:",
    )
    file = Path(str(resources.files("scroll_context") / "bundled" / "trip.jsonl"))
    imported = import_file(store, file)
    for past in store.log.sessions():
        scene.stage.fact(f"{past.session_id:<16} seq {past.first_seq:>2}-{past.last_seq:<2}  {past.first_at[:10]}", "")
    scene.stage.check(f"{imported.messages} messages, each with an address", store.log.last_seq() == imported.messages)


def three_cells(scene: Scene, agent: Agent) -> None:
    """The figure of the paper: bind much, print little, recall exactly, compute over both."""
    stage, store = scene.stage, agent.session.store
    stage.act("2  Bind, recall, compute", "The model writes cells. Only what they print enters its view.")
    scene.watch(agent.session, Whole(scene, store))
    stage.user(script.FIRST)
    run = agent.run(script.FIRST)
    stage.end_line()
    results = [event for event in agent.session.events() if event.kind == Kind.TOOL_RESULT]
    printed = [event for event in agent.session.events() if event.kind == Kind.OBSERVATION]
    bulk = sum(len(store.log.text(event).encode()) for event in results)
    shown = sum(len(event.content.encode()) for event in printed)
    fares = [one for one in scene.flights if one["cabin"] == "economy"]
    cheapest = min(fares, key=lambda one: int(one["price_chf"]))
    stage.check(f"{bulk:,} bytes of results are in variables; {shown:,} bytes were shown", shown * 20 < bulk)
    stage.check("cheapest economy fare, by what was said at seq 5", cheapest["flight"] in run.answer)
    stage.check(
        "the flight is booked once", [one["item"] for one in scene.office.entries] == [f"flight {cheapest['flight']}"]
    )


def the_tour(scene: Scene, agent: Agent) -> None:
    """More steps than fit, so that results fold, steps leave, and the index rolls up."""
    stage = scene.stage
    stage.act(
        f"3  A long tour in a window of {WINDOW:,} tokens",
        "Above the mark ┊, old results fold to stubs and old steps move to an index.",
    )
    compact = Compact(scene)
    scene.watch(agent.session, compact)
    stage.user(script.SECOND)
    agent.run(script.SECOND)
    stage.end_line()
    view = explain(agent.session.store, agent.session.store.log.last_seq())
    index = view.messages[1].text.splitlines()
    stage.tell("What the model now sees of its earlier work, oldest and coarsest first:")
    for line in [line for line in index if line.startswith("- seq")][:5]:
        stage.fact(line, "dim")
    stage.check(
        f"the view stayed within {WINDOW:,} tokens at each of {compact.requests} requests", compact.largest <= WINDOW
    )
    stage.check(
        f"{compact.folded} results folded, {compact.evicted} steps evicted", compact.folded > 0 < compact.evicted
    )
    stage.check(
        "the index rolled up: one line stands for several steps",
        any(re.match(r"- seq [^:]+\(\d+\):", line) for line in index),
    )


def what_was_evicted(scene: Scene, agent: Agent) -> int:
    """A question whose answer is in no variable and no longer in view; returns the seq of its first request."""
    stage, store = scene.stage, agent.session.store
    stage.act("4  A question about what left", "The rows are in no variable any more. The index says where they stand.")
    scene.watch(agent.session, Whole(scene, store))
    stage.user(script.THIRD)
    start = store.log.last_seq()
    run = agent.run(script.THIRD)
    stage.end_line()
    asked = next(event.seq for event in store.log.iterate(after=start) if event.kind == Kind.REQUEST)
    quiet = [room for room in world.rooms("Porto") if room["quiet"] and room["parking"] and room["rating"] >= 8.5]
    second = sorted(quiet, key=lambda room: int(room["price_chf"]))[1]
    stage.check("the answer is right", f"{second['name']}, {second['price_chf']} CHF" in run.answer)
    shown = canonical(explain(store, asked).messages).decode()
    stage.check("and it was nowhere in the view when the question came", second["name"] not in shown)
    return asked


def killed_while_booking(scene: Scene) -> None:
    """Another process goes on with the session, and is killed while a tool with effects runs."""
    stage = scene.stage
    stage.act("5  kill -9", "Another process resumes the session and books the rooms.")
    stage.user(script.FOURTH)
    command = [sys.executable, "-m", "scroll_context.demo.child", str(scene.folder), str(scene.book)]
    litter = {**os.environ, "TMPDIR": str(scene.book.parent)}  # what a killed process leaves goes with the scratch
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=litter) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            heard = child.stdout.readline().strip()
        finally:
            child.kill()  # whatever ends the demonstration, too
        status = child.wait()
        if heard != "silent":
            stage.fact(child.stderr.read()[-400:], "red")
    with Store(scene.folder) as store:
        for event in store.log.iterate(after=scene.last_seq, session_id=SESSION):
            if event.kind == Kind.CELL:
                stage.cell(event.seq, event.content)
            elif event.kind == Kind.TOOL_RESULT:
                stage.fact(f"→ book: {event.content}")
    stage.fact(
        f"process {child.pid}: SIGKILL while it waited for booking {SLOW_AT} of {len(world.towns())}", "bold red"
    )
    stage.check("the process is dead, in the middle of a cell", heard == "silent" and status == -signal.SIGKILL)


def on_after_the_kill(scene: Scene, store: Store) -> None:
    """Resume: variables are back, and what may have happened is looked up instead of done again."""
    stage = scene.stage
    tools = scene.office.tools()
    with Session.resume(store, SESSION, tools=tools, confirm=scene.confirm) as session:
        told = next(event for event in reversed(store.log.tail(9, session_id=SESSION)) if event.kind == Kind.NOTICE)
        stage.tell("Resumed from the log. What the model is told:")
        stage.printed(told.content)
        scene.watch(session, Whole(scene, store))
        lines = script.after_the_kill()
        Agent(session, model(lines, pace=PACE if stage.paced else 0.0), on_text=stage.speak).run()
        stage.end_line()
        kernel = session.environment.kernel
        kept = kernel.execute("import json; print(json.dumps(flights))").printed
        stage.check(
            "`flights`, bound two processes ago, is there, row for row", msgspec.json.decode(kept) == scene.flights
        )
        items = [one["item"] for one in scene.office.entries]
        rooms = len(world.towns())
        stage.check(
            f"{rooms} rooms and 1 flight booked, none of them twice", len(items) == len(set(items)) == rooms + 1
        )
        compare_departures(scene, session)


def compare_departures(scene: Scene, session: Session) -> None:
    """Expand through `ms`, inside the kernel, everything that ever left the view, and compare it with what it was."""
    store = session.store
    left = explain(store, store.log.last_seq()).departures
    seqs = sorted(seq for one in left for seq in range(one.seq, one.last + 1) if seq in scene.witness)
    source = (
        f"import hashlib\nfor row in ms.expand({seqs}):\n"
        '    print(row["seq"], hashlib.sha256(row["content"].encode()).hexdigest())'
    )
    lines = session.environment.kernel.execute(source).printed.decode().splitlines()
    found = {int(seq): digest for seq, digest in (line.split() for line in lines)}
    scene.stage.check(
        f"all {len(seqs)} events that left the view expand to the same bytes",
        bool(seqs) and found == {seq: scene.witness[seq] for seq in seqs},
    )


def what_the_model_saw(scene: Scene, store: Store, asked_at: int) -> None:
    """`scroll explain`, in short."""
    stage = scene.stage
    stage.act("6  What did the model see, and why?", f"scroll explain {asked_at}   (the question about Porto)")
    found = explain(store, asked_at)
    system, index, *live = (estimate(canonical(message).decode()) for message in found.messages)
    stage.fact(f"{len(found.messages)} messages, {found.reported:,} tokens, {found.cached:,} of them from cache", "")
    stage.fact(f"by estimate: system prompt {system:,}, index {index:,}, conversation {sum(live):,}", "")
    for how in ("folded", "evicted"):
        left = [one for one in found.departures if one.how == how]
        stage.fact(f"{len(left)} {how}; the last of them, seq {left[-1].seq}-{left[-1].last}:", "")
        stage.fact(f"  why: plan {left[-1].plan}, {left[-1].reason}", "dim")
        stage.fact(f"  now: {left[-1].now}", "dim")
    stage.check("rebuilt from the log, the request has the hash that was recorded", found.verified)
