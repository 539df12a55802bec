#!/bin/bash
# HDF5's benchmark by POSIX calls and by HDF5's drivers, a field of 4,096 x 4,096 bytes in pieces of 64 x 1,024, contiguous and in chunks. It reads what it wrote. The fields stay;
# HDF5's files, in which are the times when they were made, do not.
set -e
export HDF5_PREFIX=. HDF5_NOCLEANUP=1
# Name of the field, driver that reads the file, the file, options of the benchmark.
measure() {
    local name=$1 reads=$2 file=$3
    shift 3
    h5perf_serial -A posix,hdf5 -e 4K,4K -x 64,1K "$@" > /dev/null
    h5dump -f "$reads" -d /Dataset_16777216 -b LE -o "$name.field" "$file" > /dev/null
    rm ./*.h5
}
measure sec2 sec2 '#sio_tmp.h5' -v sec2
measure stdio sec2 '#sio_tmp.h5' -v stdio
measure core sec2 '#sio_tmp.h5' -v core
measure direct sec2 '#sio_tmp.h5' -v direct
measure split split '#sio_tmp.h5' -v split
measure family family '#sio_tmp%05d.h5' -v family
measure chunks sec2 '#sio_tmp.h5' -v sec2 -c 64,1K -t -r 2,1
ls
