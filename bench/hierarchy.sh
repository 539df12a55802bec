#!/bin/bash
# Tiers of a hierarchy one after the other, and processes beside the bare device, on loop devices over memory whose bandwidth is limited; as root. See bench/README.md, The hierarchy. Cells:
#   devices    both devices and memory without terrace, 1 MiB by so many processes (`devices.py`): OUT with .json for .csv
#   tiers      a new file is written in pieces of 1 MiB: until all is durable on the SSD (`ssd`), on the NVMe device (`nvme`; `nvme-alone`: the SSD takes no share), until all is in memory above both (`ram`). `plain` is the
#              directory, in the kernel's page cache; `cte-*` are the same tiers in CTE, where CTE_PYTHON names a Python that has it
#   read, write   1 MiB by so many processes, of the bare device (`bare`: O_DIRECT) and through terrace over it
#
# ROUNDS=6           measurements of each cell, in turn
# SSD=200 NVME=500   MiB a second, each way
# MIB=2048           written
# PROCESSES="1 2 4 8" PROCESSES_MIB=1024   of all of them together
# CELLS="devices tiers read write"
# CTE_PYTHON=...     a Python with iowarp-core==2.3.2
# OUT=hierarchy.csv  the figures
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" hierarchy 6

ssd=${SSD:-200} nvme=${NVME:-500} mib=${MIB:-2048} each=${PROCESSES_MIB:-1024} counts=${PROCESSES:-1 2 4 8}
cells=${CELLS:-devices tiers read write}
pieces=$root/bench/pieces.py
join_limits
memory_dir $((9 * (mib > each ? mib : each) + 2048))

# device NAME: a file system on a device of its own, $work/NAME, with room for the file and CTE's; makes `loop`.
device() {
    mkdir "$work/$1"
    loop_device "$work/memory/$1" $(((mib > each ? mib : each) * 9 / 4 + 192))
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
    mount "$loop" "$work/$1"
    at_end wait_until 10 umount "$work/$1"
    mkdir "$work/$1/src"
}
device ssd
ssd_loop=$loop
device nvme
nvme_loop=$loop
# The tier, for which a device has no file system. A fourth of it at most waits for the source.
loop_device "$work/memory/tier" $((mib * 5))
tier=$loop
[[ $cells != *tiers* ]] || over "$tier" $((mib * 5 / 2))

limit() {
    throttle "$ssd_loop" "$ssd" "$ssd"
    throttle "$nvme_loop" "$nvme" "$nvme"
    throttle "$tier" "$nvme" "$nvme"
}

# What follows a measurement need not wait for the devices.
unlimited() {
    local one
    for one in "$ssd_loop" "$nvme_loop" "$tier"; do throttle "$one" 0 0; done
}
export -f over touched throttle limit unlimited
export work limits ssd_loop nvme_loop tier ssd nvme

devices() {
    limit
    # shellcheck disable=SC2086
    "$root/bench/devices.py" --json --mib "$each" --processes "${counts// /,}" "$work/ssd/src" "$work/nvme/src" "$work/memory" |
        sed -e "s|$work/memory|ram|" -e "s|$work/\([a-z]*\)/src|\1|g" > "${out%.csv}.json"
}

# told SYSTEM ROUND ACK DURABLE: a row of tiers. In memory is where the tier of memory keeps data.
told() {
    local seconds=$4
    [[ $1 != *ram && $1 != plain ]] || seconds=$3
    row tiers "$1" "$2" "$(awk "BEGIN { printf \"%.3f\", $mib / $seconds }")" "$3" "$4"
}

# written SYSTEM ROUND COMMAND...: the command writes the file, and says how long that took.
written() {
    local system=$1 round=$2 seconds every=0
    [[ $system != ssd && $system != nvme* ]] || every=64
    settle="$bin/terrace sync"
    [[ $system != plain ]] || settle="sync -f"
    export settle
    shift 2
    # First without limits: the memory that it will need is at hand then. A virtual machine may have to get it, which takes longer than to write it. The file
    # that is measured is a new one, and nothing is left of the one before.
    # shellcheck disable=SC2016
    seconds=$("$@" bash -ec 'over "$1" "$2"; touch "$1.new"; mv "$1.new" "$1"; $settle "${1%/*}"; touched "$2"; limit; python3 "$0" write "$@"; unlimited' \
        "$pieces" "$work/ssd/src/data" "$mib" "$round" "$every")
    unlimited
    python3 "$pieces" check "$work/ssd/src/data" "$mib" "$round"
    # shellcheck disable=SC2086
    told "$system" "$round" $seconds
}

# config RATIO [LINE]...
config() {
    printf '[dirty]\nratio = %d\nbackground_ratio = %d\nexpire = "10m"\n' "$1" $(($1 - 1)) > "$work/config.toml"
    printf '%s\n' "${@:2}" >> "$work/config.toml"
}
tier_answers='durable = "tier"'

# Room for all that is written, dirty, and for the index of the tier.
memory=$((mib * 3 / 2 + 64))MiB

# Whether an fsync may be answered by a tier.
bursts() {
    config 80 "$tier_answers"
    "$bin/terrace" run --on "$work/ssd/src" --memory "$memory" --config "$work/config.toml" --tier "$tier" -- true
}
tiers=(plain ssd)
if bursts > /dev/null; then tiers+=(nvme nvme-alone ram); else echo "hierarchy: no fsync is answered by the tier: nvme and ram are not measured" >&2; fi
[[ -z ${CTE_PYTHON:-} ]] || tiers+=(cte-ssd cte-nvme cte-ram)

cte() {
    local system=$1 round=$2 on=("$work/ssd/cte:$((mib + 64))") seconds
    [[ $system == cte-ssd ]] || on=("$work/nvme/cte:$((mib + 64))" "${on[@]}")
    [[ $system != cte-ram ]] || on=("ram:$((mib + 64))" "${on[@]}")
    mkdir "$work/cte"
    # The room of its files is there before, as that of the file is.
    touched $((mib * 2))
    limit
    if seconds=$(cd "$work/cte" && timeout 300 "$CTE_PYTHON" "$pieces" cte "$mib" "$round" max_bw "$work/cte" "${on[@]}" 2> "$work/cte.log"); then
        # shellcheck disable=SC2086
        told "$system" "$round" $seconds
    else
        echo "hierarchy: $system: $(tail -n 1 "$work/cte.log")" >&2
    fi
    unlimited
    rm -rf "$work/cte" "$work"/{ssd,nvme}/cte*
}

tier_system() {
    local system=$1 round=$2
    local run=("$bin/terrace" run --mount --passthrough off --on "$work/ssd/src" --config "$work/config.toml")
    case $system in
    plain) written "$system" "$round" env ;;
    ssd)
        config 20
        written "$system" "$round" "${run[@]}" --memory 64MiB -- ;;
    nvme | nvme-alone | ram)
        config 80 "$tier_answers" "source_share = \"$([[ $system == nvme-alone ]] && echo off || echo auto)\""
        # Nothing is there from the round before.
        empty_tier "$tier"
        written "$system" "$round" "${run[@]}" --memory "$memory" --tier "$tier" -- ;;
    cte-*) cte "$system" "$round" ;;
    esac
}

# processes read|write SYSTEM N ROUND
processes() {
    local what=$1 system=$2 n=$3 round=$4 direct=1 run=()
    local fio=(fio --name=processes --directory="$work/nvme/src" --bs=1m --size=$((each / n))m --numjobs="$n" --ioengine=psync --group_reporting --verify=crc32c
        --verify_state_save=0 --verify_fatal=1 --randrepeat=0 --fallocate=none)
    if [[ $system == terrace ]]; then direct=0 run=("$bin/terrace" run --mount --passthrough off --on "$work/nvme/src" --memory 128MiB --); fi
    unlimited
    # The files are there before either is measured: new room costs writes of the file system's.
    "${fio[@]}" --rw=write --do_verify=0 --direct=1 --end_fsync=1 --output=/dev/null
    limit
    "${run[@]}" "${fio[@]}" --rw="$what" --do_verify=0 --direct="$direct" --end_fsync=1 --output-format=json --output="$work/fio.json"
    unlimited
    "${fio[@]}" --rw=read --direct=1 --output=/dev/null
    rm "$work/nvme/src"/processes.*
    python3 - "$work/fio.json" "$what-$n,$system,$round" >> "$out" <<'END'
import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
assert job["error"] == 0, job["error"]
print(f"{sys.argv[2]},{job[sys.argv[2].split('-')[0]]['bw_bytes'] / (1 << 20):.3f},,")
END
}

all() {
    local cell system n
    for cell in $cells; do
        case $cell in
        devices) [[ $1 != 1 ]] || devices ;;
        tiers) for system in $(in_turn "$1" "${tiers[@]}"); do tier_system "$system" "$1"; done ;;
        read | write)
            for n in $counts; do
                for system in $(in_turn "$1" bare terrace); do processes "$cell" "$system" "$n" "$1"; done
            done ;;
        esac
    done
}

echo "cell,system,round,mib_s,ack_s,durable_s" > "$out"
each_round all
grep -E '^cell|,(plain|ssd|nvme|nvme-alone|ram),' "$out" > "$work/part.csv"
[[ $cells != *tiers* ]] || compare mib_s ssd cell "$work/part.csv"
grep -E '^cell|,(bare|terrace),' "$out" > "$work/part.csv"
[[ $cells != *read* && $cells != *write* ]] || compare mib_s bare cell "$work/part.csv"
