#!/bin/bash
# Parallel netCDF's tools: files of three formats made from a text, as text again, and copied by netCDF's.
set -e
python3 - > made.cdl << 'PYTHON'
print("netcdf made {\ndimensions: y = 300 ; x = 200 ;\nvariables: double t(y, x) ; int n(y) ;\ndata:")
print(" t =", ", ".join(f"{(7 * i * i) % 1001 / 8}" for i in range(60_000)), ";")
print(" n =", ", ".join(str(i * i % 977) for i in range(300)), ";\n}")
PYTHON
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self
for format in 1 2 5; do
    ncmpigen -v $format -o made.nc made.cdl
    ncmpidump made.nc | grep -v "^// file format" > made-$format.txt
    cmp made-1.txt made-$format.txt
    mv made.nc made-$format.nc
done
nccopy -k nc4 made-1.nc copied.nc
ncdump -s copied.nc | grep -c " t ="
