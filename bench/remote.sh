#!/bin/bash
# A far source with a target of the tiers in a nearer store, and without: page reads a second by one reader, at random and by zipf. The source is a pass-through mount that
# waits; the store a real S3 server (versitygw) on the loopback interface. As root or a user who may mount. See bench/README.md, A target in a store.
#
# ROUNDS=6         measurements of each cell, in turn
# DELAY=5000       microseconds that a read of the source takes longer
# READS=2000       of each measurement
# MIB=128          of data; memory is 32 MiB
# OUT=remote.csv   the figures
# S3=PROGRAM       versitygw; `make s3-server` installs it
# shellcheck source=bench/lib.sh
. "$(dirname "$0")/lib.sh" remote 6

server=${S3:-$root/target/tools/bin/versitygw}
reads=${READS:-2000} mib=${MIB:-128}
[[ -x $server ]] || { echo "remote.sh: no S3 server at $server; run \`make s3-server\`, or set S3" >&2; exit 2; }
[[ $("$bin/terrace" tier show fs:///none 2>&1 || true) != *'built without'* ]] || { echo "remote.sh: $bin/terrace has no targets in stores; run \`make remote\`" >&2; exit 2; }

mkdir -p "$work/near" "$work/s3/tier"
data "$work/near" "$mib"
far_source "$work/near" --delay-us "${DELAY:-5000}"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
ROOT_ACCESS_KEY=bench ROOT_SECRET_KEY=bench-secret "$server" --port "127.0.0.1:$port" posix "$work/s3" >/dev/null 2>&1 &
at_end stop $!
printf 'aws_access_key_id = bench\naws_secret_access_key = bench-secret\n' > "$work/keys"
printf '[tier.compressed]\ncodec = "none"\n' > "$work/config.toml"
tier="s3://tier/bench?endpoint=http://127.0.0.1:$port&region=us-east-1&credentials=$work/keys:$((mib * 2))MiB"
wait_until 5 bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"

# run with|without COMMAND...: one instance
run() {
    local tiers=()
    [[ $1 == without ]] || tiers=(--tier "$tier")
    shift
    "$bin/terrace" run --mount --passthrough off --on "$work/far" --memory 32MiB --config "$work/config.toml" "${tiers[@]}" -- "$@"
}

# Passes until nine pages in ten are in the store.
for pass in $(seq 20); do
    run with bash -c "cat '$work/far/data' >/dev/null; sleep 2; '$bin/terrace' stat '$work/far' --json > '$work/stats.json'"
    there=$(stat_of_devices "$work/stats.json" pages)
    echo "pass $pass: $there pages of $((mib * 256)) in the store" >&2
    (( there * 10 < mib * 256 * 9 )) || break
done

all() {
    local order system rate
    for order in random zipf:0.8; do
        for system in $(in_turn "$1" with without); do
            rate=$(run "$system" "$bin/terrace-bench" worker cold --file "$work/far/data" --order "$order" --ops "$reads" --seed "$1" | field reads_per_s)
            row "$order" "$system" "$1" "$rate"
        done
    done
}

echo "cell,system,round,reads_per_s" > "$out"
each_round all
compare reads_per_s without cell
