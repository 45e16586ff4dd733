"""kill -9 of a run at random moments: it goes on, repeats nothing that was finished, and ends with
the same scores.
"""

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from forms import form
from scroll_evals.results import RunFolder
from small import FACTS

ROUNDS = form(5, 10)
JOBS = 2


def test_a_killed_run_repeats_no_finished_work(tmp_path: Path) -> None:
    rng = random.Random(11)
    run, ledger = tmp_path / "run", tmp_path / "ledger"
    ledger.touch()
    command = [
        sys.executable,
        str(Path(__file__).with_name("killed_run_driver.py")),
        str(run),
        str(ledger),
    ]
    kills = 0
    finished: dict[str, int] = {}  # task -> lines of the ledger when its verdict was seen on disk
    while kills < ROUNDS:
        after = (
            rng.choice((0.0, 0.002, 0.01, 0.03, 0.1)) if kills >= 3 else 0.0
        )  # a fast machine must not get done
        done = subprocess.run(
            [*command, str(rng.randint(1, 3)), str(after)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        if done.returncode == 0:
            break
        kills += 1
        lines = len(ledger.read_text().splitlines())
        for attempt in RunFolder(run).attempts():
            if RunFolder(run).judgement(attempt.task_id).judged is not None:
                finished.setdefault(attempt.task_id, lines)
    final = subprocess.run([*command, "0", "0"], capture_output=True, text=True, timeout=300)
    assert final.returncode == 0, final.stderr
    assert final.stdout.split() == ["4", "1.0"]
    assert kills >= 3

    calls = [line.split()[1:] for line in ledger.read_text().splitlines()]
    for task, at in finished.items():
        thing = task.rsplit("/", 1)[1]
        assert not [call for call in calls[at:] if call[1].startswith(thing)], (
            f"{task} was finished and went on"
        )
    counts = Counter(map(tuple, calls))
    for thing in (thing for facts in FACTS.values() for thing in facts):
        assert (
            counts["agent", thing] >= 2
            and counts["judge", thing] >= 1
            and counts["judge", f"{thing}+polite"] >= 1
        )
    assert len(calls) <= 16 + kills * JOBS  # of each worker, the one reply that was on its way
