#!/bin/bash
# Cold sequential reads of 1 MiB, by one reader and by four in turn, of a directory and through `terrace mount`, in turn. The number of every page is checked. As root: the page cache
# of the file is dropped before each. See bench/README.md, Read-ahead.
#
# ROUNDS=10      measurements of each order and system
# MIB=1024       size of the file
# OUT=cold-sequential.csv   the figures; DATA_DIR=... where the file is (default /var/tmp)
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" cold-sequential 10

mib=${MIB:-1024}
mkdir "$work/src" "$work/mnt"
at_end unmount_terrace "$work/mnt"
data "$work/src" "$mib"

# reads SYSTEM ORDER ROUND
reads() {
    local dir=$work/src rate
    if [[ $1 == mount ]]; then
        dir=$work/mnt
        "$bin/terrace" mount "$work/src" "$dir" --memory $((mib / 4))MiB
    fi
    sync "$work/src/data"
    dd if="$work/src/data" iflag=nocache count=0 status=none
    rate=$("$bin/terrace-bench" worker cold --file "$dir/data" --order "$2" --pages 256 --ops "$mib" | field reads_per_s)
    row "$1" "$2" "$3" "$rate"
    [[ $1 == plain ]] || "$bin/terrace" umount "$dir"
}

all() {
    local order system
    for order in sequential streams:4; do
        for system in $(in_turn "$1" plain mount); do reads "$system" "$order" "$1"; done
    done
}

echo "system,order,round,mib_s" > "$out"
each_round all
compare mib_s plain order
