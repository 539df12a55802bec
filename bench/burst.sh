#!/bin/bash
# fsyncs that a tier answers ([dirty] durable = "tier"), over a slow source: MiB a second of a file that is written over in pieces of 1 MiB, with fsyncs meanwhile, until the
# last has returned. Loop devices over memory whose bandwidth is limited; as root. The file is compared in the source once all has arrived there. See bench/README.md, Burst
# writes. Systems:
#   tier      the tier's device itself: as many pieces with O_DIRECT, and a flush at the end
#   plain     the source's directory
#   terrace   a mount of it, with that tier
#
# ROUNDS=5            measurements of each system, in turn
# MIB=4096            written; memory holds all of it, the tier four times as much, of which a fourth is used
# FSYNC_MIB=64        between two fsyncs
# SOURCE=100 TIER=800 MiB a second that the devices write; 0: no limit
# OUT=burst.csv       the figures
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" burst 5

mib=${MIB:-4096} every=${FSYNC_MIB:-64}
pieces=$root/bench/pieces.py data=$work/src/data
mkdir "$work/src" "$work/mnt"
join_limits
memory_dir $((mib * 3 + 1024))
loop_device "$work/memory/source" $((mib * 9 / 8 + 192))
source=$loop
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$source"
mount "$source" "$work/src"
at_end umount "$work/src"
loop_device "$work/memory/tier" $((mib * 4 + 512))
tier=$loop
at_end unmount_terrace "$work/mnt"
printf '[dirty]\ndurable = "tier"\nratio = 80\nbackground_ratio = 79\nexpire = "10m"\n' > "$work/config.toml"

limit() {
    throttle "$source" "$1" "$1"
    throttle "$tier" "$2" "$2"
}

# per_second SECONDS
per_second() { awk "BEGIN { printf \"%.3f\", $mib / $1 }"; }

# written FILE SEED: seconds until the last fsync has returned.
written() { python3 "$pieces" write "$1" "$mib" "$2" "$every" | cut -d ' ' -f 2; }

# fsync FILE: of a page that is written as it is.
fsync() { head -c 4096 "$1" > "$work/page" && dd if="$work/page" of="$1" conv=notrunc,fsync status=none; }

seconds_of_tier() {
    local began
    began=$(date +%s.%N)
    dd if=/dev/zero of="$tier" bs=1M count="$mib" oflag=direct conv=fdatasync status=none
    awk "BEGIN { print $(date +%s.%N) - $began }"
}

one() {
    local system=$1 round=$2 seconds
    limit "${SOURCE:-100}" "${TIER:-800}"
    case $system in
    tier) seconds=$(seconds_of_tier) ;;
    plain) seconds=$(written "$data" "$round") ;;
    terrace)
        # A virtual machine may have given it back to its host since.
        touched "$mib"
        "$bin/terrace" mount "$work/src" "$work/mnt" --memory $((mib * 3 / 2 + 256))MiB --tier "$tier" --config "$work/config.toml"
        # The source answers the first one.
        fsync "$work/mnt/data"
        seconds=$(written "$work/mnt/data" "$round")
        "$bin/terrace" umount "$work/mnt" ;;
    esac
    limit 0 0
    [[ $system == tier ]] || python3 "$pieces" check "$data" "$mib" "$round"
    # Nothing is left in memory, nor on the tier, for the next.
    blkdiscard "$tier"
    echo 1 > /proc/sys/vm/drop_caches
    row written "$system" "$round" "$(per_second "$seconds")"
}

all() {
    local system
    for system in $(in_turn "$1" tier plain terrace); do one "$system" "$1"; done
}

echo "cell,system,round,mib_s" > "$out"
# The file is as long as it will be: tiers answer for writes within a file's end.
python3 "$pieces" write "$data" "$mib" 0 0 > /dev/null
touched $((mib * 3 / 2))
each_round all
compare mib_s tier cell
compare mib_s plain cell
