make('file'); dev = os.stat('.').st_dev
def left(what, act, path='file'):
    fd = direct(path); os.lseek(fd, 3, 0)
    act(fd)
    assert not is_direct(fd), what
    assert os.lseek(fd, 0, 1) == 3 and os.read(fd, 9) == b'tent\n', what
    assert not os.get_inheritable(fd) and os.fstat(fd).st_dev == dev
    os.close(fd)
def stays(what, act):
    fd = direct('file'); act(fd); assert is_direct(fd), what; os.close(fd)
left('flock', lambda fd: fcntl.flock(fd, fcntl.LOCK_SH))
left('dup', lambda fd: os.close(os.dup(fd)))
left('dup2', lambda fd: os.close(os.dup2(fd, 50)))
left('F_DUPFD', lambda fd: os.close(fcntl.fcntl(fd, fcntl.F_DUPFD, 60)))
left('lease', lambda fd: fcntl.fcntl(fd, 1025))
left('fchmod', lambda fd: os.fchmod(fd, 0o600)); assert os.stat('file').st_mode & 0o777 == 0o600
make('file')
left('fchown', lambda fd: os.fchown(fd, 0, 7)); assert os.stat('file').st_gid == 7
make('file')
now = time.time_ns() + 10**9
left('futimens', lambda fd: os.utime(fd, ns=(now, now - 5*10**9))); assert os.stat('file').st_mtime_ns == now - 5*10**9
make('file')
left('fsetxattr', lambda fd: os.setxattr(fd, 'user.a', b'b')); assert os.getxattr('file', 'user.a') == b'b'
make('file')
left('fremovexattr', lambda fd: os.removexattr(fd, 'user.a')); assert os.listxattr('file') == []
make('file')
left('fstatvfs', lambda fd: os.fstatvfs(fd))
def send(fd):
    a, b = socket.socketpair()
    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])
    _, fds, _, _ = socket.recv_fds(b, 1, 4)
    assert not is_direct(fds[0]); os.close(fds[0])
left('SCM_RIGHTS', send)
left('/proc', lambda fd: os.close(os.open(f'/proc/self/fd/{fd}', os.O_RDONLY)))
left('/proc for writing', lambda fd: os.close(ordinary(f'/proc/self/fd/{fd}', os.O_RDWR)))
with open('copy', 'wb') as to: left('copy_file_range', lambda fd: os.copy_file_range(fd, to.fileno(), 5, 0))
assert open('copy', 'rb').read() == b'conte'
stays('isatty', lambda fd: os.isatty(fd))
stays('getfl', lambda fd: fcntl.fcntl(fd, fcntl.F_GETFL))
stays('fsync', lambda fd: os.fsync(fd))
import ctypes; libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
def map_it(fd):
    for flags in [1, 2]:
        at = libc.mmap(None, ctypes.c_size_t(4096), 1, flags, fd, ctypes.c_long(0)); assert ctypes.string_at(at, 8) == b'content\n'
stays('mmap', map_it)
stays('getxattr', lambda fd: os.listxattr(fd))
stays('fork', lambda fd: os.waitpid(os.fork() or os._exit(0 if is_direct(fd) and os.fstat(fd).st_dev == dev else 1), 0)[1] == 0 or 1/0)
# exec
check = f"import os; i = os.fstat(0); s = os.stat('file'); m = int([l for l in open('/proc/self/fdinfo/0') if l.startswith('mnt_id')][0].split()[1]); assert (i.st_dev, i.st_ino, m) == (s.st_dev, s.st_ino, {MOUNT}), m; assert os.read(0, 9) == b'tent' + bytes([10])"
def spawn(fd): subprocess.run([sys.executable, '-c', check], stdin=fd, check=True); os.lseek(fd, 3, 0)
fd = direct('file'); os.lseek(fd, 3, 0); spawn(fd); os.close(fd)
fd = direct('file'); os.lseek(fd, 3, 0); pid = os.posix_spawn(sys.executable, [sys.executable, '-c', check], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, fd, 0)]); assert os.waitpid(pid, 0)[1] == 0; os.close(fd)
for how in ['execv', 'execve', 'execvp', 'system', 'popen', 'execl', 'execlp', 'execle']:
    fd = direct('file'); os.lseek(fd, 3, 0); os.set_inheritable(fd, True); assert is_direct(fd)
    args = [sys.executable, '-c', check.replace('fdinfo/0', f'fdinfo/{fd}').replace('fstat(0)', f'fstat({fd})').replace('read(0', f'read({fd}')]
    if how in ('system', 'popen'):
        open('script.py','w').write(args[2])
        import ctypes; libc = ctypes.CDLL(None)
        if how == 'system': assert libc.system(f'{sys.executable} script.py'.encode()) == 0
        else:
            libc.popen.restype = ctypes.c_void_p; assert libc.pclose(ctypes.c_void_p(libc.popen(f'{sys.executable} script.py'.encode(), b'r'))) == 0
    else:
        pid = os.fork()
        if pid == 0:
            if how == 'execve': os.execve(args[0], args, os.environ)
            elif how in ('execv', 'execvp'): getattr(os, how)(args[0], args)
            else:
                import ctypes; libc = ctypes.CDLL(None); enc = [a.encode() for a in args]
                tail = [None] + ([(ctypes.c_char_p * 1)(None)] if how == 'execle' else [])
                getattr(libc, how)(enc[0], *enc, *tail)
            os._exit(9)
        assert os.waitpid(pid, 0)[1] == 0, how
    os.close(fd)
print('leaving ok')
