# Each way to change a file, by a client and by another program: a descriptor that was served from memory, and a new one, read what there is then.
import os, sys, mmap, time, subprocess, ctypes, random
libc = ctypes.CDLL(None, use_errno=True)
BYTES = 300_000
def fill(path, seed):
    with open(path, 'wb') as f: f.write(bytes((i * 7 + seed) & 255 for i in range(256)) * (BYTES // 256 + 1))
    os.truncate(path, BYTES)
def write_at(path, at, data, flags=os.O_WRONLY):
    fd = os.open(path, flags); os.pwrite(fd, data, at); os.close(fd)
def store(path, after_close):
    fd = os.open(path, os.O_RDWR); m = mmap.mmap(fd, 8192)
    if after_close: os.close(fd)
    m[5:10] = b'store'
    if not after_close: os.close(fd)
    return m
def punch(path):
    fd = os.open(path, os.O_RDWR); assert libc.fallocate(fd, 3, ctypes.c_long(4096), ctypes.c_long(8192)) == 0; os.close(fd)
def collapse(path):
    fd = os.open(path, os.O_RDWR); assert libc.fallocate(fd, 8, ctypes.c_long(4096), ctypes.c_long(8192)) == 0; os.close(fd)
def copy_in(path):
    fill(path + '.from', 99); a = os.open(path + '.from', os.O_RDONLY); b = os.open(path, os.O_WRONLY)
    assert os.copy_file_range(a, b, 20000, 4096, 8192) > 0; os.close(a); os.close(b)
def by_link(path):
    os.link(path, path + '.link'); write_at(path + '.link', 4096, b'linked')
def empty(path):
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    # No lease is broken by that: of a program without the library it is noticed a moment later.
    if 'LD_PRELOAD' not in os.environ: time.sleep(2.5)
def again(path):
    os.unlink(path); fill(path, 50)
def over(path):
    fill(path + '.new', 60); os.rename(path + '.new', path)
CHANGES = {
    'write': lambda p: write_at(p, 4096, b'written'), 'append': lambda p: write_at(p, BYTES, b'appended', os.O_WRONLY | os.O_APPEND),
    'not waiting': lambda p: write_at(p, 4096, b'at once', os.O_WRONLY | (os.O_NONBLOCK if 'LD_PRELOAD' in os.environ else 0)),
    'direct': lambda p: write_at(p, 4096, memoryview(mmap.mmap(-1, 4096)), os.O_WRONLY | os.O_DIRECT),
    'shorter': lambda p: os.truncate(p, 5000), 'longer': lambda p: os.truncate(p, BYTES + 9000), 'empty': lambda p: open(p, 'w').close(), 'empty by a reader': empty,
    'map': lambda p: store(p, False), 'map, closed': lambda p: store(p, True), 'punch': punch, 'collapse': collapse, 'copy': copy_in, 'link': by_link,
    'unlink': again, 'rename': over, 'nothing': lambda p: os.close(os.open(p, os.O_RDWR)), 'mode': lambda p: os.chmod(p, 0o600),
}
if len(sys.argv) > 1:
    path, how = sys.argv[1:]
    kept = CHANGES[how](path); print('done', flush=True); sys.stdin.read(); del kept; sys.exit(0)
def whole(fd):
    # In no order: reads in order are the kernel's.
    places = list(range(0, BYTES + 20000, 3000)); random.shuffle(places)
    return b''.join(part for _, part in sorted((at, os.pread(fd, 3000, at)) for at in places))
bare = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}
def truth(path): return subprocess.run(['cat', path], env=bare, stdout=subprocess.PIPE, check=True).stdout
for client in (True, False):
    for number, how in enumerate(CHANGES):
        path = f'{number}-{client}'; fill(path, number)
        fd = os.open(path, os.O_RDONLY); twin = os.open(path, os.O_RDONLY)
        for _ in range(3): assert whole(fd) == truth(path), how; time.sleep(.03)
        env = os.environ if client else bare
        other = subprocess.Popen([sys.executable, __file__, path, how], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout.readline() == b'done\n', how
        now = truth(path if os.fstat(fd).st_nlink else f'/proc/{os.getpid()}/fd/{twin}')
        for _ in range(2): assert whole(fd) == now, (how, client, 'the same descriptor')
        new = os.open(path, os.O_RDONLY); assert whole(new) == truth(path), (how, client, 'a new descriptor')
        os.lseek(new, 4000, 0); assert os.read(new, 3000) == truth(path)[4000:7000], (how, 'read')
        other.stdin.close(); assert other.wait() == 0
        time.sleep(.12)
        for _ in range(2): assert whole(new) == truth(path), (how, client, 'after the end')
        for each in (fd, twin, new): os.close(each)
print('changes ok')
