"""The macOS profile as text: the tier itself can only be tried on that system."""

from __future__ import annotations

from pathlib import Path

import pytest

from scroll_context.errors import KernelUnavailable
from scroll_context.jail.entry import chosen, no_jail, offered
from scroll_context.jail.seatbelt import seatbelt_profile
from scroll_context.jail.spec import NAMES, JailSpec, guarantees
from scroll_context.kernel.kernel import Kernel


def test_the_profile_denies_first_and_allows_only_what_is_declared(tmp_path: Path) -> None:
    library, scratch = tmp_path / "library", tmp_path / "scratch"
    text = seatbelt_profile(JailSpec(read_only=(str(library),), scratch=str(scratch)))
    assert text.startswith("(version 1)\n(deny default)\n")
    assert text.count("(") == text.count(")")
    allowed = text.split("(allow ")[1:]
    assert not any(
        rule.startswith(("network", "process-fork", "process-exec", "mach")) for rule in allowed
    )
    (writable,) = [rule for rule in allowed if "file-write*" in rule]
    assert f'(subpath "{scratch}")' in writable
    assert str(library) not in writable
    (readable,) = [rule for rule in allowed if rule.startswith("file-read*\n")]
    assert f'(subpath "{library}")' in readable
    assert f'(subpath "{tmp_path}")' not in text


def test_links_are_resolved_because_the_kernel_compares_real_paths(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    text = seatbelt_profile(
        JailSpec(read_only=(str(tmp_path / "link"),), scratch=str(tmp_path / "scratch"))
    )
    assert f'(subpath "{tmp_path / "real"}")' in text
    assert f'(subpath "{tmp_path / "link"}")' not in text


def test_a_path_cannot_break_out_of_its_string(tmp_path: Path) -> None:
    nasty = tmp_path / 'a") (allow default) ("\\'
    text = seatbelt_profile(JailSpec(read_only=(str(nasty),), scratch=str(tmp_path / "scratch")))
    assert 'a\\") (allow default) (\\"\\\\")' in text


def test_it_is_offered_on_macos_only_and_says_what_it_lacks() -> None:
    assert offered("darwin") == ("seatbelt",)
    assert "seatbelt" not in offered("linux")
    assert chosen("linux") == offered("linux")
    rows = {row.name: row for row in guarantees("seatbelt")}
    assert tuple(rows) == NAMES
    assert not rows["memory"].enforced
    assert not rows["threads"].enforced
    assert all(row.enforced or row.remedy for row in rows.values())
    assert all(
        row.enforced is False or row.mechanism.endswith("(untested)") for row in rows.values()
    )


def test_it_is_never_chosen_by_itself() -> None:
    assert chosen("darwin") == ()
    refusal = no_jail("darwin")
    assert (
        "no kernel starts by default" in refusal
        and "'seatbelt' is experimental and untested" in refusal
    )
    assert "plain tools" in refusal and "seatbelt" not in no_jail("win32")


def test_a_kernel_does_not_start_by_default_where_no_jail_is_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scroll_context.jail.entry.chosen", lambda: chosen("darwin"))
    monkeypatch.setattr("scroll_context.jail.entry.no_jail", lambda: no_jail("darwin"))
    with pytest.raises(KernelUnavailable, match="has no tested jail"):
        Kernel().start()
