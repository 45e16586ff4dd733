"""A short soak on every run of the tests, and proof that the soak notices violations."""

import contextlib
import datetime as dt
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import inspection
import notes
import pytest
import workers
from crew import Crew
from timeline import GRACE, Struck, Timeline
from vitals import MORE_FILES, Sample, Vitals

from damage import replace_with
from forms import form
from scroll_context.agent.agent import Agent, Limits
from scroll_context.errors import PayloadDamaged
from scroll_context.events import Draft, Kind
from scroll_context.log import log as log_module
from scroll_context.models import ScriptedModel
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.index import EvictionIndex

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak"

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the soak looks at its workers through /proc"
)


@on_linux
@pytest.mark.first
def test_everything_goes_wrong_once_or_for_two_minutes() -> None:
    size = [
        "--agents",
        "2",
        "--others",
        "2",
        "--pace",
        "0.03",
    ]  # leaves some of the machine to the other tests
    command = [sys.executable, str(SOAK), "--minutes", form("0", "2"), "--seed", "11", *size]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SOAK_")
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("survived")


# what is inspected at the end ---------------------------------------------------------------------


class Remains:
    """What a soak leaves: a store and the notes of its workers."""

    def __init__(self, base: Path) -> None:
        self.store, self.notes = base / "store", base / "notes"

    def wrong(self) -> list[str]:
        """Which checks fail."""
        return [
            finding.name for finding in inspection.inspect(self.store, self.notes) if finding.wrong
        ]

    def append(self, *drafts: Draft) -> None:
        with Store(self.store) as store:
            store.log.append_many(drafts)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small soak without faults: one agent, one writer, and a clock that ran back."""
    base = tmp_path_factory.mktemp("soak")
    (base / "notes").mkdir()
    with Store(base / "store", create=True) as store:
        notes.Ledger(base / "notes", "all").watch(store)
        store.log.append_many(
            Draft(role="user", content=workers.landmark(n)) for n in range(workers.LANDMARKS)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                log_module, "utc_now", lambda: dt.datetime(2020, 1, 1, tzinfo=dt.UTC).isoformat()
            )
            store.append(
                Draft(session_id="writer0", role="user", content="at 1.000000 " + "x" * 40_000)
            )
        with Session.open(store, session_id="agent0-0", tools=[workers.fetch]) as session:
            session.say("Read every record of the harbour, in order.")
            Agent(
                session,
                ScriptedModel(workers.script, window=workers.WINDOW),
                limits=Limits(steps=40),
            ).run()
    return base


@pytest.fixture
def remains(sound: Path, tmp_path: Path) -> Remains:
    shutil.copytree(sound, tmp_path / "copy")
    return Remains(tmp_path / "copy")


def test_a_sound_store_passes(remains: Remains) -> None:
    findings = list(inspection.inspect(remains.store, remains.notes))
    assert [finding.wrong for finding in findings] == [()] * 6


def lose_an_event(remains: Remains) -> None:
    with Store(remains.store) as store:
        unheard = store.log.last_seq() + 1
    (remains.notes / "w.1.acks").write_text(f"{unheard} - {'0' * 64}\n")


def change_an_event(remains: Remains) -> None:
    raw = sqlite3.connect(remains.store / "log.db")
    raw.execute("DROP TRIGGER event_no_update")
    raw.execute("UPDATE event SET content = 'forged' WHERE seq = 5")
    raw.commit()
    raw.close()


def lose_a_body(remains: Remains) -> None:
    with Store(remains.store) as store:
        evicted = store.log.tail(1, session_id="agent0-0", kind=Kind.EVICTION)[0].seq
        bodies = [
            e
            for e in store.log.iterate(until=evicted, session_id="agent0-0", kind=Kind.TOOL_RESULT)
            if e.payload
        ]
        store.payloads.path(bodies[0].payload.digest).unlink()


def leave_a_cell_open(remains: Remains) -> None:
    remains.append(
        Draft(session_id="agent0-0", kind=Kind.CELL, role="assistant", content="x"),
        Draft(session_id="agent0-0", kind=Kind.REQUEST),
    )


def swap_two_events(remains: Remains) -> None:
    remains.append(
        *(Draft(session_id="writer0", content=f"at {second}.000000 ") for second in (9, 8))
    )


def plant_another(remains: Remains) -> None:
    remains.append(Draft(session_id="planted", content=workers.landmark(3)))


def flip_a_bit_of_the_index(remains: Remains) -> None:
    """In a file that finding the landmarks takes no look at."""
    with Store(remains.store) as store:
        store.index.catch_up()
    file = sorted((remains.store / "index").glob("v*/*.pos"))[0]
    body = file.read_bytes()
    replace_with(file, bytes([body[0] ^ 1]) + body[1:])


ACKNOWLEDGED = "acknowledged events are there, byte for byte"
CHAIN = "the chain and every payload verify"
FOUND = "the index is whole and finds what was planted"
EVICTED = "every event that left a view is in its index and expands"
SABOTAGE = [
    (lose_an_event, [ACKNOWLEDGED]),
    (change_an_event, [ACKNOWLEDGED, CHAIN, FOUND]),
    (lose_a_body, [ACKNOWLEDGED, CHAIN, EVICTED]),
    (
        leave_a_cell_open,
        [EVICTED, "what was cut off is closed and told"],
    ),  # nor is it part of any step
    (swap_two_events, ["seqs are in the order of writing"]),
    (plant_another, [FOUND]),
    (flip_a_bit_of_the_index, [FOUND]),
]


@pytest.mark.parametrize(("sabotage", "noticed"), SABOTAGE)
def test_every_loss_is_noticed(
    remains: Remains, sabotage: Callable[[Remains], None], noticed: list[str]
) -> None:
    sabotage(remains)
    assert remains.wrong() == noticed


def test_an_event_that_the_index_does_not_name_is_noticed(
    remains: Remains, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EvictionIndex, "find", lambda *_: None)
    assert remains.wrong() == [EVICTED]


def test_a_soak_in_which_nothing_happened_proves_nothing(tmp_path: Path) -> None:
    empty = Remains(tmp_path)
    Store(empty.store, create=True).close()
    assert {ACKNOWLEDGED, EVICTED, "seqs are in the order of writing"} <= set(empty.wrong())


def vitals(*samples: tuple[int, int]) -> Vitals:
    taken = Vitals()
    taken.samples = [
        Sample(float(n), memory << 20, files) for n, (memory, files) in enumerate(samples)
    ]
    return taken


def test_leaks_are_noticed() -> None:
    flat = vitals(*((100 + n % 7, 20 + n % 3) for n in range(600)))
    leaking = vitals(*((100 + n // 4, 20 + n // 20) for n in range(600)))
    assert flat.memory_is_flat and flat.files_are_flat
    assert not leaking.memory_is_flat and not leaking.files_are_flat
    assert (
        vitals(*((100, 20 + n * (4 * MORE_FILES) // 60) for n in range(60))).files_are_flat is False
    )


@on_linux
def test_this_process_can_be_sampled() -> None:
    taken = Vitals()
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(open(os.devnull))
        taken.take(os.getpid())
    taken.take(os.getpid())
    first, last = taken.samples
    assert first.files > last.files + 10, "threads of other tests may close some files, too"
    assert first.memory > 1 << 20


# faults and their errors --------------------------------------------------------------------------


class Scene:
    """A store with a writer's payload, and a crew of which only the reports exist."""

    def __init__(self, base: Path) -> None:
        self.site = faults.Site(base / "store", None, 0, base / "damaged")
        self.notes = base / "notes"
        self.notes.mkdir()
        self.crew = Crew([], notes.Reports(self.notes))
        with Store(self.site.store, create=True) as store:
            store.append(Draft(session_id="writer0", role="user", content="x" * 40_000))
            (self.digest,) = store.payloads.digests()

    def flip(self) -> str:
        return faults.flip_payload(self.site, self.crew, random.Random(1))

    def is_whole(self) -> bool:
        with Store(self.site.store) as store:
            return len(store.payloads.read(self.digest)) == 40_000


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize(
    "said", [None, ("StoreFull", "{digest}"), ("PayloadDamaged", "another payload")]
)
def test_a_fault_without_its_error_is_noticed(
    scene: Scene, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "SEEN_WITHIN", 0.1)
    if said is not None:
        what, detail = said
        monkeypatch.setattr(
            Crew, "look", lambda _: reporting(scene, what, detail.format(digest=scene.digest))
        )
    with pytest.raises(faults.NotSeen, match="PayloadDamaged"):
        scene.flip()
    assert scene.is_whole()


def test_a_fault_is_undone_when_its_error_was_seen(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_: Crew) -> None:
        with Store(scene.site.store) as store, pytest.raises(PayloadDamaged) as damaged:
            store.payloads.read(scene.site.damaged.read_text())
        reporting(scene, "PayloadDamaged", str(damaged.value))

    monkeypatch.setattr(Crew, "look", look)
    assert "reader0 reported PayloadDamaged" in scene.flip()
    assert scene.is_whole() and not scene.site.damaged.exists()


def reporting(scene: Scene, what: str, detail: str) -> None:
    notes.Diary(scene.notes, "reader0").tell(what, detail)
    scene.crew.reports.refresh()


def test_only_a_fault_of_the_time_explains_an_error() -> None:
    full = next(fault for fault in faults.FAULTS if fault.name == "disk full")
    timeline = Timeline()
    timeline.struck.append(Struck(full, begun=100.0, ended=110.0))
    timeline.recovered += [90.0, 130.0]
    over = 130.0 + GRACE
    reports = [
        notes.Report(at, "writer0", what)
        for at in (99.0, 100.0, over, over + 1)
        for what in ("ok", "StoreFull", "PayloadDamaged")
    ]
    assert [timeline.cause(report) for report in reports if report.what == "StoreFull"] == [
        None,
        full,
        full,
        None,
    ]
    assert len(timeline.unexplained(reports)) == 2 + 4


# what workers note --------------------------------------------------------------------------------


def test_what_was_acknowledged_is_compared_whole(folder: Path, tmp_path: Path) -> None:
    with Store(folder, create=True) as store:
        notes.Ledger(tmp_path, "w").watch(store)
        store.log.append_many(
            [Draft(content="short"), Draft(content="long " * 20_000, metadata={"n": 1})]
        )
        store.append(
            Draft(content="label", payload=store.payloads.put(b"body", "application/x-body"))
        )
        noted = list(notes.acknowledged(tmp_path))
        assert [seq for seq, _, _ in noted] == [1, 2, 3]
        assert all(notes.is_as_noted(store, *line) for line in noted)
        digests = [digest for _, _, digest in noted]
        assert not notes.is_as_noted(store, 1, "-", digests[1])
        assert not notes.is_as_noted(store, 3, "0" * 64, digests[2])
        assert not notes.is_as_noted(store, 4, "-", digests[0])


def test_a_line_that_a_kill_cut_short_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "w.1.acks").write_text("1 - abc\n2 - de")
    assert list(notes.acknowledged(tmp_path)) == [(1, "-", "abc")]
    (tmp_path / "w.1.reports").write_text(
        '{"at": 1.0, "worker": "w", "what": "ok"}\n{"at": 2.0, "wor'
    )
    reports = notes.Reports(tmp_path)
    assert [report.what for report in reports.refresh()] == ["ok"]
    with (tmp_path / "w.1.reports").open("a") as file:
        file.write('ker": "w", "what": "StoreFull"}\n')
    assert [report.what for report in reports.refresh()] == ["StoreFull"]
