"""Scroll under pydantic-ai: the shared scenario."""

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: make test-hosts")

from host_pydantic_ai import Host
from host_scenario import ScenarioTests


class TestScenario(ScenarioTests):
    host = Host
