"""Claude Code, Codex and opencode themselves, through a gateway, without a network.

Without the programs these tests are skipped: `make test-gateway` installs them, lets each take 150
turns at two windows, and prints a table. The model is played on loopback
(testing/gateway_driver.py).
"""

import os
from pathlib import Path
from typing import Any

import pytest

from assistant_clients import PROGRAMS
from assistant_runs import run_without_network

TURNS = int(os.environ.get("SCROLL_GATEWAY_TURNS") or 12)
WINDOWS = [int(word) for word in os.environ.get("SCROLL_GATEWAY_WINDOWS", "30000").split()]
HIGH_MARK = 0.8


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_real_assistant_stays_in_its_window(
    name: str, window: int, tmp_path: Path, gateway_runs: list[Any]
) -> None:
    report: Any = run_without_network(
        "gateway_driver.py",
        *PROGRAMS[name],
        tmp_path / name,
        str(window),
        seconds=120 + 18 * TURNS,
    )
    gateway_runs.append(report)
    assert report["status"] == 0, report["errors"]
    assert report["printed"].endswith("All parts are read.\n")
    assert report["refused"] == report["broken_rules"] == report["failures"] == []
    assert report["requests"] == TURNS + 1
    assert report["largest"] <= window
    assert report["unexplained_changes"] == []
    assert len(report["sessions"]) == 1
    assert report["compactions"] == report["retractions"] == report["sums"]["faults"] == 0
    returned = report["returned"]
    assert returned["apart_from_marks"] == returned["messages"] > 2 * TURNS
    assert returned["exact"] == returned["first_sent"] >= returned["messages"]
    assert report["prefix_changes"] == report["sums"]["evictions"]
    if report["sums"]["largest_direct"] > HIGH_MARK * window:
        assert report["sums"]["evictions"] > 0
        assert report["sums"]["tokens_sent"] < report["sums"]["tokens_direct"]
        assert report["recalls"]
        assert all(report["recalls"])
    if TURNS >= 150:
        # An eviction pays back after some requests.
        assert report["sums"]["cost_sent"] < 0.5 * report["sums"]["cost_direct"]
        assert report["repeated"] >= (0.9 if window >= 120_000 else 0.7)
