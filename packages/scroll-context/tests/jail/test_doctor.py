"""The doctor's report is what the jail really does here, and its verdict follows the requirement."""

from __future__ import annotations

from pathlib import Path

import jailed
import msgspec
import pytest

from scroll_context.jail.entry import DoctorReport, examine
from scroll_context.jail.spec import (
    ALLOW_UNSANDBOXED,
    NAMES,
    JailSpec,
    default_read_only,
    guarantees,
    site_packages,
)


def test_it_reports_the_best_tier_and_every_guarantee() -> None:
    report = examine()
    best = next((tier for tier in ("full", "kernel-only") if not jailed.refusal_of(tier)), None)
    assert report.tier == best
    assert report.ok == (best is not None)
    assert tuple(row.name for row in report.guarantees) == NAMES
    assert {tier.tier for tier in report.tiers} == {"full", "kernel-only"}
    for tier in report.tiers:
        assert tier.available == bool(tier.probes) == (not tier.refusal)
    assert msgspec.json.decode(msgspec.json.encode(report), type=DoctorReport) == report


def test_a_required_tier_that_is_there_is_ok_and_shows_its_own_rows() -> None:
    jailed.need("kernel-only")
    report = examine("kernel-only")
    assert report.ok
    assert report.tier == "kernel-only"
    open_rows = [row for row in report.guarantees if not row.enforced]
    assert [row.name for row in open_rows] == ["metadata"]
    assert all(row.remedy for row in open_rows)


def test_a_required_tier_that_is_not_there_is_not_ok() -> None:
    report = examine("seatbelt")
    assert not report.ok
    assert report.tier is None
    assert not any(row.enforced for row in report.guarantees)


def test_none_is_ok_only_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW_UNSANDBOXED, raising=False)
    assert not examine("none").ok
    monkeypatch.setenv(ALLOW_UNSANDBOXED, "1")
    report = examine("none")
    assert report.ok
    assert report.tier == "none"


def test_a_spec_is_examined_with_its_own_paths(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    report = examine(JailSpec(read_only=(*default_read_only(), absent), scratch=str(tmp_path)))
    assert not report.ok
    assert all(absent in tier.refusal for tier in report.tiers)


def test_the_rows_have_a_fixed_order_and_full_promises_everything() -> None:
    for tier in ("full", "kernel-only"):
        assert tuple(row.name for row in guarantees(tier, 7)) == NAMES
    assert all(row.enforced for row in guarantees("full", 1))


def test_the_interpreters_own_paths_exist_and_leave_the_packages_out() -> None:
    paths = default_read_only()
    assert all(Path(path).exists() for path in paths)
    assert any(Path(path, "os.py").exists() for path in paths)
    assert not set(site_packages()) & set(paths)
    assert "/dev/zero" not in paths
