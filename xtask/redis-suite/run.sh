#!/bin/bash
# Runs Redis' own tests of the supported commands against `terrace serve kv`.
#   run.sh DIR [unit...]    DIR: a checkout of Redis 7.0, or its source package unpacked; only its tests are used
# Skipped tests with reasons: skip.txt beside this file.
set -euo pipefail

redis=$(realpath "$1"); shift
here=$(dirname "$(realpath "$0")")
terrace=$(realpath "$here/../../target/${PROFILE:-release}/terrace")
units=("$@")
[ ${#units[@]} -gt 0 ] || units=(unit/type/{string,incr,hash,zset} unit/{expire,scan,keyspace,protocol,auth})

work=$(mktemp -d)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$terrace" serve kv --dir "$work/keys" --memory 256MiB --port "$port" &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; rm -rf "$work"' EXIT

# Removes the reasons behind the names.
sed -E '/^#/d; s/[[:space:]]+# .*$//' "$here/skip.txt" > "$work/skip"
for _ in $(seq 100); do
	(exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
	sleep 0.1
done
cd "$redis"
./runtest --host 127.0.0.1 --port "$port" --durable --ignore-encoding --ignore-digest --tags "-needs:repl -needs:reset" \
	--skipfile "$work/skip" $(printf -- '--single %s ' "${units[@]}") 2>&1 | tee "$work/log"
passed=$(sed 's/\x1b\[[0-9;]*m//g' "$work/log" | grep -c '^\[ok\]')
echo "redis-suite: $passed passed"
[ "$passed" -gt 0 ] && kill -0 $server
