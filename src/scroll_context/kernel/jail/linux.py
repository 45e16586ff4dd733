"""The order of steps on Linux. Each narrows what the next could undo; the filter of system calls comes last.

    targets for the canaries, environment      while the host is still visible
    die with the parent, no new privileges, no core dumps
    namespaces (tier full)
    split: the parent stays behind as the sentinel; each closes what it inherited
    a root of its own (tier full), limits, capabilities, landlock
    seccomp: threads to the sentinel, then the allow-list
    canaries

Any step that fails raises KernelUnavailable with the guarantee that it stands for; nothing is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

from scroll_context.kernel.jail import canaries, inheritance, landlock, limits, namespaces, seccomp, sentinel, syscalls
from scroll_context.kernel.jail.guarantees import linux_guarantees
from scroll_context.kernel.jail.paths import lies_in
from scroll_context.kernel.jail.spec import Enforcement, JailSpec, Tier, refuse

_NAMESPACES = (
    "Allow unprivileged user namespaces (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0; "
    "in Docker: --security-opt seccomp=unconfined, or a profile that allows unshare and mount), "
    "or ask for tier 'kernel-only'."
)
_LANDLOCK = "Use Linux 5.13 or newer with landlock in the list of security modules (boot option lsm=landlock,...)."
_SECCOMP = "Use a kernel with CONFIG_SECCOMP_FILTER, outside a container that already listens to system calls."
_PLAIN = "Start the kernel from a process of its own, with a scratch folder that it may write to."


def enter(spec: JailSpec, tier: Tier, keep: Set[int], report_pid: Callable[[int], None] | None) -> Enforcement:
    """Close the jail around this process; returns in a child of the caller's process, inside."""
    full = tier == "full"
    syscalls.machine()
    with _step("inheritance", _PLAIN):
        _check(spec, full)
    abi = landlock.available_abi()
    if abi < 1:
        raise refuse("read outside", "this kernel has no landlock, or it is switched off", _LANDLOCK)
    targets = canaries.choose_targets(spec)
    with _step("inheritance", _PLAIN):
        inheritance.clean_environment(_environment(spec))
        inheritance.die_with_parent()
        inheritance.forbid_new_privileges()
        limits.forbid_core_dumps()
    if full:
        with _step("metadata", _NAMESPACES):
            namespaces.unshare()
    with _step("lifetime", _PLAIN):
        link = sentinel.split(spec, watch_scratch=not full, report_pid=report_pid)
    with _step("inheritance", _PLAIN):
        inheritance.close_inherited({*keep, link.control.fileno()})
    if full:
        with _step("metadata", _NAMESPACES):
            namespaces.build_root(spec)
    with _step("scratch", _PLAIN):
        os.chdir(spec.scratch)
    with _step("memory", _PLAIN):
        limits.apply(spec.limits)
    with _step("privileges", _PLAIN):
        inheritance.drop_capabilities()
    with _step("read outside", _LANDLOCK):
        landlock.restrict(spec.read_only, spec.scratch, abi)
    with _step("threads", _SECCOMP):
        link.hand_over(seccomp.install_thread_watch())
    with _step("system calls", _SECCOMP):
        seccomp.install(os.getpid())
    sung = canaries.sing(spec, tier, targets)
    return Enforcement(tier, link.pid, linux_guarantees(tier, abi), sung, abi)


@contextmanager
def _step(guarantee: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refuse(guarantee, str(error), remedy) from error


def _check(spec: JailSpec, full: bool) -> None:
    """Refuse a request that cannot be honoured exactly."""
    if len(os.listdir("/proc/self/task")) != 1:
        raise refuse("system calls", "this process has threads that would stay outside the jail", _PLAIN)
    scratch = os.path.realpath(spec.scratch)
    for path in (*spec.read_only, spec.scratch):
        if not path.startswith("/"):
            raise refuse("read outside", f"{path!r} is not an absolute path", "Declare absolute paths.")
    for path in spec.read_only:
        real = os.path.realpath(path)
        if not os.path.exists(real):
            raise refuse("read outside", f"{path} does not exist or cannot be reached", "Declare paths that exist.")
        if lies_in(scratch, [real]) or lies_in(real, [scratch]):
            raise refuse("write outside", f"{path} and the scratch folder overlap", "Keep them apart.")
    if not full and not os.path.isdir(scratch):
        raise refuse("scratch", f"{scratch} is not a folder", "Create it, empty, for this kernel alone.")


def _environment(spec: JailSpec) -> dict[str, str]:
    """What libraries look for: a home, and how many threads they may start by themselves."""
    workers = str(max(1, min(os.cpu_count() or 1, spec.limits.threads // 4)))
    pools = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
    home = {"HOME": spec.scratch, "TMPDIR": spec.scratch, "LANG": "C.UTF-8"}
    return home | dict.fromkeys(pools, workers)
