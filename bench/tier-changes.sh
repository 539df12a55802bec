#!/bin/bash
# Readers while targets are added, removed and resized: fio reads pages at random and verifies each, in turn with and without changes under it. As root or as a
# user with fuse3. See bench/README.md, Changes of targets.
#
# ROUNDS=8           pairs of measurements
# SECONDS_LONG=6     of each
# DATA_DIR=/var/tmp  the source and the targets
# OUT=tier-changes.csv
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" tier-changes 8

long=${SECONDS_LONG:-6}
mkdir "$work/src" "$work/mnt"
fill=(--name=data --filename=data --size=384m --bs=4k --verify=crc32c --verify_state_save=0)
fio --directory="$work/src" "${fill[@]}" --rw=write --do_verify=0 --ioengine=psync --output=/dev/null
at_end unmount_terrace "$work/mnt"
"$bin/terrace" mount "$work/src" "$work/mnt" --memory 64MiB --tier "$work/first:128MiB"

# change: each change in turn until it is ended; a line for each.
change() {
    while :; do
        "$bin/terrace" tier add "$work/mnt" "$work/second:160MiB" --name second
        sleep 0.4
        "$bin/terrace" tier resize "$work/mnt" second 256MiB
        sleep 0.4
        "$bin/terrace" tier resize "$work/mnt" second 64MiB
        sleep 0.4
        "$bin/terrace" tier remove "$work/mnt" second
        sleep 0.4
    done >> "$work/changes.log"
}

# read_for_a_while CELL ROUND: fio for a while; its 99th percentile, us, and its reads a second.
read_for_a_while() {
    fio --directory="$work/mnt" "${fill[@]}" --rw=randread --ioengine=psync --direct=1 --numjobs=2 --group_reporting --time_based \
        --runtime="$long" --randrepeat=0 --norandommap --verify_fatal=1 --random_distribution=zipf:0.9 --output-format=json --output="$work/fio.json"
    python3 - "$work/fio.json" "$1" "$2" >> "$out" <<'END'
import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
assert job["error"] == 0, job["error"]
read = job["read"]
print(f"tier changes,{sys.argv[2]},{sys.argv[3]},{read['clat_ns']['percentile']['99.000000'] / 1000:.1f},{read['iops']:.0f}")
END
}

changing() {
    change &
    local changes=$!
    at_end stop "$changes"
    read_for_a_while changes "$1"
    stop "$changes"
    unset 'ends[-1]'
    # A change may be under way.
    for _ in $(seq 100); do
        "$bin/terrace" tier remove "$work/mnt" second >/dev/null 2>&1 || break
    done
}

both() {
    local system
    for system in $(in_turn "$1" quiet changes); do
        if [[ $system == quiet ]]; then read_for_a_while quiet "$1"; else changing "$1"; fi
    done
    echo "$(wc -l < "$work/changes.log") changes" >&2
}

echo "cell,system,round,p99_us,reads_per_s" > "$out"
read_for_a_while warm 0
sed -i '$d' "$out"
each_round both
"$bin/terrace" check "$work/mnt"
for metric in p99_us reads_per_s; do compare "$metric" quiet cell; done
