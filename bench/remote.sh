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
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
server=${S3:-$root/target/tools/bin/versitygw}
out=${OUT:-$root/target/remote.csv}
rounds=${ROUNDS:-6} delay=${DELAY:-5000} reads=${READS:-2000} mib=${MIB:-128}
[[ -x $server ]] || { echo "remote.sh: no S3 server at $server; run \`make s3-server\`, or set S3" >&2; exit 2; }
[[ $("$bin/terrace" tier show fs:///none 2>&1 || true) != *'built without'* ]] || { echo "remote.sh: $bin/terrace has no targets in stores; run \`make remote\`" >&2; exit 2; }
work=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-bench-remote.XXXXXX")
far= s3=

finish() {
    for pid in $far $s3; do { kill "$pid" && wait "$pid"; } 2>/dev/null || true; done
    rm -rf "${work:?}"/{near,s3,keys,stats.json,config.toml}
    rmdir "$work/far" "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir -p "$work/near" "$work/far" "$work/s3/tier"
"$bin/terrace-bench" worker data --file "$work/near/data" --mib "$mib" >/dev/null
"$bin/terrace-bench" passthrough "$work/near" "$work/far" --threads 64 --delay-us "$delay" &
far=$!
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
ROOT_ACCESS_KEY=bench ROOT_SECRET_KEY=bench-secret "$server" --port "127.0.0.1:$port" posix "$work/s3" >/dev/null 2>&1 &
s3=$!
printf 'aws_access_key_id = bench\naws_secret_access_key = bench-secret\n' > "$work/keys"
printf '[tier.compressed]\ncodec = "none"\n' > "$work/config.toml"
tier="s3://tier/bench?endpoint=http://127.0.0.1:$port&region=us-east-1&credentials=$work/keys:$((mib * 2))MiB"
for _ in $(seq 100); do
    [[ -e $work/far/data ]] && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.05
done

# run with|without COMMAND...: one instance
run() {
    local tiers=()
    [[ $1 == without ]] || tiers=(--tier "$tier")
    shift
    "$bin/terrace" run --mount --passthrough off --on "$work/far" --memory 32MiB --config "$work/config.toml" "${tiers[@]}" -- "$@"
}

# The pages of the tier.
pages() {
    python3 - "$work/stats.json" <<'END'
import json, sys
rows = [row for row in json.load(open(sys.argv[1]))["tiers"] if row["kind"] == "device"]
assert rows and all(row["state"] == "serving" for row in rows), rows
print(sum(row["pages"] for row in rows))
END
}

# Passes until nine pages in ten are in the store.
for pass in $(seq 20); do
    run with bash -c "cat '$work/far/data' >/dev/null; sleep 2; '$bin/terrace' stat '$work/far' --json > '$work/stats.json'"
    there=$(pages)
    echo "pass $pass: $there pages of $((mib * 256)) in the store" >&2
    (( there * 10 < mib * 256 * 9 )) || break
done

echo "cell,system,round,reads_s" > "$out"
for round in $(seq "$rounds"); do
    systems="with without"
    (( round % 2 )) || systems="without with"
    for order in random zipf:0.8; do
        for system in $systems; do
            run "$system" "$bin/terrace-bench" worker cold --file "$work/far/data" --order "$order" --ops "$reads" --seed "$round" > "$work/stats.json"
            python3 - "$work/stats.json" "$order,$system,$round" >> "$out" <<'END'
import json, sys
told = json.loads(open(sys.argv[1]).read().splitlines()[-1])
print(f"{sys.argv[2]},{told['reads_per_s']:.1f}")
END
        done
    done
    echo "round $round of $rounds" >&2
done
"$bin/terrace-bench" compare "$out" --metric reads_s --factor system --baseline without --by cell --pair round
