"""Every attack, in each tier that this machine offers, as root and as an ordinary user.

Each is first shown to work without the jail: an attack that never works proves nothing, and is
skipped by name here. In tier full nothing may get through; in tier kernel-only only the metadata of
files.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import jailed
import pytest
from attack import Attack
from attack_table import ATTACKS

from scroll_context.jail.spec import Tier

_ORDINARY_USER = 65534
_USERS = {"root": None, "user": _ORDINARY_USER} if os.getuid() == 0 else {"user": None}
_ENOUGH = 55


class Harness:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("attack_harness.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SCROLL_ATTACK_SECRET": "hunter2"},
        )
        self.without_jail = cache(lambda attack, user: self.run(attack, "", user))

    def run(self, attack: str, tier: str, user: int | None) -> dict[str, str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"attack": attack, "tier": tier, "user": user}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


def offered() -> list[str]:
    return [tier for tier in ("full", "kernel-only") if not jailed.refusal_of(tier)]


def aims() -> Iterator[object]:
    for attack in ATTACKS.values():
        for user in _USERS:
            if user == "root" or not attack.needs_root:
                yield pytest.param(attack, user, id=f"{attack.name} as {user}".replace(" ", "-"))


@pytest.mark.parametrize(("attack", "user"), list(aims()))
def test_attack_works_outside_and_not_inside(harness: Harness, attack: Attack, user: str) -> None:
    if attack.only_on not in ("", platform.machine()):
        pytest.skip(f"'{attack.name}' is for {attack.only_on}")
    alone = harness.without_jail(attack.name, _USERS[user])
    if alone["how"] != "through":
        pytest.skip(f"'{attack.name}' does not work here even without a jail: {alone['detail']}")
    if not offered():
        pytest.skip("this machine offers no tier")
    for tier in offered():
        result = harness.run(attack.name, tier, _USERS[user])
        told = f"{tier}: {result}"
        assert result["how"] != "broken", told
        assert result["damage"] == "", told
        if attack.metadata and tier == "kernel-only":
            assert result["how"] == "through", (
                f"{told}: the documents say that this tier does not hide metadata"
            )
        else:
            assert result["how"] in ("refused", "killed"), told


_HAS_LANDLOCK = """
import ctypes
assert ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) >= 1
"""
_HAS_NAMESPACES = """
import ctypes, os
libc = ctypes.CDLL(None)
user = os.getuid()
assert libc.unshare(0x10000000 | 0x20000) == 0
open('/proc/self/uid_map', 'w').write(f'{user} {user} 1')
assert libc.mount(b'none', b'/', None, ctypes.c_ulong(0x44000), None) == 0
assert libc.mount(b'x', b'/tmp', b'tmpfs', ctypes.c_ulong(0), None) == 0
"""


@pytest.mark.parametrize(
    ("tier", "needed"), [("full", _HAS_LANDLOCK + _HAS_NAMESPACES), ("kernel-only", _HAS_LANDLOCK)]
)
def test_a_machine_that_has_what_a_tier_needs_offers_it(tier: Tier, needed: str) -> None:
    """Else a jail that broke would look like a machine without one, and every attack would be
    skipped.
    """
    machine = subprocess.run([sys.executable, "-c", needed], capture_output=True, check=False)
    if machine.returncode != 0:
        pytest.skip(f"this machine lacks what tier {tier} is made of")
    assert jailed.refusal_of(tier) == ""


def test_enough_attacks_work_without_the_jail(harness: Harness) -> None:
    user = next(iter(_USERS.values()))
    through = (harness.without_jail(name, user)["how"] == "through" for name in ATTACKS)
    assert len(list(islice(filter(None, through), _ENOUGH))) == _ENOUGH
