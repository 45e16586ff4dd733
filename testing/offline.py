"""A pytest plugin for systems without `unshare`: sockets of the test process connect to nothing
outside this machine.

    pytest -p offline
"""

import socket
from typing import Any

LOCAL = ("127.0.0.1", "::1", "localhost")

_connect = socket.socket.connect


def _refuse(self: socket.socket, address: Any) -> None:
    if self.family != socket.AF_UNIX and address[0] not in LOCAL:
        raise OSError(f"the tests have no network, and something connects to {address!r}")
    _connect(self, address)


socket.socket.connect = _refuse
