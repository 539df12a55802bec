"""Reads with O_DIRECT: content, errors, and, with the argument `writes`, writes beside them."""
import mmap, os, random, sys

PAGE, PAGES = 4096, 256
random.seed(int(os.environ["SEED"]))
writes = "writes" in sys.argv
content = bytearray(random.randbytes(PAGE * PAGES))
with open("direct", "wb") as file:
    file.write(content)
    os.fsync(file.fileno())
access = os.O_RDWR if writes else os.O_RDONLY
direct, cached = os.open("direct", access | os.O_DIRECT), os.open("direct", access)
memory = memoryview(mmap.mmap(-1, 16 * PAGE))


def outcome(buf, offset):
    try:
        return os.preadv(direct, buf, offset)
    except OSError as e:
        return -e.errno


def refused():
    return [
        outcome([memory[1 : PAGE + 1]], 0),
        outcome([memory[: PAGE - 1]], 0),
        outcome([memory[:PAGE]], 100),
        outcome([memory[:PAGE], memory[PAGE + 1 : PAGE + 101]], 0),
    ]


by_kernel = refused()
for step in range(6000):
    n = random.choice([512, PAGE, 2 * PAGE, 16 * PAGE])
    at = random.randrange(0, len(content), 512)
    if writes and step % 8 == 0:
        memory[:n] = random.randbytes(n)
        way = random.choice([direct, cached])
        n = min(n, len(content) - at)
        assert os.pwritev(way, [memory[:n]], at) == n
        content[at : at + n] = memory[:n]
        continue
    way = random.choice([direct, direct, cached])
    half = n // 2 if n > 512 else n
    pieces = [memory[:half], memory[8 * PAGE : 8 * PAGE + n - half]] if half < n else [memory[:n]]
    want = content[at : at + n]
    assert os.preadv(way, pieces, at) == len(want), (at, n)
    got = b"".join(bytes(piece) for piece in pieces)[: len(want)]
    assert got == want, (step, at, n)
assert refused() == by_kernel, (refused(), by_kernel)
print("direct ok")
