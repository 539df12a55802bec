#!/usr/bin/env python3
"""Writes in pieces of 1 MiB, and what was written: for a file, and for CTE (iowarp-core 2.3.2, the successor of Hermes). See bench/README.md, The hierarchy.

    pieces.py write FILE MIB SEED EVERY   a line `ACK DURABLE`: seconds until all writes were answered, and until an fsync after them was
    pieces.py check FILE MIB SEED         every byte
    pieces.py new NAME FILES MIB SEED     new files NAME0, NAME1, ... of so many MiB, with seeds from SEED on, each with an fsync at its end, and closed then: a line
                                          `DURABLE SYNCED CLOSED`: seconds of writes and fsyncs, of the fsyncs alone, and of all with the closes
    pieces.py append FILE TIMES BYTES     a new file gets so many bytes and an fsync, so many times: seconds
    pieces.py appended FILE TIMES BYTES   every byte of it
    pieces.py cte MIB SEED ENGINE WORK PATH:MIB...   both, by blobs in CTE, with its runtime in the process, on files (or `ram:MIB`), the fastest first

A thread of the writer asks for what is written to be durable, each EVERY MiB; 0: never before the end. For CTE, durable is when the file systems of its files are synced.
"""

import os
import random
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path

PIECE = 1 << 20
PAGE = 4096


class Pieces:
    """Piece i: random bytes, with the number of each page at its start. Making it takes a fiftieth of what a write to memory takes: the time of the writes contains it."""

    def __init__(self, seed):
        self.piece = bytearray(random.Random(seed).randbytes(PIECE))
        self.starts = memoryview(self.piece).cast("Q")[:: PAGE // 8]

    def __getitem__(self, number):
        pages = PIECE // PAGE
        self.starts[:] = memoryview(array("Q", range(number * pages, (number + 1) * pages)))
        return self.piece


def write(path, mib, seed, every):
    pieces, file, due = Pieces(seed), os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), threading.Semaphore(0)
    ended = False

    def sync():
        while due.acquire() and not ended:
            os.fdatasync(file)

    syncing = threading.Thread(target=sync)
    syncing.start()
    # The source answers the first fsync of a file: of a page that is written as it is.
    with open(path, "rb") as same:
        os.pwrite(file, same.read(PAGE), 0)
    os.fsync(file)
    began = time.perf_counter()
    for number in range(mib):
        assert os.pwrite(file, pieces[number], number * PIECE) == PIECE
        if every and number % every == every - 1:
            due.release()
    ack = time.perf_counter() - began
    ended = True
    due.release()
    syncing.join()
    os.fsync(file)
    print(f"{ack:.4f} {time.perf_counter() - began:.4f}", flush=True)


def new(name, files, mib, seed):
    synced = durable = closed = 0
    for number in range(files):
        pieces = Pieces(seed + number)
        began = time.perf_counter()
        file = os.open(f"{name}{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        for piece in range(mib):
            assert os.write(file, pieces[piece]) == PIECE
        written = time.perf_counter()
        os.fsync(file)
        synced += time.perf_counter() - written
        durable += time.perf_counter() - began
        os.close(file)
        closed += time.perf_counter() - began
    print(f"{durable:.4f} {synced:.4f} {closed:.4f}", flush=True)


def line(number, size):
    return f"{number:{size - 1}}\n".encode()


def append(path, times, size):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    began = time.perf_counter()
    for number in range(times):
        os.write(file, line(number, size))
        os.fsync(file)
    print(f"{time.perf_counter() - began:.4f}", flush=True)
    os.close(file)


def appended(path, times, size):
    with open(path, "rb") as file:
        if any(file.read(size) != line(number, size) for number in range(times)) or file.read(1):
            sys.exit(f"{path} is not what was appended")


def check(path, mib, seed):
    pieces = Pieces(seed)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for number in range(mib):
            if file.read(PIECE) != pieces[number]:
                sys.exit(f"{path}: piece {number} is not what was written")


CONFIG = """
runtime: {{num_threads: 2}}
compose:
  - {{mod_name: clio_bdev, pool_name: "ram::chi_default_bdev", pool_query: local, pool_id: "301.0", bdev_type: ram, capacity: 256m}}
  - mod_name: clio_cte_core
    pool_name: cte_main
    pool_query: local
    pool_id: "512.0"
    storage:
{storage}
    dpe: {{dpe_type: {engine}}}
"""


def cte(mib, seed, engine, work, *tiers):
    lines, directories = [], set()
    for place, tier in enumerate(tiers):
        path, room = tier.rsplit(":", 1)
        score = 1.0 - place / len(tiers)
        if path == "ram":
            lines.append(f'      - {{path: "ram::tier{place}", bdev_type: ram, capacity_limit: {room}m, score: {score}}}')
        else:
            lines.append(f'      - {{path: "{path}", bdev_type: file, capacity_limit: {room}m, growth_unit: {room}m, score: {score}, persistence_level: long_term}}')
            directories.add(str(Path(path).parent))
    config = Path(work, "clio.yaml")
    config.write_text(CONFIG.format(storage="\n".join(lines), engine=engine))
    os.environ |= {"CLIO_SERVER_CONF": str(config), "CLIO_STORAGE_ROOT": work, "HOME": work, "CTP_LOG_LEVEL": "error"}
    import iowarp_core  # noqa: F401, makes the next one loadable
    import iowarp_core.ext.clio_cte_core_ext as core

    if not (core.clio_init(core.RuntimeMode.kClient, True) and core.initialize_cte("", core.PoolQuery.Dynamic())):
        sys.exit("CTE does not start")
    pieces, blobs = Pieces(seed), core.Tag("blobs")
    began = time.perf_counter()
    for number in range(mib):
        blobs.PutBlob(f"{number:06}", bytes(pieces[number]))
    ack = time.perf_counter() - began
    for directory in directories:
        subprocess.run(["sync", "-f", directory], check=True)
    durable = time.perf_counter() - began
    for number in range(mib):
        if blobs.GetBlob(f"{number:06}", PIECE) != pieces[number]:
            sys.exit(f"CTE: piece {number} is not what was put")
    print(f"{ack:.4f} {durable:.4f}", flush=True)
    # CTE's runtime does not end by itself.
    os._exit(0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path, mib, seed, every]:
            write(path, int(mib), int(seed), int(every))
        case ["check", path, mib, seed]:
            check(path, int(mib), int(seed))
        case ["new", name, files, mib, seed]:
            new(name, int(files), int(mib), int(seed))
        case ["append", path, times, size]:
            append(path, int(times), int(size))
        case ["appended", path, times, size]:
            appended(path, int(times), int(size))
        case ["cte", mib, seed, *rest]:
            cte(int(mib), int(seed), *rest)
        case _:
            sys.exit(__doc__)
