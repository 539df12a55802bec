#!/bin/bash
# redis-benchmark against `terrace serve kv` and redis-server in turn, over UNIX sockets; see bench/README.md, Keys. `make bench-kv` sees to what it needs.
#
# ROUNDS=10          measurements of each cell and system, in turn
# REQUESTS=200000    requests of a measurement
# PIPELINES="1 16"   requests that a client sends at once
# TESTS=...          tests of redis-benchmark
# CLIENTS=50 VALUE=1000 THREADS=1 KEYS=100000
# OUT=kv.csv         the figures; DATA_DIR=... where the servers keep their data: a real disk, not tmpfs (default /var/tmp)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
out=${OUT:-$root/target/kv.csv}
rounds=${ROUNDS:-10} threads=${THREADS:-1}
tests=${TESTS:-set,get,incr,hset,zadd,mset}
work=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-bench-kv.XXXXXX")
redis=

finish() {
    "$bin/terrace" umount "$work/terrace" >/dev/null 2>&1 || true
    [[ -z $redis ]] || { kill "$redis"; wait "$redis"; } 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

answers() {
    for _ in $(seq 200); do
        [[ $(redis-cli -s "$1" ping 2>/dev/null || true) == PONG ]] && return
        sleep 0.05
    done
    echo "bench-kv: no answer at $1" >&2
    exit 2
}

mkdir "$work/terrace" "$work/redis"
"$bin/terrace" serve kv --dir "$work/terrace" --memory 1GiB --unix "$work/terrace.sock" --threads "$threads" --sync 1s > "$work/terrace.log" 2>&1 &
redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$work/redis" --maxmemory 1gb --io-threads "$threads" --appendonly yes --appendfsync everysec \
    --save '' > "$work/redis.log" 2>&1 &
redis=$!
answers "$work/terrace.sock"
answers "$work/redis.sock"

# One measurement of all tests: a line each.
measure() {
    local system=$1 pipeline=$2 round=$3
    redis-benchmark -s "$work/$system.sock" -t "$tests" -d "${VALUE:-1000}" -r "${KEYS:-100000}" -n "${REQUESTS:-200000}" -c "${CLIENTS:-50}" -P "$pipeline" --csv |
        tr -d '"' | awk -F, -v head="$system,$pipeline,$round" 'NR > 1 { print head "," $1 "," $2 "," $5 "," $7 }' >> "$out"
}

echo "system,pipeline,round,test,requests_per_second,latency_ms_p50,latency_ms_p99" > "$out"
for round in $(seq "$rounds"); do
    order="terrace redis"
    (( round % 2 )) || order="redis terrace"
    for pipeline in ${PIPELINES:-1 16}; do
        for system in $order; do
            measure "$system" "$pipeline" "$round"
        done
    done
    echo "round $round of $rounds" >&2
done
for metric in requests_per_second latency_ms_p99; do
    "$bin/terrace-bench" compare "$out" --metric "$metric" --factor system --baseline redis --by test,pipeline --pair round
done
