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
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" prefetch 10

mkdir "$work/near"
data "$work/near" "${MIB:-256}"
far_source "$work/near" --delay-us "${DELAY_US:-1000}"

measure() {
    local system=$1 order=$2 ops=$3 round=$4 config=() rate
    [[ $system == none ]] && config=(--config "$root/bench/configs/no-readahead.toml")
    local seed=$round drawn=$order
    case $order in
    recorded) drawn=random seed=$recorded ;;
    wrong) drawn=random ;;
    esac
    [[ $order != recorded && $order != wrong || $system == none ]] || config=(--prefetch "$work/schedule")
    rate=$("$bin/terrace" run --on "$work/far" --memory "${MEMORY:-96MiB}" --mount "${config[@]}" -- \
        "$bin/terrace-bench" worker cold --file "$work/far/data" --order "$drawn" --ops "$ops" --seed "$seed" | field reads_per_s)
    row "$system" "$order" "$round" "$rate"
}

# A schedule of the order of this seed. The recording ends before the program does: the end of the mount would cut it off.
recorded=1000
record() {
    "$bin/terrace" run --on "$work/far" --mount -- sh -ec "until [ -e '$work/near/go' ]; do sleep 0.05; done
        '$bin/terrace-bench' worker cold --file '$work/far/data' --order random --ops $1 --seed $recorded
        touch '$work/near/read'
        while [ -e '$work/near/go' ]; do sleep 0.05; done" >/dev/null &
    local program=$!
    wait_until 10 "$bin/terrace" stat "$work/far"
    "$bin/terrace" trace "$work/far" -o "$work/trace" >/dev/null &
    local recorder=$!
    wait_until 10 test -s "$work/trace"
    touch "$work/near/go"
    wait_until 120 test -e "$work/near/read"
    kill -TERM "$recorder"
    wait "$recorder"
    rm "$work/near/go"
    wait "$program"
    "$bin/terrace-bench" schedule "$work/trace" -o "$work/schedule" >&2
}

orders=${ORDERS:-sequential=4000 streams:4=4000 stride:16=4000 random=2000 zipf:0.8=2000 recorded=4000 wrong=2000}
all() {
    local cell system
    for cell in $orders; do
        for system in $(in_turn "$1" none ahead); do measure "$system" "${cell%=*}" "${cell#*=}" "$1"; done
    done
}

for cell in $orders; do
    [[ $cell != recorded=* ]] || record "${cell#*=}"
done
echo "system,order,round,reads_per_s" > "$out"
each_round all
compare reads_per_s none order
