"""How long an assistant waits for a hook, on a store of 100,000 messages: `python
benchmarks/hooks.py [--runs N]`.

Each call is the command that `scroll install` writes, a process of its own, timed from its start to
its end as the assistant would. An empty Python program is timed beside it, in turns, because most
of a hook is the start of Python. `cpu` is the processor time of the call (median), which says more
than the others on a machine with other work to do. One row is how long a capture takes in the
background until the new line is recorded; nobody waits for it.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scroll_assistants.project import project_task
from scroll_assistants.settings_entries import scroll_command
from scroll_context.events import Draft
from scroll_context.store import Store

GOAL_MS = 150.0
SESSION = "00000000-0000-4000-8000-000000000000"
PROJECTS = 4
WORDS = """the shop basket price order user test page table query module function error line value
file check build branch deploy server cache index parser token config style button review commit
merge log graph field route client schema""".split()
FACT = "The staging server listens on port 8443, behind the halcyon proxy."
ASKED = "Which port does the staging server listen on, behind the halcyon proxy?"
UNRELATED = "Please check the price of the basket on the page, and review the order table."
RULES = (
    "Always run the linter before a commit.",
    "From now on, answer in short sentences.",
    "Never touch the lock file.",
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=100, help="calls of each event")
    options.add_argument("--messages", type=int, default=100_000)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="scroll-hooks-") as name:
        folder = Path(name)
        projects = [folder / f"project-{number}" for number in range(PROJECTS)]
        for project in projects:
            project.mkdir()
        with Store(folder / "store", create=True) as store:
            fill(store, projects, arguments.messages)
            store.append(Draft(role="user", task_id=project_task(projects[0]), content=FACT))
            store.index.catch_up()
        measure(folder, projects[0], arguments.runs)


def fill(store: Store, projects: list[Path], messages: int) -> None:
    """Sessions of 1,000 messages as a coding assistant has them: a tenth is the user's, most are
    calls and results.
    """
    chance = random.Random(7)
    batch: list[Draft] = []
    for number in range(messages):
        block = number // 1_000
        # The newest session is that of the first project.
        last = block == messages // 1_000 - 1
        project = projects[0 if last else block % len(projects)]
        common = {
            "session_id": SESSION if last else f"session-{block}",
            "task_id": project_task(project),
            "agent_id": "claude-code",
            "source_key": f"import:claude-code:{number}:0",
        }
        match number % 10:
            case 0:
                rule = f"{chance.choice(RULES)} " if chance.random() < 0.05 else ""
                batch.append(
                    Draft(role="user", content=f"{rule}Please {words(chance, 25)}.", **common)
                )
            case 1 | 4 | 7:
                lines = (
                    f"{words(chance, 15).capitalize()}. We decided to {words(chance, 6)}. "
                    f"{words(chance, 30)}."
                )
                batch.append(Draft(role="assistant", content=lines, **common))
            case 2 | 5 | 8:
                path = str(project / "src" / f"{chance.choice(WORDS)}.py")
                body = json.dumps(
                    {
                        "file_path": path,
                        "old_string": words(chance, 20),
                        "new_string": words(chance, 20),
                    }
                )
                batch.append(
                    Draft(kind="tool_call", role="assistant", name="Edit", content=body, **common)
                )
            case _:
                batch.append(
                    Draft(
                        kind="tool_result",
                        role="tool",
                        name="Edit",
                        content=words(chance, 200),
                        **common,
                    )
                )
        if len(batch) == 5_000 or number == messages - 1:
            store.log.append_many(batch)
            batch.clear()


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))


def measure(folder: Path, project: Path, runs: int) -> None:
    transcript = folder / f"{SESSION}.jsonl"
    transcript.touch()
    command = [*scroll_command(), "hook", "claude-code", "--store", str(folder / "store")]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    # An installed package is compiled.
    for name in (
        "CLAUDE_PROJECT_DIR",
        "PYTHONDONTWRITEBYTECODE",
    ):
        environment.pop(name, None)
    times: dict[str, list[tuple[float, float]]] = {}

    def call(row: str, event: str, **fields: Any) -> None:
        message = {"hook_event_name": event, "session_id": SESSION, "cwd": str(project), **fields}
        answer = timed(row, command, json.dumps(message))
        is_answered = event == "SessionStart" or fields.get("prompt") == ASKED
        assert bool(answer) == is_answered, (event, answer)

    def timed(row: str, words: list[str], stdin: str = "") -> str:
        began, used = time.perf_counter(), cpu()
        done = subprocess.run(
            words, input=stdin, env=environment, capture_output=True, text=True, check=True
        )
        times.setdefault(row, []).append((time.perf_counter() - began, cpu() - used))
        return done.stdout

    # This compiles the remaining modules.
    call("", "SessionStart", source="startup")
    times.clear()
    for number in range(runs):
        timed("an empty Python program", [sys.executable, "-c", "pass"])
        write(transcript, project, number)
        began = time.perf_counter()
        call("an event that captures", "Stop", transcript_path=str(transcript))
        wait_for_line(folder, number)
        times.setdefault("(until it is recorded, in the background)", []).append(
            (time.perf_counter() - began, 0.0)
        )
        call("the start of a session", "SessionStart", source="startup")
        call("the start after a compaction", "SessionStart", source="compact")
        call("a prompt with a brief", "UserPromptSubmit", prompt=ASKED)
        call("a prompt without one", "UserPromptSubmit", prompt=UNRELATED)
        arguments = {"command": f"pytest -q tests/test_{number}.py"}
        call("before a command", "PreToolUse", tool_input=arguments)
        arguments = {"file_path": str(project / "src" / f"new_{number}.py")}
        call("before an edit", "PreToolUse", tool_input=arguments)
    print(
        f"{runs} calls each, in ms; load average {os.getloadavg()[0]:.1f}; the goal is a p95 of "
        f"{GOAL_MS:.0f}"
    )
    print(f"{'':42} {'p50':>6} {'p95':>6} {'max':>6} {'cpu':>6}")
    for row, row_times in times.items():
        walls = [wall * 1e3 for wall, _ in row_times]
        p95 = statistics.quantiles(walls, n=20)[-1]
        processor = statistics.median(used * 1e3 for _, used in row_times)
        print(
            f"{row:42} {statistics.median(walls):6.0f} {p95:6.0f} {max(walls):6.0f} "
            f"{processor:6.0f}"
        )


def cpu() -> float:
    """Processor seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write(transcript: Path, project: Path, number: int) -> None:
    line = {
        "type": "user",
        "uuid": f"{number:08}-0000-4000-8000-000000000000",
        "sessionId": SESSION,
        "cwd": str(project),
        "timestamp": "2026-11-16T10:00:00Z",
        "message": {"role": "user", "content": f"message {number}"},
    }
    with transcript.open("a") as file:
        file.write(json.dumps(line) + "\n")


def wait_for_line(folder: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    with Store(folder / "store") as store:
        while not any(event.content == f"message {number}" for event in store.log.tail(3)):
            if time.monotonic() > deadline:
                raise TimeoutError((folder / "state" / "scroll" / "hooks.log").read_text())
            time.sleep(0.005)


if __name__ == "__main__":
    main()
