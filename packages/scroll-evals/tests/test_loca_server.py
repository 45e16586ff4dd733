"""Starting, checking and stopping the sandbox server, and making the environment that it runs in."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from loca_checkout import ENVIRONMENT, entry, make_checkout
from scroll_context.errors import BadInput, ToolFailed
from scroll_evals.loca_client import LocaClient
from scroll_evals.loca_environment import (
    PINS,
    InstallStep,
    existing,
    install,
    prepared,
    requirements_of,
    steps,
)
from scroll_evals.loca_server import LocaServer, free_port, listening
from scroll_evals.loca_supervisor import descendants


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "checkout", [entry()])


@pytest.fixture
def server(checkout: Path, tmp_path: Path) -> Iterator[LocaServer]:
    with start(checkout, tmp_path) as server:
        yield server


def start(checkout: Path, folder: Path, **options: object) -> LocaServer:
    return LocaServer.start(
        checkout, ENVIRONMENT, folder / "served", folder / "server.log", **options
    )  # type: ignore[arg-type]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: set[int], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def some_ports() -> Iterator[int]:
    """Free ports, each chosen when it is needed, since another process may take one meanwhile."""
    return (free_port() for _ in range(10))


# the server -----------------------------------------------------------------------------------------------


def test_it_listens_on_loopback_only_and_stops_with_all_that_it_started(
    checkout: Path, tmp_path: Path
) -> None:
    before = descendants(os.getpid())
    server = start(checkout, tmp_path)
    below = descendants(os.getpid()) - before
    assert any(listening(pid) == {("127.0.0.1", server.client.port)} for pid in below)
    server.client.init(
        "shop", entry(), str(tmp_path / "task"), str(tmp_path / "task" / "agent_workspace"), 60.0
    )
    spawned = int(server.client.execute("s-1", "shop_spawn", {}, "c").content)
    assert os.getsid(spawned) == spawned, "it left the session of its starter"
    server.stop()
    assert gone({spawned, *below})
    assert not server.client.is_healthy()


def test_it_is_stopped_when_its_starter_is_killed(checkout: Path, tmp_path: Path) -> None:
    source = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_loca_server import descendants, os, start
start(Path({str(checkout)!r}), Path({str(tmp_path)!r}))
print(*descendants(os.getpid()), flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pids = set(map(int, starter.stdout.readline().split()))
        assert len(pids) == 2 and all(map(is_running, pids))
        starter.send_signal(signal.SIGKILL)
    assert gone(pids)


def test_it_is_stopped_when_its_warden_is_killed(checkout: Path, tmp_path: Path) -> None:
    before = descendants(os.getpid())
    server = start(checkout, tmp_path)
    below = descendants(os.getpid()) - before
    (supervisor,) = (pid for pid in below if not listening_itself(pid))
    os.kill(supervisor, signal.SIGKILL)
    assert gone(below)
    assert server.has_died()
    server.stop()


def test_a_server_whose_warden_is_slow_has_died_all_the_same(
    checkout: Path, tmp_path: Path
) -> None:
    before = descendants(os.getpid())
    with start(checkout, tmp_path) as server:
        assert not server.has_died()
        below = descendants(os.getpid()) - before
        (supervisor,) = (pid for pid in below if not listening_itself(pid))
        os.kill(supervisor, signal.SIGSTOP)
        for pid in below - {supervisor}:
            os.kill(pid, signal.SIGKILL)
        threading.Timer(1.0, os.kill, (supervisor, signal.SIGCONT)).start()
        assert server.has_died()


def listening_itself(pid: int) -> bool:
    """Whether this process, not one below it, has a listening socket."""
    return not (descendants(pid) and listening(pid))


def test_a_server_that_listens_elsewhere_too_is_refused(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "c", start="everywhere")
    before = descendants(os.getpid())
    with pytest.raises(ToolFailed, match="listens on 0x00000000:"):
        start(checkout, tmp_path)
    assert gone(descendants(os.getpid()) - before)


def test_a_server_that_never_gets_healthy_is_given_up(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "c", start="unhealthy")
    before = descendants(os.getpid())
    with pytest.raises(ToolFailed, match="does not become healthy"):
        start(checkout, tmp_path, healthy_seconds=1.0)
    assert gone(descendants(os.getpid()) - before)


def test_another_port_is_taken_when_one_is_not_free(checkout: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = chain([taken.getsockname()[1]], some_ports())
        taken.settimeout(0)
        with start(checkout, tmp_path, ports=ports) as server:
            assert server.client.port != taken.getsockname()[1]
        with pytest.raises(ToolFailed, match="ended with status"):
            start(checkout, tmp_path, ports=iter([taken.getsockname()[1]]))


def test_a_healthy_answer_of_somebody_else_is_not_taken_for_ours(
    server: LocaServer, checkout: Path, tmp_path: Path
) -> None:
    with start(checkout, tmp_path, ports=chain([server.client.port], some_ports())) as second:
        assert second.client.port != server.client.port


def test_a_caller_can_end_the_wait(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "c", start="unhealthy")
    before = descendants(os.getpid())

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(checkout, tmp_path, check=check)
    assert gone(descendants(os.getpid()) - before)


def test_the_client_goes_through_no_proxy(
    server: LocaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert LocaClient(server.client.port).is_healthy()


# its environment ------------------------------------------------------------------------------------------


def python(name: str, source: str, *, optional: bool = False) -> InstallStep:
    return InstallStep(
        name=name, says=f"doing {name}", command=(sys.executable, "-c", source), optional=optional
    )


def test_an_installation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    told: list[str] = []
    good = python("one", "open('one.txt', 'a').write('x')")
    bad = python("two", "import sys; print('no room'); sys.exit(4)")
    with pytest.raises(BadInput, match=r"doing two failed: status 4. It last wrote:\nno room"):
        install(tmp_path, (good, bad), told.append)
    install(tmp_path, (good, python("two", "open('two.txt', 'w')")), told.append)
    assert (tmp_path / "one.txt").read_text() == "x", "what was done is not done again"
    assert (tmp_path / "two.txt").exists()
    assert told == ["LOCA server: doing one", "LOCA server: doing two", "LOCA server: doing two"]
    assert "no room" in (tmp_path / "install.log").read_text()


def test_what_is_optional_may_fail_and_is_tried_again(tmp_path: Path) -> None:
    told: list[str] = []
    install(tmp_path, (python("extra", "raise SystemExit(1)", optional=True),), told.append)
    assert "environment-failed" in told[-1]
    install(tmp_path, (python("extra", "open('extra.txt', 'w')", optional=True),), told.append)
    assert (tmp_path / "extra.txt").exists()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    step = InstallStep(name="node", says="installing", command=("no-such-program-anywhere",))
    with pytest.raises(BadInput, match="there is no no-such-program-anywhere on the PATH"):
        install(tmp_path, (step,), lambda _: None)


def test_the_steps_install_the_checkouts_requirements_with_our_limits(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["fastapi", "msgspec==0.19.0"]\n'
    )
    found = {step.name: step for step in steps(tmp_path, (*requirements_of(tmp_path), *PINS))}
    assert found["packages"].command[-5:] == (
        "fastapi",
        "msgspec==0.19.0",
        "mcp<2",
        "fastmcp<3",
        "pandas<3",
    )
    assert found["packages"].command[0] == str(tmp_path / "python" / "bin" / "python")
    assert "mcp<2" in found["cli-mcp-server"].command
    assert all(str(tmp_path) in place for place in found["cli-mcp-server"].variables.values())


def test_no_step_downloads_a_python(tmp_path: Path) -> None:
    found = {step.name: step.command for step in steps(tmp_path, PINS)}
    for name, command in found.items():
        if command[0].endswith("uv"):
            assert "--no-python-downloads" in command, name
            assert command[command.index("--python") + 1] == sys.executable
    names = list(found)
    assert names.index("pdf-libraries") < names.index("pdf-tools-mcp")
    # The server names a newer Python than it needs, and the one that runs Scroll is used.
    assert found["pdf-tools-mcp"][0] == str(tmp_path / "python" / "bin" / "python")
    assert {"--ignore-requires-python", "--no-deps"} <= set(found["pdf-tools-mcp"])
    assert "--ignore-requires-python" not in found["pdf-libraries"]
    assert set(PINS) <= set(found["pdf-libraries"]), "the server's own libraries keep their limits"


def test_an_environment_that_is_there_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["fastapi"]\n')
    cache, told = tmp_path / "cache", []
    with pytest.MonkeyPatch.context() as patched, pytest.raises(BadInput):
        patched.setattr(
            sys, "executable", "/nowhere/python"
        )  # the first step fails, after the folder was chosen
        prepared(tmp_path, told.append, cache)
    (folder,) = cache.iterdir()
    for step in steps(folder, ()):
        (folder / f"{step.name}.done").touch()
    told.clear()
    found = prepared(tmp_path, told.append, cache)
    assert found.python == folder / "python" / "bin" / "python" and not told
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["fastapi", "other"]\n')
    with pytest.MonkeyPatch.context() as patched, pytest.raises(BadInput):
        patched.setattr(sys, "executable", "/nowhere/python")
        prepared(tmp_path, told.append, cache)
    assert len(list(cache.iterdir())) == 2, "other requirements make another environment"


def test_a_checkout_without_requirements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is this a checkout of LOCA-bench"):
        requirements_of(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(BadInput, match="does not list"):
        requirements_of(tmp_path)
    with pytest.raises(BadInput, match="not an executable Python"):
        existing(tmp_path / "python")
