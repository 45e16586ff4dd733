"""Claude Code, Codex and opencode themselves, through a gateway, without a network.

Without the programs these tests are skipped: `make test-gateway` installs them and lets each take
150 turns. The model is played on loopback (testing/gateway_driver.py).
"""

from pathlib import Path
from typing import Any

import pytest

from assistant_clients import PROGRAMS
from assistant_runs import run_without_network

WITH_RECALL = ("claude", "opencode")
TURNS = 12
WINDOW = 30_000


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_real_assistant_stays_in_its_window(name: str, tmp_path: Path) -> None:
    report: Any = run_without_network(
        "gateway_driver.py", *PROGRAMS[name], tmp_path / name, seconds=1500
    )
    print({key: report[key] for key in ("largest", "sums", "repeated", "returned", "recalls")})
    assert report["status"] == 0, report["errors"]
    assert report["printed"].endswith("All parts are read.\n")
    assert report["refused"] == report["broken_rules"] == report["failures"] == []
    assert report["requests"] >= TURNS + 1
    assert report["largest"] <= report["window"]
    # Codex adds the tools of an MCP server when it is ready.
    assert len(report["unexplained_changes"]) <= (name == "codex")
    assert len(report["sessions"]) == 1
    assert report["sums"]["faults"] == 0
    changes = report["prefix_changes"] - len(report["unexplained_changes"])
    assert report["sums"]["evictions"] == changes > 0
    assert report["sums"]["tokens_sent"] < report["sums"]["tokens_direct"]
    if report["requests"] > 100:
        # An eviction pays back after some requests.
        assert report["sums"]["cost_sent"] < 0.5 * report["sums"]["cost_direct"]
    returned = report["returned"]
    assert returned["apart_from_marks"] == returned["messages"] > 2 * TURNS
    if name in WITH_RECALL:
        assert report["recalls"] > 0
        assert "part-0001" in report["recalled"][0]
