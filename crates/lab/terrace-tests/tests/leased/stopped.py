# terraced is stopped for longer than the kernel waits for a lease: a writer gets in, and nobody reads old content.
import os, sys, json, time, random, signal, subprocess
def stat(): return json.loads(subprocess.run([os.environ['TERRACE'], 'stat', '--json', '.'], stdout=subprocess.PIPE, check=True).stdout)
def fill(byte):
    fd = os.open('file', os.O_WRONLY | os.O_CREAT, 0o644); os.pwrite(fd, byte * 300_000, 0); os.close(fd)
def page(at): return os.pread(fd, 100, at * 4096)
fill(b'a'); fd = os.open('file', os.O_RDONLY)
def served():
    before = stat()['preload']['hits']
    for at in random.sample(range(60), 60): page(at)
    return stat()['preload']['hits'] > before
def await_served():
    for _ in range(300):
        if served(): return
        time.sleep(.05)
    raise Exception('not served')
await_served()
terraced = stat()['instance']['terraced']
os.kill(terraced, signal.SIGSTOP)
try:
    began = time.time(); fill(b'b'); print(f'the open waited {time.time() - began:.1f} s', file=sys.stderr)
    assert page(3) == b'b' * 100, 'old content beside a stopped daemon'
finally: os.kill(terraced, signal.SIGCONT)
for _ in range(100): assert page(3) == b'b' * 100; time.sleep(.001)
await_served(); assert page(3) == b'b' * 100
fill(b'c'); assert page(3) == b'c' * 100
print('stopped ok')
