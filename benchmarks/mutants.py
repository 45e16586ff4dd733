"""Mutation testing of the parts that must not be wrong: is there a test that fails when a line of them is changed?

    make mutants                     every area, which takes hours
    make mutants AREA="chain quota"  some of them

Each area names modules and the tests that have to notice. The work is done by cosmic-ray in a copy of the source, so
the working tree is never changed. What survives is printed with its change; CONTRIBUTING.md lists those that may.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = "src/scroll_context"

AREAS: dict[str, tuple[list[str], list[str]]] = {  # name: (modules, tests)
    "chain": (["store/chain.py", "store/verify.py"], ["tests/store/test_chain.py", "tests/store/test_verify.py"]),
    "rows": (["store/rows.py"], ["tests/store/test_rows.py", "tests/store/test_log.py"]),
    "schema": (["store/schema.py"], ["tests/store/test_schema.py", "tests/store/test_private.py"]),
    "log": (["store/log.py"], ["tests/store/test_log.py", "tests/store/test_log_turns.py"]),
    "grants": (["events.py", "surface/memory.py"], ["tests/surface"]),
    "sql": (["store/sql.py"], ["tests/store/test_sql.py"]),
    "eviction": (["view/eviction.py"], ["tests/view"]),
    "index": (["view/index.py"], ["tests/view"]),
    "quota": (["store/journal.py"], ["tests/store/test_journal.py"]),
    "jail": (["kernel/jail/limits.py"], ["tests/kernel/jail"]),
}

CONFIG = """
[cosmic-ray]
module-path = {modules}
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -q -x -p no:cacheprovider {tests}"

[cosmic-ray.distributor]
name = "local"
"""


def survivors(name: str, timeout: float) -> list[str]:
    """Run one area; the changes that no test noticed, as diffs."""
    modules, tests = AREAS[name]
    with tempfile.TemporaryDirectory(prefix="scroll-mutants-") as folder:
        copy = Path(folder)
        for part in ("src", "tests", "pyproject.toml", "conftest.py", "README.md"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        paths = [f"{SOURCE}/{module}" for module in modules]
        there = [test for test in tests if (copy / test).exists()]
        (copy / "mutants.toml").write_text(
            CONFIG.format(modules=paths, timeout=timeout, python=sys.executable, tests=" ".join(there))
        )
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

        def run(*command: str) -> str:
            tool = Path(sys.executable).with_name(command[0])
            done = subprocess.run(
                [tool, *command[1:]], cwd=copy, env=environment, text=True, capture_output=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            return done.stdout

        run("cosmic-ray", "init", "mutants.toml", "mutants.sqlite")
        run("cosmic-ray", "baseline", "mutants.toml")
        run("cosmic-ray", "exec", "mutants.toml", "mutants.sqlite")
        report = run("cr-report", "--surviving-only", "--show-diff", "mutants.sqlite")
    return report.split("[job-id]")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("areas", nargs="*", choices=[*AREAS, []], help="areas; all when none is named")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for the tests of one change")
    arguments = parser.parse_args()
    for name in arguments.areas or AREAS:
        _, *found = survivors(name, arguments.timeout)
        print(f"== {name}: {len(found)} changes that no test noticed", flush=True)
        for one in found:
            print(one.strip(), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
