"""The values of the jail: what is asked for, and what was really built.

A `JailSpec` goes in and an `Enforcement` comes out. Everything here is plain data that crosses the wire
between host, launcher and worker, so that the host can compare what it required with what the child says.

The invariant: an `Enforcement` is made only after the canaries ran, and a guarantee that its tier promises
and that does not hold is an error before it is a value. What a tier does not promise is listed as not
enforced, with the reason and the remedy, so that nobody has to guess.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from scroll_context.errors import KernelUnavailable

Tier = Literal["full", "kernel-only", "seatbelt", "none"]
RequiredTier = Literal["auto", "full", "kernel-only", "seatbelt", "none"]

ALLOW_UNSANDBOXED = "SCROLL_ALLOW_UNSANDBOXED"


class Limits(msgspec.Struct, frozen=True):
    """What one kernel may use. `cpu_seconds` is per cell: the host renews it with `set_cpu_budget`."""

    memory_bytes: int = 2 << 30
    cpu_seconds: int = 120
    threads: int = 64
    open_files: int = 256
    scratch_bytes: int = 256 << 20


class JailSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the jailed process may reach: `read_only` paths, one `scratch` folder, and nothing else.

    `scratch` is an absolute path. In tier `full` a private tmpfs appears there, and the host's folder of that
    name is neither needed nor visible; in the other tiers it is a folder of the host that must exist.
    """

    tier: RequiredTier = "auto"
    read_only: tuple[str, ...]
    scratch: str
    limits: Limits = Limits()


class Guarantee(msgspec.Struct, frozen=True):
    """One promise: whether it holds, by which mechanism, and what to do when it does not."""

    name: str
    enforced: bool
    mechanism: str
    remedy: str = ""


class Enforcement(msgspec.Struct, frozen=True):
    """What really holds in this process. `pid` is its number as the host sees it."""

    tier: Tier
    pid: int
    guarantees: tuple[Guarantee, ...]
    canaries: tuple[str, ...] = ()
    landlock_abi: int = 0


def refuse(guarantee: str, what: str, remedy: str) -> KernelUnavailable:
    """The error of every path that fails closed."""
    return KernelUnavailable(f"jail: '{guarantee}' cannot be guaranteed: {what}. No model code has run. {remedy}")
