"""The tables of system calls against the headers of the kernel, where they are installed."""

from __future__ import annotations

import re
from pathlib import Path

import attack_names
import pytest
from test_jail_seccomp import REFUSED

from scroll_context.jail.syscalls import BUILDING, CHECKED, PLAIN

_HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),  # aarch64 uses the generic table
}
_GENERIC_NAMES = {"newfstatat": "fstatat"}  # the generic header's 3264 names, where they differ


def numbers_in_header(arch: str) -> dict[str, int]:
    header = next((path for path in map(Path, _HEADERS[arch]) if path.exists()), None)
    if header is None:
        pytest.skip(f"the kernel headers with the table of {arch} are not installed")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize(("arch", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_numbers_agree_with_the_headers(arch: str, column: int) -> None:
    header = numbers_in_header(arch)
    rows = {**PLAIN, **CHECKED, **BUILDING, **REFUSED, **attack_names._NUMBERS}
    wrong = {
        name: row[column]
        for name, row in rows.items()
        if row[column] is not None
        and header.get(name, header.get(_GENERIC_NAMES.get(name, ""))) != row[column]
    }
    assert wrong == {}


def test_only_obsolete_calls_are_missing_on_aarch64() -> None:
    """A call that x86_64 has and aarch64 lacks must be a form that the generic table left out."""
    header = numbers_in_header("aarch64")
    missing = {name for name, row in {**PLAIN, **CHECKED}.items() if row[1] is None}
    assert not missing & header.keys()
    assert missing >= {"open", "stat", "poll", "dup2", "pipe"}
