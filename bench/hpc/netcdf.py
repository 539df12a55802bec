"""NetCDF in its three formats: written, appended to along the unlimited dimension, copied by nccopy, read again."""
import subprocess

import netCDF4
import numpy as np


def field(step):
    return np.random.default_rng(step).normal(size=(64, 128)).astype("f4")


for name in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF4"):
    for steps, mode in ((range(8), "w"), (range(8, 40), "a")):
        with netCDF4.Dataset(f"{name}.nc", mode, format=name) as file:
            if mode == "w":
                for dimension, size in (("time", None), ("y", 64), ("x", 128)):
                    file.createDimension(dimension, size)
                file.createVariable("t", "f4", ("time", "y", "x"))
                file.title = name
            for step in steps:
                file["t"][step] = field(step)
    subprocess.run(["nccopy", "-k", "classic", f"{name}.nc", f"{name}-copy.nc"], check=True)
    for file_name in (f"{name}.nc", f"{name}-copy.nc"):
        with netCDF4.Dataset(file_name) as file:
            good = all(np.array_equal(file["t"][step], field(step)) for step in range(40))
            print(file_name, file["t"].shape, "good" if good else "WRONG")
            assert good
