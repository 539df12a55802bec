#!/bin/bash
# Placement engines over targets of tiers that differ, and two targets that are equal against one: how fast pages that leave memory are written, and how fast those that
# were written are read. The targets are loop devices over memory that a control group throttles; as root. See bench/README.md, Placement.
#
# ROUNDS=10          measurements of each cell, in turn
# SLOW=4 FAST=12 EQUAL=8   MiB a second that the targets write; equal ones read as much, too
# SECONDS_LONG=8     of each measurement
# OUT=placement.csv  the figures
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
out=${OUT:-$root/target/placement.csv}
rounds=${ROUNDS:-10} slow=${SLOW:-4} fast=${FAST:-12} equal=${EQUAL:-8} long=${SECONDS_LONG:-8}
work=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-bench-placement.XXXXXX")
group=/sys/fs/cgroup/blkio/terrace-bench-placement-$$
[[ -d /sys/fs/cgroup/blkio ]] || group=/sys/fs/cgroup/terrace-bench-placement-$$
far= loops=()

finish() {
    [[ -z $far ]] || { kill "$far"; wait "$far"; } 2>/dev/null || true
    for loop in "${loops[@]}"; do losetup -d "$loop" || true; done
    umount "$work/memory" || true
    rmdir "$work/memory" "$work/far" "$work" "$group"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir "$work/memory" "$work/far" "$group"
mount -t tmpfs -o size=3g terrace-bench "$work/memory"
mkdir "$work/memory/near"
"$bin/terrace-bench" worker data --file "$work/memory/near/data" --mib 1024 >/dev/null
for target in first second; do
    truncate -s 512M "$work/memory/$target"
    loops+=("$(losetup -f --show --direct-io=on "$work/memory/$target")")
done
"$bin/terrace-bench" passthrough "$work/memory/near" "$work/far" --threads 64 --delay-us 500 &
far=$!
for _ in $(seq 100); do
    [[ -e $work/far/data ]] && break
    sleep 0.05
done

# throttle LOOP READ WRITE: MiB a second; 0: no limit.
throttle() {
    local device
    device=$(cat "/sys/block/${1#/dev/}/dev")
    if [[ -e $group/blkio.throttle.write_bps_device ]]; then
        echo "$device $(($2 << 20))" > "$group/blkio.throttle.read_bps_device"
        echo "$device $(($3 << 20))" > "$group/blkio.throttle.write_bps_device"
    else
        local limits=("rbps=$(($2 << 20))" "wbps=$(($3 << 20))")
        echo "$device ${limits[*]/=0/=max}" > "$group/io.max"
    fi
}

# run ENGINE TARGETS LOAD...: one instance over empty targets, or over what they hold; the rows of its devices as `bytes_written hits`.
run() {
    local engine=$1 targets=$2 tiers=() loop
    shift 2
    printf '[tier]\nplacement = "%s"\n[tier.compressed]\ncodec = "none"\n' "$engine" > "$work/memory/config.toml"
    for loop in "${loops[@]:0:$targets}"; do tiers+=(--tier "$loop"); done
    # shellcheck disable=SC2016
    bash -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$bin/terrace" run --on "$work/far" --memory 32MiB \
        --config "$work/memory/config.toml" "${tiers[@]}" -- "$@"
    python3 - "$work/memory/stats.json" <<'END'
import json, sys
rows = [row for row in json.load(open(sys.argv[1]))["tiers"] if row["kind"] == "device"]
assert all(row["state"] == "serving" for row in rows), rows
print(sum(row["bytes_written"] for row in rows), sum(row["hits"] for row in rows))
END
}

# readers SECONDS SEED: processes that read pages at random for so long.
readers() {
    echo "for i in 1 2 3 4 5 6; do timeout $1 '$bin/terrace-bench' worker cold --file '$work/far/data' --order random --ops 10000000 --seed $2\$i >/dev/null 2>&1 & done; wait; '$bin/terrace' stat '$work/far' --json > '$work/memory/stats.json'"
}

# writes CELL SYSTEM ENGINE TARGETS ROUND
writes() {
    for loop in "${loops[@]}"; do
        "$bin/terrace" tier drop --yes "$loop" >/dev/null 2>&1 || dd if=/dev/zero of="$loop" bs=1M count=1 conv=fsync status=none
    done
    local figures
    figures=$(run "$3" "$4" bash -c "$(readers "$long" "$5")")
    awk -v bytes="${figures% *}" -v s="$long" -v head="$1,$2,$5" 'BEGIN { printf "%s,%.3f\n", head, bytes / 1048576 / s }' >> "$out"
}

echo "cell,system,round,mib_s" > "$out"
for round in $(seq "$rounds"); do
    throttle "${loops[0]}" 0 "$slow"
    throttle "${loops[1]}" 0 "$fast"
    engines="min-io-time round-robin random min-io-sum"
    (( round % 2 )) || engines="min-io-sum random round-robin min-io-time"
    for engine in $engines; do writes unlike "$engine" "$engine" 2 "$round"; done
    throttle "${loops[0]}" 0 "$equal"
    throttle "${loops[1]}" 0 "$equal"
    systems="1 2"
    (( round % 2 )) || systems="2 1"
    for targets in $systems; do writes equal "targets-$targets" min-io-time "$targets" "$round"; done
    echo "round $round of $rounds" >&2
done
for baseline in round-robin random min-io-sum; do
    grep -E "^cell|^unlike,(min-io-time|$baseline)," "$out" > "$out.part"
    "$bin/terrace-bench" compare "$out.part" --metric mib_s --factor system --baseline "$baseline" --by cell --pair round
done
grep -E '^cell|^equal' "$out" > "$out.part"
"$bin/terrace-bench" compare "$out.part" --metric mib_s --factor system --baseline targets-1 --by cell --pair round
rm "$out.part"
