"""A simulation that writes its state now and then, as burst-buffer jobs do, over h5py and mpi4py, each rank with some planes of the cube: gray_scott.py FILE SIZE STEPS PLOTGAP [--times] [--fsync].

The Gray-Scott reaction of two substances on a periodic cube by a 7-point stencil (J. E. Pearson, Complex Patterns in a Simple System, Science 261, 1993; ADIOS2's example `gray-scott` has the same
parameters). The state depends on the arguments alone, not on the number of ranks. In the end all outputs are read again and compared with the checksums of what was written.
--times: a line of JSON on stdout; --fsync: each output is durable before the simulation goes on.
"""
import json
import os
import sys
import time
import zlib

import numpy as np
from mpi4py import MPI

import h5py

DU, DV, FEED, KILL, DT, NOISE, SEED = 0.2, 0.1, 0.01, 0.05, 2.0, 0.01, 1
name, size, steps, plotgap = sys.argv[1], *map(int, sys.argv[2:5])
comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
first, end = rank * size // ranks, (rank + 1) * size // ranks
cells = np.arange(first * size * size, end * size * size, dtype=np.uint64).reshape(end - first, size, size)


def start():
    """All is u, but for a cube of six cells in the middle."""
    u, v = np.ones((size, size, size)), np.zeros((size, size, size))
    middle = (slice(size // 2 - 3, size // 2 + 3),) * 3
    u[middle], v[middle] = 0.25, 0.33
    return u[first:end].copy(), v[first:end].copy()


def uniform(step):
    """SplitMix64 of the seed and the cell of a step, as numbers of [-1, 1)."""
    x = np.uint64(SEED) + (cells + np.uint64(step * size**3 + 1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) / float(1 << 52) - 1.0


def with_neighbours(f):
    """The planes of a rank between those of the ranks below and above it."""
    below, above = np.empty_like(f[0]), np.empty_like(f[0])
    lower, upper = (rank - 1) % ranks, (rank + 1) % ranks
    comm.Sendrecv(f[-1], upper, recvbuf=below, source=lower)
    comm.Sendrecv(f[0], lower, recvbuf=above, source=upper)
    return np.concatenate([below[None], f, above[None]])


def laplacian(f):
    """The order of the additions is part of the result."""
    padded = with_neighbours(f)
    total = np.roll(f, 1, 2) + np.roll(f, -1, 2)
    for neighbours in (np.roll(f, 1, 1), np.roll(f, -1, 1), padded[:-2], padded[2:]):
        total = total + neighbours
    return (total - 6.0 * f) / 6.0


def advance(u, v, step):
    reacted = u * v * v
    du = DU * laplacian(u) - reacted + FEED * (1.0 - u) + NOISE * uniform(step)
    dv = DV * laplacian(v) + reacted - (FEED + KILL) * v
    return u + du * DT, v + dv * DT


np.seterr(over="ignore")
u, v = start()
outputs = steps // plotgap
shape = (outputs, size, size, size)
seconds = {"compute_s": 0.0, "output_s": 0.0, "reread_s": 0.0}
written = []


def lap(name, begun):
    """The time of all ranks since then, counted under a name."""
    comm.Barrier()
    now = time.monotonic()
    seconds[name] += now - begun
    return now


begun = time.monotonic()
with h5py.File(name, "w", driver="mpio", comm=comm) as file:
    fields = [file.create_dataset(field, shape, "<f8", track_times=False) for field in "uv"]
    for step in range(steps):
        u, v = advance(u, v, step)
        if (step + 1) % plotgap == 0:
            begun = lap("compute_s", begun)
            for dataset, field in zip(fields, (u, v)):
                with dataset.collective:
                    dataset[step // plotgap, first:end] = field
            if "--fsync" in sys.argv:
                file.flush()
                fd = os.open(name, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            begun = lap("output_s", begun)
            written.append([zlib.crc32(field.tobytes()) for field in (u, v)])
lap("output_s", begun)
begun = time.monotonic()
with h5py.File(name, "r", driver="mpio", comm=comm) as file:
    for output, checksums in enumerate(written):
        if checksums != [zlib.crc32(file[field][output, first:end].tobytes()) for field in "uv"]:
            print(f"{name}: output {output} is not what was written", file=sys.stderr, flush=True)
            comm.Abort(1)
lap("reread_s", begun)
if rank == 0:
    with h5py.File(name, "r") as file:
        u_crc, v_crc = (zlib.crc32(file[field][outputs - 1].tobytes()) for field in "uv")
    if "--times" in sys.argv:
        print(json.dumps({"crc32": [f"{u_crc:08x}", f"{v_crc:08x}"], **{key: round(value, 3) for key, value in seconds.items()}}, separators=(",", ":")))
        sys.exit()
    print(f"{steps} steps, {outputs} outputs, {outputs * 2 * size**3 * 8} bytes, the last is {u_crc:08x} {v_crc:08x}", flush=True)
