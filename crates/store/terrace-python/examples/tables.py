"""Tables and arrays by their libraries, as terrace://BUCKET/KEY. Usage: tables.py DIR"""

import sys

import numpy
import pandas
import pyarrow.parquet
import xarray
import zarr
from terrace_cache.fs import TerraceFileSystem

where = {"store": sys.argv[1], "memory": "64MiB"}

table = pandas.DataFrame({"city": ["Oslo", "Lima", "Cairo"], "people": [0.7, 10.1, 10.2]})
table.to_parquet("terrace://tables/cities.parquet", storage_options=where)
table.to_csv("terrace://tables/cities.csv", index=False, storage_options=where)
print(pandas.read_csv("terrace://tables/cities.csv", storage_options=where).equals(table))

fs = TerraceFileSystem(**where)
print(pyarrow.parquet.read_table("tables/cities.parquet", filesystem=fs, columns=["people"]).num_rows)

array = zarr.create_array("terrace://arrays/squares", shape=(100, 100), chunks=(10, 100), dtype="i8", storage_options=where)
array[:] = numpy.arange(100 * 100).reshape(100, 100) ** 2
print(int(zarr.open_array("terrace://arrays/squares", mode="r", storage_options=where)[99, 99]))

weather = xarray.Dataset({"wind": (("time", "place"), numpy.ones((24, 3)))})
weather.to_zarr("terrace://arrays/weather", storage_options=where, mode="w", consolidated=False)
print(float(xarray.open_zarr("terrace://arrays/weather", storage_options=where, consolidated=False).wind.sum()))

print(fs.ls("", detail=False), fs.ls("tables", detail=False))
fs.close()
