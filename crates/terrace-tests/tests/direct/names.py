make('file'); os.makedirs('d/e', exist_ok=True); make('d/e/deep')
dev = os.stat('.').st_dev
# names
for path in ['file', './file', ROOT + '/file', ROOT + '//d/../file', 'd/e/deep', 'd/../d/e/deep']:
    fd = direct(path); assert os.read(fd, 9) in (b'content\n',), path
    st = os.fstat(fd); assert st == os.stat(path), path
    assert os.readlink(f'/proc/self/fd/{fd}') == os.path.realpath(path)
    os.close(fd)
d = os.open('d', os.O_RDONLY); fd = direct('e/deep', dir_fd=d); os.close(fd)
e = os.open('d/e', os.O_RDONLY); fd = direct('deep', dir_fd=e); os.close(fd); fd = direct('../../file', dir_fd=e); os.close(fd)
os.rename('d/e', 'd/f'); fd = direct('deep', dir_fd=e); os.close(fd)
os.rename('d/f', 'd/e')
os.chdir('d'); fd = direct('e/deep'); os.close(fd); os.chdir('e'); fd = direct('deep'); os.close(fd); fd=direct('../../file'); os.close(fd); os.chdir(ROOT)
os.symlink('file', 'link'); fd = direct('link'); os.close(fd)
os.symlink(ROOT + '/file', 'absolute'); os.close(ordinary('absolute'))
os.symlink(os.path.dirname(ROOT), 'out'); 
try: os.open('link', os.O_RDONLY|os.O_NOFOLLOW); assert False
except OSError as e_: assert e_.errno == 40
for flags in [os.O_RDONLY|os.O_NOFOLLOW, os.O_RDONLY|os.O_NONBLOCK, os.O_RDONLY|os.O_NOATIME]:
    fd = direct('file', flags); got = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_NONBLOCK|os.O_NOATIME|os.O_ACCMODE)
    assert got == flags & ~os.O_NOFOLLOW, (got, flags); os.close(fd)
fd = direct(ROOT + '/file', os.O_RDONLY|os.O_NONBLOCK); os.close(fd)
for flags in [os.O_RDWR, os.O_PATH, os.O_RDONLY|os.O_CREAT, os.O_WRONLY]:
    os.close(ordinary('file', flags))
print('names ok')
# streams
import ctypes
libc = ctypes.CDLL(None); libc.fopen.restype = ctypes.c_void_p
for fopen in [libc.fopen, libc.fopen64]:
    fopen.restype = ctypes.c_void_p
    s = fopen(b'file', b'r'); n = libc.fileno(ctypes.c_void_p(s)); assert is_direct(n)
    assert os.fstat(n).st_dev == dev
    b = ctypes.create_string_buffer(20); libc.fgets(b, 20, ctypes.c_void_p(s)); assert b.value == b'content\n'
    libc.fclose(ctypes.c_void_p(s))
    s = fopen(b'file', b'r+'); n = libc.fileno(ctypes.c_void_p(s)); assert not is_direct(n); libc.fclose(ctypes.c_void_p(s))
print('streams ok')
