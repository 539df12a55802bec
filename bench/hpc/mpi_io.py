"""MPI-IO by two ranks: explicit offsets, views with strides, collective and shared calls, atomic mode; what was written is read by the other rank."""
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
BLOCK, BLOCKS = 4096, 512


def block(owner, n):
    """Content of a block, by its owner and number."""
    return np.random.default_rng(owner * 1_000_003 + n).integers(0, 256, BLOCK, dtype=np.uint8)


def check(what, got, owner, n):
    if not np.array_equal(got, block(owner, n)):
        print(f"{what}: block {n} of rank {owner} is wrong", flush=True)
        comm.Abort(1)


def each(name, write, read, info=MPI.INFO_NULL):
    mode = MPI.MODE_CREATE | MPI.MODE_RDWR
    file = MPI.File.Open(comm, name, mode, info)
    write(file)
    file.Sync()
    comm.Barrier()
    file.Sync()
    read(file)
    size = file.Get_size()
    file.Close()
    if rank == 0:
        print(name, size)


def at(n, owner):
    return (n * ranks + owner) * BLOCK


def write_at(file):
    for n in range(BLOCKS):
        file.Write_at(at(n, rank), block(rank, n))


def read_at(file, blocks=BLOCKS):
    other, got = (rank + 1) % ranks, np.empty(BLOCK, np.uint8)
    for n in range(blocks):
        file.Read_at(at(n, other), got)
        check("read_at", got, other, n)


def strided(file, owner):
    kind = MPI.BYTE.Create_vector(1, BLOCK, BLOCK).Create_resized(0, ranks * BLOCK)
    kind.Commit()
    file.Set_view(owner * BLOCK, MPI.BYTE, kind, "native")
    return kind


def write_all(file):
    kind = strided(file, rank)
    file.Write_all(np.concatenate([block(rank, n) for n in range(BLOCKS)]))
    kind.Free()


def read_all(file):
    other = (rank + 1) % ranks
    kind, got = strided(file, other), np.empty(BLOCK * BLOCKS, np.uint8)
    file.Read_all(got)
    for n in range(BLOCKS):
        check("read_all", got[n * BLOCK:(n + 1) * BLOCK], other, n)
    kind.Free()


def write_ordered(file):
    for n in range(32):
        file.Write_ordered(block(rank, n))


def atomic(file):
    file.Set_atomicity(True)
    write_at(file)


def truncated(file):
    write_at(file)
    comm.Barrier()
    file.Set_size(at(BLOCKS // 2, 0))
    file.Preallocate(at(BLOCKS, 0))
    for n in range(BLOCKS // 2, BLOCKS):
        file.Write_at(at(n, rank), block(rank, n))


def not_blocking(file):
    blocks = [block(rank, n) for n in range(BLOCKS)]
    MPI.Request.Waitall([file.Iwrite_at(at(n, rank), blocks[n]) for n in range(BLOCKS)])


each("explicit", write_at, read_at)
each("strided", write_all, read_all)
each("ordered", write_ordered, lambda file: read_at(file, 32))
each("atomic", atomic, read_at)
each("truncated", truncated, read_at)
each("not-blocking", not_blocking, read_at)
# Data sieving: short pieces are read, changed and written as long ones, under locks.
sieve = MPI.Info.Create()
for hint in ("romio_ds_write", "romio_ds_read"):
    sieve.Set(hint, "enable")
sieve.Set("romio_cb_write", "disable")
each("sieved", write_all, read_all, sieve)
sys.stdout.flush()
