"""Scroll under the Google Agent Development Kit: the shared scenario."""

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed: make test-hosts")

from host_google_adk import Host
from host_scenario import ScenarioTests


class TestScenario(ScenarioTests):
    host = Host
