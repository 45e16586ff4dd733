"""The one door: `enter` chooses the tier and hands over to the platform's order of steps.

`auto` means the best tier that can be built here, found by building it in a throwaway child, and never `none`.
Everything the process needs must be imported, and its handlers of SIGINT and SIGXCPU installed, before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Set

import msgspec

from scroll_context.errors import KernelUnavailable
from scroll_context.kernel.jail import linux, seatbelt
from scroll_context.kernel.jail.guarantees import no_guarantees
from scroll_context.kernel.jail.spec import (
    ALLOW_UNSANDBOXED,
    Enforcement,
    JailSpec,
    Tier,
    refuse,
)

_OFFERED: dict[str, tuple[Tier, ...]] = {"linux": ("full", "kernel-only"), "darwin": ("seatbelt",)}


def enter(
    spec: JailSpec, *, keep: Set[int] = frozenset(), report_pid: Callable[[int], None] | None = None
) -> Enforcement:
    """Close the jail around this single-threaded process and return what is enforced.

    On Linux it returns in a child of the calling process, with every descriptor closed but `keep`, the standard
    three at /dev/null (unless kept), a new environment and the scratch folder as working directory. The calling
    process stays behind as the sentinel: it mirrors the exit of the child and dies with its own parent.
    `report_pid` is called once, outside the jail, with the number of the jailed process as the host sees it; it
    runs in the parent of that process before anyone can reap it, so `os.pidfd_open` there cannot miss. If the
    jail fails later, the exception is raised in the child.
    """
    tier = _choose(spec)
    if tier == "none":
        return _enter_none(report_pid)
    if tier == "seatbelt":
        return seatbelt.enter(spec, keep, report_pid)
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
