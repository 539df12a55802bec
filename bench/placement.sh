#!/bin/bash
# Placement engines over targets of tiers that differ, and two targets that are equal against one: how fast pages that leave memory are written. The targets are loop devices
# over memory whose bandwidth is limited; as root. See bench/README.md, Placement. Cells:
#   unlike    two targets that differ, with room for all, by each engine
#   equal     two equal targets against one
#   cte       what `unlike` is, for CTE's engines, where CTE_PYTHON names a Python that has it: blobs of 1 MiB, until they are durable
#   size-N    N times what memory and the faster target hold, which the slower one follows
#
# ROUNDS=10          measurements of each cell, in turn
# SLOW=4 FAST=12 EQUAL=8   MiB a second that the targets write; equal ones read as much, too
# SECONDS_LONG=8     of each measurement of unlike and equal
# ROOM=192           MiB of the faster target in cells of sizes; memory is 32 MiB
# CELLS="unlike cte equal size-0.5 size-1 size-2"
# CTE_PYTHON=...     a Python with iowarp-core==2.3.2
# OUT=placement.csv  the figures
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" placement 10

slow=${SLOW:-4} fast=${FAST:-12} equal=${EQUAL:-8} long=${SECONDS_LONG:-8} room=${ROOM:-192}
cells=${CELLS:-unlike cte equal size-0.5 size-1 size-2}
join_limits
memory_dir 4096
mkdir "$work/memory/near"
# mib_of SIZE: MiB of the data of a cell.
mib_of() { awk "BEGIN { printf \"%d\", ($room + 32) * $1 }"; }
data "$work/memory/near" 1024
for cell in $cells; do
    [[ $cell != size-* ]] || data "$work/memory/near" "$(mib_of "${cell#size-}")" "$cell"
done
far_source "$work/memory/near" --delay-us 500
loop_device "$work/memory/first" 512
first=$loop
loop_device "$work/memory/second" 512
second=$loop
loop_device "$work/memory/small" "$room"
small=$loop
at_end unmount "$work/cte/first" "$work/cte/second"

# writes CELL SYSTEM ENGINE ROUND SECONDS DATA LOOP...: six processes read pages of the data at random for so long; the instance begins with empty targets.
writes() {
    local head="$1,$2,$4" engine=$3 round=$4 long=$5 data=$6 tiers=() loop written
    for loop in "${@:7}"; do
        "$bin/terrace" tier drop --yes "$loop" >/dev/null 2>&1 || dd if=/dev/zero of="$loop" bs=1M count=1 conv=fsync status=none
        tiers+=(--tier "$loop")
    done
    printf '[tier]\nplacement = "%s"\n[tier.compressed]\ncodec = "none"\n' "$engine" > "$work/memory/config.toml"
    # shellcheck disable=SC2016
    "$bin/terrace" run --on "$work/far" --memory 32MiB --config "$work/memory/config.toml" "${tiers[@]}" -- bash -c '
        for i in 1 2 3 4 5 6; do timeout "$1" "$0/terrace-bench" worker cold --file "$2" --order random --ops 10000000 --seed "$3$i" >/dev/null 2>&1 & done
        wait
        "$0/terrace" stat "${2%/*}" --json > "$4"' "$bin" "$long" "$work/far/$data" "$round" "$work/memory/stats.json"
    written=$(stat_of_devices "$work/memory/stats.json" bytes_written)
    row "$head" "$(awk "BEGIN { printf \"%.3f\", $written / 1048576 / $long }")"
}

# cte ENGINE ROUND: as much as both targets together take in SECONDS_LONG.
cte() {
    local engine=$1 round=$2 mib=$((long * (slow + fast))) target seconds
    mkdir "$work/cte" "$work/cte/first" "$work/cte/second"
    for target in first second; do
        mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "${!target}"
        mount "${!target}" "$work/cte/$target"
    done
    throttle "$first" 0 "$slow"
    throttle "$second" 0 "$fast"
    if seconds=$(cd "$work/cte" && timeout 300 "$CTE_PYTHON" "$root/bench/pieces.py" cte "$mib" "$round" "$engine" "$work/cte" \
        "$work/cte/second/of:$((mib + 32))" "$work/cte/first/of:$((mib + 32))" 2> "$work/cte.log"); then
        row cte "cte-$engine" "$round" "$(awk "BEGIN { printf \"%.3f\", $mib / ${seconds#* } }")"
    else
        echo "placement: cte $engine: $(tail -n 1 "$work/cte.log")" >&2
    fi
    throttle "$first" 0 0
    throttle "$second" 0 0
    umount "$work/cte/first" "$work/cte/second"
    rm -r "$work/cte"
}

# by_engine CELL ROUND SECONDS DATA LOOP...
by_engine() {
    local engine engines=(min-io-time round-robin random)
    [[ $1 != unlike ]] || engines+=(min-io-sum)
    for engine in $(in_turn "$2" "${engines[@]}"); do writes "$1" "$engine" "$engine" "${@:2}"; done
}

all() {
    local cell engine targets
    for cell in $cells; do
        throttle "$first" 0 "$slow"
        throttle "$second" 0 "$fast"
        throttle "$small" 0 "$fast"
        case $cell in
        cte) for engine in $(in_turn "$1" max_bw round_robin random); do [[ -z ${CTE_PYTHON:-} ]] || cte "$engine" "$1"; done ;;
        unlike) by_engine unlike "$1" "$long" data "$first" "$second" ;;
        # As long as both together need for all of it.
        size-*) by_engine "$cell" "$1" $(($(mib_of "${cell#size-}") / (slow + fast) + 1)) "$cell" "$first" "$small" ;;
        equal)
            throttle "$first" 0 "$equal"
            throttle "$second" 0 "$equal"
            for targets in $(in_turn "$1" 1 2); do
                if [[ $targets == 1 ]]; then writes equal targets-1 min-io-time "$1" "$long" data "$first"
                else writes equal targets-2 min-io-time "$1" "$long" data "$first" "$second"; fi
            done ;;
        esac
    done
}

echo "cell,system,round,mib_s" > "$out"
each_round all
for baseline in round-robin random min-io-sum; do
    grep -E "^cell|,(min-io-time|$baseline)," "$out" > "$work/part.csv"
    [[ $cells == equal ]] || compare mib_s "$baseline" cell "$work/part.csv"
done
grep -E '^cell|^equal' "$out" > "$work/part.csv"
[[ $cells != *equal* ]] || compare mib_s targets-1 cell "$work/part.csv"
