# A program without the library changes a served file: reads see it within a moment, and the file is served again later.
import os, random, subprocess, sys, time
P = 4096; PAGES = 300
def page(p, v): return bytes([v]) * P
with open('f', 'wb') as f: f.write(b''.join(page(p, 0) for p in range(PAGES)))
fd = os.open('f', os.O_RDWR)
def read_all(v): return all(os.pread(fd, P, p * P) == page(p, v) for p in random.sample(range(PAGES), PAGES))
for _ in range(5): assert read_all(0); time.sleep(.02)
bare = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}
for v in (1, 2):
    write = f"import os; fd = os.open('f', os.O_WRONLY); os.pwrite(fd, bytes([{v}]) * {P * PAGES}, 0)"
    subprocess.run([sys.executable, '-c', write], env=bare, check=True)
    end = time.time() + 20
    while not read_all(v): assert time.time() < end, v
    assert all(read_all(v) for _ in range(3)), 'old again'
print('seen')
