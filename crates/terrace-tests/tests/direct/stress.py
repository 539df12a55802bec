# Writers of all kinds beside direct readers: no read is older than what was written before its begin.
import struct, random, signal
SECONDS = float(os.environ.get('STRESS_SECONDS', 5)); FILES = 6; seed = int(os.environ.get('STRESS_SEED', 1))
role, place = os.environ.get('ROLE'), os.environ['BOARD']
if not role:
    with open(place, 'wb') as f: f.write(bytes(8 * FILES))
with open(place, 'r+b') as f: board = mmap.mmap(f.fileno(), 8 * FILES)
def told(n): return struct.unpack_from('Q', board, 8 * n)[0]
def tell(n, v): struct.pack_into('Q', board, 8 * n, v)
if not role:
    for n in range(FILES): make(f'f{n}', struct.pack('Q', 0) * 64)
end = time.time() + SECONDS
def content(v): return struct.pack('Q', v) * 64
def writer(files, rng):
    while time.time() < end:
        n = rng.choice(files); v = told(n) + 1; how = rng.randrange(6); path = f'f{n}'
        if how == 0:
            fd = os.open(path, os.O_WRONLY); os.pwrite(fd, content(v), 0); tell(n, v); os.close(fd)
        elif how == 1:
            fd = os.open(path, os.O_RDWR); m = mmap.mmap(fd, 512); os.close(fd); m[:] = content(v); tell(n, v)
            if rng.random() < .5: time.sleep(.003)
            m.close()
        elif how == 2:
            with open(f'new{n}', 'wb') as f: f.write(content(v))
            os.rename(f'new{n}', path); tell(n, v)
        elif how == 3:
            # settled before it is written again, so that it is opened directly meanwhile
            os.utime(path, ns=(time.time_ns() + 10**9, time.time_ns() - 10**9)); time.sleep(.004)
        elif how == 4:
            fd = os.open(path, os.O_RDWR | os.O_APPEND); 
            for i in range(3):
                v = told(n) + 1; os.pwrite(fd, b'', 0)
                w = os.open(path, os.O_WRONLY); os.pwrite(w, content(v), 0); os.close(w); tell(n, v)
            os.close(fd)
        else: time.sleep(.002)
def reader(rng, counts):
    held = {}
    while time.time() < end:
        n = rng.randrange(FILES); path = f'f{n}'
        if rng.random() < .5 and n in held:
            fd, st = held[n]
            before = told(n); now = os.stat(path)
            if (now.st_ino, now.st_dev) != st: os.close(fd); del held[n]; continue
            if told(n) != before: continue
        else:
            if n in held: os.close(held.pop(n)[0])
            before = told(n); fd = os.open(path, os.O_RDONLY); s = os.fstat(fd); held[n] = fd, (s.st_ino, s.st_dev)
            counts[is_direct(fd)] += 1
        got = os.pread(fd, 600, 0)
        if n in held and held[n][0] == fd and rng.random() < .1 and is_direct(fd): fcntl.flock(fd, fcntl.LOCK_SH); fcntl.flock(fd, fcntl.LOCK_UN)
        assert len(got) == 512, len(got)
        v = struct.unpack_from('Q', got)[0]
        if v < before:
            # a file that was renamed over since is another one
            assert os.fstat(fd).st_nlink == 0, (path, v, before, is_direct(fd))
    return counts
pids = []
def start(act):
    pid = os.fork()
    if pid == 0:
        try: act(); os._exit(0)
        except BaseException: import traceback; traceback.print_exc(); os._exit(1)
    pids.append(pid)
if role:
    assert 'terrace' not in open('/proc/self/maps').read(), 'no client'
    writer([FILES - 1], random.Random(seed * 10 + 9)); sys.exit(0)
other = subprocess.Popen(['env', '-u', 'LD_PRELOAD', 'ROLE=writer', sys.executable, __file__])
start(lambda: writer([0, 2, 4], random.Random(seed * 10)))
start(lambda: writer([1, 3], random.Random(seed * 10 + 1)))
def read_all(k):
    counts = reader(random.Random(seed * 10 + 5 + k), {True: 0, False: 0}); print(counts, flush=True); assert counts[True] > 20 and counts[False] > 20
for k in range(3): start(lambda k=k: read_all(k))
bad = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids) + (other.wait() != 0)
assert bad == 0, bad
for n in range(FILES): assert open(f'f{n}', 'rb').read() == content(told(n))
print('stress ok')
