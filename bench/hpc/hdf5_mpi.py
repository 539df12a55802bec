"""Parallel HDF5 by two ranks: collective and independent writes, chunks, attributes, groups; read again by the other rank."""
import numpy as np
from mpi4py import MPI

import h5py

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
N, M = 512, 1024


def rows(owner):
    return np.random.default_rng(owner).normal(size=(N // ranks, M))


def mine(owner):
    return slice(owner * (N // ranks), (owner + 1) * (N // ranks))


with h5py.File("parallel.h5", "w", driver="mpio", comm=comm) as file:
    whole = file.create_dataset("whole", (N, M), "f8", track_times=False)
    chunked = file.create_dataset("group/chunked", (N, M), "f8", chunks=(N // ranks, 64), track_times=False)
    file.attrs["ranks"] = ranks
    with whole.collective:
        whole[mine(rank)] = rows(rank)
    chunked[mine(rank)] = rows(rank)[::-1]
    file.flush()
comm.Barrier()
other = (rank + 1) % ranks
with h5py.File("parallel.h5", "r", driver="mpio", comm=comm) as file:
    good = np.array_equal(file["whole"][mine(other)], rows(other))
    good &= np.array_equal(file["group/chunked"][mine(other)], rows(other)[::-1])
good = comm.allreduce(bool(good), MPI.LAND)
if rank == 0:
    print("parallel.h5", "good" if good else "WRONG", flush=True)
if not good:
    comm.Abort(1)
