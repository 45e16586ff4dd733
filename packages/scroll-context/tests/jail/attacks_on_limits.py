"""Bombs. The harness gives small limits (LIMITS), and each attack asks for several times as much.

What the supervisor bounds by looking now and then may outgrow its limit for a moment. So those
attacks hold on to what they took (`hold`): only one that is left in peace for long has got through.
"""

from __future__ import annotations

from attack import attacks

from scroll_context.jail.spec import JailLimits

LIMITS = JailLimits(memory_bytes=256 << 20, threads=16, open_files=64, scratch_bytes=1 << 20)

_MEMORY = {
    "take memory": "hoard = [bytearray(1 << 20) for _ in range(400)]; evidence = len(hoard)",
    "take memory in one piece": "evidence = len(bytearray(400 << 20))",
    "take shared memory": """
memory = mmap.mmap(-1, 400 << 20)
for page in range(0, 400 << 20, 4096):
    memory[page] = 1
evidence = True
""",
    "take memory as a stack": """
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(400 << 20), 3, 0x122, -1, ctypes.c_long(0))
address == 2**64 - 1 and raise_errno()
ctypes.memset(address, 1, 400 << 20)
evidence = True
""",
    "take memory and make it read-only": """
libc.mmap.restype = ctypes.c_void_p
for _ in range(100):
    address = libc.mmap(None, ctypes.c_size_t(4 << 20), 3, 0x22, -1, ctypes.c_long(0))
    address == 2**64 - 1 and raise_errno()
    ctypes.memset(address, 1, 4 << 20)
    call('mprotect', address, 4 << 20, 1)
hold()
evidence = True
""",
    "take memory by /dev/zero": """
memory = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 400 << 20)
for page in range(0, 400 << 20, 4096):
    memory[page] = 1
evidence = True
""",
    "take huge pages": """
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(2 << 20), 0, 0x44022, -1, ctypes.c_long(0))
evidence = address != 2**64 - 1 or raise_errno()
""",
    "take memory in pipes": """
pipes = [os.pipe() for _ in range(20)]
evidence = sum(fcntl.fcntl(w, 1031, 1 << 20) for r, w in pipes)
""",
}

_THREADS = {
    "start many threads": """
gate = threading.Event()
threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(40)]
try:
    for thread in threads:
        thread.start()
    evidence = True
finally:
    gate.set()
""",
    "start many threads from many threads": """
gate, alive = threading.Event(), []
def breed(depth):
    alive.append(1)
    for _ in range(3 if depth else 0):
        try:
            _thread.start_new_thread(breed, (depth - 1,))
        except RuntimeError:
            pass
    gate.wait()
breed_from = [_thread.start_new_thread(breed, (3,)) for _ in range(3)]
time.sleep(0.3)
evidence = len(alive) > 20
gate.set()
""",
}

_DESCRIPTORS = {
    "open many files": "evidence = len([os.dup(T.answer) for _ in range(300)])",
    "open many files in a table of its own": """
call('close_range', 100000, 100001, 2)
evidence = True
""",
}

_DISK = {
    "fill the disk by one file": """
with open('big', 'wb', buffering=0) as file:
    written = sum(file.write(bytes(1 << 20)) for _ in range(32))
evidence = written > 16 << 20
""",
    "fill the disk by reserving": """
os.posix_fallocate(os.open('big', os.O_RDWR | os.O_CREAT), 0, 16 << 20)
evidence = True
""",
    "fill the disk by reserving behind the end of a file": """
call('fallocate', os.open('big', os.O_RDWR | os.O_CREAT), 1, 0, 16 << 20)
evidence = True
""",
    "fill the disk by reserving at once": """
for number in range(40):
    call('fallocate', os.open(f'file{number}', os.O_RDWR | os.O_CREAT), 0, 0, 1 << 19)
evidence = True
""",
    "fill the disk by many files": """
for number in range(70):
    with open(f'file{number}', 'wb', buffering=0) as file:
        evidence = file.write(bytes(1 << 19)) and number > 60
    time.sleep(0.005)
hold()
""",
    "fill the disk by removed files": """
files = []
for number in range(50):
    files.append(open('file', 'wb', buffering=0))
    os.unlink('file')
    evidence = files[-1].write(bytes(1 << 20)) and number > 45
    time.sleep(0.01)
hold()
""",
    "fill the disk in a folder that cannot be listed": """
os.mkdir('hidden', 0o300)
for number in range(70):
    with open(f'hidden/file{number}', 'wb', buffering=0) as file:
        evidence = file.write(bytes(1 << 19)) and number > 60
    time.sleep(0.005)
hold()
""",
    "use up the inodes": """
for number in range(1000):
    open(f'file{number}', 'w').close()
    if number % 50 == 0:
        time.sleep(0.03)
hold()
evidence = True
""",
}

# A thread goes on when the first one, which the supervisor asks /proc about, has ended by itself.
# It must tell of its success by itself, too.
_WITHOUT_THE_FIRST_THREAD = """
def go_on():
    try:
        {}
        hold()
        os.write(T.answer, b'through and alive')
    except BaseException as refusal:
        os.write(T.answer, f'refused {{refusal}}'.encode())
    os._exit(0)
_thread.start_new_thread(go_on, ())
call('exit', 0)
"""

_UNSEEN_BY_THE_FIRST_THREAD = {
    "take memory without the first thread": _WITHOUT_THE_FIRST_THREAD.format("""
        libc.mmap.restype = ctypes.c_void_p
        for _ in range(120):
            address = libc.mmap(None, ctypes.c_size_t(4 << 20), 3, 0x22, -1, ctypes.c_long(0))
            address == 2**64 - 1 and raise_errno()
            ctypes.memset(address, 1, 4 << 20)
            call('mprotect', address, 4 << 20, 1)
"""),
    "fill the disk by removed files without the first thread": _WITHOUT_THE_FIRST_THREAD.format("""
        files = []
        for number in range(50):
            files.append(open('file', 'wb', buffering=0))
            os.unlink('file')
            files[-1].write(bytes(1 << 20))
            time.sleep(0.01)
"""),
    "fill the disk by removed files that are only mapped": """
maps = []
for number in range(50):
    with open('file', 'w+b', buffering=0) as file:
        os.unlink('file')
        file.write(bytes(1 << 20))
        maps.append(mmap.mmap(file.fileno(), 1 << 20))
    for fd in range(3, 64):  # Python keeps a descriptor of its own for each map
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode) and not os.fstat(fd).st_nlink:
                os.close(fd)
        except OSError:
            pass
    time.sleep(0.01)
hold()
evidence = len(maps) == 50
""",
}

_LOCKS = {
    "take locks without end": """
for number in range(4):
    file = os.open(f'file{number}', os.O_RDWR | os.O_CREAT)
    for byte in range(2500):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * byte)
hold()
evidence = True
""",
    "take a lock without an owner": """
file = os.open('file', os.O_RDWR | os.O_CREAT)
fcntl.fcntl(file, 37, struct.pack('=hhqqi', fcntl.F_WRLCK, 0, 0, 1, 0) + bytes(8))
evidence = True
""",
}

_SIGNALS = {
    "use up the signals that a user may queue": """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
for _ in range(1000):
    call('tgkill', os.getpid(), _thread.get_native_id(), signal.SIGRTMIN)
count = 0
while signal.sigtimedwait({signal.SIGRTMIN}, 0):
    count += 1
evidence = count > 100
""",
}

ATTACKS = [
    *attacks(_LOCKS),
    *attacks(_UNSEEN_BY_THE_FIRST_THREAD),
    *attacks(_SIGNALS),
    *attacks(_MEMORY),
    *attacks(_THREADS),
    *attacks(_DESCRIPTORS),
    *attacks(_DISK),
]
