# Descriptors are exchanged while other threads close them and get their numbers for something else.
import ctypes, threading
for n in range(4): make(f'f{n}')
libc = ctypes.CDLL(None); nothing = (ctypes.c_char_p * 1)(None)
end = time.time() + 3; wrong = []; rounds = [0, 0]
def exchange():
    while time.time() < end: libc.fexecve(-1, nothing, nothing); rounds[0] += 1
def work(n):
    try:
        while time.time() < end:
            fd = os.open(f'f{n}', os.O_RDONLY); assert os.read(fd, 9) == b'content\n'; s = os.fstat(fd); assert stat.S_ISREG(s.st_mode) and s.st_dev == DEV
            os.close(fd); pipe = os.pipe(); rounds[1] += 1
            for end_ in pipe: assert stat.S_ISFIFO(os.fstat(end_).st_mode)
            os.write(pipe[1], b'x'); assert os.read(pipe[0], 1) == b'x'
            for end_ in pipe: assert stat.S_ISFIFO(os.fstat(end_).st_mode); os.close(end_)
    except BaseException as why: import traceback; wrong.append((n, traceback.format_exc()))
DEV = os.stat('.').st_dev
threads = [threading.Thread(target=exchange) for _ in range(2)] + [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert not wrong, wrong[0][1]
assert min(rounds) > 100, rounds
print('threads ok')
