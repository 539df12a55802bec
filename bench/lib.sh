# What the scripts of measurements here share. Sourced with the script's name and its usual number of rounds:
#   . "$(dirname "$0")/lib.sh" staging 10
# Of the environment: OUT, the CSV (target/NAME.csv); DATA_DIR, where data are (/var/tmp); ROUNDS; TERRACE_BIN, the directory of the programs.
# What is made here goes at the end, also after ^C: `at_end COMMAND...` is called last, first.
# shellcheck shell=bash disable=SC2034 # the variables are the scripts'
set -euo pipefail

name=$1 rounds=${ROUNDS:-$2}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
out=${OUT:-$root/target/$name.csv}
[[ -x $bin/terrace ]] || { echo "$name: no terrace in $bin: run \`make build\`" >&2; exit 2; }
work=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-bench-$name.XXXXXX")
ends=()

at_end() { ends+=("$(printf '%q ' "$@")"); }

finish() {
    local i
    for (( i = ${#ends[@]} - 1; i >= 0; i-- )); do eval "${ends[i]}" || true; done
    rm -rf --one-file-system "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# stop PID: a program that was started here.
stop() { { kill "$1" && wait "$1"; } 2>/dev/null || true; }

# wait_until SECONDS COMMAND...: false if it did not come true.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        (( SECONDS < end )) || return 1
        sleep 0.05
    done
}

# data DIR MIB [NAME]: a file in which each page says which it is.
data() { "$bin/terrace-bench" worker data --file "$1/${3:-data}" --mib "$2" >/dev/null; }

# far_source NEAR OPTION...: $work/far, what is in NEAR, but far away, by options of `terrace-bench passthrough`.
far_source() {
    local near=$1 far
    shift
    mkdir "$work/far"
    "$bin/terrace-bench" passthrough "$near" "$work/far" --threads 64 "$@" &
    far=$!
    at_end stop "$far"
    wait_until 5 test -e "$work/far/data"
}

# unmount DIR...: nothing where they are not mounted.
unmount() { umount -q "$@" 2>/dev/null || true; }

# unmount_terrace DIR: nothing if it is not mounted.
unmount_terrace() { "$bin/terrace" umount "$1" 2>/dev/null || true; }

# field NAME: the number of this name in what a program says as JSON.
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }

# row VALUE...: a line of the CSV.
row() {
    local IFS=,
    echo "$*" >> "$out"
}

# each_round COMMAND...: COMMAND ROUND for each.
each_round() {
    local round
    for round in $(seq "$rounds"); do
        "$@" "$round"
        echo "$name: round $round of $rounds" >&2
    done
}

# in_turn ROUND SYSTEM...: the systems, in every other round in the reverse order.
in_turn() {
    if (( $1 % 2 )); then printf '%s\n' "${@:2}"; else printf '%s\n' "${@:2}" | tac; fi
}

# compare METRIC BASELINE COLUMN [FILE]: the ratios of the rounds to those of the baseline in each cell, which COLUMN names.
compare() { "$bin/terrace-bench" compare "${4:-$out}" --metric "$1" --factor system --baseline "$2" --by "$3" --pair round; }

# stat_of_devices FILE COLUMN...: sums over the devices of tiers, of `terrace stat --json`; each must be serving.
stat_of_devices() {
    python3 - "$@" <<'END'
import json, sys
rows = [row for row in json.load(open(sys.argv[1]))["tiers"] if row["kind"] == "device"]
assert rows and all(row["state"] == "serving" for row in rows), rows
print(*(sum(row[column] for row in rows) for column in sys.argv[2:]))
END
}

# Loop devices with limits of bandwidth. Version 1 of the control groups counts what the kernel writes back itself as the root's: so the limits are the root's there, and
# the script is in it. They name devices that are made here, and are taken back.
limits=/sys/fs/cgroup/blkio
[[ -e $limits/blkio.throttle.write_bps_device ]] || limits=/sys/fs/cgroup/terrace-bench-$$

join_limits() {
    if [[ $limits != */blkio ]]; then
        echo "+memory +io" > /sys/fs/cgroup/cgroup.subtree_control
        mkdir "$limits"
        at_end rmdir "$limits"
        at_end leave_limits
    fi
    echo $$ > "$limits/cgroup.procs"
}

leave_limits() { echo $$ > "${limits%/*}/cgroup.procs"; }

# loop_device FILE MIB: makes `loop`.
loop_device() {
    truncate -s "$2M" "$1"
    loop=$(losetup -f --show --direct-io=on "$1")
    at_end losetup -d "$loop"
    at_end throttle "$loop" 0 0
}

# memory_dir MIB: $work/memory, in memory, for files of loop devices.
memory_dir() {
    mkdir "$work/memory"
    mount -t tmpfs -o size="$1m" terrace-bench "$work/memory"
    at_end wait_until 10 umount "$work/memory"
}

# memory_group MIB: a group with so much memory, page cache included, for `in_memory_group COMMAND...`. Before `throttle`, whose limits hold there, too.
memory_group() {
    memory_group=/sys/fs/cgroup/memory/terrace-bench-$$
    local limit=memory.limit_in_bytes
    if [[ ! -d /sys/fs/cgroup/memory ]]; then
        memory_group=/sys/fs/cgroup/terrace-bench-memory-$$ limit=memory.max
    fi
    mkdir "$memory_group"
    at_end wait_until 10 rmdir "$memory_group"
    echo $(($1 << 20)) > "$memory_group/$limit"
}

# shellcheck disable=SC2016
in_memory_group() { bash -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$memory_group" "$@"; }

# touched MIB: memory that the machine has at hand: a virtual machine may have to get it first, which takes longer than to write it.
touched() {
    head -c "$1M" /dev/zero > "$work/memory/touched"
    rm "$work/memory/touched"
}

# empty_tier LOOP: its superblocks are in the first MiB. The memory of the rest stays at hand.
empty_tier() { dd if=/dev/zero of="$1" bs=1M count=1 oflag=direct conv=fdatasync status=none; }

# over FILE MIB: zeros over what is in it, until an fsync has returned.
over() { dd if=/dev/zero of="$1" bs=1M count="$2" conv=notrunc,fsync status=none; }

# throttle LOOP READ WRITE: MiB a second; 0: no limit.
throttle() {
    local device
    device=$(cat "/sys/block/${1#/dev/}/dev")
    if [[ $limits == */blkio ]]; then
        echo "$device $(($2 << 20))" > "$limits/blkio.throttle.read_bps_device"
        echo "$device $(($3 << 20))" > "$limits/blkio.throttle.write_bps_device"
    else
        local group both=("rbps=$(($2 << 20))" "wbps=$(($3 << 20))")
        for group in "$limits" ${memory_group:+"$memory_group"}; do echo "$device ${both[*]/%=0/=max}" > "$group/io.max"; done
    fi
}
