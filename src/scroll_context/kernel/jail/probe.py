"""Which jail does this machine really give? Built whole, in a throwaway process.

Asking for parts is not enough: some systems let `unshare` succeed and refuse every mount that follows. The
throwaway process is a fresh interpreter, because the caller may have threads and a fork of those is not safe.
"""

from __future__ import annotations

import sys

import msgspec

import scroll_context
from scroll_context.errors import KernelUnavailable
from scroll_context.kernel.jail.entry import trial
from scroll_context.kernel.jail.spec import Enforcement, JailSpec, refuse

_DEADLINE_SECONDS = 30.0
_PROGRAM = "import sys; sys.path[:0] = sys.argv[1:]; from scroll_context.kernel.jail.probe import main; main()"


def probe(spec: JailSpec) -> Enforcement:
    """What `enter(spec)` would enforce here; raises KernelUnavailable as it would."""
    import subprocess  # only here: workers import this package too, and start faster without these
    from pathlib import Path

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
