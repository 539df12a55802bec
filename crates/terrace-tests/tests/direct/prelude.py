import os, sys, fcntl, stat, socket, subprocess, array, time, mmap
ROOT = os.getcwd()
def number(path):
    for line in open('/proc/self/mountinfo'):
        part = line.split(' ')
        if part[4] == path: last = part[0]
    return int(last)
MOUNT = number(ROOT)
def is_direct(fd):
    with open(f'/proc/self/fdinfo/{fd}') as info:
        return MOUNT != int([l for l in info if l.startswith('mnt_id')][0].split()[1])
def direct(path, flags=os.O_RDONLY, **more):
    fd = os.open(path, flags, **more)
    assert is_direct(fd), f'{path}: no direct open'
    return fd
def ordinary(path, flags=os.O_RDONLY, **more):
    fd = os.open(path, flags, **more)
    assert not is_direct(fd), f'{path}: a direct open'
    return fd
def make(path, content=b'content\n'):
    with open(path, 'wb') as f: f.write(content)
    os.utime(path, ns=(time.time_ns() + 10**9, time.time_ns() - 10**9))
    # The first read after a change moves the access time.
    while os.stat(path).st_atime_ns <= os.stat(path).st_ctime_ns: open(path).read()
