"""The jail around the process that runs model code.

`enter` closes it around the calling process and returns only when everything that the tier promises is really
enforced; every other outcome is `KernelUnavailable`, before any model code. What each tier covers and what it
does not: docs/SANDBOX.md.

Tiers: `full` (namespaces, landlock, seccomp), `kernel-only` (landlock and seccomp, works in plain containers),
`seatbelt` (macOS, experimental), `none` (needs the argument and an environment variable together).
"""

from scroll_context.kernel.jail.entry import enter
from scroll_context.kernel.jail.paths import default_read_only, remove_scratch, site_packages
from scroll_context.kernel.jail.process import close_inherited, set_cpu_budget
from scroll_context.kernel.jail.spec import (
    ALLOW_UNSANDBOXED,
    Enforcement,
    Guarantee,
    JailLimits,
    JailSpec,
    RequiredTier,
    Tier,
)

__all__ = [
    "ALLOW_UNSANDBOXED",
    "Enforcement",
    "Guarantee",
    "JailLimits",
    "JailSpec",
    "RequiredTier",
    "Tier",
    "close_inherited",
    "default_read_only",
    "enter",
    "remove_scratch",
    "set_cpu_budget",
    "site_packages",
]
