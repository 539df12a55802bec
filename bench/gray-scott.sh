#!/bin/bash
# A simulation that writes its state (hpc/gray_scott.py; needs Debian's python3-h5py-mpi) on a device whose bandwidth is limited: the time of its outputs, on the plain directory and on one that terrace serves, in turn, each
# in a group of the same memory. All outputs are read again and compared with their checksums. As root. See bench/README.md, The hierarchy. Cells:
#   written   the writes of an output; durable   with an fsync of each output, also with a tier that answers it (`burst`: [dirty] durable = "tier")
#
# ROUNDS=4           measurements of each cell, in turn
# SIZE=128 STEPS=800 PLOTGAP=16   the cube, an output each PLOTGAP steps: 33.5 MB of 128
# SSD=200 NVME=500   MiB a second, each way, of the device of the outputs and of the tier (a loop device over memory, TIER_MIB=2048)
# GROUP_MIB=768      memory of a group; terrace's is 384 MiB less, for the program
# CELLS="written durable"
# OUT=gray-scott.csv the figures; DATA_DIR=... where the device's file is: a disk faster than SSD (default /var/tmp)
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" gray-scott 4

size=${SIZE:-128} steps=${STEPS:-800} plotgap=${PLOTGAP:-16} ssd=${SSD:-200} group_mib=${GROUP_MIB:-768} tier_mib=${TIER_MIB:-2048}
cells=${CELLS:-written durable}
join_limits
memory_group "$group_mib"
outputs_mib=$((16 * size * size * size * (steps / plotgap) / 1048576))
loop_device "$work/device" $((outputs_mib * 5 / 4 + 256))
mkdir "$work/ssd"
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$loop"
mount "$loop" "$work/ssd"
at_end wait_until 10 umount "$work/ssd"
throttle "$loop" "$ssd" "$ssd"
if [[ $cells == *durable* ]]; then
    memory_dir $((tier_mib + 64))
    loop_device "$work/memory/tier" "$tier_mib"
    tier=$loop
    over "$tier" "$tier_mib"
    throttle "$tier" "${NVME:-500}" "${NVME:-500}"
    printf '[dirty]\ndurable = "tier"\nratio = 60\nbackground_ratio = 59\n' > "$work/config.toml"
fi

# run CELL SYSTEM ROUND
run() {
    local cell=$1 system=$2 round=$3 program served=()
    program=(mpirun --allow-run-as-root --oversubscribe -n 2 --mca btl "self,vader" --mca btl_vader_single_copy_mechanism none
        /usr/bin/python3 "$root/bench/hpc/gray_scott.py" "$work/ssd/src/out.h5" "$size" "$steps" "$plotgap" --times)
    [[ $cell != durable ]] || program+=(--fsync)
    [[ $system == plain ]] || served=("$bin/terrace" run --mount --passthrough off --on "$work/ssd/src" --memory $((group_mib - 384))MiB)
    if [[ $system == burst ]]; then
        served+=(--tier "$tier" --config "$work/config.toml")
        empty_tier "$tier"
    fi
    [[ $system == plain ]] || served+=(--)
    mkdir "$work/ssd/src"
    in_memory_group "${served[@]}" "${program[@]}" > "$work/told"
    row "$cell" "$system" "$round" "$(field output_s < "$work/told")" "$(field compute_s < "$work/told")" "$(field reread_s < "$work/told")" \
        "$(sed -n 's/.*"crc32":\["\(.*\)","\(.*\)"\].*/\1 \2/p' "$work/told")"
    rm -r "$work/ssd/src"
    sync -f "$work/ssd"
}

all() {
    local cell system systems
    for cell in $cells; do
        systems=(plain terrace)
        [[ $cell != durable ]] || systems+=(burst)
        for system in $(in_turn "$1" "${systems[@]}"); do run "$cell" "$system" "$1"; done
    done
}

echo "cell,system,round,output_s,compute_s,reread_s,crc32" > "$out"
each_round all
# The last state depends on the options alone.
[[ $(tail -n +2 "$out" | cut -d, -f7 | sort -u | wc -l) == 1 ]] || { echo "gray-scott: the outputs differ, see crc32 in $out" >&2; exit 1; }
compare output_s plain cell
