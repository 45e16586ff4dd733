"""Every way in which a jail can be missing ends before model code, with the guarantee and the
remedy named.

Other systems are imitated by a filter of system calls installed first: what a container's default
profile, a distribution without user namespaces or a kernel without landlock refuses is refused here
by the real kernel.
"""

from __future__ import annotations

import os
from pathlib import Path

import jailed
import pytest

from scroll_context.errors import KernelUnavailable
from scroll_context.jail.entry import enter, try_tier
from scroll_context.jail.spec import ALLOW_UNSANDBOXED, JailSpec, default_read_only

_REFUSE = """
from scroll_context.jail import linux
from scroll_context.jail import syscalls
from scroll_context.jail.syscalls import numbers, machine
def refuse_calls(error, *names, flags=0):
    program = [syscalls.Instruction(0x20, 0, 0, 0)]
    for name in names:
        program += [syscalls.Instruction(0x15, 0, 1, numbers(machine())[name]),
                    syscalls.Instruction(6, 0, 0, error if flags else 0x50000 | error)]
    linux.forbid_new_privileges()
    return syscalls._install([*program, syscalls.ALLOW], flags)
"""
_TRY = """
try:
    enforcement = enter_jail()
    print('entered', enforcement.tier)
except KernelUnavailable as refusal:
    print('refused', refusal)
"""
_TRY_KERNEL = """
from scroll_context.kernel.kernel import Kernel
try:
    with Kernel(spec=JailSpec(read_only=default_read_only(), scratch=scratch)) as kernel:
        print('entered', kernel.start().tier)
except KernelUnavailable as refusal:
    print('refused', refusal)
"""
_CONTAINER = "refuse_calls(1, 'unshare', 'pivot_root', 'mount_setattr')"
_NO_MOUNTS = "refuse_calls(13, 'pivot_root', 'mount_setattr')"
_NO_LANDLOCK = "refuse_calls(38, 'landlock_create_ruleset')"
_NO_SECCOMP = "refuse_calls(38, 'seccomp')"
_LISTENED_TO = """
listener = refuse_calls(0x7FC00000, 'memfd_create', flags=8)  # announced to a listener, not refused
if os.fork() == 0:
    linux.close_inherited({listener})
    linux.die_with_parent()
    time.sleep(60)
    os._exit(0)
"""


def attempt(system: str, scratch: Path, tier: str) -> str:
    """How it ends to enter a tier in such a system; `auto` is for a kernel to choose."""
    result = jailed.run(_REFUSE + system + (_TRY_KERNEL if tier == "auto" else _TRY), scratch, tier)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("system", [_CONTAINER, _NO_MOUNTS])
def test_without_namespaces_full_is_refused_and_auto_takes_the_next_tier(
    system: str, tmp_path: Path
) -> None:
    jailed.need("kernel-only")
    refusal = attempt(system, tmp_path, "full")
    assert refusal.startswith("refused jail: 'metadata' cannot be guaranteed")
    assert "unprivileged user namespaces" in refusal
    assert "No model code has run" in refusal
    assert attempt(system, tmp_path, "auto") == "entered kernel-only"


@pytest.mark.parametrize(
    ("system", "guarantee"),
    [(_NO_LANDLOCK, "read outside"), (_NO_SECCOMP, "threads"), (_LISTENED_TO, "threads")],
)
@pytest.mark.parametrize("tier", ["full", "kernel-only"])
def test_a_missing_layer_is_named(system: str, guarantee: str, tier: str, tmp_path: Path) -> None:
    jailed.need(tier)
    assert attempt(system, tmp_path, tier).startswith(
        f"refused jail: '{guarantee}' cannot be guaranteed"
    )


def test_auto_is_refused_when_no_tier_can_be_built(tmp_path: Path) -> None:
    refusal = attempt(_NO_LANDLOCK, tmp_path, "auto")
    assert refusal.startswith("refused full: jail: 'read outside' cannot be guaranteed")
    assert "kernel-only:" in refusal


@pytest.mark.parametrize("tier", ["full", "kernel-only"])
def test_an_unknown_architecture_is_refused(tier: str, tmp_path: Path) -> None:
    as_32_bit = (
        "import ctypes; ctypes.CDLL(None).personality(8)"  # the kernel now calls this machine i686
    )
    refusal = attempt(as_32_bit, tmp_path, tier)
    assert refusal.startswith("refused jail: 'system calls' cannot be guaranteed")
    assert "x86_64 or aarch64" in refusal


@pytest.mark.parametrize("tier", ["full", "kernel-only"])
def test_a_process_with_threads_is_refused(tier: str, tmp_path: Path) -> None:
    threaded = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    assert "threads that would stay outside" in attempt(threaded, tmp_path, tier)


@pytest.mark.parametrize("tier", ["full", "kernel-only"])
@pytest.mark.parametrize(
    ("paths", "scratch", "says"),
    [
        (("relative",), "{tmp}", "not an absolute path"),
        (("{tmp}/absent",), "{tmp}/scratch", "does not exist"),
        (("{tmp}",), "{tmp}/scratch", "overlap"),
        (("{tmp}/scratch/inner",), "{tmp}/scratch", "overlap"),
        (("/",), "{tmp}/scratch", "overlap"),
        (("/etc", "/proc"), "{tmp}/scratch", "every file that could prove it is declared readable"),
    ],
)
def test_a_request_that_cannot_be_honoured_is_refused(
    tier: str, paths: tuple[str, ...], scratch: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "scratch/inner").mkdir(parents=True)
    declared = tuple(path.format(tmp=tmp_path) for path in paths)
    spec = JailSpec(tier=tier, read_only=declared, scratch=scratch.format(tmp=tmp_path))
    with pytest.raises(KernelUnavailable, match=says):
        try_tier(spec)


def test_a_missing_scratch_folder_is_refused_where_it_is_the_hosts(tmp_path: Path) -> None:
    spec = JailSpec(
        tier="kernel-only", read_only=default_read_only(), scratch=str(tmp_path / "absent")
    )
    with pytest.raises(KernelUnavailable, match="not a folder"):
        try_tier(spec)


@pytest.mark.parametrize(
    ("layers", "guarantee"),
    [
        ("", "read outside"),
        ("linux.restrict_paths(spec.read_only, spec.scratch, 1)", "network"),
        ("syscalls.install(os.getpid())", "read outside"),
        # A socket that fails for another reason than a refusal proves nothing.
        (
            "linux.restrict_paths(spec.read_only, spec.scratch, 1); refuse_calls(38, 'socket')",
            "network",
        ),
    ],
)
def test_the_probes_find_a_missing_layer(layers: str, guarantee: str, tmp_path: Path) -> None:
    """The part of the jail that is really there is real, and the probes must notice the part that
    is not.
    """
    jailed.need("kernel-only")
    source = f"""
from scroll_context.jail import linux
from scroll_context.jail import probes
spec = JailSpec(tier=tier, read_only=default_read_only(), scratch=scratch)
targets = probes.choose_targets(spec)
linux.forbid_new_privileges()
{layers}
try:
    print(probes.run_probes(spec, tier, targets))
except KernelUnavailable as refusal:
    print(refusal)
"""
    result = jailed.run(_REFUSE + source, tmp_path, "kernel-only")
    assert result.stdout.startswith(f"jail: '{guarantee}' cannot be guaranteed"), (
        result.stdout + result.stderr
    )


def test_none_needs_the_argument_and_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = JailSpec(tier="none", read_only=(), scratch=str(tmp_path))
    for value in (None, "", "0", "yes"):
        monkeypatch.delenv(ALLOW_UNSANDBOXED, raising=False)
        if value is not None:
            monkeypatch.setenv(ALLOW_UNSANDBOXED, value)
        with pytest.raises(KernelUnavailable, match=ALLOW_UNSANDBOXED):
            enter(spec)
    monkeypatch.setenv(ALLOW_UNSANDBOXED, "1")
    reported: list[int] = []
    enforcement = enter(spec, report_pid=reported.append)
    assert reported == [enforcement.pid] == [os.getpid()]
    assert enforcement.tier == "none"
    assert not any(guarantee.enforced for guarantee in enforcement.guarantees)


def test_the_variable_alone_does_not_lead_to_none(tmp_path: Path) -> None:
    result = jailed.run(
        _REFUSE + _NO_LANDLOCK + _TRY_KERNEL, tmp_path, "auto", env={ALLOW_UNSANDBOXED: "1"}
    )
    assert result.stdout.startswith("refused"), result.stderr


def test_a_tier_of_another_platform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelUnavailable, match="does not have this tier"):
        enter(JailSpec(tier="seatbelt", read_only=(), scratch=str(tmp_path)))


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_older_landlock_is_enough_with_the_filter(abi: int, tmp_path: Path) -> None:
    """Landlock before ABI 3 does not know truncation: the filter of system calls refuses it
    instead.
    """
    jailed.need("kernel-only")
    library, secret, scratch = (
        tmp_path / "declared/library",
        tmp_path / "secret",
        tmp_path / "scratch",
    )
    library.parent.mkdir()
    scratch.mkdir()
    library.write_text("library")
    secret.write_text("secret")
    source = f"""
from scroll_context.jail import linux
linux.forbid_new_privileges()
linux.restrict_paths((*default_read_only(), {str(library.parent)!r}), scratch, {abi})
syscalls.install(os.getpid())
library, secret = {str(library)!r}, {str(secret)!r}
for attempt in (
    lambda: os.open(library, os.O_RDONLY | os.O_TRUNC),
    lambda: os.open(library, 3 | os.O_TRUNC),
    lambda: os.open(library, os.O_WRONLY),
    lambda: os.truncate(library, 0),
    lambda: os.open(secret, os.O_RDONLY),
    lambda: os.rename(secret, 'mine'),
    lambda: os.unlink(library),
):
    try:
        attempt()
        print('through')
    except OSError:
        print('refused')
print(open(library).read(), open('mine', 'w').write('mine'))
"""
    result = jailed.run(_REFUSE + source, scratch, "kernel-only", cwd=scratch)
    assert result.stdout.split() == ["refused"] * 7 + ["library", "4"], (
        result.stdout + result.stderr
    )
    assert library.read_text() == "library"
