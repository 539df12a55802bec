# Which files are served, and what is as without terrace.
import os, sys, json, time, random, fcntl, struct, subprocess
def stat(): return json.loads(subprocess.run([os.environ['TERRACE'], 'stat', '--json', sys.argv[1]], stdout=subprocess.PIPE, check=True).stdout)
def make(path):
    with open(path, 'wb') as f: f.write(os.urandom(300_000))
def hits(path, flags=os.O_RDONLY):
    before = stat()['preload']['hits']; fd = os.open(path, flags)
    with open(path, 'rb') as f: content = f.read()
    for _ in range(4):
        for at in random.sample(range(70), 70): assert os.pread(fd, 500, at * 4096) == content[at * 4096:at * 4096 + 500]
        time.sleep(.05)
    os.close(fd); return stat()['preload']['hits'] - before
os.makedirs('logs/deep', exist_ok=True); os.makedirs('logs2', exist_ok=True)
for path in ('file', 'logs/deep/file', 'logs2/file', '../beside'): make(path)
assert hits('file') > 0 and hits('logs2/file') > 0
os.symlink('file', 'link'); assert hits('link') > 0
assert hits('file', os.O_RDWR) == 0, 'open for writing'
assert hits('logs/deep/file') == 0, 'left out'
assert hits('../beside') == 0, 'not in the directory'
# The device is the directory's own, and nothing is mounted.
fd = os.open('file', os.O_RDONLY)
assert os.fstat(fd).st_dev == os.stat('..').st_dev == os.stat('.').st_dev
# Reads, opens and closes leave the process's locks alone.
lock = os.open('file', os.O_RDONLY)
fcntl.fcntl(lock, fcntl.F_SETLK, struct.pack('hhqqi', fcntl.F_RDLCK, os.SEEK_SET, 0, 10, 0))
for at in random.sample(range(70), 70): os.pread(fd, 500, at * 4096)
ask = 'import fcntl,os,struct\nfd=os.open("file",os.O_RDWR)\ntry: fcntl.fcntl(fd,fcntl.F_SETLK,struct.pack("hhqqi",fcntl.F_WRLCK,0,0,10,0)); print("free")\nexcept OSError: print("locked")'
assert subprocess.run([sys.executable, '-c', ask], stdout=subprocess.PIPE).stdout == b'locked\n'
# An unlinked file gives its room back, though it was served.
os.close(lock); os.close(fd); make('gone'); assert hits('gone') > 0
room = lambda: os.statvfs('.').f_bfree
fd = os.open('gone', os.O_RDONLY); os.unlink('gone'); assert len(os.pread(fd, 500, 8192)) == 500; os.close(fd)
for _ in range(100):
    if stat()['leases']['held'] + stat()['leases']['written'] <= 5: break
    time.sleep(.1)
else: raise Exception('it is kept: ' + str(stat()['leases']))
print('serves ok')
