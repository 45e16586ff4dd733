"""Scroll as the context strategy of a QwenPaw agent: the shared scenario."""

import pytest

pytest.importorskip("qwenpaw", reason="qwenpaw is not installed: make test-hosts")

from host_qwenpaw import Host
from host_scenario import ScenarioTests


class TestScenario(ScenarioTests):
    host = Host


def test_the_strategy_of_qwenpaw_is_off() -> None:
    assert Host(None)._agent("async")._context_manager is None
