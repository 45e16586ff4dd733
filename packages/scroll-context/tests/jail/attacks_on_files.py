"""Reading, writing and examining files outside the declared paths, and changing those declared
read-only.
"""

from __future__ import annotations

from attack import attacks

_READING = {
    "read a file": "evidence = open(T.secret).read()",
    "read by ..": "evidence = open(os.path.relpath(T.secret, os.getcwd())).read()",
    "read by a folder descriptor": """
folder = os.open(T.outside, os.O_PATH)
evidence = os.read(os.open("secret", os.O_RDONLY, dir_fd=folder), 99)
""",
    "read by /proc/self/root": "evidence = open('/proc/self/root' + T.secret).read()",
    "read by openat2": """
how = struct.pack('=QQQ', 0, 0, 0)
evidence = os.read(call('openat2', -100, T.secret.encode(), how, 24), 99)
""",
    "read by a new symbolic link": "os.symlink(T.secret, 'link'); evidence = open('link').read()",
    "read by a planted symbolic link": "evidence = open(T.declared + '/planted').read()",
    "read by a hard link": "os.link(T.secret, 'hard'); evidence = open('hard').read()",
    "read by a hard link to a descriptor": """
fd = os.open(T.secret, os.O_PATH)
call('linkat', -100, f'/proc/self/fd/{fd}'.encode(), -100, b'hard', 0x400)
evidence = open('hard').read()
""",
    "read by moving it here": "os.rename(T.secret, 'mine'); evidence = open('mine').read()",
    "read by mapping": """
fd = os.open(T.secret, os.O_RDONLY)
evidence = mmap.mmap(fd, 4, prot=mmap.PROT_READ)[:]
""",
    "read an environment in /proc": "evidence = open('/proc/self/environ').read()",
    "read the parent's maps": "evidence = open(f'/proc/{T.victim}/maps').read()",
    "read another process's memory in /proc": """
maps = open(f'/proc/{T.victim}/maps').readline()
memory = open(f'/proc/{T.victim}/mem', 'rb', buffering=0)
memory.seek(int(maps.split('-')[0], 16))
evidence = memory.read(4)
""",
    "read the kernel's settings": "evidence = open('/proc/sys/kernel/hostname').read()",
    "read the list of users": "evidence = open('/etc/passwd').read()",
    "list a folder": "evidence = os.listdir(T.outside)",
    "list the root": "evidence = os.listdir('/')",
    "list the processes": "evidence = os.listdir('/proc')",
    "read an extended attribute": "evidence = os.getxattr(T.secret, 'user.note')",
    "watch a folder": "evidence = call('inotify_add_watch', call('inotify_init1', 0), T.outside.encode(), 0xfff)",
    "learn a file handle": """
handle = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0) + bytes(128))
mount_id = ctypes.c_int()
call('name_to_handle_at', -100, T.secret.encode(), ctypes.addressof(handle), ctypes.addressof(mount_id), 0)
evidence = handle.raw[8:]
""",
}

_WRITING = {
    "write a new file": "evidence = open(T.outside + '/new', 'w').write('x')",
    "append to a file": "evidence = open(T.secret, 'a').write('x')",
    "write through a folder descriptor": """
folder = os.open(T.outside, os.O_PATH)
evidence = os.write(os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=folder), b'x')
""",
    "truncate by path": "os.truncate(T.secret, 0); evidence = True",
    "truncate by creat": "evidence = os.open(T.secret, os.O_CREAT | os.O_WRONLY | os.O_TRUNC) > 2",
    "truncate while reading": "os.open(T.secret, os.O_RDONLY | os.O_TRUNC); evidence = True",
    "truncate a declared file while reading": "os.open(T.library, os.O_RDONLY | os.O_TRUNC); evidence = True",
    "truncate a declared file in access mode 3": "os.open(T.library, 3 | os.O_TRUNC); evidence = True",
    "truncate a secret in access mode 3": "os.open(T.secret, 3 | os.O_TRUNC); evidence = True",
    "truncate a declared file by path": "os.truncate(T.library, 0); evidence = True",
    "make a nameless file": "evidence = os.write(os.open(T.outside, os.O_TMPFILE | os.O_RDWR), b'x')",
    "lock a declared file against others": "fcntl.flock(os.open(T.library, 0), fcntl.LOCK_EX); evidence = True",
    "write to a declared file": "evidence = open(T.library, 'r+').write('x')",
    "write to a declared file by a shared mapping": """
fd = os.open(T.library, os.O_RDWR)
memory = mmap.mmap(fd, 4)
memory[:1] = b'x'
evidence = True
""",
    "create in a declared folder": "evidence = open(T.declared + '/new', 'w').write('x')",
    "remove a file": "os.unlink(T.secret); evidence = True",
    "remove a declared file": "os.unlink(T.library); evidence = True",
    "make a folder": "os.mkdir(T.outside + '/new'); evidence = True",
    "remove a folder": "os.rmdir(T.outside + '/empty'); evidence = True",
    "rename a file": "os.rename(T.secret, T.outside + '/renamed'); evidence = True",
    "rename over a file": "open('mine', 'w').write('x'); os.rename('mine', T.secret); evidence = True",
    "rename a declared file": "os.rename(T.library, T.declared + '/renamed'); evidence = True",
    "exchange two files": """
open('mine', 'w').write('x')
call('renameat2', -100, b'mine', -100, T.secret.encode(), 2)
evidence = True
""",
    "hard link into a declared folder": "open('x', 'w'); os.link('x', T.declared + '/x'); evidence = True",
    "symbolic link outside": "os.symlink('/etc', T.outside + '/new'); evidence = True",
    "trap for the host: a symbolic link in scratch": "os.symlink(T.secret, 'trap'); evidence = os.readlink('trap')",
    "trap for the host: a program that runs as its owner": """
evidence = os.fstat(os.open('trap', os.O_CREAT | os.O_WRONLY, 0o4755)).st_mode & stat.S_ISUID
""",
    "trap for the host: a fifo in scratch": "os.mkfifo('trap'); evidence = True",
    "chmod a file": "os.chmod(T.secret, 0o777); evidence = True",
    "chmod a declared file by its descriptor": """
os.fchmod(os.open(T.library, os.O_RDONLY), 0o777)
evidence = True
""",
    "chown a file": "os.chown(T.secret, os.getuid(), os.getgid()); evidence = True",
    "set the times of a file": "os.utime(T.secret, (1, 1)); evidence = True",
    "set the times of a declared file by its descriptor": """
os.utime(os.open(T.library, os.O_RDONLY), (1, 1))
evidence = True
""",
    "set an extended attribute": "os.setxattr(T.secret, 'user.mark', b'x'); evidence = True",
    "remove an extended attribute": "os.removexattr(T.secret, 'user.note'); evidence = True",
    "use shared memory of the system": """
name = f'/dev/shm/scroll-attack-{os.getpid()}'
evidence = open(name, 'w').write('x')
os.unlink(name)
""",
    "use the common temporary folder": """
name = f'/tmp/scroll-attack-{os.getpid()}'
evidence = open(name, 'w').write('x')
os.unlink(name)
""",
}

_METADATA = {
    "stat a file": "evidence = os.stat(T.secret).st_size",
    "ask whether a file exists": "evidence = os.access(T.secret, os.F_OK)",
    "read a symbolic link": "evidence = os.readlink(T.outside + '/link')",
    "change to a folder": "os.chdir(T.outside); evidence = os.getcwd()",
    "hold a descriptor without access": "evidence = os.fstat(os.open(T.secret, os.O_PATH)).st_ino",
}

_AS_ROOT = {
    "open by file handle": """
handle = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0) + bytes(128))
mount_id = ctypes.c_int()
call('name_to_handle_at', -100, T.secret.encode(), ctypes.addressof(handle), ctypes.addressof(mount_id), 0)
evidence = os.read(call('open_by_handle_at', os.open(T.outside, os.O_RDONLY), ctypes.addressof(handle), 0), 9)
""",
    "watch a whole file system": "evidence = call('fanotify_init', 0, 0) > 2",
    "mount a tmpfs": """
call('mount', b'x', T.outside.encode(), b'tmpfs', 0, None)
evidence = True
call('umount2', T.outside.encode(), 2)
""",
    "bind mount a secret here": """
open('here', 'w').close()
call('mount', T.secret.encode(), b'here', None, 0x1000, None)
evidence = open('here').read()
call('umount2', b'here', 2)
""",
    "clone a mount": "evidence = call('open_tree', -100, b'/', 1) > 2",
    "open a file system": "evidence = call('fsopen', b'tmpfs', 0) > 2",
    "chroot": "os.chroot('.'); evidence = True",
    "make a device": "os.mknod('disk', 0o600 | stat.S_IFCHR, os.makedev(1, 3)); evidence = True",
}

ATTACKS = [
    *attacks(_READING),
    *attacks(_WRITING),
    *attacks(_METADATA, metadata=True),
    *attacks(_AS_ROOT, needs_root=True),
    *attacks(
        {
            "leave a device by renaming": """
open('file', 'w').close()
call('renameat2', -100, b'file', -100, b'moved', 4)
evidence = stat.S_ISCHR(os.lstat('file').st_mode)
"""
        }
    ),
    *attacks({"measure a file system": "evidence = os.statvfs(T.outside).f_blocks"}),
]
