#!/bin/bash
# Read-ahead against none, over a source far away (`terrace-bench passthrough --delay-us`): cold reads of 4 KiB in several orders, in turn; every page is checked.
# `recorded` is a random order with its own schedule (`terrace run --prefetch`) against the same order without, `wrong` are other random orders with that schedule.
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
    rm -rf "$work/near" "$work/schedule" "$work/trace" && rmdir "$work/far" "$work"
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
    local seed=$round drawn=$order
    case $order in
    recorded) drawn=random seed=$recorded ;;
    wrong) drawn=random ;;
    esac
    [[ $order != recorded && $order != wrong || $system == none ]] || config=(--prefetch "$work/schedule")
    "$bin/terrace" run --on "$work/far" --memory "${MEMORY:-96MiB}" --mount "${config[@]}" -- \
        "$bin/terrace-bench" worker cold --file "$work/far/data" --order "$drawn" --ops "$ops" --seed "$seed" |
        sed -n 's/.*"reads_per_s":\([0-9.]*\).*/\1/p' | sed "s/^/$system,$order,$round,/" >> "$out"
}

# A schedule of the order of this seed.
recorded=1000
record() {
    "$bin/terrace" run --on "$work/far" --mount -- sh -c "until [ -e '$work/near/go' ]; do sleep 0.05; done
        exec '$bin/terrace-bench' worker cold --file '$work/far/data' --order random --ops $1 --seed $recorded" >/dev/null &
    local program=$!
    until "$bin/terrace" stat "$work/far" >/dev/null 2>&1; do sleep 0.05; done
    "$bin/terrace" trace "$work/far" -o "$work/trace" >/dev/null &
    local recorder=$!
    until [[ -s $work/trace ]]; do sleep 0.05; done
    touch "$work/near/go"
    wait "$program" "$recorder"
    "$bin/terrace-bench" schedule "$work/trace" -o "$work/schedule" >&2
    rm "$work/near/go" "$work/trace"
}

echo "system,order,round,reads_per_s" > "$out"
orders=${ORDERS:-sequential=4000 streams:4=4000 stride:16=4000 random=2000 zipf:0.8=2000 recorded=4000 wrong=2000}
for cell in $orders; do
    [[ $cell == recorded=* ]] && record "${cell#*=}"
done
for round in $(seq "$rounds"); do
    systems="none ahead"
    (( round % 2 )) || systems="ahead none"
    for cell in $orders; do
        for system in $systems; do
            measure "$system" "${cell%=*}" "${cell#*=}" "$round"
        done
    done
    echo "round $round of $rounds" >&2
done
"$bin/terrace-bench" compare "$out" --metric reads_per_s --factor system --baseline none --by order --pair round
