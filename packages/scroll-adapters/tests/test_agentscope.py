"""Scroll under AgentScope 2: the shared scenario, and what only AgentScope has."""

from pathlib import Path

import pytest

pytest.importorskip("agentscope", reason="agentscope is not installed: make test-hosts")

import host_scenario as scenario
from host_agentscope import Host
from host_scenario import Says, ScenarioTests, reading
from scroll_context.events import Kind


class TestScenario(ScenarioTests):
    host = Host


def test_one_request_of_forty_steps_stays_in_the_window(folder: Path) -> None:
    host = Host.open(folder)
    with host.adapter as middleware:
        host.run("Read forty reports.", [*(reading(n) for n in range(40)), Says("Done.")])
        assert len(host.messages) == 2, "AgentScope keeps all steps in one message"
        assert max(map(scenario.text_tokens, host.requests)) <= scenario.WINDOW
        assert "Read forty reports." in scenario.shown(host.requests[-1])
        kinds = [event.kind for event in middleware.session.events()]
        assert kinds.count(Kind.EVICTION) >= 1 and kinds.count(Kind.TOOL_RESULT) == 40
