"""The gateway, its client and the connections of its upstream are killed at random.

`make test-gateway-kills` kills 200 times, real assistants among the clients.
"""

from pathlib import Path

from forms import form
from gateway_kills import TURNS, Hunt

KILLS = form(3, 24)


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
    assert report["messages"] > TURNS
