"""Every way out by a socket: all families, named and abstract unix sockets, and tricks with a
socket pair.
"""

from __future__ import annotations

from attack import attacks

_ANYONE = {
    "connect by TCP": "s = socket.socket(); s.connect(('127.0.0.1', T.tcp_port)); evidence = s.send(b'x')",
    "connect by TCP over IPv6": """
s = socket.socket(socket.AF_INET6)
s.connect(('::1', T.tcp6_port))
evidence = s.send(b'x')
""",
    "connect by multipath TCP": """
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
s.connect(('127.0.0.1', T.tcp_port))
evidence = s.send(b'x')
""",
    "send by UDP": """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
evidence = s.sendto(b'x', ('127.0.0.1', T.udp_port))
""",
    "send by UDP-Lite": """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)
evidence = s.sendto(b'x', ('127.0.0.1', 9))
""",
    "listen by TCP": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); evidence = s.getsockname()",
    "connect to a unix socket": "s = socket.socket(socket.AF_UNIX); s.connect(T.unix_path); evidence = s.send(b'x')",
    "connect to an abstract unix socket": """
s = socket.socket(socket.AF_UNIX)
s.connect(T.abstract)
evidence = s.send(b'x')
""",
    "send a datagram to a unix socket": """
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
evidence = s.sendto(b'x', T.unix_datagram_path)
""",
    "send to a named unix socket from a socket pair": """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
evidence = a.sendto(b'x', T.unix_datagram_path)
""",
    "send to an abstract unix socket from a socket pair": """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
evidence = a.sendto(b'x', T.abstract_datagram)
""",
    "send a message with an address from a socket pair": """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
evidence = a.sendmsg([b'x'], (), 0, T.unix_datagram_path)
""",
    "connect one end of a socket pair elsewhere": """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
a.connect(T.unix_datagram_path)
evidence = a.send(b'x')
""",
    "pass a descriptor over a socket pair": """
a, b = socket.socketpair(socket.AF_UNIX)
socket.send_fds(a, [b'x'], [a.fileno()])
evidence = socket.recv_fds(b, 1, 1)[1]
""",
    "send urgent data over a socket pair": """
a, b = socket.socketpair(socket.AF_UNIX)
evidence = a.send(b'x', socket.MSG_OOB)
""",
    "receive urgent data over a socket pair": """
a, b = socket.socketpair(socket.AF_UNIX)
try:
    b.recv(1, socket.MSG_OOB)
except OSError as answer:
    evidence = answer.errno == 22  # there is none; a refusal would have another number
""",
    "listen at an abstract name": """
s = socket.socket(socket.AF_UNIX)
s.bind(f'\\0scroll-attack-{os.getpid()}')
s.listen()
evidence = True
""",
    "listen at a name in scratch": "s = socket.socket(socket.AF_UNIX); s.bind('socket'); s.listen(); evidence = True",
    "name one end of a socket pair": """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
a.bind(f'\\0scroll-attack-pair-{os.getpid()}')
evidence = True
""",
    "learn who is at the other end": """
a, b = socket.socketpair()
evidence = a.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
""",
    "ask the kernel by netlink": """
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s.bind((0, 0))
s.send(struct.pack('=IHHIIB3x', 20, 18, 0x301, 1, 0, 0))
evidence = s.recv(4096)
""",
    "use the virtual machine's socket family": "evidence = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).fileno()",
    "try every other socket family": """
evidence = []
for family in range(3, 46):
    for kind in (1, 2, 3, 5):
        try:
            evidence.append(socket.socket(family, kind, 0).family)
        except OSError:
            pass
""",
}

_AS_ROOT = {
    "send raw packets": "evidence = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno()",
    "listen to the wire": "evidence = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).fileno()",
}

ATTACKS = [*attacks(_ANYONE), *attacks(_AS_ROOT, needs_root=True)]
