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
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" staging 10

mib=${MIB:-256}
workers=${WORKERS:-4}
mkdir "$work/near" "$work/mnt"
at_end unmount_terrace "$work/mnt"
data "$work/near" "$mib"
far_source "$work/near" --delay-us "${DELAY_US:-500}" --bandwidth "${BANDWIDTH:-100}"
memory=$((mib / 4 + 16))MiB tier=$work/tier:$((mib + 64))MiB

reads() {
    local system=$1 round=$2 staged=() rate
    [[ $system == none ]] || staged=(--stage-in data)
    rm -f "$work/tier"
    rate=$("$bin/terrace" run --on "$work/far" --memory "$memory" --tier "$tier" "${staged[@]}" -- \
        "$bin/terrace-bench" worker cold --file "$work/far/data" --order random --ops "${OPS:-4000}" --seed "$round" | field reads_per_s)
    row "$system" reads "$round" "$rate"
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
    row "$system" passes "$round" "$(awk "BEGIN { printf \"%.3f\", 2 * $pages / ($(date +%s.%N) - $begin) }")"
}

staging() {
    local system=$1 round=$2 begin part=$((mib / workers)) readers=() rate
    rm -f "$work/tier"
    if [[ $system == none ]]; then
        begin=$(date +%s.%N)
        for n in $(seq 0 $((workers - 1))); do
            dd if="$work/far/data" of=/dev/null bs=1M iflag=direct skip=$((n * part)) count="$part" status=none &
            readers+=($!)
        done
        wait "${readers[@]}"
        rate=$(awk "BEGIN { printf \"%.3f\", $mib / ($(date +%s.%N) - $begin) }")
    else
        "$bin/terrace" mount "$work/far" "$work/mnt" --memory "$memory" --tier "$tier"
        rate=$("$bin/terrace" stage in "$work/mnt/data" --workers "$workers" --json | jq '.bytes / 1048576 / .seconds')
        "$bin/terrace" umount "$work/mnt"
    fi
    row "$system" staging "$round" "$rate"
}

all() {
    local cell system
    for cell in ${CELLS:-reads staging passes}; do
        for system in $(in_turn "$1" none staged); do "$cell" "$system" "$1"; done
    done
}

echo "system,cell,round,per_s" > "$out"
each_round all
compare per_s none cell
