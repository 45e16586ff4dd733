"""What `scroll doctor` knows: which jail this machine gives, guarantee by guarantee.

Each tier of the platform is built whole in a throwaway process, canaries included; nothing is concluded from
version numbers. A report is plain data: the command line prints it, or gives it out as JSON, and ends with
status 1 when `ok` is false.
"""

from __future__ import annotations

import os
import platform
import tempfile

import msgspec

from scroll_context.errors import KernelUnavailable
from scroll_context.kernel.jail import (
    ALLOW_UNSANDBOXED,
    Enforcement,
    Guarantee,
    JailSpec,
    RequiredTier,
    Tier,
    default_read_only,
    probe,
)
from scroll_context.kernel.jail.entry import offered
from scroll_context.kernel.jail.guarantees import no_guarantees


class TierReport(msgspec.Struct, frozen=True):
    """One tier: whether it can be built here, and why not. The refusal ends with the remedy."""

    tier: Tier
    available: bool
    refusal: str = ""
    canaries: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
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


def examine(required: RequiredTier | JailSpec = "auto") -> Report:
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
    return Report(
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
        return probe(spec)
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
    return TierReport(tier, True, "", found.canaries)
