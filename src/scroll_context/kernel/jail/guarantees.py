"""What each tier promises, by which mechanism, and what it leaves open: the table behind `scroll doctor`.

A row that says `enforced` is a promise: `enter` has failed before if it could not be kept.
"""

from __future__ import annotations

from scroll_context.kernel.jail.spec import Guarantee, Tier

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
        row("memory", "RLIMIT_DATA and RLIMIT_AS; the sentinel kills on tricks"),
        row("cpu", "RLIMIT_CPU, renewed by the host for each cell"),
        row("threads", "seccomp notification, counted by the sentinel"),
        row("open files", "RLIMIT_NOFILE"),
        row("scratch size", "tmpfs of fixed size")
        if full
        else Guarantee(
            "scratch size",
            True,
            "RLIMIT_FSIZE for each file; the sentinel looks at the total every 0.1 s and stops growth",
            f"A burst can overshoot between two looks. {_USE_FULL}",
        ),
        row("interrupt", "seccomp keeps the SIGINT and SIGXCPU handlers"),
        row("lifetime", "PDEATHSIG; process namespace" if full else "PDEATHSIG"),
    )
