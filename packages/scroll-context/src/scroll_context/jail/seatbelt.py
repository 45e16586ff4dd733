"""The macOS tier: experimental, untested, and entered only when it is named.

The kernel's sandbox is entered by `sandbox_init` with a profile that denies by default and allows
what is declared. It refuses files outside, network, programs, processes and signals to others.
There is no supervisor: threads, memory and the size of the scratch folder are not limited, and
`guarantees` says so.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Set

from scroll_context.jail.linux import (
    apply_portable,
    clean_environment,
    close_inherited,
    forbid_core_dumps,
    home_in,
)
from scroll_context.jail.spec import Enforcement, JailSpec, guarantees, refuse

_REMEDY = (
    "Tier 'seatbelt' is experimental and untested: run Scroll on Linux, "
    "or in a Linux container, for a tested jail."
)
_SYSTEM = ("/usr/lib", "/System/Library", "/System/Volumes/Preboot/Cryptexes")
_FIXED = """(version 1)
(deny default)
(allow signal (target self))
(allow process-info* (target self))
(allow sysctl-read)
(allow file-write-data (literal "/dev/null"))
"""


def seatbelt_profile(spec: JailSpec) -> str:
    """The policy in Seatbelt's language.

    Paths are resolved first: the kernel compares real ones.
    """
    # Imported here, because workers on Linux import this module too and start faster without it.
    from pathlib import Path

    def allow(operations: str, match: str, paths: list[str]) -> str:
        escaped = [path.replace("\\", "\\\\").replace('"', '\\"') for path in paths]
        lines = [f'\n    ({match} "{path}")' for path in escaped]
        return f"(allow {operations}{''.join(lines)})\n"

    readable = sorted({*(str(Path(path).resolve()) for path in spec.read_only), *_SYSTEM})
    scratch = str(Path(spec.scratch).resolve())
    ancestors: set[str] = set()
    for path in (*readable, scratch):
        ancestors.update(map(str, Path(path).parents))
    return (
        _FIXED
        + allow("file-read-metadata", "literal", sorted(ancestors))
        + allow("file-read*", "subpath", readable)
        + allow("file-read* file-write*", "subpath", [scratch])
    )


def enter_seatbelt(
    spec: JailSpec, keep: Set[int], report_pid: Callable[[int], None]
) -> Enforcement:
    """Close the sandbox around this process, which stays the same process."""
    policy = seatbelt_profile(spec)
    close_inherited(keep)
    clean_environment(home_in(spec.scratch))
    forbid_core_dumps()
    apply_portable(spec.limits)
    os.chdir(spec.scratch)
    report_pid(os.getpid())
    system = ctypes.CDLL(None, use_errno=True)
    message = ctypes.c_char_p()
    if system.sandbox_init(policy.encode(), ctypes.c_uint64(0), ctypes.byref(message)) != 0:
        raise refuse(
            "read outside",
            f"sandbox_init: {(message.value or b'').decode(errors='replace')}",
            _REMEDY,
        )
    return Enforcement("seatbelt", os.getpid(), guarantees("seatbelt"), _run_seatbelt_probes())


def _run_seatbelt_probes() -> tuple[str, ...]:
    """Try the three acts that matter most; each must be refused."""

    def connect() -> None:
        with socket.socket(socket.AF_INET) as probe:
            probe.connect(("127.0.0.1", 9))

    def fork() -> None:
        if os.fork() == 0:
            os._exit(0)

    attempts: dict[str, tuple[str, Callable[[], object]]] = {
        "read /etc/passwd": ("read outside", lambda: os.close(os.open("/etc/passwd", os.O_RDONLY))),
        "connect to an internet address": ("network", connect),
        "fork": ("processes", fork),
    }
    for name, (guarantee, attempt) in attempts.items():
        try:
            attempt()
        except PermissionError:
            continue
        raise refuse(guarantee, f"to {name} was possible inside the sandbox", _REMEDY)
    return tuple(attempts)
