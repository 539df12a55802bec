# POSIX locks: exclusion, and release at a close of any descriptor
make('file')
def locked_for_others():
    pid = os.fork()
    if pid == 0:
        fd = os.open('file', os.O_RDWR)
        try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); os._exit(0)
        except OSError: os._exit(1)
    return os.waitpid(pid, 0)[1] != 0
before = direct('file')
w = os.open('file', os.O_RDWR); fcntl.lockf(w, fcntl.LOCK_EX)
assert locked_for_others()
assert not is_direct(before)
os.close(before); assert not locked_for_others(), 'a close releases them'
fcntl.lockf(w, fcntl.LOCK_EX); os.close(ordinary('file')); assert not locked_for_others()
# shared lock by a direct descriptor, in another process
pid = os.fork()
if pid == 0: os.execv(sys.executable, [sys.executable, '-c', "import os, fcntl; fd = os.open('file', os.O_RDONLY); fcntl.lockf(fd, fcntl.LOCK_SH); open('ready','w').close(); import time; time.sleep(1)"])
while not os.path.exists('ready'): time.sleep(.01)
assert locked_for_others(); os.waitpid(pid, 0); assert not locked_for_others()
print('locks ok')
