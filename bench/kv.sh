#!/bin/bash
# redis-benchmark against `terrace serve kv` and redis-server in turn, over UNIX sockets; see bench/README.md, Keys. `make bench-kv` sees to what it needs.
#
# ROUNDS=10          measurements of each cell and system, in turn
# REQUESTS=200000    requests of a measurement
# PIPELINES="1 16"   requests that a client sends at once
# TESTS=...          tests of redis-benchmark
# CLIENTS=50 VALUE=1000 THREADS=1 KEYS=100000
# LARGE=1000000      instead: walks and places (bench/large.py) with a database, a hash and two sorted sets of so many elements, by one client; 4 GiB each, else 1
# OUT=kv.csv         the figures; DATA_DIR=... where the servers keep their data: a real disk, not tmpfs (default /var/tmp)
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" kv 10

threads=${THREADS:-1}
memory_gib=1
[[ -z ${LARGE:-} ]] || memory_gib=4
tests=${TESTS:-set,get,incr,hset,zadd,mset}

pong() { [[ $(redis-cli -s "$1" ping) == PONG ]]; }
answers() { wait_until 10 pong "$1" || { echo "bench-kv: no answer at $1" >&2; exit 2; }; }

mkdir "$work/terrace" "$work/redis"
at_end unmount_terrace "$work/terrace"
"$bin/terrace" serve kv --dir "$work/terrace" --memory "${memory_gib}GiB" --unix "$work/terrace.sock" --threads "$threads" --sync 1s > "$work/terrace.log" 2>&1 &
redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$work/redis" --maxmemory "${memory_gib}gb" --io-threads "$threads" --appendonly yes --appendfsync everysec \
    --save '' > "$work/redis.log" 2>&1 &
at_end stop $!
answers "$work/terrace.sock"
answers "$work/redis.sock"

# CPU time that a server's threads have had, and processes that it has started and that have ended (Redis writes its file anew in one), nanoseconds; what kernel
# threads do for it is not in it.
cpu() {
    local server children
    server=$(redis-cli -s "$work/$1.sock" info server | tr -d '\r' | awk -F: '$1 == "process_id" { print $2 }')
    children=$(sed 's/.*) //' "/proc/$server/stat" | awk -v tick_ns="$((1000000000 / $(getconf CLK_TCK)))" '{ printf "%.0f", ($14 + $15) * tick_ns }')
    cat "/proc/$server/task"/*/schedstat | awk -v sum="$children" '{ sum += $1 } END { printf "%.0f\n", sum }'
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

# Likewise with large collections.
measure_large() {
    local system=$1 round=$2
    [[ $round -gt 1 ]] || python3 bench/large.py fill "$work/$system.sock" "$LARGE"
    python3 bench/large.py measure "$work/$system.sock" "$LARGE" "${REQUESTS:-2000}" | sed "s/^/$system,$round,/" >> "$out"
}

large() {
    local system
    for system in $(in_turn "$1" terrace redis); do measure_large "$system" "$1"; done
}

if [[ -n ${LARGE:-} ]]; then
    echo "system,round,test,requests_per_second,latency_ms_p50,latency_ms_p99,latency_ms_max" > "$out"
    each_round large
    for metric in requests_per_second latency_ms_max; do compare "$metric" redis test; done
    exit
fi

all() {
    local pipeline system
    for pipeline in ${PIPELINES:-1 16}; do
        for system in $(in_turn "$1" terrace redis); do measure "$system" "$pipeline" "$1"; done
    done
}

echo "system,pipeline,round,test,requests_per_second,latency_ms_p50,latency_ms_p99,cpu_us_per_request" > "$out"
each_round all
for metric in requests_per_second cpu_us_per_request latency_ms_p99; do compare "$metric" redis test,pipeline; done
