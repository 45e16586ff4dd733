"""The jail around the process that runs model code.

spec         what is asked for and what is promised: values and readable paths
scratch      the folder that a cell may write to
entry        `enter`: the order of the steps into the jail; `examine`: what `scroll doctor` knows
seatbelt     the experimental tier on macOS
linux        the steps: descriptors, environment, capabilities, limits, namespaces, landlock
syscalls     the allow-list of system calls, and the edge to the C library
supervisor   the process that watches the jailed one from outside
probes       from inside: what must not work is tried before any model code runs

Everything that a tier promises is enforced when `enter` returns; every other outcome is
`KernelUnavailable`, before any model code. What each tier covers and what it does not:
docs/SANDBOX.md. Tiers: `full` (namespaces, landlock, seccomp), `kernel-only` (landlock and seccomp,
works in plain containers), `seatbelt` (macOS, experimental and untested), `none` (needs the
argument and an environment variable together).
"""
