#!/bin/bash
# Staging, over a source far away with a bandwidth (`terrace-bench passthrough --delay-us --bandwidth`), with a quarter of the data's size in memory and the rest on
# a device, after `run --stage-in` and without it in turn. Every page that is read is checked. See bench/README.md, Staging. Cells:
#   reads     random reads of 4 KiB a second
#   staging   MiB a second of the staging itself, and of as many plain readers of the source
#   passes    reads a second of two passes of as many random reads as there are pages, the time of the staging in it
#
# ROUNDS=10              measurements of each cell and system
# DELAY_US=500           of each read of the source
# BANDWIDTH=100          of all of them together, MiB/s
# MIB=256 OPS=4000       size of the data, number of the reads
# WORKERS=4              of the staging
# CELLS="reads staging passes"
# OUT=staging.csv        the figures; DATA_DIR=... where data and tier are (default /var/tmp)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
out=${OUT:-$root/target/staging.csv}
rounds=${ROUNDS:-10}
mib=${MIB:-256}
workers=${WORKERS:-4}
work=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-bench-staging.XXXXXX")
far=

finish() {
    "$bin/terrace" umount "$work/mnt" 2>/dev/null || true
    [[ -z $far ]] || { kill "$far"; wait "$far"; } 2>/dev/null || true
    rm -rf "$work/near" "$work/tier" && rmdir "$work/far" "$work/mnt" "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir "$work/near" "$work/far" "$work/mnt"
"$bin/terrace-bench" worker data --file "$work/near/data" --mib "$mib" >/dev/null
"$bin/terrace-bench" passthrough "$work/near" "$work/far" --threads 64 --delay-us "${DELAY_US:-500}" --bandwidth "${BANDWIDTH:-100}" &
far=$!
for _ in $(seq 100); do
    [[ -e $work/far/data ]] && break
    sleep 0.05
done
memory=$((mib / 4 + 16))MiB tier=$work/tier:$((mib + 64))MiB

reads() {
    local system=$1 round=$2 staged=()
    [[ $system == none ]] || staged=(--stage-in data)
    rm -f "$work/tier"
    "$bin/terrace" run --on "$work/far" --memory "$memory" --tier "$tier" "${staged[@]}" -- \
        "$bin/terrace-bench" worker cold --file "$work/far/data" --order random --ops "${OPS:-4000}" --seed "$round" |
        sed -n 's/.*"reads_per_s":\([0-9.]*\).*/\1/p' | sed "s/^/$system,reads,$round,/" >> "$out"
}

passes() {
    local system=$1 round=$2 staged=() begin pages=$((mib * 256))
    [[ $system == none ]] || staged=(--stage-in data)
    rm -f "$work/tier"
    begin=$(date +%s.%N)
    # shellcheck disable=SC2016
    "$bin/terrace" run --on "$work/far" --memory "$memory" --tier "$tier" "${staged[@]}" -- \
        bash -ec 'for pass in 1 2; do "$0" worker cold --file "$1" --order random --ops "$2" --seed "$3$pass"; done' \
        "$bin/terrace-bench" "$work/far/data" "$pages" "$round" >/dev/null
    awk "BEGIN { printf \"$system,passes,$round,%.3f\n\", 2 * $pages / ($(date +%s.%N) - $begin) }" >> "$out"
}

staging() {
    local system=$1 round=$2 begin part=$((mib / workers)) readers=()
    rm -f "$work/tier"
    if [[ $system == none ]]; then
        begin=$(date +%s.%N)
        for n in $(seq 0 $((workers - 1))); do
            dd if="$work/far/data" of=/dev/null bs=1M iflag=direct skip=$((n * part)) count="$part" status=none &
            readers+=($!)
        done
        wait "${readers[@]}"
        awk "BEGIN { printf \"none,staging,$round,%.3f\n\", $mib / ($(date +%s.%N) - $begin) }" >> "$out"
    else
        "$bin/terrace" mount "$work/far" "$work/mnt" --memory "$memory" --tier "$tier"
        "$bin/terrace" stage in "$work/mnt/data" --workers "$workers" --json |
            jq -r "\"staged,staging,$round,\" + (.bytes / 1048576 / .seconds | tostring)" >> "$out"
        "$bin/terrace" umount "$work/mnt"
    fi
}

echo "system,cell,round,per_s" > "$out"
for round in $(seq "$rounds"); do
    systems="none staged"
    (( round % 2 )) || systems="staged none"
    for cell in ${CELLS:-reads staging passes}; do
        for system in $systems; do
            "$cell" "$system" "$round"
        done
    done
    echo "round $round of $rounds" >&2
done
"$bin/terrace-bench" compare "$out" --metric per_s --factor system --baseline none --by cell --pair round
