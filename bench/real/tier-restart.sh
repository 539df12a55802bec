#!/bin/bash
# A restart of a full tier on a device: when the first read is answered, when the index is complete, how many reads hit before and after it. As root.
#
#   tier-restart.sh measure TREE BENCH TIER_MIB
#
# Makes a source of its own in TREE, a sixteenth larger than the tier, unless it is there; fills the tier beside it, reads, ends the mount and starts it again; then kills all of it
# and starts it again.
#
# TERRACE (beside BENCH by default) is the product, MEMORY_MIB its memory (1024), SECONDS_READ how long is read before and after (60). The source is a loop device, or the block
# device SOURCE_DEVICE, whose content is lost (a disk in memory, where there is no room for both), and gives at most 2,000 requests and 300 MiB a second: so the tier is worth its
# writes. Hits are counted there: reads that it did not answer. Each start has cold caches.
source "$(dirname "$0")/common.sh"
shopt -s inherit_errexit
command=$1 tree=$2 bench=$3 tier_mib=$4 inside=${5:-}
terrace=${TERRACE:-$(dirname "$bench")/terrace} memory=${MEMORY_MIB:-1024} read_s=${SECONDS_READ:-60}
image=$tree/source.img at=$tree/at tier=$tree/tier data_mib=$((tier_mib + tier_mib / 16))
for program in jq losetup mkfs.ext4; do need $program "jq, util-linux, e2fsprogs"; done
content=incompressible
[ -z "${SOURCE_DEVICE:-}" ] || content=real

loop_of_image() { losetup --noheadings --output NAME --associated "$image" | head -n 1; }
source_device() { echo "${SOURCE_DEVICE:-$(loop_of_image)}"; }

attach() {
    mkdir -p "$at"
    [ -n "${SOURCE_DEVICE:-}" ] || losetup --find --direct-io=on "$image"
    mount -t ext4 -o noatime "$(source_device)" "$at"
}

detach() {
    umount "$at" 2> /dev/null || true
    [ -z "$(loop_of_image)" ] || losetup --detach "$(loop_of_image)"
    if [ -n "${group:-}" ]; then
        echo $$ > "$(dirname "$group")/cgroup.procs"
        rmdir "$group" 2> /dev/null || true
    fi
}

# This process and what it starts is held back at the source's device.
throttle() {
    local number
    number=$(lsblk --noheadings --nodeps --output MAJ:MIN "$(source_device)" | tr -d ' ')
    if [ -d /sys/fs/cgroup/blkio ]; then
        group=/sys/fs/cgroup/blkio/terrace-bench-restart-$$
        mkdir -p "$group"
        echo "$number 2000" > "$group/blkio.throttle.read_iops_device"
        echo "$number $((300 << 20))" > "$group/blkio.throttle.read_bps_device"
    else
        group=/sys/fs/cgroup/terrace-bench-restart-$$
        echo +io > /sys/fs/cgroup/cgroup.subtree_control
        mkdir -p "$group"
        echo "$number riops=2000 rbps=$((300 << 20))" > "$group/io.max"
    fi
    echo $$ > "$group/cgroup.procs"
}

row() { "$terrace" stat "$at" --json | jq --raw-output ".tiers[] | select(.kind == \"device\") | $1"; }

# One start of the instance; the time before it is in STARTED. What it prints is JSON.
start() {
    sync
    echo 3 > /proc/sys/vm/drop_caches
    STARTED=$EPOCHREALTIME "$terrace" run --on "$at" --memory "${memory}MiB" --tier "$tier:$((tier_mib << 20))" -- "$0" inside "$tree" "$bench" "$tier_mib" "$1"
}

read_on() { "$bench" worker reads --file "$at/data" --content $content --pattern zipf:0.8 --threads 2 --seed "$1" --ramp-s "$2" --seconds "${3:-$read_s}"; }

fill() {
    local fills=0
    until [ "$(row '.pages * 4096')" -ge $((tier_mib * 97 / 100 << 20)) ]; do
        [ $((fills += 1)) -le 8 ] || { echo "the tier does not become full: $(row .)" >&2; exit 1; }
        "$bench" worker fill --file "$at/data" --content $content > /dev/null
    done
    read_on 1 30
}

# The first read, a page of the middle; the state of the scan; a minute of reads from the first one on.
after_start() {
    dd if="$at/data" of=/dev/null bs=4096 count=1 skip=$((data_mib * 128)) status=none
    local first=$EPOCHREALTIME indexed reads
    read_on "$1" 0 > "$tree/reads" &
    until [ "$(row .state)" = serving ]; do sleep 0.01; done
    indexed=$EPOCHREALTIME
    wait $!
    jq --argjson first "$(seconds "$STARTED" "$first")" --argjson indexed "$(seconds "$STARTED" "$indexed")" --argjson tier "$(row '{pages, hits}')" \
        '. + {first_read_s: $first, indexed_s: $indexed, tier_pages: $tier.pages, device_hits: $tier.hits}' < "$tree/reads"
}

# Supervisor, terraced and all else of the instance.
kill_all() {
    local pids
    pids=$("$terrace" stat "$at" --json | jq --raw-output '.instance | .pid, .terraced')
    kill -KILL $pids
}

make_source() {
    [ ! -e "$tree/made" ] || return 0
    mkdir -p "$tree"
    rm -f "$image"
    [ -n "${SOURCE_DEVICE:-}" ] || truncate --size "$((data_mib + data_mib / 32 + 128))M" "$image"
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "${SOURCE_DEVICE:-$image}"
    attach
    "$bench" worker data --file "$at/data" --mib "$data_mib" --content $content > /dev/null
    detach
    touch "$tree/made"
}

measure() {
    trap detach EXIT
    make_source
    rm -f "$tier"
    attach
    export TERRACE_BENCH_METERS
    TERRACE_BENCH_METERS=$(jq --null-input --compact-output --arg stat "/sys/block/$(basename "$(source_device)")/stat" '{devices: {source: $stat}, terrace: null, dir: ""}')
    throttle
    start fill
    start clean
    start die 2> /dev/null || true
    umount --lazy "$at" 2> /dev/null || true
    detach
    attach
    throttle
    start killed
    jq --slurp --compact-output '.[0] as $before | .[1] as $clean | .[2] as $killed | {first_read_s: $clean.first_read_s, indexed_s: $clean.indexed_s,
        hit_ratio: $before.hit_ratio, hit_ratio_kept: ($clean.hit_ratio / $before.hit_ratio), tier_pages: $clean.tier_pages, device_hits: $clean.device_hits,
        killed_first_read_s: $killed.first_read_s, killed_indexed_s: $killed.indexed_s, killed_hit_ratio_kept: ($killed.hit_ratio / $before.hit_ratio),
        killed_tier_pages: $killed.tier_pages, p50_us: $clean.p50_us, reads_per_s: $clean.reads_per_s}' "$tree/before" "$tree/clean" "$tree/killed"
}

case $command/$inside in
    measure/) measure ;;
    inside/fill) fill > "$tree/before" ;;
    inside/clean) after_start 2 > "$tree/clean" ;;
    inside/killed) after_start 3 > "$tree/killed" ;;
    inside/die)
        until [ "$(row .state)" = serving ]; do sleep 0.1; done
        read_on 4 0 2 > /dev/null
        kill_all
        ;;
    *) echo "usage: $0 measure TREE BENCH TIER_MIB" >&2; exit 2 ;;
esac
