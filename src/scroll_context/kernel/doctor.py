"""What `scroll doctor` knows: which jail this machine gives, guarantee by guarantee.

Each tier of the platform is built whole in a throwaway process, probes included; nothing is concluded from version
numbers, and asking for parts is not enough: some systems let `unshare` succeed and refuse every mount that follows.
The throwaway process is a fresh interpreter, because the caller may have threads and a fork of those is not safe. A
report is plain data: the command line prints it, or gives it out as JSON, and ends with status 1 when `ok` is false.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

import scroll_context
from scroll_context.errors import KernelUnavailable
from scroll_context.kernel.jail import ALLOW_UNSANDBOXED, Guarantee, RequiredTier, Tier, default_read_only
from scroll_context.kernel.jail.entry import offered, trial
from scroll_context.kernel.jail.spec import Enforcement, JailSpec, no_guarantees, refuse

_DEADLINE_SECONDS = 30.0
_PROGRAM = "import sys; sys.path[:0] = sys.argv[1:]; from scroll_context.kernel.doctor import main; main()"


class TierReport(msgspec.Struct, frozen=True):
    """One tier: whether it can be built here, and why not. The refusal ends with the remedy."""

    tier: Tier
    available: bool
    refusal: str = ""
    probes: tuple[str, ...] = ()


class DoctorReport(msgspec.Struct, frozen=True):
    """The answer to "is the jail that I require to be had here?".

    `tier` is what a kernel started with this requirement would run in, None if it would not start; `guarantees`
    are those of that tier.
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
    with tempfile.TemporaryDirectory(prefix="scroll-doctor-") as scratch:
        spec = (
            required
            if isinstance(required, JailSpec)
            else JailSpec(tier=required, read_only=default_read_only(), scratch=scratch)
        )
        tried = {tier: _try(msgspec.structs.replace(spec, tier=tier)) for tier in offered()}
    built = {tier: found for tier, found in tried.items() if isinstance(found, Enforcement)}
    tier = _tier_in_use(spec.tier, built)
    abi = max((enforcement.landlock_abi for enforcement in built.values()), default=0)
    return DoctorReport(
        required=spec.tier,
        ok=tier is not None,
        tier=tier,
        guarantees=built[tier].guarantees if tier in built else no_guarantees(),
        tiers=tuple(_tier_report(tier, found) for tier, found in tried.items()),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        landlock_abi=abi,
    )


def _try(spec: JailSpec) -> Enforcement | str:
    try:
        return try_tier(spec)
    except KernelUnavailable as refusal:
        return str(refusal)


def _tier_in_use(required: RequiredTier, built: dict[Tier, Enforcement]) -> Tier | None:
    if required == "auto":
        return next(iter(built), None)
    if required == "none":
        return "none" if os.environ.get(ALLOW_UNSANDBOXED) == "1" else None
    return required if required in built else None


def _tier_report(tier: Tier, found: Enforcement | str) -> TierReport:
    if isinstance(found, str):
        return TierReport(tier, False, found)
    return TierReport(tier, True, "", found.probes)


def try_tier(spec: JailSpec) -> Enforcement:
    """What `enter(spec)` would enforce here; raises KernelUnavailable as it would."""
    folders = sorted({str(Path(module.__file__ or "").parents[1]) for module in (scroll_context, msgspec)})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, *folders],
            input=msgspec.msgpack.encode(spec),
            capture_output=True,
            timeout=_DEADLINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise refuse("lifetime", f"a trial took more than {slow.timeout:.0f} s", "Try again.") from slow
    if done.returncode != 0:
        raise refuse("lifetime", f"a trial failed: {done.stderr.decode(errors='replace')[-500:]}", "Report this.")
    answer = msgspec.msgpack.decode(done.stdout, type=Enforcement | str)
    if isinstance(answer, str):
        raise KernelUnavailable(answer)
    return answer


def main() -> None:
    """The throwaway process: a spec on standard input, the answer on standard output."""
    spec = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=JailSpec)
    try:
        answer: Enforcement | str = trial(spec)
    except KernelUnavailable as refusal:
        answer = str(refusal)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
