"""The process around the jail: who dies with whom, what the host learns, what the limits do to a
cell.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from pathlib import Path

import jailed
import pytest
from msgspec.structs import asdict

from scroll_context.jail.linux import set_cpu_budget
from scroll_context.jail.spec import JailLimits

TIERS = ["full", "kernel-only"]
pytestmark = pytest.mark.parametrize("tier", TIERS)


def wait_until_gone(pid: int) -> None:
    """Until the process has ended; a pidfd becomes readable then."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        gone = select.select([descriptor], [], [], 60)[0]
        if not gone:
            os.kill(pid, signal.SIGKILL)  # it would hold the pipes of the test open
        assert gone, f"process {pid} lives on"
    finally:
        os.close(descriptor)


def started(source: str, scratch: Path, tier: str) -> tuple[subprocess.Popen[str], int]:
    """A jailed process that has printed its number as the host sees it."""
    jailed.need(tier)
    process = jailed.start(source, scratch, tier)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, int(line)


_WAIT = "print(enter_jail().pid, flush=True)\nwhile True: time.sleep(60)"


@pytest.mark.parametrize(
    ("ending", "status"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("sys.exit(0)", 0)]
)
def test_the_exit_is_mirrored(tier: str, ending: str, status: int, tmp_path: Path) -> None:
    jailed.need(tier)
    if tier == "full" and status == -9:
        ending = "import ctypes; ctypes.string_at(0)"  # process 1 of a namespace cannot kill itself
        status = -signal.SIGSEGV
    assert jailed.run(f"enter_jail()\n{ending}", tmp_path, tier).returncode == status


def test_the_jailed_process_dies_with_its_supervisor(tier: str, tmp_path: Path) -> None:
    process, pid = started(_WAIT, tmp_path, tier)
    assert pid != process.pid
    process.kill()
    wait_until_gone(pid)
    process.communicate()


def test_both_die_with_the_process_that_started_them(tier: str, tmp_path: Path) -> None:
    source = """
if os.fork() == 0:
    print(enter_jail().pid, flush=True)
    while True: time.sleep(60)
os.wait()
"""
    process, pid = started(source, tmp_path, tier)
    process.kill()
    wait_until_gone(pid)
    process.communicate()


def test_the_supervisor_ends_when_the_jailed_process_is_killed(tier: str, tmp_path: Path) -> None:
    process, pid = started(_WAIT, tmp_path, tier)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.communicate()


def test_the_number_is_reported_outside_before_anything_can_be_reaped(
    tier: str, tmp_path: Path
) -> None:
    source = """
reader, writer = os.pipe()
def report(pid):
    os.write(writer, f'{pid} {os.pidfd_open(pid) > 2} {os.getpid()}'.encode())
outside = os.getpid()
enforcement = enter_jail(keep={reader}, report_pid=report)
pid, opened, reporter = os.read(reader, 99).decode().split()
print(int(pid) == enforcement.pid, opened, int(reporter) == outside)
"""
    jailed.need(tier)
    result = jailed.run(source, tmp_path, tier)
    assert result.stdout.split() == ["True", "True", "True"], result.stderr


def test_the_supervisor_holds_no_socket_of_the_host(tier: str, tmp_path: Path) -> None:
    """So the host sees the end of the stream as soon as the jailed process is gone, and not a
    moment later.
    """
    ours, theirs = socket.socketpair()
    process, pid = None, 0
    with ours:
        jailed.need(tier)
        source = f"print(enter_jail(keep={{{theirs.fileno()}}}).pid, flush=True)\nwhile True: time.sleep(60)"
        process = jailed.start(source, tmp_path, tier, pass_fds=(theirs.fileno(),))
        theirs.close()
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, signal.SIGKILL)
        ours.settimeout(60)
        assert ours.recv(1) == b""
        process.communicate()


def test_neither_keeps_a_capability(tier: str, tmp_path: Path) -> None:
    process, pid = started(_WAIT, tmp_path, tier)
    for number in (pid, process.pid):
        status = Path(f"/proc/{number}/status").read_text()
        held = {
            line.split()[1]
            for line in status.splitlines()
            if line.startswith(("CapPrm", "CapEff", "CapInh", "CapAmb"))
        }
        assert held == {"0" * 16}
        assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()
    process.kill()
    wait_until_gone(pid)
    process.communicate()


def test_the_system_has_a_limit_for_all_that_a_process_can_take(tier: str, tmp_path: Path) -> None:
    limits = JailLimits(
        memory_bytes=300 << 20, cpu_seconds=77, threads=16, open_files=60, scratch_bytes=3 << 20
    )
    source = f"print(enter_jail(**{asdict(limits)}).pid, flush=True)\nwhile True: time.sleep(60)"
    process, pid = started(source, tmp_path, tier)
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    soft_and_hard = {line[:25].strip(): tuple(line[25:].split()[:2]) for line in lines}
    process.kill()
    wait_until_gone(pid)
    process.communicate()
    expected = {
        "Max core file size": 1,  # with 0, a program of the host would still get the dump
        "Max data size": limits.memory_bytes,
        "Max stack size": 8 << 20,
        "Max open files": limits.open_files,
        "Max locked memory": 0,
        "Max pending signals": 0,
    }
    assert {name: soft_and_hard[name] for name in expected} == {
        name: (str(value), str(value)) for name, value in expected.items()
    }
    # The host moves these, so their hard limit stays open.
    assert soft_and_hard["Max cpu time"][0] == str(limits.cpu_seconds)
    assert soft_and_hard["Max file size"][0] == str(limits.scratch_bytes)
    mapped, mapped_hard = soft_and_hard["Max address space"]
    assert mapped == mapped_hard
    assert limits.memory_bytes < int(mapped) < 4 << 30


def test_an_interrupt_reaches_the_handler_that_was_installed_before(
    tier: str, tmp_path: Path
) -> None:
    source = """
signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True) or os._exit(5))
print(enter_jail().pid, flush=True)
while True: time.sleep(60)
"""
    process, pid = started(source, tmp_path, tier)
    os.kill(pid, signal.SIGINT)
    assert process.wait(timeout=60) == 5
    assert "interrupted" in process.communicate()[0]


def test_the_host_renews_the_cpu_budget(tier: str, tmp_path: Path) -> None:
    """A first cell uses nearly all of it; after the renewal there is a whole one again, and then a
    signal.
    """
    source = """
def out_of_time(*_): raise TimeoutError
signal.signal(signal.SIGXCPU, out_of_time)
print(enter_jail(cpu_seconds=1000).pid, flush=True)
kept = 'kept'
def burn():
    while True: sum(range(100))
try:
    burn()
except TimeoutError:
    print(kept, round(time.process_time()), flush=True)
"""
    process, pid = started(source, tmp_path, tier)
    set_cpu_budget(pid, 600)
    set_cpu_budget(pid, 0.5)
    out, err = process.communicate(timeout=120)
    assert out, err
    kept, used = out.split()
    assert kept == "kept"
    assert int(used) <= 2


@pytest.mark.parametrize(
    ("limits", "excess", "error"),
    [
        ("memory_bytes=400 << 20", "bytearray(500 << 20)", "MemoryError"),
        (
            "threads=4",
            "[threading.Thread(target=gate.wait).start() for _ in range(4)]",
            "RuntimeError",
        ),
        ("open_files=40", "[os.dup(1) for _ in range(50)]", "OSError"),
        ("scratch_bytes=1 << 20", "open('big', 'wb').write(bytes(2 << 20))", "OSError"),
    ],
)
def test_hitting_a_limit_raises_and_keeps_the_namespace(
    tier: str, limits: str, excess: str, error: str, tmp_path: Path
) -> None:
    source = f"""
gate = threading.Event()
enter_jail({limits})
kept = list(range(10))
try:
    {excess}
except Exception as failure:
    print(type(failure).__name__, sum(kept))
gate.set()
"""
    jailed.need(tier)
    result = jailed.run(source, tmp_path, tier)
    assert result.stdout.split() == [error, "45"], result.stderr


def test_a_full_scratch_folder_can_be_emptied_and_used_again(tier: str, tmp_path: Path) -> None:
    source = """
enter_jail(scratch_bytes=4 << 20)
def fill():
    for number in range(400):
        with open(f'file{number}', 'wb', buffering=0) as file:
            if file.write(bytes(1 << 16)) < 1 << 16: raise OSError
        time.sleep(0.005)
try:
    fill()
    print('no limit')
except OSError:
    for name in os.listdir('.'): os.unlink(name)
deadline = time.monotonic() + 40
while time.monotonic() < deadline:
    try:
        print(open('again', 'w').write('text'))
        break
    except OSError:
        time.sleep(0.05)
"""
    jailed.need(tier)
    result = jailed.run(source, tmp_path, tier)
    assert result.stdout.split() == ["4"], result.stderr


def test_the_standard_descriptors_lead_nowhere(tier: str, tmp_path: Path) -> None:
    source = """
answer = os.dup(1)
spec = JailSpec(tier=tier, read_only=default_read_only(), scratch=scratch)
enter(spec, keep={answer})
null = os.stat('/dev/null').st_rdev
os.write(answer, repr([os.fstat(fd).st_rdev == null for fd in (0, 1, 2)]).encode())
os._exit(0)
"""
    jailed.need(tier)
    assert jailed.run(source, tmp_path, tier).stdout == "[True, True, True]"


def test_many_starts_leave_nothing_behind(tier: str, tmp_path: Path) -> None:
    jailed.need(tier)
    result = jailed.run(
        """
for _ in range(5):
    child = os.fork()
    if child == 0:
        enter_jail()
        os._exit(0)
    os.waitpid(child, 0)
print(len(os.listdir('/proc/self/fd')), open('/proc/self/mountinfo').read().count('scroll-'))
""",
        tmp_path,
        tier,
    )
    descriptors, mounts = result.stdout.split()
    assert int(descriptors) <= 5
    assert mounts == "0"
