make('file'); os.mkdir('d'); make('d/inner')
infos = os.open('/proc/self/fdinfo', os.O_RDONLY)
def is_direct(fd):
    info = os.open(str(fd), os.O_RDONLY, dir_fd=infos); text = os.read(info, 4096).decode(); os.close(info)
    return f'mnt_id:\t{MOUNT}\n' not in text
held = os.open('d/inner', os.O_RDONLY); assert is_direct(held)
os.chroot('d'); os.chdir('/')
for path in ['/inner', 'inner']:
    fd = os.open(path, os.O_RDONLY); assert os.read(fd, 9) == b'content\n' and not is_direct(fd), path
try: os.open('/../file', os.O_RDONLY); assert False
except FileNotFoundError: pass
# It cannot be exchanged, and a lock that excludes nobody is none.
try: fcntl.flock(held, fcntl.LOCK_SH); assert False
except OSError as why: assert why.errno == 37, why
assert os.read(held, 9) == b'content\n'
print('chroot ok')
