"""The folder of a run: what it refuses, and that a file in it is whole."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scroll_context.errors import BadInput
from scroll_evals.protocols import Attempt, TrialOutcome, slug
from scroll_evals.results import RunConfig, RunFolder, Start, runs_below

CONFIG = RunConfig(
    benchmark="beam", split="1M", model="a", starts=(Start("2026-01-01", {"scroll": "0.1.0"}),)
)


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(CONFIG)
    again = folder.begin(CONFIG)
    assert len(again.starts) == 2 and folder.config() == again
    with pytest.raises(BadInput, match=r"holds another run .*model: 'a' there"):
        folder.begin(RunConfig(benchmark="beam", split="1M", model="b"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").write_text("dear")
    with pytest.raises(BadInput, match="not empty and not a run"):
        RunFolder(tmp_path / "other").begin(CONFIG)
    with pytest.raises(BadInput, match="is not a run"):
        RunFolder(tmp_path / "other").config()
    with pytest.raises(BadInput, match="there is no run"):
        runs_below([tmp_path / "other"])


def test_one_process_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from scroll_evals.results import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('mine', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "mine\n"
        with pytest.raises(BadInput, match="another process"), RunFolder(tmp_path / "run").locked():
            pass
    finally:
        holder.kill()
        holder.communicate()
    with RunFolder(tmp_path / "run").locked():  # a killed process holds nothing
        RunFolder(tmp_path / "run").begin(CONFIG)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_attempt(Attempt(task_id="t/1", ability="x", outcome=TrialOutcome.ANSWERED), [])
    assert folder.attempt("t/2") is None
    file = tmp_path / "trajectories/t__1.json"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(BadInput, match=r"t__1\.json .*remove it"):
        folder.attempt("t/1")


@given(st.lists(st.text(max_size=150), unique=True, max_size=20))
def test_slugs_are_file_names_and_differ(task_ids: list[str]) -> None:
    slugs = [slug(task_id) for task_id in task_ids]
    assert len(set(slugs)) == len(slugs)
    for one in slugs:
        assert (
            one
            and "/" not in one
            and "\0" not in one
            and not one.startswith(".")
            and len(one) <= 120
        )
        assert one.isascii() and one.isprintable() and " " not in one
