"""Who lives as long as whom: fork servers, workers, the host, and the threads of the host."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from scroll_context.errors import KernelError, KernelUnavailable
from scroll_context.jail.spec import ALLOW_UNSANDBOXED, JailLimits, JailSpec, default_read_only
from scroll_context.kernel import launcher
from scroll_context.kernel.kernel import WORKER_MODULE, Kernel, KernelOptions
from scroll_context.kernel.protocol import KernelSettings
from scroll_context.kernel.worker_process import WorkerProcess

LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="needs /proc and pidfds, which only Linux has"
)


def parents(pid: int) -> list[int]:
    found = []
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def descriptors(pid: int) -> list[str]:
    return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]


def ends(pid: int, within: float = 60.0) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], within)[0])
    finally:
        os.close(fd)


@LINUX
def test_kernels_share_a_fork_server_and_nothing_else(make_kernel) -> None:
    first, second = make_kernel(), make_kernel()
    pids = [first.start().pid, second.start().pid]
    shared = launcher._shared._process.pid
    assert all(shared in parents(pid) for pid in pids)
    for pid in pids:
        held = descriptors(pid)
        assert sum(target.startswith("socket:") for target in held) == 1
        assert all(
            target == "/dev/null" or target.startswith(("socket:", "anon_inode:"))
            for target in held
        ), held
    held = descriptors(shared)
    assert sum(target.startswith("socket:") for target in held) == 1, (
        "the fork server keeps the socket of a kernel"
    )
    assert not [target for target in held if target.startswith("pipe:")]


@LINUX
def test_a_lost_fork_server_is_replaced_and_its_kernels_restored(make_kernel) -> None:
    kernel = make_kernel()
    kernel.execute("x = [1]")
    kernel.save()
    old = launcher._shared._process.pid
    pid = kernel.start().pid
    os.kill(old, signal.SIGKILL)
    assert ends(pid), "a worker outlived its fork server"
    result = kernel.execute("print(x)")
    if result.ended == "killed":
        result = kernel.execute("print(x)")
    assert result.stdout == "[1]\n"
    assert launcher._shared._process.pid != old


HOST = """
import sys, os
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel import launcher
kernel = Kernel()
pid = kernel.start().pid
kernel.execute("x = 1")
child = os.fork() if len(sys.argv) > 1 else -1
if child == 0:  # it has inherited every descriptor
    import time
    time.sleep(60)
print(launcher._shared._process.pid, pid, child, flush=True)
kernel.execute("while True: pass", timeout=60)
"""


@LINUX
@pytest.mark.parametrize("forks", [False, True])
def test_everything_ends_with_the_host(forks: bool) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, *(["fork"] if forks else [])],
        stdout=subprocess.PIPE,
        text=True,
    )
    server, worker, child = map(int, host.stdout.readline().split())
    try:
        assert not ends(worker, 0)
        host.kill()
        assert ends(server) and ends(worker)
    finally:
        host.kill()
        host.wait()
        if child > 0:
            os.kill(child, signal.SIGKILL)
        host.stdout.close()


def test_a_kernel_outlives_the_thread_that_started_it(tier, tmp_path) -> None:
    """The kernel ties a child to the life of a thread of its parent, not of the process; that must
    not show.
    """
    spec = JailSpec(tier=tier, read_only=default_read_only(), scratch=str(tmp_path))
    for share in (True, False):
        kernel = Kernel(spec=spec, options=KernelOptions(share_fork_server=share))
        if share and launcher._shared is not None:
            launcher._shared.close()
            launcher._shared = None
        thread = threading.Thread(target=kernel.start)
        thread.start()
        thread.join()
        try:
            assert kernel.execute("x = 1").restore is None
            time.sleep(0.05)
            assert kernel.execute("print(x)").stdout == "1\n"
        finally:
            kernel.close()


def test_a_fork_server_of_its_own_shares_no_hash_seed(make_kernel) -> None:
    source = "print(hash('a text'))"
    shared = {make_kernel().execute(source).stdout for _ in range(2)}
    own = {
        make_kernel(options=KernelOptions(share_fork_server=False)).execute(source).stdout
        for _ in range(2)
    }
    assert len(shared) == 1
    assert len(own) == 2
    assert not shared & own


def test_random_numbers_differ_between_kernels_of_one_fork_server(make_kernel) -> None:
    source = "import random, uuid\nprint(random.random(), uuid.uuid4())"
    assert len({make_kernel().execute(source).stdout for _ in range(3)}) == 3


def test_nothing_of_the_environment_arrives(make_kernel, monkeypatch) -> None:
    monkeypatch.setenv("SCROLL_TEST_SECRET", "hunter2")
    if launcher._shared is not None:
        launcher._shared.close()
        launcher._shared = None
    kernel = make_kernel()
    kernel.execute("import os\nhere = os.getcwd()")
    assert kernel.execute("print('SCROLL_TEST_SECRET' in os.environ)").stdout == "False\n"
    assert (
        kernel.execute("print(os.environ['HOME'] == os.environ['TMPDIR'] == here)").stdout
        == "True\n"
    )


def test_a_kernel_needs_to_be_started_and_can_be_closed_twice(make_kernel) -> None:
    kernel = make_kernel(start=False)
    for use in (lambda: kernel.execute("1"), kernel.save):
        with pytest.raises(KernelError, match="not running"):
            use()
    assert kernel.variable_list() == ""
    kernel.start()
    assert kernel.execute("print(1)").stdout == "1\n"
    kernel.close()
    kernel.close()
    with pytest.raises(KernelError, match="not running"):
        kernel.execute("1")


def test_closing_ends_the_process_and_removes_the_scratch_folder() -> None:
    with Kernel() as kernel:
        pid = kernel.start().pid
        scratch = Path(kernel._scratch.path)
        assert scratch.is_dir()
    assert ends(pid)
    assert not scratch.exists()


def test_none_needs_the_argument_and_the_variable(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(ALLOW_UNSANDBOXED, raising=False)
    spec = JailSpec(tier="none", read_only=(), scratch=str(tmp_path))
    with pytest.raises(KernelUnavailable, match=ALLOW_UNSANDBOXED):
        Kernel(spec=spec).start()


def test_a_jail_that_cannot_be_built_is_an_error_with_a_remedy(tmp_path, tier) -> None:
    if tier == "none":
        pytest.skip("this machine has no jail to fail")
    spec = JailSpec(
        tier=tier, read_only=default_read_only(), scratch=str(tmp_path / "missing" / "\0bad")
    )
    with pytest.raises(KernelUnavailable):
        Kernel(spec=spec).start()


def test_a_worker_that_promises_less_than_required_is_refused(tmp_path, tier) -> None:
    if tier != "full":
        pytest.skip("needs tier full, to ask for it and be given kernel-only")
    sent = JailSpec(tier="kernel-only", read_only=default_read_only(), scratch=str(tmp_path))
    sock = launcher.spawn_shared(WORKER_MODULE, KernelSettings(sent, False))
    with pytest.raises(KernelUnavailable, match="tier full"):
        WorkerProcess(sock, msgspec.structs.replace(sent, tier="full"), print, 1.0, 1000)


def test_an_interpreter_that_cannot_be_started_is_a_kernel_error_with_the_remedy(
    make_kernel, monkeypatch
) -> None:
    kernel = make_kernel(options=KernelOptions(share_fork_server=False), start=False)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(KernelUnavailable, match="Check that this Python can start itself"):
        kernel.start()


@pytest.mark.parametrize("kind", ["full", "kernel-only"])
def test_a_process_that_filled_its_scratch_folder_is_replaced_by_one_with_an_empty_folder(
    tier, kind: str
) -> None:
    if tier == "none" or (kind, tier) == ("full", "kernel-only"):
        pytest.skip(f"needs tier {kind}")
    limits = JailLimits(scratch_bytes=1 << 20)
    with Kernel(
        spec=JailSpec(tier=kind, read_only=default_read_only(), scratch="", limits=limits)
    ) as kernel:
        kernel.execute("import os\nos.mkdir('.probe')")
        filled = (
            "for i in range(4): open(f'f{i}', 'wb', buffering=0).write(bytes(1 << 18))\nos._exit(1)"
        )
        assert kernel.execute(filled).ended == "killed"
        assert kernel.execute("import os; print(os.listdir())").stdout == "[]\n"


def test_several_kernels_run_cells_at_once(make_kernel) -> None:
    kernels = [make_kernel() for _ in range(4)]
    results: dict[int, str] = {}

    def work(i: int) -> None:
        for n in range(20):
            kernels[i].execute(f"x = {i * 100 + n}")
        results[i] = kernels[i].execute("print(x)").stdout

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: f"{i * 100 + 19}\n" for i in range(4)}


def test_threads_of_the_host_take_turns_on_one_kernel(kernel: Kernel) -> None:
    kernel.execute("log = []")
    threads = [
        threading.Thread(target=lambda: [kernel.execute("log.append(len(log))") for _ in range(20)])
        for _ in range(4)
    ]
    threads.append(
        threading.Thread(
            target=lambda: [(kernel.save(), kernel.variable_list()) for _ in range(10)]
        )
    )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernel.execute("print(log == list(range(80)))").stdout == "True\n"


def test_the_fork_server_ends_when_its_host_ends_in_the_middle_of_a_request() -> None:
    for beginning in (
        b"",
        b"\0\0",
        launcher.PREFIX.pack(1_000),
        launcher.PREFIX.pack(1_000) + b"half a request",
    ):
        server = launcher.ForkServer()
        try:
            if beginning:
                server._control.sendall(beginning)
            server._control.shutdown(socket.SHUT_WR)
            assert server._process.wait(timeout=30) == 0, beginning
        finally:
            server.close()
