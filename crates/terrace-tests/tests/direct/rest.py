# what is not direct
make('file'); make('setid'); os.chmod('setid', 0o4755); os.close(ordinary('setid'))
make('large', b'x' * (1 << 20)); os.close(ordinary('large'))
os.mkfifo('fifo'); os.close(os.open('fifo', os.O_RDONLY | os.O_NONBLOCK))
# fresh: first read moves atime
open('fresh', 'w').write('x'); os.close(ordinary('fresh')); a0 = os.stat('fresh').st_atime_ns
fd = ordinary('fresh'); os.read(fd, 1); os.close(fd); assert os.stat('fresh').st_atime_ns >= a0
time.sleep(.02); open('fresh').read(); os.close(direct('fresh'))
# unlinked
fd = direct('file'); os.unlink('file'); assert os.read(fd, 9) == b'content\n'; st = os.fstat(fd); assert st.st_nlink == 0 and st.st_dev == os.stat('.').st_dev
fcntl.flock(fd, fcntl.LOCK_EX); os.close(os.dup(fd)); os.close(fd)
# renamed over
make('file'); make('new', b'new one\n'); fd = direct('file'); os.rename('new', 'file'); assert os.read(fd, 9) == b'content\n'
fd2 = os.open('file', os.O_RDONLY); assert os.read(fd2, 9) == b'new one\n'; fcntl.flock(fd, fcntl.LOCK_EX); os.close(fd); os.close(fd2)
# renamed, then left
make('file'); fd = direct('file'); os.rename('file', 'moved'); fcntl.flock(fd, fcntl.LOCK_EX); assert not is_direct(fd); os.close(fd)
# grows
make('file'); fd = direct('file'); open('file', 'ab').write(b'y' * (2 << 20)); assert len(os.pread(fd, 4 << 20, 0)) == 8 + (2 << 20); os.close(fd); os.close(ordinary('file'))
# a shared mapping of a writer
make('file', b'a' * 4096); fd = direct('file'); w = os.open('file', os.O_RDWR); m = mmap.mmap(w, 4096); os.close(w)
for i in range(50):
    m[7] = i; assert os.pread(fd, 1, 7) == bytes([i]); r = os.open('file', os.O_RDONLY); assert os.pread(r, 1, 7) == bytes([i]); os.close(r)
m.close(); os.close(fd)
# A writer that comes while a program without the library reads the file, and one of a file that is not in passthrough.
make('file', b'a' * 4096); hold = subprocess.Popen(['env', '-u', 'LD_PRELOAD', sys.executable, '-c', "import os; fd = os.open('file', os.O_RDONLY); print(os.read(fd, 1), flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
hold.stdout.readline()
fd = direct('file')
for letter in b'bcd':
    w = os.open('file', os.O_RDWR); os.pwrite(w, bytes([letter]), 9); m = mmap.mmap(w, 4096); os.close(w); assert os.pread(fd, 1, 9) == bytes([letter]); m[9] = letter + 9; assert os.pread(fd, 1, 9) == bytes([letter + 9]); m.close()
    os.chmod('file', 0o4755); w = os.open('file', os.O_WRONLY); os.pwrite(w, bytes([letter]), 7); assert os.pread(fd, 1, 7) == bytes([letter]), 'set-id'; os.close(w); os.chmod('file', 0o755)
hold.communicate(b'\n'); os.close(fd)
# rights
make('secret'); os.chmod('secret', 0o600); os.chmod('.', 0o755); os.makedirs('closed', exist_ok=True); make('closed/inner'); d = os.open('closed', os.O_RDONLY)
fd = direct('closed/inner'); os.close(fd); os.chmod('closed', 0o700)
pid = os.fork()
if pid == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    for path, more in [('secret', {}), ('closed/inner', {})]:
        try: os.open(path, os.O_RDONLY, **more); os._exit(1)
        except PermissionError: pass
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print('rest ok')
