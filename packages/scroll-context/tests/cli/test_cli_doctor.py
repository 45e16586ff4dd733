"""`scroll doctor`: what the examination found, for people and for programs."""

import json
from typing import Any

import pytest

from scroll_context.jail.entry import examine


def test_the_report_is_the_examination(scroll: Any) -> None:
    found = examine()
    result = scroll("doctor", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if found.ok else 1)
    assert (report["ok"], report["tier"]) == (found.ok, found.tier)
    assert [row["name"] for row in report["guarantees"]] == [row.name for row in found.guarantees]
    text = scroll("doctor").stdout
    assert found.system in text
    for row in found.guarantees:
        assert row.name in text
        assert row.mechanism in text


def test_a_tier_that_cannot_be_had_is_status_1(
    scroll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCROLL_ALLOW_UNSANDBOXED", raising=False)
    result = scroll("doctor", "--tier", "none")
    assert result.exit_code == 1
    assert "'none' is unavailable" in result.stderr
    assert "NO" in result.stdout
    assert scroll("doctor", "--tier", "steel").exit_code == 2
