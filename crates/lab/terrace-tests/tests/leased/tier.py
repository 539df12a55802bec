# Reads, and perhaps writes, two files larger than memory. Each page has its version as content, and the board has
# the version that is expected. Arguments: seed, seconds, share of writes.
import mmap, os, random, struct, sys, time

seed, seconds, writes = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
PAGE = 4096
FILES = {"a": 12288, "b": 1024}
START = {"a": 0, "b": 12288}
random.seed(seed)
board_file = os.open(os.environ["BOARD"], os.O_RDWR)
board = memoryview(mmap.mmap(board_file, 4 * sum(FILES.values()))).cast("I")


def content(at, version):
    return struct.pack("<QQ", at, version) * (PAGE // 16)


def versions(at):
    """A writer that was killed leaves its page with the old or the new version."""
    version, in_flight = board[at] >> 1, board[at] & 1
    return [version, version - 1] if in_flight else [version]


def read(name, fd, page, pages):
    got = os.pread(fd, pages * PAGE, page * PAGE)
    assert len(got) == pages * PAGE, (name, page, len(got))
    for i in range(pages):
        at = START[name] + page + i
        found = got[i * PAGE:(i + 1) * PAGE]
        if not any(found == content(at, version) for version in versions(at)):
            sys.exit(f"{name}, page {page + i}: {struct.unpack('<QQ', found[:16])} instead of {versions(at)}")


def write(name, fd, page):
    at = START[name] + page
    version = max(versions(at)) + 1
    board[at] = version << 1 | 1
    assert os.pwrite(fd, content(at, version), page * PAGE) == PAGE
    board[at] = version << 1


fds = {name: os.open(name, os.O_RDWR if writes else os.O_RDONLY) for name in FILES}
end = time.monotonic() + seconds
for name, fd in fds.items():
    for page in range(0, FILES[name], 16):
        read(name, fd, page, 16)
while time.monotonic() < end:
    name = random.choice("aaab")
    page = int(FILES[name] * random.random() ** 2)
    if random.random() < writes:
        write(name, fds[name], page)
    else:
        read(name, fds[name], page, min(random.choice([1, 1, 4, 16]), FILES[name] - page))
print("tier ok")
