"""The values of the jail: what is asked for, what was really built, and what each tier promises.

A `JailSpec` goes in and an `Enforcement` comes out. Everything here is plain data that crosses the wire between host,
fork server and worker, so that the host can compare what it required with what the child says.

The invariant: an `Enforcement` is made only after the probes ran, and a guarantee that its tier promises and that does
not hold is an error before it is a value. A row that says `enforced` is a promise: `enter` has failed before if it
could not be kept. What a tier does not promise is listed as not enforced, with the reason and the remedy.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from scroll_context.errors import KernelUnavailable

Tier = Literal["full", "kernel-only", "seatbelt", "none"]
RequiredTier = Literal["auto", "full", "kernel-only", "seatbelt", "none"]

ALLOW_UNSANDBOXED = "SCROLL_ALLOW_UNSANDBOXED"


class JailLimits(msgspec.Struct, frozen=True):
    """What one kernel may use. `cpu_seconds` is per cell: the host renews it with `set_cpu_budget`."""

    memory_bytes: int = 2 << 30
    cpu_seconds: int = 120
    threads: int = 64
    open_files: int = 256
    scratch_bytes: int = 256 << 20


class JailSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the jailed process may reach: `read_only` paths, one `scratch` folder, and nothing else.

    `scratch` is an absolute path. In tier `full` a private tmpfs appears there, and the host's folder of that
    name is neither needed nor visible; in the other tiers it is a folder of the host that must exist. `packages` are
    modules that cells can import besides those of the readable paths: names that the host can import, or absolute
    paths of a package, a module file, or a folder of modules. A kernel makes them readable.
    """

    tier: RequiredTier = "auto"
    read_only: tuple[str, ...]
    scratch: str
    limits: JailLimits = JailLimits()
    packages: tuple[str, ...] = ()


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
    probes: tuple[str, ...] = ()
    landlock_abi: int = 0


def refuse(guarantee: str, what: str, remedy: str) -> KernelUnavailable:
    """The error of every path that fails closed."""
    return KernelUnavailable(f"jail: '{guarantee}' cannot be guaranteed: {what}. No model code has run. {remedy}")


_USE_FULL = "Use tier 'full': allow unprivileged user namespaces."
_USE_A_JAIL = "Use Linux 5.13 or newer with landlock, tier 'full' or 'kernel-only'."


NAMES = (
    "read outside",
    "write outside",
    "metadata",
    "network",
    "processes",
    "signals",
    "inheritance",
    "privileges",
    "system calls",
    "memory",
    "cpu",
    "threads",
    "open files",
    "scratch size",
    "interrupt",
    "lifetime",
)


def no_guarantees() -> tuple[Guarantee, ...]:
    """The rows of tier `none`: nothing holds."""
    return tuple(Guarantee(name, False, "none", _USE_A_JAIL) for name in NAMES)


def seatbelt_guarantees() -> tuple[Guarantee, ...]:
    """The rows of the macOS tier."""
    by_profile = ("read outside", "write outside", "network", "processes", "signals")
    by_process = {
        "inheritance": "descriptors closed, environment replaced",
        "open files": "RLIMIT_NOFILE",
    }
    mechanisms = dict.fromkeys(by_profile, "sandbox profile") | by_process
    return tuple(
        Guarantee(name, True, mechanisms[name]) if name in mechanisms else Guarantee(name, False, "none", _USE_A_JAIL)
        for name in NAMES
    )


def linux_guarantees(tier: Tier, abi: int) -> tuple[Guarantee, ...]:
    """The rows of the two Linux tiers."""
    full = tier == "full"
    landlock = f"landlock ABI {abi}"
    hidden = "mount namespace: no other path has a name; " if full else ""

    def row(name: str, mechanism: str) -> Guarantee:
        return Guarantee(name, True, mechanism)

    return (
        row("read outside", f"{hidden}{landlock}"),
        row("write outside", f"{hidden}read-only mounts; {landlock}" if full else f"{landlock}; seccomp"),
        row("metadata", "mount namespace; no /proc")
        if full
        else Guarantee("metadata", False, "none: landlock does not govern stat and readlink", _USE_FULL),
        row("network", "seccomp; empty network namespace" if full else "seccomp"),
        row("processes", "seccomp: threads only, no exec"),
        row("signals", "seccomp: itself only; process namespace" if full else "seccomp: itself only"),
        row("inheritance", "descriptors closed, environment wiped"),
        row("privileges", "no_new_privs, no capabilities; user namespace" if full else "no_new_privs, no capabilities"),
        row("system calls", "seccomp allow-list with argument checks"),
        row("memory", "RLIMIT_DATA and RLIMIT_AS; the supervisor kills on tricks"),
        row("cpu", "RLIMIT_CPU, renewed by the host for each cell"),
        row("threads", "seccomp notification, counted by the supervisor"),
        row("open files", "RLIMIT_NOFILE"),
        row("scratch size", "tmpfs of fixed size")
        if full
        else Guarantee(
            "scratch size",
            True,
            "RLIMIT_FSIZE for each file; the supervisor looks at the total every 0.1 s and stops growth",
            f"A burst can overshoot between two looks. {_USE_FULL}",
        ),
        row("interrupt", "seccomp keeps the SIGINT and SIGXCPU handlers"),
        row("lifetime", "PDEATHSIG; process namespace" if full else "PDEATHSIG"),
    )
