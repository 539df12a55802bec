#!/bin/bash
# fsyncs that a tier answers ([dirty] durable = "tier"), over a slow source: MiB a second until the last fsync has returned. Loop devices over memory whose bandwidth is
# limited; as root. Every byte is compared in the source once all has arrived there. See bench/README.md, Burst writes. Cells:
#   over      a file is written over in pieces of 1 MiB, with fsyncs meanwhile
#   new       new files of FSYNC_MIB each, with an fsync at the end of each; also by the time of the fsyncs alone, and with that of the closes
#   append    a new file of some bytes more with each fsync: fsyncs a second
# Systems:
#   tier      the tier's device itself: as many pieces with O_DIRECT, and a flush at the end
#   plain     the source's directory
#   terrace   a mount of it, with that tier
#   copies    with FRESH=1 (over): as tier, and two copies of as much into memory meanwhile: a mount's memory and the kernel's page cache of it
#
# CELL=over
# ROUNDS=5            measurements of each system, in turn
# MIB=4096            written; memory holds it four times over, the tier as well, of which a fourth is used
# FSYNC_MIB=64        between two fsyncs
# SOURCE=100 TIER=800 MiB a second that the devices write; 0: no limit
# FRESH=0             1: all memory is touched for the first time; 0: the mount has had the file in memory before, the tier's device is memory that was written before
# APPENDS=1000 APPEND_BYTES=100   of the cell append
# OUT=burst.csv       the figures
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" burst 5

mib=${MIB:-4096} every=${FSYNC_MIB:-64} cell=${CELL:-over} appends=${APPENDS:-1000} append_bytes=${APPEND_BYTES:-100}
fresh=${FRESH:-0} systems=(tier plain terrace) metrics=(mib_s)
case $cell in
over) ;;
new) metrics=(mib_s fsync_mib_s closed_mib_s) ;;
append) systems=(plain terrace) metrics=(fsyncs_s) ;;
*) echo "$name: no cell $cell" >&2; exit 2 ;;
esac
(( fresh )) && systems=(tier copies terrace)
pieces=$root/bench/pieces.py data=$work/src/data
mkdir "$work/src" "$work/mnt"
join_limits
memory_dir $((mib * 5 + 1024))
loop_device "$work/memory/source" $((mib * 9 / 4 + 192))
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

# per_second SECONDS...: MiB, or fsyncs, by commas.
per_second() {
    local amount=$mib
    [[ $cell != append ]] || amount=$appends
    for seconds in "$@"; do awk "BEGIN { printf \"%.3f\\n\", $amount / $seconds }"; done | paste -sd ,
}

# written DIR SEED: what a program takes there: seconds, one number or more.
written() {
    case $cell in
    over) python3 "$pieces" write "$1/data" "$mib" "$2" "$every" | cut -d ' ' -f 2 ;;
    new) python3 "$pieces" new "$1/new" $((mib / every)) "$every" "$2" ;;
    append) python3 "$pieces" append "$1/log" "$appends" "$append_bytes" ;;
    esac
}

# compared SEED: what it has left in the source; new files go.
compared() {
    case $cell in
    over) python3 "$pieces" check "$data" "$mib" "$1" ;;
    new)
        local file
        for file in $(seq 0 $((mib / every - 1))); do python3 "$pieces" check "$work/src/new$file" "$every" $(($1 + file)); done
        rm "$work"/src/new* ;;
    append)
        python3 "$pieces" appended "$work/src/log" "$appends" "$append_bytes"
        rm "$work/src/log" ;;
    esac
}

# to_tier MIB: written to the tier's device.
to_tier() { dd if=/dev/zero of="$tier" bs=1M count="$1" oflag=direct conv=fdatasync status=none; }

# seconds_of COMMAND...
seconds_of() {
    local began
    began=$(date +%s.%N)
    "$@"
    awk "BEGIN { print $(date +%s.%N) - $began }"
}

# The copies go at the end of it.
copies() {
    to_tier "$mib" &
    local file
    for file in frames kernel; do over "$work/memory/$file" "$mib" & done
    wait
}

one() {
    local system=$1 round=$2 seconds
    if [[ $system == terrace ]]; then
        "$bin/terrace" mount "$work/src" "$work/mnt" --memory $((mib * 3 / 2 + 256))MiB --tier "$tier" --config "$work/config.toml"
        if [[ $cell == new ]]; then
            # Memory that was touched, and no inode that the tier holds something of.
            written "$work/mnt" 0 > /dev/null
            rm "$work"/mnt/new*
            "$bin/terrace" sync "$work/mnt"
        fi
        # The source answers the first fsync.
        if (( fresh )); then head -c 1M "$data" | dd of="$work/mnt/data" conv=notrunc,fsync status=none; else over "$work/mnt/data" "$mib"; fi
        # New files find no others that are on their way.
        [[ $cell != new ]] || "$bin/terrace" sync "$work/mnt"
    fi
    limit "${SOURCE:-100}" "${TIER:-800}"
    case $system in
    tier)
        seconds=$(seconds_of to_tier "$mib")
        [[ $cell != new ]] || seconds+=" $seconds $seconds" ;;
    plain) seconds=$(written "$work/src" "$round") ;;
    copies) seconds=$(seconds_of copies) ;;
    terrace)
        seconds=$(written "$work/mnt" "$round")
        limit 0 0
        "$bin/terrace" umount "$work/mnt" ;;
    esac
    limit 0 0
    [[ $system != @(plain|terrace) ]] || compared "$round"
    # Nothing is left in memory, nor on the tier, for the next.
    if (( fresh )); then blkdiscard "$tier"; else empty_tier "$tier"; fi
    rm -f "$work/memory/frames" "$work/memory/kernel"
    echo 1 > /proc/sys/vm/drop_caches
    # shellcheck disable=SC2086 # one or more
    row "$cell" "$system" "$round" "$(per_second $seconds)"
}

all() {
    local system
    for system in $(in_turn "$1" "${systems[@]}"); do one "$system" "$1"; done
}

echo "cell,system,round,$(IFS=,; echo "${metrics[*]}")" > "$out"
# A file of which nothing is left on the source's device is cheaper to write: so it is there in all cells.
python3 "$pieces" write "$data" "$mib" 0 0 > /dev/null
(( fresh )) || to_tier $((mib * 9 / 8 + 192))
each_round all
for metric in "${metrics[@]}"; do
    for baseline in "${systems[@]/terrace/}"; do [[ -z $baseline ]] || compare "$metric" "$baseline" cell; done
done
