"""Seatbelt: the macOS tier, experimental.

The kernel's sandbox is entered by `sandbox_init` with a profile that denies by default and allows what is
declared. It refuses files outside, network, programs, processes and signals to others. There is no sentinel:
threads, memory and the size of the scratch folder are not limited, and `guarantees` says so.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Set

from scroll_context.kernel.jail import inheritance, limits
from scroll_context.kernel.jail.guarantees import seatbelt_guarantees
from scroll_context.kernel.jail.spec import Enforcement, JailSpec, refuse

_REMEDY = "This tier is experimental: run Scroll on Linux, or in a Linux container, for the jail that is tested."
_SYSTEM = ("/usr/lib", "/System/Library", "/System/Volumes/Preboot/Cryptexes")
_FIXED = """(version 1)
(deny default)
(allow signal (target self))
(allow process-info* (target self))
(allow sysctl-read)
(allow file-write-data (literal "/dev/null"))
"""


def profile(spec: JailSpec) -> str:
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


def enter(spec: JailSpec, keep: Set[int], report_pid: Callable[[int], None] | None) -> Enforcement:
    """Close the sandbox around this process, which stays the same process."""
    policy = profile(spec)
    inheritance.close_inherited(keep)
    inheritance.clean_environment({"HOME": spec.scratch, "TMPDIR": spec.scratch, "LANG": "C.UTF-8"})
    limits.forbid_core_dumps()
    limits.apply_portable(spec.limits)
    os.chdir(spec.scratch)
    if report_pid is not None:
        report_pid(os.getpid())
    system = ctypes.CDLL(None, use_errno=True)
    message = ctypes.c_char_p()
    if system.sandbox_init(policy.encode(), ctypes.c_uint64(0), ctypes.byref(message)) != 0:
        raise refuse("read outside", f"sandbox_init: {(message.value or b'').decode(errors='replace')}", _REMEDY)
    return Enforcement("seatbelt", os.getpid(), seatbelt_guarantees(), _canaries())


def _canaries() -> tuple[str, ...]:
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
