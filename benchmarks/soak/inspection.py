"""What must hold when the soak is over, each as one line: what was looked at, and what is wrong
with it.

A check that looked at nothing is wrong too: a soak in which nothing was evicted has shown nothing
about evictions.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from crew import Crew
from notes import acknowledged, is_as_noted
from vitals import Sample, Vitals
from workers import LANDMARKS, STAMP, landmark

from scroll_context.errors import ScrollError
from scroll_context.events import EVERYTHING, Event, Kind, Scope
from scroll_context.recall.memory import Memory
from scroll_context.search.index_files import damaged_files
from scroll_context.session.past import lineage
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify
from scroll_context.view.working import WorkingView


class Finding(msgspec.Struct, frozen=True):
    """One check: what it looked at, and what it found wrong."""

    name: str
    seen: str
    wrong: tuple[str, ...] = ()


def inspect(folder: Path, notes: Path) -> Iterator[Finding]:
    """Every check of the store, in the order in which a reader wants to know."""
    with Store(folder) as store:
        yield _acknowledged(store, notes)
        yield _chain(store)
        yield _order(store)
        yield _evicted(store)
        yield _endings(store)
        yield _searchable(store)


def flatness(crew: Crew) -> Iterator[Finding]:
    """What the workers that lived as long as the soak took of the machine."""
    steady = {member.orders.name: member.vitals for member in crew.members if member.steady}
    yield _flat(
        "memory",
        steady,
        lambda vitals: vitals.memory_is_flat,
        lambda sample: f"{sample.memory / 1e6:.0f} MB",
    )
    yield _flat(
        "open files", steady, lambda vitals: vitals.files_are_flat, lambda sample: str(sample.files)
    )


def _acknowledged(store: Store, notes: Path) -> Finding:
    wrong, count = [], 0
    for seq, payload, digest in acknowledged(notes):
        count += 1
        try:
            if not is_as_noted(store, seq, payload, digest):
                wrong.append(f"seq {seq} is missing or differs")
        except ScrollError as error:
            wrong.append(f"seq {seq}: {error}")
    if not count:
        wrong.append("nothing was acknowledged at all")
    return Finding("acknowledged events are there, byte for byte", f"{count:,}", tuple(wrong))


def _chain(store: Store) -> Finding:
    verdict = verify(store.log)
    wrong = tuple(f"seq {seq}: {why}" for seq, why in verdict.bad)
    return Finding(
        "the chain and every payload verify",
        f"{verdict.events:,} events, {verdict.payloads:,} files",
        wrong,
    )


def _order(store: Store) -> Finding:
    """Seqs follow the order in which a writer wrote, by the clock that never jumps, whatever the
    dates say.
    """
    wrong, newest, backwards, before = [], dict[str, float](), 0, ""
    for event in store.log.iterate():
        backwards += event.recorded_at < before
        before = event.recorded_at
        if stamp := STAMP.search(event.content):
            written = float(stamp[1])
            if written < newest.get(event.session_id, 0.0):
                wrong.append(f"seq {event.seq} was written before one that has a lower seq")
            newest[event.session_id] = written
    if not backwards:
        wrong.append("no clock ran backwards, so nothing was tried")
    return Finding(
        "seqs are in the order of writing", f"dates ran backwards {backwards:,} times", tuple(wrong)
    )


def _evicted(store: Store) -> Finding:
    """Whatever a view no longer shows: a line of the index names it, and `ms.expand` gives the
    model its whole text.

    No text of the soak is too long for that; one that is comes as a handle, which the tests of the
    surface read.
    """
    wrong, count = [], 0
    memory = Memory(store, Scope("soak"), "all", _Nothing())
    for info in store.log.sessions(EVERYTHING):
        events = list(lineage(store, info.session_id))
        if not any(event.kind == Kind.EVICTION for event in events):
            continue
        view = WorkingView.replay(events)
        for event in events:
            if event.kind in (Kind.REQUEST, Kind.SESSION, Kind.SNAPSHOT, Kind.EVICTION) or view.get(
                event.seq
            ):
                continue
            count += 1
            why = _lost(store, memory, view, event)
            wrong += [f"seq {event.seq} of {info.session_id} {why}"] if why else []
    memory.close()
    if not count:
        wrong.append("nothing was evicted")
    return Finding(
        "every event that left a view is in its index and expands", f"{count:,}", tuple(wrong)
    )


def _lost(store: Store, memory: Memory, view: WorkingView, event: Event) -> str:
    """Why a model could not get an event back; empty when it can."""
    # A call inside a cell is part of that step.
    inside = event.metadata.get("inside_cell", event.seq)
    if not (view.get(inside) or view.index.find(inside)):
        return "is named by no line of the index"
    try:
        row = memory.call("ms.expand", event.seq).value["rows"][0]
        return "" if row["content"] == store.log.text(event) else "expands to something else"
    except ScrollError as error:
        return f"does not expand: {error}"


def _endings(store: Store) -> Finding:
    """Whatever was cut off has an ending in the log, in every session that went on afterwards.

    A call whose result the log had no room for may lack one, if the cell that made it is known to
    have failed.
    """
    begun: dict[int, Event] = {}
    ended: set[int] = set()
    # The seqs of cells.
    failed: set[int] = set()
    # The newest request of each session.
    went_on: dict[str, int] = {}
    cut = 0
    for event in store.log.iterate():
        if event.kind in (Kind.CELL, Kind.TOOL_CALL):
            begun[event.seq] = event
        elif event.kind in (Kind.OBSERVATION, Kind.TOOL_RESULT):
            ended.add(event.reply_to or 0)
            cut += event.tool_state in ("killed", "unknown")
            if event.kind == Kind.OBSERVATION and event.tool_state != "ok":
                failed.add(event.reply_to or 0)
        elif event.kind == Kind.REQUEST:
            went_on[event.session_id] = event.seq
    wrong = tuple(
        f"the {event.kind} at seq {seq} of {event.session_id} has no ending"
        for seq, event in begun.items()
        if seq not in ended
        and event.metadata.get("inside_cell") not in failed
        and seq < went_on.get(event.session_id, 0)
    )
    return Finding("what was cut off is closed and told", f"{cut:,} cut off", wrong)


def _searchable(store: Store) -> Finding:
    """In the index as the soak has left it, merged and repaired many times."""
    store.index.catch_up()
    wrong = [f"{name} does not match its checksum" for name in damaged_files(store.index.folder)]
    for number in range(LANDMARKS):
        hits = store.index.search(f"lighthouse{number}", k=3)
        if [hit.event.content for hit in hits] != [landmark(number)]:
            wrong.append(f"lighthouse{number} is not found")
    if store.index.indexed_seq != store.log.last_seq():
        wrong.append(f"indexed up to {store.index.indexed_seq} of {store.log.last_seq()}")
    return Finding("the index is whole and finds what was planted", f"{LANDMARKS}", tuple(wrong))


def _flat(
    what: str,
    steady: dict[str, Vitals],
    is_flat: Callable[[Vitals], bool],
    text_of: Callable[[Sample], str],
) -> Finding:
    seen, wrong = [], []
    for name, vitals in steady.items():
        if grown := vitals.growth():
            seen.append(text := f"{name} {text_of(grown[0])} → {text_of(grown[1])}")
            wrong += [] if is_flat(vitals) else [text]
    return Finding(
        f"{what} of long-lived workers: flat", ", ".join(seen) or "too few samples", tuple(wrong)
    )


class _Nothing:
    """What the memory surface asks of a session, where there is none."""

    def visible_seqs(self) -> tuple[int, ...]:
        return ()

    def index_lines(self) -> list[dict[str, object]]:
        return []

    def provenance(self, name: str) -> dict[str, object]:
        raise KeyError(name)
