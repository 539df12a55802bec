#!/bin/bash
# Read-ahead against none, over a source far away (`terrace-bench passthrough --delay-us`): cold reads of 4 KiB in several orders, in turn; every page is checked.
# See bench/README.md, Read-ahead.
#
# ROUNDS=10          measurements of each order and system
# DELAY_US=1000      of each read of the source
# MIB=256 MEMORY=96MiB
# ORDERS=...         orders of `terrace-bench worker cold`, each with its number of reads
# OUT=prefetch.csv   the figures; DATA_DIR=... where the file is (default /var/tmp)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
out=${OUT:-$root/target/prefetch.csv}
rounds=${ROUNDS:-10}
work=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-bench-prefetch.XXXXXX")
far=

finish() {
    [[ -z $far ]] || { kill "$far"; wait "$far"; } 2>/dev/null || true
    rm -rf "$work/near" && rmdir "$work/far" "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir "$work/near" "$work/far"
"$bin/terrace-bench" worker data --file "$work/near/data" --mib "${MIB:-256}" >/dev/null
"$bin/terrace-bench" passthrough "$work/near" "$work/far" --threads 64 --delay-us "${DELAY_US:-1000}" &
far=$!
for _ in $(seq 100); do
    [[ -e $work/far/data ]] && break
    sleep 0.05
done

measure() {
    local system=$1 order=$2 ops=$3 round=$4 config=()
    [[ $system == none ]] && config=(--config "$root/bench/configs/no-readahead.toml")
    "$bin/terrace" run --on "$work/far" --memory "${MEMORY:-96MiB}" "${config[@]}" -- \
        "$bin/terrace-bench" worker cold --file "$work/far/data" --order "$order" --ops "$ops" --seed "$round" |
        sed -n 's/.*"reads_per_s":\([0-9.]*\).*/\1/p' | sed "s/^/$system,$order,$round,/" >> "$out"
}

echo "system,order,round,reads_per_s" > "$out"
for round in $(seq "$rounds"); do
    systems="none ahead"
    (( round % 2 )) || systems="ahead none"
    for cell in ${ORDERS:-sequential=4000 streams:4=4000 stride:16=4000 random=2000 zipf:0.8=2000}; do
        for system in $systems; do
            measure "$system" "${cell%=*}" "${cell#*=}" "$round"
        done
    done
    echo "round $round of $rounds" >&2
done
"$bin/terrace-bench" compare "$out" --metric reads_per_s --factor system --baseline none --by order --pair round
