"""New processes and programs, other processes, what was inherited, the terminal, and the wide
system calls.
"""

from __future__ import annotations

from attack import Attack, attacks

_NEW_PROCESSES = {
    "fork": """
child = os.fork()
if child == 0:
    os._exit(0)
evidence = os.waitpid(child, 0)
""",
    "clone without a thread": """
child = call('clone', signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
evidence = os.waitpid(child, 0)
""",
    "clone as vfork": """
child = call('clone', 0x4000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
evidence = os.waitpid(child, 0)
""",
    "clone3": """
arguments = struct.pack('=8Q', 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
child = call('clone3', arguments, 64)
if child == 0:
    os._exit(0)
evidence = os.waitpid(child, 0)
""",
    "clone as a brother": """
child = call('clone', 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
evidence = child
""",
    "spawn a program": "evidence = os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
    "run a command": "evidence = subprocess.run(['/bin/echo', 'ran'], capture_output=True).stdout",
    "execute a program": """
os.dup2(T.answer, 3)
os.execv('/bin/sh', ['sh', '-c', 'echo EXECUTED >&3'])
""",
    "execute by descriptor": """
os.dup2(T.answer, 3)
program = os.open('/bin/sh', os.O_PATH)
arguments = (ctypes.c_char_p * 4)(b'sh', b'-c', b'echo EXECUTED >&3', None)
call('execveat', program, b'', ctypes.addressof(arguments), None, 0x1000)
""",
    "make a program in memory": "evidence = os.memfd_create('program') > 2",
    "make a user namespace": "call('unshare', 0x10000000); evidence = True",
    "clone into a user namespace": """
child = call('clone', 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
evidence = os.waitpid(child, 0)
""",
    "become a group or session of its own": """
os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
evidence = call('setpgid', 0, 0) == 0
""",
}

_OTHER_PROCESSES = {
    "kill another process": "os.kill(T.victim, signal.SIGKILL); evidence = True",
    "ask whether a process lives": "os.kill(T.victim, 0); evidence = True",
    "signal every process of the group": "os.kill(0, 0); evidence = True",
    "signal a thread of another process": "call('tgkill', T.victim, T.victim, signal.SIGUSR1); evidence = True",
    "signal by tkill": "call('tkill', T.victim, signal.SIGUSR1); evidence = True",
    "queue a signal": """
info = struct.pack('=iii', signal.SIGUSR1, 0, -1) + bytes(116)
call('rt_sigqueueinfo', T.victim, signal.SIGUSR1, info)
evidence = True
""",
    "signal by a process descriptor": """
signal.pidfd_send_signal(os.pidfd_open(T.victim), signal.SIGKILL)
evidence = True
""",
    "hold another process": "evidence = os.pidfd_open(T.victim) > 2",
    "take a descriptor of another process": """
evidence = call('pidfd_getfd', os.pidfd_open(T.victim), 0, 0) >= 0
""",
    "have the kernel signal another process": """
reader, writer = os.pipe()
fcntl.fcntl(reader, fcntl.F_SETOWN, T.victim)
fcntl.fcntl(reader, 10, signal.SIGKILL)
fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
os.write(writer, b'x')
evidence = True
""",
    "have the kernel signal another process by ioctl": """
a, b = socket.socketpair()
fcntl.ioctl(a, 0x8901, struct.pack('=i', T.victim))
evidence = True
""",
    "trace another process": "call('ptrace', 16, T.victim, 0, 0); evidence = True",
    "seize another process": "call('ptrace', 0x4206, T.victim, 0, 0); evidence = True",
    "read another process's memory": """
buffer = ctypes.create_string_buffer(8)
local = struct.pack('=QQ', ctypes.addressof(buffer), 6)
remote = struct.pack('=QQ', T.victim_address, 6)
call('process_vm_readv', T.victim, local, 1, remote, 1, 0)
evidence = buffer.raw[:6] == b'victim'
""",
    "write another process's memory": """
buffer = ctypes.create_string_buffer(b'broken')
local = struct.pack('=QQ', ctypes.addressof(buffer), 6)
remote = struct.pack('=QQ', T.victim_address, 6)
evidence = call('process_vm_writev', T.victim, local, 1, remote, 1, 0) == 6
""",
    "compare with another process": "evidence = call('kcmp', os.getpid(), T.victim, 1, 0, 0) >= 0",
    "limit another process": """
evidence = resource.prlimit(T.victim, resource.RLIMIT_CORE, (0, 0))
""",
    "read the limits of another process": "evidence = resource.prlimit(T.victim, resource.RLIMIT_NOFILE)",
    "slow another process": "os.setpriority(os.PRIO_PROCESS, T.victim, 19); evidence = True",
    "pin another process": "os.sched_setaffinity(T.victim, {0}); evidence = True",
    "read where another process may run": "evidence = os.sched_getaffinity(T.victim)",
    "reschedule another process": "os.sched_setscheduler(T.victim, os.SCHED_IDLE, os.sched_param(0)); evidence = True",
    "learn the session of another process": "evidence = os.getsid(T.victim)",
    "learn the locks of another process": """
head, size = ctypes.c_void_p(), ctypes.c_size_t()
call('get_robust_list', T.victim, ctypes.addressof(head), ctypes.addressof(size))
evidence = True
""",
    "move the pages of another process": "evidence = call('move_pages', T.victim, 0, 0, 0, 0, 0) == 0",
}

_CLOCKS = {
    "see by its clock that another process lives": """
call('clock_gettime', (~T.victim << 3) | 2, ctypes.addressof(ctypes.create_string_buffer(16)))
evidence = True
""",
    "see by the resolution of its clock that another process lives": """
call('clock_getres', (~T.victim << 3) | 2, ctypes.addressof(ctypes.create_string_buffer(16)))
evidence = True
""",
    "sleep by the clock of another process": """
time_of_day = struct.pack('=qq', 0, 1)
call('clock_nanosleep', (~T.victim << 3) | 2, 1, time_of_day, None)
evidence = True
""",
}

_INHERITED = {
    "use an inherited descriptor": """
evidence = []
for fd in range(3, 1024):
    try:
        evidence.append(os.pread(fd, 6, 0) == b'secret')
    except OSError:
        pass
evidence = any(evidence)
""",
    "read the environment": "evidence = os.environ.get('SCROLL_ATTACK_SECRET')",
    "read the environment that Python started with": "evidence = posix.environ.get(b'SCROLL_ATTACK_SECRET')",
    "read the environment in memory": "evidence = b'hunter2' in ctypes.string_at(T.environment_address)",
    "read standard input": "evidence = os.pread(0, 6, 0)",
    "write to standard output": "evidence = os.fstat(1).st_ino == T.secret_inode and os.write(1, b'x')",
}

_ITSELF = {
    "set a limit": """
soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
call('prlimit64', 0, resource.RLIMIT_STACK, struct.pack('=qq', soft, hard), None)
evidence = True
""",
    "set a limit by the old call": """
soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
call('setrlimit', resource.RLIMIT_STACK, struct.pack('=qq', soft, hard))
evidence = True
""",
    "ignore interrupts": "signal.signal(signal.SIGINT, signal.SIG_IGN); evidence = True",
    "ignore the CPU limit": "signal.signal(signal.SIGXCPU, signal.SIG_IGN); evidence = True",
    "outlive its parent": "libc.prctl(1, 0, 0, 0, 0) and raise_errno(); evidence = True",
    "become undumpable": "libc.prctl(4, 0, 0, 0, 0) and raise_errno(); evidence = True",
    "change its personality": "evidence = call('personality', 0x0040000) >= 0",
    "be nicer than allowed": "evidence = os.nice(1)",
    "change its i/o priority": "call('ioprio_set', 1, 0, (2 << 13) | 7); evidence = True",
    "lock memory": "evidence = call('mlock', ctypes.addressof(ctypes.create_string_buffer(64)), 64) == 0",
    "set a timer of the kernel": """
timer = ctypes.c_int()
call('timer_create', 0, None, ctypes.addressof(timer))
evidence = True
""",
}

_WIDE_CALLS = {
    "set up io_uring": "evidence = call('io_uring_setup', 4, bytes(120)) > 2",
    "measure by perf": """
attributes = struct.pack('=IIQ', 1, 112, 1) + bytes(24) + struct.pack('=Q', 0b1100001) + bytes(64)
evidence = call('perf_event_open', attributes, 0, -1, -1, 0) > 2
""",
    "add a key": "evidence = call('add_key', b'user', b'scroll', b'x', 1, -2) > 0",
    "read a keyring": "evidence = call('keyctl', 0, -3, 0, 0, 0) != 0",
    "handle page faults in user space": "evidence = call('userfaultfd', 1) > 2",
    "get System V shared memory": """
identity = call('shmget', 0, 4096, 0o1600)
call('shmctl', identity, 0, None)
evidence = True
""",
    "get System V semaphores": """
identity = call('semget', 0, 1, 0o1600)
call('semctl', identity, 0, 0, 0)
evidence = True
""",
    "get a System V queue": """
identity = call('msgget', 0, 0o1600)
call('msgctl', identity, 0, None)
evidence = True
""",
    "open a POSIX queue": """
evidence = call('mq_open', b'scroll-attack', os.O_CREAT | os.O_RDWR, 0o600, None) > 2
call('mq_unlink', b'scroll-attack')
""",
    "splice memory into a pipe": """
buffer = ctypes.create_string_buffer(b'x')
evidence = call('vmsplice', os.pipe()[1], struct.pack('=QQ', ctypes.addressof(buffer), 1), 1, 0) == 1
""",
    "filter its own calls": """
program = ctypes.create_string_buffer(struct.pack('=HBBI', 6, 0, 0, 0x7fff0000))
libc.prctl(38, 1, 0, 0, 0)
call('seccomp', 1, 0, struct.pack('@HP', 1, ctypes.addressof(program)))
evidence = True
""",
}

_AS_ROOT = {
    "load a program into the kernel": "evidence = call('bpf', 0, struct.pack('=4I', 2, 4, 8, 1) + bytes(56), 72) > 2",
    "join a namespace": "call('setns', os.open('/proc/self/ns/uts', os.O_RDONLY), 0); evidence = True",
    "make a mount namespace": "call('unshare', 0x20000); evidence = True",
    "name the host": "name = os.uname().nodename; call('sethostname', name.encode(), len(name)); evidence = True",
    "read the kernel's log": "evidence = call('syslog', 10, None, 0) > 0",
    "become another user": "os.setresuid(12345, 12345, 12345); evidence = os.getuid()",
    "regain a capability": """
libc.prctl(47, 4, 0, 0, 0)
header, data = struct.pack('=Ii', 0x20080522, 0), struct.pack('=IIIIII', 1 << 21, 1 << 21, 0, 0, 0, 0)
call('capset', header, data)
evidence = True
""",
}

_BY_A_32_BIT_CALL = """
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
page[256:256 + len(T.secret) + 1] = T.secret.encode() + b"\\0"
path = struct.pack("=I", address + 256)
code = b"\\x53\\xb8\\x05\\0\\0\\0\\xbb" + path + b"\\x31\\xc9\\x31\\xd2\\xcd\\x80\\x5b\\xc3"
page[:len(code)] = code
fd = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
evidence = fd > 2 and os.read(fd, 6)
"""

_ON_A_TERMINAL = {
    "resize the terminal": "evidence = fcntl.ioctl(T.terminal, 0x5414, struct.pack('=4H', 1, 2, 3, 4)) is not None",
    "set the terminal's modes": """
modes = fcntl.ioctl(T.terminal, 0x5401, bytes(60))
evidence = fcntl.ioctl(T.terminal, 0x5402, modes) is not None
""",
}

ATTACKS = [
    *attacks(_NEW_PROCESSES),
    *attacks(_OTHER_PROCESSES),
    *attacks(_CLOCKS),
    *attacks(_INHERITED),
    *attacks(_ITSELF),
    *attacks(_WIDE_CALLS),
    *attacks(_AS_ROOT, needs_root=True),
    Attack("open a secret by a 32-bit call", _BY_A_32_BIT_CALL, only_on="x86_64"),
    *attacks(_ON_A_TERMINAL, keeps_terminal=True),
    Attack(
        "type into the terminal",
        "fcntl.ioctl(T.terminal, 0x5412, b'x'); evidence = True",
        needs_root=True,
        keeps_terminal=True,
    ),
]
