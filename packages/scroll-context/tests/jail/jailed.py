"""Run a program in a fresh interpreter that enters the jail first; for tests of what happens inside
and around.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache

import pytest

from scroll_context.errors import KernelUnavailable
from scroll_context.jail.entry import try_tier
from scroll_context.jail.spec import JailSpec, Tier, default_read_only

_ENTER = """
import os, signal, socket, sys, threading, time
from scroll_context.errors import KernelUnavailable
from scroll_context.jail.spec import *
from scroll_context.jail.linux import *
from scroll_context.jail.entry import *
scratch, tier = sys.argv[1:3]
def interrupted(*_): raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupted)
def enter_jail(*more, keep=frozenset(), report_pid=lambda pid: None, **limits):
    spec = JailSpec(tier=tier, read_only=(*default_read_only(), *more), scratch=scratch, limits=JailLimits(**limits))
    return enter(spec, keep={1, 2, *keep}, report_pid=report_pid)
"""


@cache
def refusal_of(tier: Tier) -> str:
    """Why this machine does not offer a tier; empty if it does."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            try_tier(JailSpec(tier=tier, read_only=default_read_only(), scratch=scratch))
        except KernelUnavailable as refusal:
            return str(refusal)
    return ""


def need(tier: Tier) -> None:
    if refusal := refusal_of(tier):
        pytest.skip(f"tier {tier} is not offered here: {refusal}")


def start(source: str, scratch: object, tier: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _ENTER + source, str(scratch), tier],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def run(
    source: str, scratch: object, tier: str, **options: object
) -> subprocess.CompletedProcess[str]:
    """The program may call `enter_jail(*more_read_only, keep=..., **limits)` when it likes."""
    process = start(source, scratch, tier, **options)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
