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
writes = os.environ['TERRACE_WRITES'] == 'guarded'
assert (hits('file', os.O_RDWR) > 0) == writes, 'open for writing'
assert hits('logs/deep/file') == 0, 'left out'
assert hits('../beside') == 0, 'not in the directory'
# What announces random reads is served at once: three jumps would be too few.
make('announced'); fd = os.open('announced', os.O_RDONLY); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM); before = stat()['leases']['held']
for at in (60, 20, 40): os.pread(fd, 500, at * 4096)
assert stat()['leases']['held'] + stat()['leases']['written'] > before; os.close(fd); os.unlink('announced')
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
# A miss reads by the program's own descriptor: a second one would end its locks at its close, or keep a deleted file.
with open('big', 'wb') as f: f.write(os.urandom(40_000_000)); f.flush(); os.fsync(f.fileno()); os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
def own(): return sum(os.path.realpath('/proc/self/fd/' + fd).startswith(os.path.realpath('big')) for fd in os.listdir('/proc/self/fd'))
def miss(fd):
    for at in random.sample(range(9_000), 400): os.pread(fd, 500, at * 4096)
def is_locked(): return subprocess.run([sys.executable, '-c', ask.replace('"file"', '"big"')], stdout=subprocess.PIPE).stdout == b'locked\n'
fd, other = os.open('big', os.O_RDONLY), os.open('big', os.O_RDONLY)
fcntl.lockf(other, fcntl.LOCK_SH); before = stat()['preload']['misses']
for _ in range(200):  # A file that somebody has just had open for writing is served a while later.
    miss(fd); miss(other)
    if stat()['preload']['misses'] > before + 2000: break
    time.sleep(.05)
else: raise Exception('it is not served')
assert own() == 2 and is_locked()
os.unlink('big'); os.dup2(os.open('/dev/null', os.O_RDONLY), other)
assert own() == 1 and os.pread(fd, 500, 0) == os.pread(fd, 500, 0); miss(fd)
os.close(os.dup(fd)); os.close(fd)
assert own() == 0, 'an unlinked file keeps its room'
print('serves ok')
