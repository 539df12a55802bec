"""Each kind of change and look in the working directory. Every line of output is one outcome; it must not depend on the path that leads here."""

import ctypes
import ctypes.util
import errno
import fcntl
import hashlib
import mmap
import os
import random
import stat
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = 4096
RENAME_NOREPLACE = 1
PUNCH_HOLE = 3


def outcome(operation):
    """Prints the result of one operation, or the name of its error."""
    try:
        print(operation.__name__, operation())
    except OSError as error:
        print(operation.__name__, errno.errorcode.get(error.errno, error.errno))
    except subprocess.CalledProcessError as error:
        print(operation.__name__, "exit code", error.returncode)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def noise(size, seed):
    return random.Random(seed).randbytes(size)


def write(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def libc(call, *arguments):
    if call(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def create():
    write("file", noise(50_000, 1))
    return digest("file"), os.stat("file").st_size


def overwrite_in_the_middle():
    fd = os.open("file", os.O_RDWR)
    os.pwrite(fd, noise(9_000, 2), 7_777)
    os.pwritev(fd, [noise(3, 3), noise(5_000, 4)], 30_001)
    os.fsync(fd)
    os.close(fd)
    return digest("file")


def append():
    write("file", noise(6_000, 5), os.O_WRONLY | os.O_APPEND)
    return digest("file"), os.stat("file").st_size


def shrink_and_grow():
    fd = os.open("file", os.O_RDWR)
    os.ftruncate(fd, 10_001)
    os.ftruncate(fd, 20_002)
    os.close(fd)
    return digest("file"), os.stat("file").st_size


def truncate_by_path():
    os.truncate("file", 5_005)
    return digest("file")


def open_truncating():
    write("cut", noise(10_000, 6))
    write("cut", b"short")
    return digest("cut"), os.stat("cut").st_size


def write_a_mapping():
    write("mapped", noise(3 * PAGE, 7))
    with open("mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[PAGE - 5 : PAGE + 5] = b"0123456789"
        view.flush()
    return digest("mapped")


def read_a_mapping():
    with open("mapped", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return hashlib.sha256(view[:]).hexdigest()[:16]


def sparse():
    fd = os.open("sparse", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, b"end", 3_000_000)
    os.close(fd)
    return digest("sparse")


def allocate():
    fd = os.open("allocated", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        libc(LIBC.fallocate, fd, 0, ctypes.c_long(0), ctypes.c_long(100_000))
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def punch_a_hole():
    fd = os.open("mapped", os.O_RDWR)
    try:
        libc(LIBC.fallocate, fd, PUNCH_HOLE, ctypes.c_long(PAGE), ctypes.c_long(PAGE))
        return digest("mapped")
    finally:
        os.close(fd)


def copy_a_range():
    source, copy = os.open("mapped", os.O_RDONLY), os.open("copy", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        copied = 0
        while copied < 2 * PAGE and (step := os.copy_file_range(source, copy, 2 * PAGE - copied)):
            copied += step
    finally:
        os.close(source)
        os.close(copy)
    return copied, digest("copy")


def send_a_file():
    source, copy = os.open("mapped", os.O_RDONLY), os.open("sent", os.O_WRONLY | os.O_CREAT, 0o644)
    sent = os.sendfile(copy, source, 0, PAGE)
    os.close(source)
    os.close(copy)
    return sent, digest("sent")


def write_synchronously():
    write("synchronous", noise(8_000, 8), os.O_WRONLY | os.O_CREAT | os.O_SYNC)
    return digest("synchronous")


def synchronize_a_directory():
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def a_large_file():
    write("large", noise(4 << 20, 9))
    return digest("large")


def rename():
    os.rename("cut", "renamed")
    return sorted(os.listdir("."))


def rename_over_a_file():
    write("new", b"new content")
    os.rename("new", "renamed")
    return digest("renamed"), os.path.exists("new")


def rename_over_an_open_file():
    write("old", b"old content")
    write("new", b"new content")
    fd = os.open("old", os.O_RDONLY)
    os.rename("new", "old")
    seen = os.read(fd, 100)
    os.close(fd)
    return seen, digest("old")


def rename_without_replacing():
    write("new", b"new content")
    libc(LIBC.renameat2, -100, b"new", -100, b"old", RENAME_NOREPLACE)


def directories():
    os.makedirs("a/b/c")
    write("a/b/c/file", b"deep")
    os.rename("a/b", "a/d")
    return digest("a/d/c/file"), sorted(os.listdir("a"))


def remove_a_full_directory():
    os.rmdir("a")


def rename_over_a_full_directory():
    os.mkdir("empty")
    os.rename("empty", "a")


def link():
    os.link("file", "linked")
    write("linked", b"by the link", os.O_WRONLY | os.O_APPEND)
    # A server may show each name as a file of its own: attributes of the other one are good for a second.
    time.sleep(1.2)
    return digest("file") == digest("linked")


def symbolic_link():
    os.symlink("file", "symbol")
    return os.readlink("symbol"), digest("symbol")


def follow_no_link():
    os.close(os.open("symbol", os.O_RDONLY | os.O_NOFOLLOW))


def unlink():
    os.unlink("renamed")
    return os.path.exists("renamed")


def use_an_unlinked_file():
    fd = os.open("unlinked", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, noise(10_000, 10))
    os.unlink("unlinked")
    os.pwrite(fd, b"after the end of the name", 5_000)
    os.ftruncate(fd, 8_000)
    seen = hashlib.sha256(os.pread(fd, 20_000, 0)).hexdigest()[:16]
    os.close(fd)
    return seen, os.path.exists("unlinked")


def create_exclusively():
    write("file", b"", os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def open_a_file_as_a_directory():
    os.close(os.open("file", os.O_RDONLY | os.O_DIRECTORY))


def change_the_mode():
    os.chmod("file", 0o600)
    return oct(stat.S_IMODE(os.stat("file").st_mode))


def change_times():
    os.utime("file", (1_000_000_000, 1_100_000_000))
    # A read ahead by the server itself may set atime anew.
    return int(os.stat("file").st_mtime)


def attributes():
    os.setxattr("file", "user.colour", b"blue")
    found = os.getxattr("file", "user.colour"), "user.colour" in os.listxattr("file")
    os.removexattr("file", "user.colour")
    return found


def no_such_attribute():
    return os.getxattr("file", "user.none")


def longest_name():
    write("n" * 200, b"long")
    return digest("n" * 200)


def name_that_is_too_long():
    write("n" * 256, b"too long")


def name_without_utf8():
    write(b"\xff\xfe", b"bytes")
    return b"\xff\xfe" in os.listdir(b".")


def pipe():
    os.mkfifo("pipe")
    return stat.S_ISFIFO(os.stat("pipe").st_mode)


def locks():
    """A second process must find the file locked, by both kinds of lock."""
    probe = "import fcntl, sys; f = open('file', 'r+'); (fcntl.{})(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    found = []
    for kind in ("flock", "lockf"):
        with open("file", "r+") as file:
            getattr(fcntl, kind)(file, fcntl.LOCK_EX)
            child = subprocess.run([sys.executable, "-c", probe.format(kind)], stderr=subprocess.DEVNULL)
            found.append(child.returncode)
    return found


def many_files():
    os.mkdir("many")
    for number in range(150):
        write(f"many/{number}", str(number).encode())
    for number in range(0, 150, 3):
        os.unlink(f"many/{number}")
    return len(os.listdir("many")), digest("many/149")


def run_a_program():
    write("program", b"#!/bin/sh\necho it runs\n")
    os.chmod("program", 0o755)
    return subprocess.run(["./program"], capture_output=True, check=True).stdout


OPERATIONS = [
    create, overwrite_in_the_middle, append, shrink_and_grow, truncate_by_path, open_truncating, write_a_mapping,
    read_a_mapping, sparse, allocate, punch_a_hole, copy_a_range, send_a_file, write_synchronously,
    synchronize_a_directory, a_large_file, rename, rename_over_a_file, rename_over_an_open_file,
    rename_without_replacing, directories, remove_a_full_directory, rename_over_a_full_directory, link,
    symbolic_link, follow_no_link, unlink, use_an_unlinked_file, create_exclusively, open_a_file_as_a_directory,
    change_the_mode, change_times, attributes, no_such_attribute, longest_name, name_that_is_too_long,
    name_without_utf8, pipe, locks, many_files, run_a_program,
]  # fmt: skip

if __name__ == "__main__":
    os.umask(0o022)
    for each in OPERATIONS:
        outcome(each)
