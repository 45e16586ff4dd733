"""kill -9 of a running agent, at random moments: it resumes, nothing is lost, no effect is repeated
unreported.
"""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from forms import form
from scroll_context.events import Event, Kind
from scroll_context.session.past import lineage
from scroll_context.store import Store
from scroll_context.upkeep.integrity import verify
from scroll_context.view.working import WorkingView

ROUNDS = form(10, 30)
STEPS = 3  # that one round gets to do at most


def kill_once(command: list[str], ledger: Path, rng: random.Random) -> None:
    """Start the agent, and end it while it starts or some steps later.

    It waits to be killed when it gets too far.
    """
    before = size(ledger)
    process = subprocess.Popen(
        [*command, str(STEPS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.5))
        else:
            grown = before + rng.randint(
                1, 2 * STEPS
            )  # each effect is a line of at least two bytes
            while size(ledger) < grown and process.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.02))
        assert process.poll() is None, process.communicate()
    finally:
        process.kill()
        process.communicate()


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def about(number: int, events: list[Event]) -> str:
    """What the log says of one effect: its cells with all that belongs to them, and what happened
    to the view then.
    """
    cells = {
        event.seq
        for event in events
        if event.kind == Kind.CELL and f"transfer({number})" in event.content
    }
    own = [
        event
        for event in events
        if {event.seq, event.reply_to, event.metadata.get("inside_cell")} & cells
    ]
    turns = [event for event in events if event.kind in (Kind.EVICTION, Kind.NOTICE)]
    between = [event for event in turns if own and own[0].seq < event.seq < own[-1].seq]
    lines = sorted(
        (event.seq, str(event.kind), event.tool_state, event.content[:300])
        for event in own + between
    )
    return f"transfer({number}):\n" + "\n".join(map(str, lines))


def test_a_killed_agent_resumes(tmp_path: Path) -> None:
    rng = random.Random(5)
    folder, ledger = tmp_path / "store", tmp_path / "ledger"
    command = [
        sys.executable,
        str(Path(__file__).with_name("kill_driver.py")),
        str(folder),
        str(ledger),
    ]
    seen = 0
    for _ in range(ROUNDS):
        kill_once(command, ledger, rng)
        with Store(folder, create=True) as store:
            assert store.log.last_seq() >= seen
            seen = store.log.last_seq()
    final = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert final.returncode == 0 and final.stdout.strip() == "answered", final.stderr

    with Store(folder) as store:
        assert verify(store.log).ok
        events = list(lineage(store, "work"))
        calls = Counter()
        reported = Counter()
        started = {}
        for event in events:
            if event.kind == Kind.TOOL_CALL:
                number = int(event.content.split(":")[1].strip(" }"))
                calls[number] += 1
                started[event.seq] = number
            elif event.kind == Kind.TOOL_RESULT and event.tool_state == "unknown":
                reported[started[event.reply_to]] += 1
            elif event.kind == Kind.OBSERVATION and event.tool_state == "killed":
                cell = store.log.get(event.reply_to)
                reported[int(cell.content.split("transfer(")[1].split(")")[0])] += 1
        effects = Counter(int(line) for line in ledger.read_text().split())
        assert set(effects) == set(range(1, 121))
        for number, times in effects.items():
            told = about(number, events)
            assert calls[number] >= times, (
                told
            )  # every effect was announced in the log before it happened
            assert times == 1 or reported[number] >= times - 1, (
                told
            )  # and none was repeated unreported
        view = WorkingView.replay(events)
        assert view.index.levels
        for event in events:
            assert store.log.text(store.log.get(event.seq)) == store.log.text(event)
