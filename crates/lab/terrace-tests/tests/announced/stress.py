# Programs write files in every way while readers are served from memory (`terrace run`, with and without
# `--exclusive`). With STRANGERS=1, programs without the library write, too.
# A file has one writer. Its word on the board is even between changes: then each page has exactly that version.
import ctypes, mmap, os, random, signal, struct, subprocess, sys, time, traceback
SECONDS = float(os.environ['STRESS_SECONDS']); seed = int(os.environ['STRESS_SEED']); FILES = 5; PAGES = 700; P = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = ctypes.c_void_p
place = os.environ['BOARD']; stranger = sys.argv[1:]
if not stranger:
    with open(place, 'wb') as f: f.write(bytes(8 * FILES))
with open(place, 'r+b') as f: board = mmap.mmap(f.fileno(), 8 * FILES)
words = memoryview(board).cast('Q')
def word(n): return words[n]
def page(n, p, v): return struct.pack('QQ', v, p) * (P // 16)
def content(n, v): return b''.join(page(n, p, v) for p in range(PAGES))
end = time.time() + SECONDS

def pieces(rng): return sorted(rng.sample(range(1, PAGES), 6))
def by_pwrite(fd, n, v, rng):
    cuts = [0] + pieces(rng) + [PAGES]
    for a, b in zip(cuts, cuts[1:]): os.pwrite(fd, content(n, v)[a * P:b * P], a * P)
def by_pwritev(fd, n, v, rng):
    at = rng.randrange(1, PAGES); all = content(n, v)
    os.pwritev(fd, [all[:100], all[100:at * P]], 0); os.pwritev(fd, [all[at * P:]], at * P)
def by_write(fd, n, v, rng):
    os.lseek(fd, 0, 0); all = content(n, v); at = rng.randrange(1, len(all))
    os.write(fd, all[:at]); os.writev(fd, [all[at:]])
def by_single_pages(fd, n, v, rng):
    for p in range(PAGES): os.pwrite(fd, page(n, p, v), p * P)
def by_truncate(fd, n, v, rng):
    os.ftruncate(fd, rng.randrange(PAGES * P)); os.ftruncate(fd, PAGES * P); by_pwrite(fd, n, v, rng)
def by_path(fd, n, v, rng):
    os.truncate(f'f{n}', rng.randrange(PAGES * P)); by_write(fd, n, v, rng)
def by_emptying(fd, n, v, rng):
    with open(f'f{n}', 'wb') as f: f.write(content(n, v))
def by_appends(fd, n, v, rng):
    all = content(n, v); keep = rng.randrange(PAGES); os.pwrite(fd, all[:keep * P], 0); os.ftruncate(fd, keep * P)
    a = os.open(f'f{n}', os.O_WRONLY | os.O_APPEND); at = rng.randrange(keep * P, PAGES * P)
    os.write(a, all[keep * P:at]); os.write(a, all[at:]); os.close(a)
def by_direct(fd, n, v, rng):
    d = os.open(f'f{n}', os.O_RDWR | os.O_DIRECT); m = mmap.mmap(-1, PAGES * P); m[:] = content(n, v); os.pwrite(d, m, 0); os.close(d)
def by_mapping(fd, n, v, rng):
    m = mmap.mmap(fd, PAGES * P); m[:] = content(n, v); m.close()
def by_stdio(fd, n, v, rng):
    f = ctypes.c_void_p(libc.fopen(f'f{n}'.encode(), b'r+')); data = content(n, v)
    assert libc.fwrite(data, 1, len(data), f) == len(data); libc.fclose(f)
def aside(n, v):
    with open(f'new{n}', 'wb') as f: f.write(content(n, v))
    return os.open(f'new{n}', os.O_RDONLY)
def by_copy(fd, n, v, rng):
    a = aside(n, v); done = 0
    while done < PAGES * P: done += os.copy_file_range(a, fd, PAGES * P - done, done, done)
    os.close(a)
def by_sendfile(fd, n, v, rng):
    a = aside(n, v); os.lseek(fd, 0, 0); done = 0
    while done < PAGES * P: done += os.sendfile(fd, a, done, PAGES * P - done)
    os.close(a)
def by_redirection(fd, n, v, rng):
    os.close(aside(n, v)); subprocess.run(f'cat new{n} > f{n}', shell=True, check=True)
def by_holes(fd, n, v, rng):
    assert libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(PAGES * P)) == 0; by_pwritev(fd, n, v, rng)
def by_child(fd, n, v, rng):
    pid = os.fork()
    if pid == 0:
        by_pwrite(fd, n, v, rng); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
def by_killed_child(fd, n, v, rng):
    pid = os.fork()
    if pid == 0:
        while True: by_single_pages(fd, n, v - 1, rng)
    time.sleep(rng.random() * .01)
    if rng.random() < .3: os.kill(pid, signal.SIGSTOP); time.sleep(.03)
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0); by_pwrite(fd, n, v, rng)
def by_late_stores(fd, n, v, rng):
    d = os.open(f'f{n}', os.O_RDWR); m = mmap.mmap(d, PAGES * P); os.close(d)
    time.sleep(rng.random() * .05); m[:] = content(n, v); m.close()
def by_emptying_reader(fd, n, v, rng):
    os.close(os.open(f'f{n}', os.O_RDONLY | os.O_TRUNC)); os.pwrite(fd, content(n, v), 0)
WAYS = [f for name, f in sorted(globals().items()) if name.startswith('by_')]
if stranger:
    assert 'terrace' not in open('/proc/self/maps').read(), 'a client'
    way, n, v, s = stranger[0], *map(int, stranger[1:])
    fd = os.open(f'f{n}', os.O_RDWR); globals()[way](fd, n, v, random.Random(s)); os.close(fd)
    # A change of size by path opens nothing: the look at the file's times finds it, each 10 ms.
    if way == 'by_path': time.sleep(.3)
    sys.exit(0)
bare = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}
def by_stranger(fd, n, v, rng):
    way = rng.choice([way for way in WAYS if way is not by_stranger]).__name__
    subprocess.run([sys.executable, __file__, way, str(n), str(v), str(rng.randrange(10 ** 6))], env=bare, check=True)
if os.environ.get('STRANGERS'): WAYS += [by_stranger] * 6
only = os.environ.get('STRESS_WAYS')
if only: WAYS = [f for f in WAYS if f.__name__ in only.split(',')]

def writer(n, rng):
    fd = os.open(f'f{n}', os.O_RDWR); counts = {}
    while time.time() < end:
        way = rng.choice(WAYS); v = word(n) // 2 + 1; words[n] = 2 * v - 1
        way(fd, n, v, rng); words[n] = 2 * v
        assert os.fstat(fd).st_size == PAGES * P, way.__name__
        time.sleep(rng.random() * (.2 if n else .02))
def reader(rng):
    fds = [os.open(f'f{n}', os.O_RDONLY if n % 2 else os.O_RDWR) for n in range(FILES)]; checked = 0
    while time.time() < end:
        n = rng.randrange(FILES); before = word(n)
        if before % 2: continue
        p = rng.randrange(PAGES); k = rng.choice([1, 1, 1, 2, 5]); k = min(k, PAGES - p)
        got = os.pread(fds[n], k * P, p * P)
        if word(n) != before: continue
        checked += 1
        for i in range(k):
            now = got[i * P:(i + 1) * P]
            assert now == page(n, p + i, before // 2), (n, p + i, before // 2, struct.unpack_from('QQ', now) if len(now) >= 16 else len(now))
    assert checked > 0
pids = []
def start(act):
    pid = os.fork()
    if pid == 0:
        try: act(); os._exit(0)
        except BaseException: traceback.print_exc(); os._exit(1)
    pids.append(pid)
for n in range(FILES):
    with open(f'f{n}', 'wb') as f: f.write(content(n, 0))
for n in range(FILES): start(lambda n=n: writer(n, random.Random(seed * 10 + n)))
for k in range(3): start(lambda k=k: reader(random.Random(seed * 10 + 7 + k)))
bad = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
assert bad == 0, bad
for n in range(FILES): assert open(f'f{n}', 'rb').read() == content(n, word(n) // 2)
print('announced ok')
