"""The jail around the process that runs model code.

`enter` closes it around the calling process and returns only when everything that the tier promises is really
enforced; every other outcome is `KernelUnavailable`, before any model code. `probe` builds it in a throwaway
process to see what this machine offers. What each tier covers and what it does not: docs/SANDBOX.md.

Tiers: `full` (namespaces, landlock, seccomp), `kernel-only` (landlock and seccomp, works in plain containers),
`seatbelt` (macOS, experimental), `none` (needs the argument and an environment variable together).
"""

from scroll_context.kernel.jail.entry import enter
from scroll_context.kernel.jail.inheritance import close_inherited
from scroll_context.kernel.jail.limits import set_cpu_budget
from scroll_context.kernel.jail.paths import default_read_only, site_packages
from scroll_context.kernel.jail.probe import probe
from scroll_context.kernel.jail.scratch import remove_scratch
from scroll_context.kernel.jail.spec import (
    ALLOW_UNSANDBOXED,
    Enforcement,
    Guarantee,
    JailSpec,
    Limits,
    RequiredTier,
    Tier,
)

__all__ = [
    "ALLOW_UNSANDBOXED",
    "Enforcement",
    "Guarantee",
    "JailSpec",
    "Limits",
    "RequiredTier",
    "Tier",
    "close_inherited",
    "default_read_only",
    "enter",
    "probe",
    "remove_scratch",
    "set_cpu_budget",
    "site_packages",
]
