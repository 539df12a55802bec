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

# CPU time that a server's threads have had, nanoseconds; what kernel threads do for it is not in it.
cpu() {
    local server
    server=$(redis-cli -s "$work/$1.sock" info server | tr -d '\r' | awk -F: '$1 == "process_id" { print $2 }')
    cat "/proc/$server/task"/*/schedstat | awk '{ sum += $1 } END { printf "%.0f\n", sum }'
}

# One measurement of all tests: a line each.
measure() {
    local system=$1 pipeline=$2 round=$3 test before line requests=${REQUESTS:-200000}
    for test in ${tests//,/ }; do
        before=$(cpu "$system")
        line=$(redis-benchmark -s "$work/$system.sock" -t "$test" -d "${VALUE:-1000}" -r "${KEYS:-100000}" -n "$requests" -c "${CLIENTS:-50}" -P "$pipeline" --csv |
            tail -n 1 | tr -d '"')
        echo "$line" | awk -F, -v head="$system,$pipeline,$round" -v cpu_us="$(( ($(cpu "$system") - before) / 1000 ))" -v requests="$requests" \
            '{ print head "," $1 "," $2 "," $5 "," $7 "," cpu_us / requests }' >> "$out"
    done
}

echo "system,pipeline,round,test,requests_per_second,latency_ms_p50,latency_ms_p99,cpu_us_per_request" > "$out"
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
for metric in requests_per_second cpu_us_per_request latency_ms_p99; do
    "$bin/terrace-bench" compare "$out" --metric "$metric" --factor system --baseline redis --by test,pipeline --pair round
done
