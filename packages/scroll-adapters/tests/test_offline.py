"""The runs of `make test-hosts` have no network: a framework that needs one would fail there."""

import os
import socket
import subprocess
import sys

import pytest

OFFLINE = os.environ.get("SCROLL_OFFLINE", "")
# An address that no machine has. Connecting a datagram socket sends nothing: it only asks for a
# route, and a machine with a network has one.
CONNECT = (
    "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
)

pytestmark = pytest.mark.skipif(not OFFLINE, reason="only `make test-hosts` turns the network off")


def test_nothing_outside_this_machine_can_be_reached() -> None:
    with pytest.raises(OSError):
        exec(CONNECT)


@pytest.mark.skipif(OFFLINE == "sockets", reason="other processes need a network namespace")
def test_other_processes_have_no_network_either() -> None:
    tried = subprocess.run([sys.executable, "-c", CONNECT], capture_output=True, text=True)
    assert tried.returncode == 1 and "Network is unreachable" in tried.stderr
    assert [name for _, name in socket.if_nameindex() if name != "lo"] == []


def test_this_machine_can_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=10).close()
