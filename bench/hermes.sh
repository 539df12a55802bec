#!/bin/bash
# Each part of the study that Hermes' authors published, one after the other, and a page of all: bench/hermes.py. As root. See bench/README.md, The hierarchy.
#
# OUT=DIR            the raw files and hermes.md (bench/runs/DATE-HOST-hermes)
# PARTS="..."        some of: hierarchy placement staging prefetch cold-sequential gray-scott metadata cte; none: the page alone
# QUICK=1            all within five minutes, to see that it works: the figures are worth nothing
# CTE_PYTHON=...     a Python with iowarp-core==2.3.2, and for `cte` with terrace_cache (target/cte/bin/python, which `make bench-hermes` makes)
# YCSB="FILE..."     raw files of `make bench-ycsb` (those of the latest bench/runs)
# Rounds and sizes: settings of each script, which apply to all that know them.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
dir=${OUT:-$root/bench/runs/$(date -u +%Y%m%dT%H%M)-$(uname -n)-hermes}
mkdir -p "$dir"
export CTE_PYTHON=${CTE_PYTHON-$root/target/cte/bin/python}
[[ -x $CTE_PYTHON ]] || { echo "hermes: no CTE at CTE_PYTHON ($CTE_PYTHON): its cells are not measured" >&2; CTE_PYTHON=; }
failed=

# part NAME QUICK-SETTING... -- COMMAND...
part() {
    local name=$1 quick=()
    shift
    while [[ $1 != -- ]]; do
        quick+=("$1")
        shift
    done
    shift
    [[ " ${PARTS-hierarchy placement staging prefetch cold-sequential gray-scott metadata cte} " == *" $name "* ]] || return 0
    [[ -n ${QUICK:-} ]] || quick=()
    echo "== $name" >&2
    if env OUT="$dir/$name.csv" "${quick[@]}" "$@" > "$dir/$name.txt"; then :; else
        echo "hermes: $name failed" >&2
        failed=1
    fi
}

metadata() { "$bin/terrace-bench" metadata --json --dir "${DATA_DIR:-/var/tmp}" "$@" > "$dir/metadata.json"; }

{
    echo "$(date -u +%F), $(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors, Linux $(uname -r), commit $(git -C "$root" rev-parse --short HEAD)."
    [[ -z ${QUICK:-} ]] || echo "QUICK=1: a look whether it works; these figures are no measurement."
    echo
} > "$dir/about.txt"
part hierarchy ROUNDS=2 MIB=128 PROCESSES="1 4" PROCESSES_MIB=128 -- "$root/bench/hierarchy.sh"
part placement ROUNDS=2 SECONDS_LONG=2 ROOM=32 SLOW=5 FAST=15 EQUAL=10 CELLS="unlike cte equal size-1" -- "$root/bench/placement.sh"
part staging ROUNDS=2 MIB=64 OPS=1000 -- "$root/bench/staging.sh"
part prefetch ROUNDS=2 MIB=64 MEMORY=32MiB ORDERS="sequential=500 streams:4=500 stride:16=500 random=300 zipf:0.8=300 recorded=500 wrong=300" -- "$root/bench/prefetch.sh"
part cold-sequential ROUNDS=2 MIB=256 -- "$root/bench/cold-sequential.sh"
part gray-scott ROUNDS=2 SIZE=64 STEPS=64 -- "$root/bench/gray-scott.sh"
quick=()
[[ -z ${QUICK:-} ]] || quick=(--counts 20000 --threads "1,2" --repeat 2)
if [[ " ${PARTS-metadata} " == *" metadata "* ]]; then
    echo "== metadata" >&2
    metadata "${quick[@]}" || failed=1
fi
if [[ -n $CTE_PYTHON ]] && "$CTE_PYTHON" -c 'import terrace_cache' 2> /dev/null; then
    if [[ -n ${QUICK:-} ]]; then of=(2000 2); else of=(20000 6); fi
    part cte -- "$CTE_PYTHON" "$root/bench/cte.py" "$dir/cte.csv" "${of[@]}"
fi
latest() { find "$root"/bench/runs/*-kv -name 'ycsb*.csv' | sort; }
# shellcheck disable=SC2046,SC2086
python3 "$root/bench/hermes.py" "$dir" ${YCSB-$(latest)}
[[ -z $failed ]]
