#!/bin/bash
# Cold sequential reads of 1 MiB, by one reader and by four in turn, of a directory and through `terrace mount`, in turn. The number of every page is checked. As root: the page cache
# of the file is dropped before each. See bench/README.md, Read-ahead.
#
# ROUNDS=10      measurements of each order and system
# MIB=1024       size of the file
# OUT=cold-sequential.csv   the figures; DATA_DIR=... where the file is (default /var/tmp)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
out=${OUT:-$root/target/cold-sequential.csv}
rounds=${ROUNDS:-10} mib=${MIB:-1024}
work=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-bench-cold.XXXXXX")

finish() {
    "$bin/terrace" umount "$work/mnt" 2>/dev/null || true
    rm -rf "$work/src" && rmdir "$work/mnt" "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir "$work/src" "$work/mnt"
"$bin/terrace-bench" worker data --file "$work/src/data" --mib "$mib" >/dev/null

# reads SYSTEM ORDER ROUND
reads() {
    local dir=$work/src
    if [[ $1 == mount ]]; then
        dir=$work/mnt
        "$bin/terrace" mount "$work/src" "$dir" --memory $((mib / 4))MiB
    fi
    sync "$work/src/data"
    dd if="$work/src/data" iflag=nocache count=0 status=none
    "$bin/terrace-bench" worker cold --file "$dir/data" --order "$2" --pages 256 --ops "$mib" |
        sed -n 's/.*"reads_per_s":\([0-9.]*\).*/\1/p' | sed "s/^/$1,$2,$3,/" >> "$out"
    [[ $1 == plain ]] || "$bin/terrace" umount "$dir"
}

echo "system,order,round,mib_s" > "$out"
for round in $(seq "$rounds"); do
    systems="plain mount"
    (( round % 2 )) || systems="mount plain"
    for order in sequential streams:4; do
        for system in $systems; do
            reads "$system" "$order" "$round"
        done
    done
    echo "round $round of $rounds" >&2
done
"$bin/terrace-bench" compare "$out" --metric mib_s --factor system --baseline plain --by order --pair round
