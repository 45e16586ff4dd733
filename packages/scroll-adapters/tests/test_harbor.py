"""Scroll's agent under Harbor: a complete trial, without containers and without a network."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("harbor", reason="harbor is not installed: make test-hosts, with Python 3.12")

from harbor.models.trial.config import (
    AgentConfig,
    EnvironmentConfig,
    TaskConfig,
    TrialConfig,
    VerifierConfig,
)
from harbor.trial.trial import Trial

from scroll_adapters.harbor import ScrollAgent
from scroll_context import exec_cell
from scroll_context.errors import BadInput
from scroll_context.events import Kind
from scroll_context.store import Store
from snippets import DOCS

SCRIPT = [
    exec_cell("made = bash('printf heron > bird.txt && cat bird.txt')\nprint(made)"),
    exec_cell("missing = bash('cat no-such-file')\nprint(missing['return_code'])"),
    "The file is there.",
]


def task_in(folder: Path) -> Path:
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "instruction.md").write_text("Write bird.txt.\n")
    (folder / "task.toml").write_text('version = "1.0"\n')
    (folder / "environment" / "Dockerfile").write_text("FROM scratch\n")
    (folder / "tests" / "test.sh").write_text("grep -q heron bird.txt\n")
    return folder


def test_a_trial_with_scrolls_agent(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(SCRIPT))
    config = TrialConfig(
        task=TaskConfig(path=task_in(tmp_path / "task")),
        trial_name="bird",
        trials_dir=tmp_path / "trials",
        agent=AgentConfig(import_path=ScrollAgent.import_path(), model_name=f"scripted/{script}"),
        environment=EnvironmentConfig(import_path="harbor_local:LocalEnvironment"),
        verifier=VerifierConfig(disable=True),
    )

    async def run() -> Any:
        return await (await Trial.create(config)).run()

    result = asyncio.run(run())
    assert result.exception_info is None, result.exception_info
    used = result.agent_result
    assert used.metadata == {"state": "answered", "answer": "The file is there."}
    assert used.n_input_tokens and used.n_output_tokens
    trial = tmp_path / "trials" / "bird"
    assert (trial / "root" / "bird.txt").read_text() == "heron"
    with Store(trial / "agent" / "work.scroll", read_only=True) as store:
        calls = [event.content for event in store.log.iterate(kind=[Kind.TOOL_CALL])]
        results = [event.content for event in store.log.iterate(kind=[Kind.TOOL_RESULT])]
    assert "printf heron" in calls[0] and '"heron"' in results[0]
    assert '"return_code": 1' in results[1]


def test_the_documentation_names_the_agent() -> None:
    assert (
        f"--agent-import-path {ScrollAgent.import_path()} " in (DOCS / "FRAMEWORKS.md").read_text()
    )


def test_the_name_of_a_model_is_needed(tmp_path: Path) -> None:
    assert ScrollAgent(tmp_path, model_name="openai/gpt-5").model() == "openai:gpt-5"
    with pytest.raises(BadInput, match="--model"):
        ScrollAgent(tmp_path).model()
    jobs = (ScrollAgent.bounds, ScrollAgent.stores, ScrollAgent.executes)
    assert jobs == (True, True, True)
