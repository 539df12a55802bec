make('file'); make('logs/file', b'excepted\n')
os.close(direct('file'))
fd = os.open('logs/file', os.O_RDONLY)
assert os.fstat(fd).st_dev == os.stat('logs/file').st_dev != os.stat('file').st_dev
fcntl.flock(fd, fcntl.LOCK_EX)
assert os.readlink(f'/proc/self/fd/{fd}') == ROOT + '/logs/file' and os.read(fd, 9) == b'excepted\n'
# A copy of the mount elsewhere, and another file system within.
for copy in ['copy', 'memory']: os.mkdir(copy)
subprocess.run(['mount', '--bind', '.', 'copy'], check=True); subprocess.run(['mount', '-t', 'tmpfs', 'none', 'memory'], check=True)
with open('memory/file', 'w') as f: f.write('memory')
fd = os.open('memory/file', os.O_RDONLY); assert os.fstat(fd).st_dev == os.stat('memory').st_dev and os.read(fd, 9) == b'memory'; os.close(fd)
fd = os.open('copy/file', os.O_RDONLY); assert os.fstat(fd).st_dev == os.stat('copy').st_dev and os.read(fd, 9) == b'content\n'
fcntl.flock(fd, fcntl.LOCK_EX); os.close(fd)
subprocess.run(['umount', 'copy', 'memory'], check=True)
print('except ok')
