"""kill -9 of a running agent, at random moments: it resumes, nothing is lost, no effect is repeated unreported."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from scroll_context.agent.session import lineage
from scroll_context.events import Kind
from scroll_context.store.store import Store
from scroll_context.store.verify import verify
from scroll_context.view.working import WorkingView

ROUNDS = 30


def test_a_killed_agent_resumes(tmp_path: Path) -> None:
    rng = random.Random(5)
    folder, ledger = tmp_path / "store", tmp_path / "ledger"
    command = [sys.executable, str(Path(__file__).with_name("kill_driver.py")), str(folder), str(ledger)]
    kills, seen = 0, 0
    for _ in range(ROUNDS):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=rng.uniform(0.3, 1.1))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        else:
            assert process.returncode == 0, err
            assert out.strip() == "answered"
        with Store(folder, create=True) as store:
            assert store.log.last_seq() >= seen
            seen = store.log.last_seq()
    final = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert final.returncode == 0 and final.stdout.strip() == "answered", final.stderr
    assert kills >= ROUNDS // 3

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
            assert calls[number] >= times  # every effect was announced in the log before it happened
            assert times == 1 or reported[number] >= times - 1  # and none was repeated unreported
        view = WorkingView.replay(events)
        assert view.index.blocks > 0
        for event in events:
            assert store.log.text(store.log.get(event.seq)) == store.log.text(event)
