"""The only way into the jail, and what `scroll doctor` knows of it.

`enter` closes the jail of one tier around this process. Everything that the process needs must be
imported, and its handlers of SIGINT and SIGXCPU installed, before. On Linux the order of the steps
is

    targets for the probes, environment        while the host is still visible
    die with the parent, no new privileges, no core dumps
    namespaces (tier full)
    split: the parent stays behind as the supervisor; each closes what it inherited
    a root of its own (tier full), limits, capabilities, landlock
    seccomp: threads to the supervisor, then the allow-list
    probes

Each step narrows what the next could undo; the filter of system calls comes last. Any step that
fails raises KernelUnavailable with the guarantee that it stands for; nothing is skipped.

`examine` builds each tier of the platform completely in a throwaway process, probes included;
nothing is concluded from version numbers, and asking for parts is not enough: some systems let
`unshare` succeed and refuse every mount that follows. The throwaway process is a fresh interpreter,
because the caller may have threads and a fork of those is not safe. A report is plain data: the
command line prints it or gives it out as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

import msgspec

from scroll_context.errors import KernelUnavailable
from scroll_context.jail import linux, probes, supervisor, syscalls
from scroll_context.jail.seatbelt import enter_seatbelt
from scroll_context.jail.spec import (
    ALLOW_UNSANDBOXED,
    UNTESTED,
    Enforcement,
    Guarantee,
    JailSpec,
    RequiredTier,
    Tier,
    default_read_only,
    guarantees,
    lies_in,
    refuse,
)

_OFFERED: dict[str, tuple[Tier, ...]] = {"linux": ("full", "kernel-only"), "darwin": ("seatbelt",)}


def offered(platform: str = sys.platform) -> tuple[Tier, ...]:
    """The tiers that this platform can have at all, best first."""
    return _OFFERED.get(platform, ())


def chosen(platform: str = sys.platform) -> tuple[Tier, ...]:
    """The tiers that `auto` may take here, best first: only tested ones."""
    return tuple(tier for tier in offered(platform) if tier not in UNTESTED)


def no_jail(platform: str = sys.platform) -> str:
    """Why no kernel starts where `auto` may take no tier, and what to do."""
    sentences = [
        f" Tier {tier!r} is experimental and untested; name it to use it."
        for tier in offered(platform)
    ]
    return (
        f"{platform} has no tested jail, so no kernel starts by default. No model code has run. "
        "Recall by plain tools works without a kernel. Run Scroll on Linux, or in a Linux "
        f"container, for cells.{''.join(sentences)}"
    )


def enter(
    spec: JailSpec,
    *,
    keep: Set[int] = frozenset(),
    report_pid: Callable[[int], None] = lambda _: None,
) -> Enforcement:
    """Close the jail around this single-threaded process and return what is enforced.

    On Linux it returns in a child of the calling process, with every descriptor closed but `keep`,
    the standard three at /dev/null (unless kept), a new environment and the scratch folder as
    working directory. The calling process stays behind as the supervisor: it mirrors the exit of
    the child and dies with its own parent. `report_pid` is called once, outside the jail, with the
    number of the jailed process as the host sees it; it runs in the parent of that process before
    anyone can reap it, so `os.pidfd_open` there cannot miss. If the jail fails later, the exception
    is raised in the child.
    """
    if spec.tier == "none":
        if os.environ.get(ALLOW_UNSANDBOXED) != "1":
            raise refuse(
                "everything",
                "tier 'none' runs model code with all of your permissions",
                f"If you want that, set {ALLOW_UNSANDBOXED}=1 as well.",
            )
        report_pid(os.getpid())
        return Enforcement("none", os.getpid(), guarantees("none"))
    if spec.tier == "auto" or spec.tier not in offered():
        raise refuse(
            spec.tier, f"{sys.platform} does not have this tier", "Ask a kernel for tier 'auto'."
        )
    if spec.tier == "seatbelt":
        return enter_seatbelt(spec, keep, report_pid)
    return _enter_linux(spec, spec.tier, keep, report_pid)


# Linux --------------------------------------------------------------------------------------------

_NAMESPACES = (
    "Allow unprivileged user namespaces (on Ubuntu: sysctl "
    "kernel.apparmor_restrict_unprivileged_userns=0; in Docker: --security-opt seccomp=unconfined, "
    "or a profile that allows unshare and mount), or ask for tier 'kernel-only'."
)
_LANDLOCK = (
    "Use Linux 5.13 or newer with landlock in the list of security modules "
    "(boot option lsm=landlock,...)."
)
_SECCOMP = (
    "Use a kernel with CONFIG_SECCOMP_FILTER, "
    "outside a container that already listens to system calls."
)
_PLAIN = "Start the kernel from a process of its own, with a scratch folder that it may write to."


def _enter_linux(
    spec: JailSpec, tier: Tier, keep: Set[int], report_pid: Callable[[int], None]
) -> Enforcement:
    full = tier == "full"
    syscalls.machine()
    with _step("inheritance", _PLAIN):
        _check_spec(spec, full)
    abi = linux.available_abi()
    if abi < 1:
        raise refuse(
            "read outside", "this kernel has no landlock, or it is switched off", _LANDLOCK
        )
    targets = probes.choose_targets(spec)
    with _step("inheritance", _PLAIN):
        linux.clean_environment(_environment(spec))
        linux.die_with_parent()
        linux.forbid_new_privileges()
        linux.forbid_core_dumps()
    if full:
        with _step("metadata", _NAMESPACES):
            linux.unshare()
    with _step("lifetime", _PLAIN):
        link = supervisor.split(spec, watch_scratch=not full, report_pid=report_pid)
    with _step("inheritance", _PLAIN):
        linux.close_inherited({*keep, link.control.fileno()})
    if full:
        with _step("metadata", _NAMESPACES):
            linux.build_root(spec)
    with _step("scratch", _PLAIN):
        os.chdir(spec.scratch)
    with _step("memory", _PLAIN):
        linux.apply(spec.limits)
    with _step("privileges", _PLAIN):
        linux.drop_capabilities()
    with _step("read outside", _LANDLOCK):
        linux.restrict_paths(spec.read_only, spec.scratch, abi)
    with _step("threads", _SECCOMP):
        link.hand_over(syscalls.install_thread_watch())
    with _step("system calls", _SECCOMP):
        syscalls.install(os.getpid())
    refused = probes.run_probes(spec, tier, targets)
    return Enforcement(tier, link.pid, guarantees(tier, abi), refused, abi)


@contextmanager
def _step(guarantee: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refuse(guarantee, str(error), remedy) from error


def _check_spec(spec: JailSpec, full: bool) -> None:
    """Refuse a request that cannot be honoured exactly."""
    if len(os.listdir("/proc/self/task")) != 1:
        raise refuse(
            "system calls", "this process has threads that would stay outside the jail", _PLAIN
        )
    scratch = os.path.realpath(spec.scratch)
    for path in (*spec.read_only, spec.scratch):
        if not path.startswith("/"):
            raise refuse(
                "read outside", f"{path!r} is not an absolute path", "Declare absolute paths."
            )
    for path in spec.read_only:
        real = os.path.realpath(path)
        if not os.path.exists(real):
            raise refuse(
                "read outside",
                f"{path} does not exist or cannot be reached",
                "Declare paths that exist.",
            )
        if lies_in(scratch, [real]) or lies_in(real, [scratch]):
            raise refuse(
                "write outside", f"{path} and the scratch folder overlap", "Keep them apart."
            )
    if not full and not os.path.isdir(scratch):
        raise refuse(
            "scratch", f"{scratch} is not a folder", "Create it, empty, for this kernel alone."
        )


def _environment(spec: JailSpec) -> dict[str, str]:
    """Variables that libraries read: a home, and how many threads they may start."""
    workers = str(max(1, min(os.cpu_count() or 1, spec.limits.threads // 4)))
    pools = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
    return linux.home_in(spec.scratch) | dict.fromkeys(pools, workers)


# the doctor ---------------------------------------------------------------------------------------

_TRIAL_SECONDS = 30.0
_TRIAL = (
    "import sys; sys.path[:0] = sys.argv[1:]; from scroll_context.jail.entry import trial; trial()"
)


class TierReport(msgspec.Struct, frozen=True):
    """One tier: whether it can be built here, and why not. The refusal ends with the remedy."""

    tier: Tier
    available: bool
    refusal: str = ""
    probes: tuple[str, ...] = ()


class DoctorReport(msgspec.Struct, frozen=True):
    """The answer to "is the jail that I require to be had here?".

    `tier` is what a kernel started with this requirement would run in, None if it would not start;
    `guarantees` are those of that tier.
    """

    required: RequiredTier
    ok: bool
    tier: Tier | None
    guarantees: tuple[Guarantee, ...]
    tiers: tuple[TierReport, ...]
    system: str
    landlock_abi: int


def examine(required: RequiredTier | JailSpec = "auto") -> DoctorReport:
    """Build every tier that this platform can have; with a spec, with its paths and limits."""
    # Imported here and below, because workers import this module too and start faster without.
    import platform
    import tempfile

    built: dict[Tier, Enforcement] = {}
    tiers: list[TierReport] = []
    with tempfile.TemporaryDirectory(prefix="scroll-doctor-") as scratch:
        if isinstance(required, JailSpec):
            spec = required
        else:
            spec = JailSpec(tier=required, read_only=default_read_only(), scratch=scratch)
        for tier in offered():
            try:
                built[tier] = try_tier(msgspec.structs.replace(spec, tier=tier))
                tiers.append(TierReport(tier, True, "", built[tier].probes))
            except KernelUnavailable as refusal:
                tiers.append(TierReport(tier, False, str(refusal)))
    in_use: Tier | None
    if spec.tier == "none":
        in_use = "none" if os.environ.get(ALLOW_UNSANDBOXED) == "1" else None
    elif spec.tier == "auto":
        in_use = next((tier for tier in chosen() if tier in built), None)
    else:
        in_use = spec.tier if spec.tier in built else None
    return DoctorReport(
        required=spec.tier,
        ok=in_use is not None,
        tier=in_use,
        guarantees=built[in_use].guarantees if in_use in built else guarantees("none"),
        tiers=tuple(tiers),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        landlock_abi=max((enforcement.landlock_abi for enforcement in built.values()), default=0),
    )


def try_tier(spec: JailSpec) -> Enforcement:
    """The guarantees that `enter(spec)` would give here; raises KernelUnavailable as it would."""
    import subprocess

    package_folder = os.path.dirname(os.path.dirname(__file__))
    library_folder = os.path.dirname(str(msgspec.__file__))
    folders = sorted({os.path.dirname(package_folder), os.path.dirname(library_folder)})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _TRIAL, *folders],
            input=msgspec.msgpack.encode(spec),
            capture_output=True,
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise refuse(
            "lifetime", f"a trial took more than {slow.timeout:.0f} s", "Try again."
        ) from slow
    if done.returncode != 0:
        raise refuse(
            "lifetime",
            f"a trial failed: {done.stderr.decode(errors='replace')[-500:]}",
            "Report this.",
        )
    answer = msgspec.msgpack.decode(done.stdout, type=Enforcement | str)
    if isinstance(answer, str):
        raise KernelUnavailable(answer)
    return answer


def trial() -> None:
    """The throwaway process: a spec on standard input, the answer of the jailed process on standard
    output.
    """
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=JailSpec)
    try:
        answer: Enforcement | str = enter(spec, keep={1, 2})
    except KernelUnavailable as refusal:
        answer = str(refusal)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
