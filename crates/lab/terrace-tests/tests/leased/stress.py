# Writers of all kinds beside readers that are served from memory: no read is older than what was written before its begin.
import os, sys, mmap, time, struct, random, subprocess, traceback
SECONDS = float(os.environ['STRESS_SECONDS']); FILES = 6; PAGES = 80; seed = int(os.environ['STRESS_SEED'])
role, place = os.environ.get('ROLE'), os.environ['BOARD']
if not role:
    with open(place, 'wb') as f: f.write(bytes(8 * FILES))
with open(place, 'r+b') as f: board = mmap.mmap(f.fileno(), 8 * FILES)
def told(n): return struct.unpack_from('Q', board, 8 * n)[0]
def tell(n, v): struct.pack_into('Q', board, 8 * n, v)
def content(v): return struct.pack('Q', v) * (512 * PAGES)
if not role:
    for n in range(FILES):
        with open(f'f{n}', 'wb') as f: f.write(content(0))
end = time.time() + SECONDS
def writer(files, rng):
    while time.time() < end:
        n = rng.choice(files); v = told(n) + 1; how = rng.randrange(8); path = f'f{n}'
        if how == 0:
            fd = os.open(path, os.O_WRONLY); os.pwrite(fd, content(v), 0); tell(n, v); os.close(fd)
        elif how == 1:
            fd = os.open(path, os.O_RDWR); m = mmap.mmap(fd, 4096 * PAGES); os.close(fd); m[:] = content(v); tell(n, v)
            if rng.random() < .5:
                time.sleep(.003); v = told(n) + 1; m[:] = content(v); tell(n, v)
            m.close()
        elif how == 2:
            with open(f'new{n}', 'wb') as f: f.write(content(v))
            os.rename(f'new{n}', path); tell(n, v)
        elif how == 3:
            fd = os.open(path, os.O_RDWR | os.O_DIRECT); m = mmap.mmap(-1, 4096 * PAGES); m[:] = content(v); os.pwrite(fd, m, 0); tell(n, v); os.close(fd)
        elif how == 4:
            fd = os.open(path, os.O_RDWR)
            for i in range(3):
                v = told(n) + 1; os.pwrite(fd, content(v), 0); tell(n, v)
            os.close(fd)
        elif how == 5:
            os.close(os.open(path, os.O_RDWR))
        else: time.sleep(rng.random() * .4)
def reader(rng):
    held = {}
    while time.time() < end:
        n = rng.randrange(FILES); path = f'f{n}'
        if rng.random() < .01 or n not in held:
            if n in held: os.close(held.pop(n)[0])
            fd = os.open(path, os.O_RDONLY); held[n] = fd, os.fstat(fd).st_ino
        fd, ino = held[n]; before = told(n)
        got = os.pread(fd, 512, rng.randrange(PAGES) * 4096)
        assert len(got) == 512, len(got)
        v = struct.unpack_from('Q', got)[0]
        if v < before:
            # a file that was renamed over since is another one
            assert os.fstat(fd).st_nlink == 0, (path, v, before)
            os.close(held.pop(n)[0])
pids = []
def start(act):
    pid = os.fork()
    if pid == 0:
        try: act(); os._exit(0)
        except BaseException: traceback.print_exc(); os._exit(1)
    pids.append(pid)
if role:
    assert 'terrace' not in open('/proc/self/maps').read(), 'no client'
    writer([FILES - 1], random.Random(seed * 10 + 9)); sys.exit(0)
other = subprocess.Popen(['env', '-u', 'LD_PRELOAD', 'ROLE=writer', sys.executable, __file__])
start(lambda: writer([0, 2], random.Random(seed * 10)))
start(lambda: writer([1, 3], random.Random(seed * 10 + 1)))
# The fourth file is written now and then: it is served most of the time.
def seldom():
    rng = random.Random(seed * 10 + 2)
    while time.time() < end: time.sleep(.7); v = told(4) + 1; fd = os.open('f4', os.O_WRONLY); os.pwrite(fd, content(v), 0); tell(4, v); os.close(fd)
start(seldom)
for k in range(3): start(lambda k=k: reader(random.Random(seed * 10 + 5 + k)))
bad = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids) + (other.wait() != 0)
assert bad == 0, bad
for n in range(FILES): assert open(f'f{n}', 'rb').read() == content(told(n))
print('stress ok')
