"""The demonstration holds what it promises, says so, and does not pass when a claim is false."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from scroll_context.cli.app import app
from scroll_context.demo import story, world
from scroll_context.demo.script import WINDOW
from scroll_context.demo.stage import WIDTH, Stage
from scroll_context.demo.story import SESSION

SCROLL = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]


def test_the_demonstration_from_end_to_end(tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept", tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [*SCROLL, "demo", "--fast", "--keep", str(kept)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert not list(scratch.iterdir())
    for promised in (
        "ms.search(",
        "ms.expand(",
        "search_flights",
        "the user says: yes",
        "folded",
        "evicted",
        "the index has merged lines",
        "SIGKILL",
        "the last one as B",
        "had not returned when the process ended",
        "none of them twice",
        "expand to the same bytes",
        "scroll explain",
        "repeats the cached prefix",
        "hash chain",
    ):
        assert promised in done.stdout
    assert "✗" not in done.stdout and done.stdout.count("✓") >= 15
    assert max(map(len, done.stdout.splitlines()[:-6])) <= WIDTH

    explained = re.search(r"scroll explain (\d+)", done.stdout)
    assert explained
    runner = CliRunner()
    found = runner.invoke(app, ["explain", explained[1], "--store", str(kept), "--json"])
    assert json.loads(found.stdout)["verified"] is True
    steps = runner.invoke(app, ["read", SESSION, "--steps", "--store", str(kept), "--json"])
    assert json.loads(steps.stdout)["metrics"]["step_count"] >= 38
    assert runner.invoke(app, ["verify", "--store", str(kept)]).exit_code == 0
    again = runner.invoke(app, ["demo", "--fast", "--keep", str(kept)])
    assert again.exit_code == 1 and "not empty" in again.stderr


def test_a_false_claim_fails_the_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "WINDOW", WINDOW // 2)  # the model's window stays what it was
    result = CliRunner().invoke(app, ["demo", "--fast"])
    assert result.exit_code == 1
    assert (
        "✗  the view stayed within" in result.stdout and "✗  no request exceeded" in result.stdout
    )
    assert "2 claims are false" in result.stderr


def test_the_world_does_not_change() -> None:
    assert world.find_rooms("Porto") == world.find_rooms("Porto") != world.find_rooms("Lisbon")
    assert {
        town
        for town in world.towns()
        if any("walnut" in table["sweet"] for table in world.find_tables(town))
    }
    for start, end in zip(world.towns(), world.towns()[1:], strict=False):
        assert any(not route["toll_chf"] for route in world.search_routes(start, end))
        assert any(route["toll_chf"] for route in world.search_routes(start, end))


def test_speech_is_broken_between_words() -> None:
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    text = "word " * 40 + "end."
    Stage(console, paced=False).says("agent", text)
    lines = console.export_text().splitlines()
    assert len(lines) == 3 and all(len(line) <= WIDTH for line in lines)
    assert " ".join(" ".join(lines).split()) == f"agent {text}"
