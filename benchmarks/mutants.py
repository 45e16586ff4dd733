"""Mutation testing of the parts that must not be wrong: is there a test that fails when a line of
them is changed?

    make mutants                     every area, which takes hours
    make mutants AREA="chain quota --sample 100"  a part of some of them

Each area names modules and the tests that have to notice. The work is done by cosmic-ray in a copy
of the source, so the working tree is never changed. What survives is printed with its change;
docs/MUTANTS.md lists those that may.
"""

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = "packages/scroll-context/src/scroll_context"
TESTS = "packages/scroll-context/tests"


class Area(NamedTuple):
    """Modules, the tests that have to notice a change in them, and more tests for the changes that
    these let pass.
    """

    modules: list[str]
    tests: list[str]
    more: Sequence[str] = ()


VIEW = [
    f"view/test_view_{name}.py" for name in ("eviction", "index", "topics", "outcomes", "working")
]
AREAS = {
    "chain": Area(
        ["log/chain.py", "upkeep/integrity.py"], ["log/test_chain.py", "upkeep/test_verify.py"]
    ),
    "log": Area(
        ["log/log.py", "log/rows.py", "log/schema.py"],
        [
            "log/test_chain.py",
            "log/test_private.py",
            "log/test_read_only.py",
            "log/test_log.py",
            "log/test_rows.py",
            "log/test_log_turns.py",
            "log/test_log_connections.py",
            "log/test_close_under_use.py",
        ],
        [
            "upkeep/test_erase.py",
            "log/test_limits.py",
            "log/test_payloads.py",
            "upkeep/test_transfer.py",
            "upkeep/test_salvage.py",
            "log/test_journal.py",
            "importers/test_import_keys.py",
        ],
    ),
    "grants": Area(
        ["events.py", "search/query.py"],
        ["search/test_search_grants.py", "search/test_query.py"],
        [
            "search/test_search.py",
            "log/test_log.py",
            "recall/test_recall.py",
            "recall/test_memory.py",
        ],
    ),
    "sql": Area(
        ["sql/guard.py", "sql/statement.py"], ["sql/test_sql.py", "sql/test_sql_attacks.py"]
    ),
    "eviction": Area(
        ["view/eviction.py"],
        VIEW,
        [
            "view/test_view_replay.py",
            "view/test_view_properties.py",
            "agent/test_earlier.py",
            "agent/test_budget.py",
        ],
    ),
    "index": Area(
        ["view/index.py"],
        VIEW,
        [
            "view/test_view_replay.py",
            "view/test_view_properties.py",
            "agent/test_earlier.py",
            "agent/test_explain.py",
        ],
    ),
    "quota": Area(["log/journal.py"], ["log/test_journal.py", "log/test_limits.py"], ["session"]),
    "jail": Area(
        ["jail/linux.py", "jail/supervisor.py"],
        [
            "jail/test_jail_process.py",
            "kernel/test_idle.py",
            "kernel/test_processes.py",
            "kernel/test_variable_reports.py",
        ],
        ["jail/test_attacks.py"],
    ),
}

CONFIG = """
[cosmic-ray]
module-path = {modules}
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -q -x -n 0 -p no:cacheprovider {tests}"

[cosmic-ray.distributor]
name = "local"
"""


def choose(session: Path, sample: int | None) -> int:
    """Keep one change of a kind at a place, and of those a random part, the same in every run; the
    number kept.

    `|` is left alone: it stands in the types. So are decorators: `@property` and `@override` have
    no behaviour to test.
    """
    with sqlite3.connect(session) as connection:
        jobs: dict[tuple[str, int, int, str], str] = {}
        for job, module, row, column, operator in connection.execute(
            "SELECT job_id, module_path, start_pos_row, start_pos_col, operator_name FROM "
            "mutation_specs WHERE operator_name NOT LIKE '%BitOr%' AND operator_name NOT LIKE "
            "'%Decorator%' ORDER BY module_path, start_pos_row, start_pos_col, operator_name, "
            "occurrence"
        ):
            jobs.setdefault((module, row, column, operator.partition("_")[0]), job)
        chosen = list(jobs.values())
        if sample is not None and sample < len(chosen):
            chosen = random.Random(0).sample(chosen, sample)
        connection.execute(
            "CREATE TEMP TABLE kept AS SELECT value AS job_id FROM json_each(?)",
            (json.dumps(chosen),),
        )
        for table in ("mutation_specs", "work_items"):
            connection.execute(f"DELETE FROM {table} WHERE job_id NOT IN (SELECT job_id FROM kept)")
    return len(chosen)


def survivors(name: str, timeout: float, sample: int | None) -> list[str]:
    """Run one area; the changes that no test noticed, as diffs."""
    area = AREAS[name]
    with tempfile.TemporaryDirectory(prefix="scroll-mutants-") as folder:
        copy = Path(folder)
        for part in ("packages", "testing", "tests", "pyproject.toml", "conftest.py", "README.md"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        paths = [f"{SOURCE}/{module}" for module in area.modules]
        tests = [f"{TESTS}/{test}" for test in [*area.tests, *area.more]]
        if missing := [path for path in [*paths, *tests] if not (copy / path).exists()]:
            raise SystemExit(f"{name} names files that are not there: {', '.join(missing)}")

        def configure(tests: Sequence[str], timeout: float) -> None:
            test_paths = " ".join(f"{TESTS}/{test}" for test in tests)
            settings = CONFIG.format(
                modules=paths, timeout=timeout, python=sys.executable, tests=test_paths
            )
            (copy / "mutants.toml").write_text(settings)

        configure(area.tests, timeout)
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy / "packages/scroll-context/src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

        def run(*command: str) -> str:
            tool = Path(sys.executable).with_name(command[0])
            done = subprocess.run(
                [tool, *command[1:]],
                cwd=copy,
                env=environment,
                text=True,
                capture_output=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(
                    f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
            return done.stdout

        run("cosmic-ray", "init", "mutants.toml", "mutants.sqlite")
        chosen = choose(copy / "mutants.sqlite", sample)
        print(f"== {name}: {chosen} changes to try", flush=True)
        run("cosmic-ray", "baseline", "mutants.toml")
        run("cosmic-ray", "exec", "mutants.toml", "mutants.sqlite")
        # The survivors are tried once more.
        if area.more:
            configure(area.more, 10 * timeout)
            with sqlite3.connect(copy / "mutants.sqlite") as connection:
                connection.execute("DELETE FROM work_results WHERE test_outcome = 'SURVIVED'")
            run("cosmic-ray", "exec", "mutants.toml", "mutants.sqlite")
        report = run("cr-report", "--surviving-only", "--show-diff", "mutants.sqlite")
    return report.split("[job-id]")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "areas", nargs="*", choices=[*AREAS, []], help="areas; all when none is named"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for the tests of one change"
    )
    parser.add_argument("--sample", type=int, help="try this many changes of each area")
    arguments = parser.parse_args()
    for name in arguments.areas or AREAS:
        _, *surviving = survivors(name, arguments.timeout, arguments.sample)
        print(f"== {name}: {len(surviving)} changes that no test noticed", flush=True)
        for survivor in surviving:
            print(survivor.strip(), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
