"""The only way into the jail: `enter` chooses the tier and hands over to the platform's order of steps.

`auto` means the best tier that can be built here, found by building it in a throwaway child, and never `none`.
Everything the process needs must be imported, and its handlers of SIGINT and SIGXCPU installed, before.

`seatbelt` is the macOS tier, experimental. The kernel's sandbox is entered by `sandbox_init` with a profile that denies
by default and allows what is declared. It refuses files outside, network, programs, processes and signals to others.
There is no supervisor: threads, memory and the size of the scratch folder are not limited, and `guarantees` says so.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable, Set

import msgspec

from scroll_context.errors import KernelUnavailable
from scroll_context.kernel.jail import linux, process
from scroll_context.kernel.jail.spec import (
    ALLOW_UNSANDBOXED,
    Enforcement,
    JailSpec,
    Tier,
    no_guarantees,
    refuse,
    seatbelt_guarantees,
)

_OFFERED: dict[str, tuple[Tier, ...]] = {"linux": ("full", "kernel-only"), "darwin": ("seatbelt",)}


def enter(
    spec: JailSpec, *, keep: Set[int] = frozenset(), report_pid: Callable[[int], None] | None = None
) -> Enforcement:
    """Close the jail around this single-threaded process and return what is enforced.

    On Linux it returns in a child of the calling process, with every descriptor closed but `keep`, the standard
    three at /dev/null (unless kept), a new environment and the scratch folder as working directory. The calling
    process stays behind as the supervisor: it mirrors the exit of the child and dies with its own parent.
    `report_pid` is called once, outside the jail, with the number of the jailed process as the host sees it; it
    runs in the parent of that process before anyone can reap it, so `os.pidfd_open` there cannot miss. If the
    jail fails later, the exception is raised in the child.
    """
    tier = _choose(spec)
    if tier == "none":
        return _enter_none(report_pid)
    if tier == "seatbelt":
        return _enter_seatbelt(spec, keep, report_pid)
    return linux.enter(spec, tier, keep, report_pid)


def offered(platform: str = sys.platform) -> tuple[Tier, ...]:
    """The tiers that this platform can have at all, best first."""
    return _OFFERED.get(platform, ())


def trial(spec: JailSpec) -> Enforcement:
    """Build the jail in a child that ends at once; its answer, or its refusal raised here."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, msgspec.msgpack.encode(_attempt(spec, writer)))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        received = pipe.read()
    os.waitpid(child, 0)
    if not received:
        raise refuse("lifetime", f"a trial of tier '{spec.tier}' ended without a word", "Try another tier.")
    answer = msgspec.msgpack.decode(received, type=Enforcement | str)
    if isinstance(answer, str):
        raise KernelUnavailable(answer)
    return answer


def _attempt(spec: JailSpec, answer_to: int) -> Enforcement | str:
    try:
        return enter(spec, keep={answer_to})
    except KernelUnavailable as refusal:
        return str(refusal)


def _choose(spec: JailSpec) -> Tier:
    if spec.tier == "none":
        if os.environ.get(ALLOW_UNSANDBOXED) != "1":
            raise refuse(
                "everything",
                "tier 'none' runs model code with all of your rights",
                f"If you want that, set {ALLOW_UNSANDBOXED}=1 as well.",
            )
        return "none"
    if spec.tier != "auto":
        if spec.tier not in offered():
            raise refuse(spec.tier, f"{sys.platform} does not have this tier", "Ask for tier 'auto'.")
        return spec.tier
    refusals: list[str] = []
    for tier in offered():
        try:
            return trial(msgspec.structs.replace(spec, tier=tier)).tier
        except KernelUnavailable as refusal:
            refusals.append(f"{tier}: {refusal}")
    raise refuse("everything", "; ".join(refusals) or f"{sys.platform} has no jail", "Run `scroll doctor`.")


def _enter_none(report_pid: Callable[[int], None] | None) -> Enforcement:
    if report_pid is not None:
        report_pid(os.getpid())
    return Enforcement("none", os.getpid(), no_guarantees())


_REMEDY = "This tier is experimental: run Scroll on Linux, or in a Linux container, for the jail that is tested."
_SYSTEM = ("/usr/lib", "/System/Library", "/System/Volumes/Preboot/Cryptexes")
_FIXED = """(version 1)
(deny default)
(allow signal (target self))
(allow process-info* (target self))
(allow sysctl-read)
(allow file-write-data (literal "/dev/null"))
"""


def seatbelt_profile(spec: JailSpec) -> str:
    """The policy in Seatbelt's language. Paths are resolved first: the kernel compares real ones."""
    from pathlib import Path  # only here: workers on Linux import this module too, and start faster without it

    readable = sorted({*(str(Path(path).resolve()) for path in spec.read_only), *_SYSTEM})
    scratch = str(Path(spec.scratch).resolve())
    ancestors = sorted({str(above) for path in (*readable, scratch) for above in Path(path).parents})
    return _FIXED + "".join(
        (
            _allow("file-read-metadata", "literal", ancestors),
            _allow("file-read*", "subpath", readable),
            _allow("file-read* file-write*", "subpath", [scratch]),
        )
    )


def _enter_seatbelt(spec: JailSpec, keep: Set[int], report_pid: Callable[[int], None] | None) -> Enforcement:
    """Close the sandbox around this process, which stays the same process."""
    policy = seatbelt_profile(spec)
    process.close_inherited(keep)
    process.clean_environment({"HOME": spec.scratch, "TMPDIR": spec.scratch, "LANG": "C.UTF-8"})
    process.forbid_core_dumps()
    process.apply_portable(spec.limits)
    os.chdir(spec.scratch)
    if report_pid is not None:
        report_pid(os.getpid())
    system = ctypes.CDLL(None, use_errno=True)
    message = ctypes.c_char_p()
    if system.sandbox_init(policy.encode(), ctypes.c_uint64(0), ctypes.byref(message)) != 0:
        raise refuse("read outside", f"sandbox_init: {(message.value or b'').decode(errors='replace')}", _REMEDY)
    return Enforcement("seatbelt", os.getpid(), seatbelt_guarantees(), _run_seatbelt_probes())


def _run_seatbelt_probes() -> tuple[str, ...]:
    """Try the three things that matter most; each must be refused."""
    try:
        os.close(os.open("/etc/passwd", os.O_RDONLY))
        raise refuse("read outside", "to read /etc/passwd was possible inside the sandbox", _REMEDY)
    except PermissionError:
        pass
    try:
        with socket.socket(socket.AF_INET) as probe:
            probe.connect(("127.0.0.1", 9))
        raise refuse("network", "to connect was possible inside the sandbox", _REMEDY)
    except PermissionError:
        pass
    try:
        if os.fork() == 0:
            os._exit(0)
        raise refuse("processes", "to fork was possible inside the sandbox", _REMEDY)
    except PermissionError:
        pass
    return ("read /etc/passwd", "connect to an internet address", "fork")


def _allow(operations: str, match: str, paths: list[str]) -> str:
    filters = "".join(f'\n    ({match} "{_escaped(path)}")' for path in paths)
    return f"(allow {operations}{filters})\n"


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"')
