"""The gateway, its client and the connections of its upstream are killed at random.

`make test-gateway-kills` kills 200 times.
"""

from pathlib import Path

import pytest

from forms import LONG
from gateway_kills import Hunt

KILLS = 20


@pytest.mark.skipif(not LONG, reason="make test-long and make test-gateway-kills take minutes")
def test_nothing_is_lost_or_recorded_twice_whoever_is_killed(tmp_path: Path) -> None:
    lines: list[str] = []
    report = Hunt(tmp_path, KILLS, seed=36, progress=lines.append).run()
    assert sum(report["kills"].values()) == len(lines) >= KILLS
    assert set(report["kills"]) == {"gateway", "client", "connection"}
    assert report["lost"] == 0
    assert report["twice"] == report["broken_rules"] == report["refused"] == []
    assert report["failures"] == []
    assert report["is_verified"]
    assert report["sessions"] == report["conversations"]
    assert report["messages"] > 20
