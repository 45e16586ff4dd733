"""How long a coding assistant's past takes until it can be searched: `python
benchmarks/transcripts.py [--messages N]`.

Transcripts of Claude Code are made up (50 sessions, a third of the lines results of tools, now and
then a key) in a home folder of their own. Then `scroll import --all` is timed as its user would,
from its start to its end, when everything is in the log and indexed; then a search; then a second
`scroll import --all`, which finds nothing new. `cpu` is processor time, which says more than the
wall clock on a machine with other work to do.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scroll_assistants.settings_entries import scroll_command

SESSIONS = 50
WORDS = """the booth barrier lamp road toll price driver lane camera ticket shift server cache index
parser token config style button review commit merge log graph field route client schema test page
table query module function error line value file check build branch deploy""".split()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--messages", type=int, default=100_000)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="scroll-transcripts-") as name:
        home = Path(name)
        size = write(home, arguments.messages)
        print(
            f"{arguments.messages:,} messages in {SESSIONS} transcripts, {size / (1 << 20):,.0f} "
            "MiB"
        )
        first = timed(home, "import --all until searchable", "import", "--all", "--json")
        (report,) = json.loads(first)
        assert report["added"] == arguments.messages, report
        print(f"  secrets replaced: {sum(report['redacted'].values()):,}")
        timed(
            home,
            "search, a process of its own",
            "search",
            "barrier 77",
            "--store",
            str(home / ".scroll"),
        )
        timed(home, "import --all again", "import", "--all", "--json")


def write(home: Path, messages: int) -> int:
    chance = random.Random(7)
    size = 0
    for session in range(SESSIONS):
        project = home / ".claude" / "projects" / f"-home-ada-project-{session % 7}"
        project.mkdir(parents=True, exist_ok=True)
        with (project / f"session-{session:04}.jsonl").open("w") as file:
            for number in range(session, messages, SESSIONS):
                size += file.write(json.dumps(line(chance, session, number)) + "\n")
    return size


def line(chance: random.Random, session: int, number: int) -> dict[str, object]:
    def words(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count)) + f" {number % 1000}"

    role = "user" if number % 3 != 1 else "assistant"
    content: object = words(40)
    if number % 3 == 1:
        content = [
            {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": words(8)}}
        ]
    elif number % 3 == 2:
        key = " ghp_" + "a1B2" * 9 if number % 300 == 2 else ""
        content = [
            {"type": "tool_result", "tool_use_id": f"t{number - 1}", "content": words(200) + key}
        ]
    clock = f"{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
    return {
        "type": role,
        "uuid": f"{number:032x}",
        "parentUuid": None,
        "sessionId": f"session-{session:04}",
        "cwd": f"/home/ada/project-{session % 7}",
        "gitBranch": "main",
        "version": "2.1",
        "isSidechain": False,
        "timestamp": f"2026-03-{1 + session % 28:02}T{clock}Z",
        "message": {"role": role, "content": content},
    }


def timed(home: Path, what: str, *arguments: str) -> str:
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "SCROLL_KEY_FILE": str(home / "key"),
    }
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [*scroll_command(), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(f"  {what:<32} {wall:7.2f} s   cpu {cpu:6.2f} s", file=sys.stdout, flush=True)
    return done.stdout


if __name__ == "__main__":
    main()
