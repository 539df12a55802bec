#!/bin/bash
# One load, twice in the same memory: through the kernel's page cache, and under `terrace run`. See bench/README.md.
# Needs fio and a built workspace (`make demo` sees to both). Leaves nothing behind but the result, also on ^C.
#
# MEMORY_MIB=512     memory for either side; the data set is twice as large
# DATA_DIR=...       where the data set goes: a real disk, not tmpfs (default /var/tmp)
# OUT=target/demo    directory of the result: README.md and raw.jsonl
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
out=${OUT:-$root/target/demo}

for program in "$bin/terrace" "$bin/terrace-bench"; do
    [ -x "$program" ] || { echo "demo: $program is not there; run \`make demo\`, which builds it" >&2; exit 2; }
done
command -v fio >/dev/null || { echo "demo: fio is not installed; run \`make demo\` or install the package fio" >&2; exit 2; }
[ -e /dev/fuse ] || { echo "demo: no /dev/fuse here; load the module fuse (modprobe fuse)" >&2; exit 2; }

# A memory limit for the kernel's side is root's to give. Without it terrace-bench goes on, and the table favours the kernel.
as_root=()
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null; then
    if sudo -n true 2>/dev/null || { [ -t 0 ] && echo "demo: a memory cgroup for both sides needs root" && sudo -v; }; then
        as_root=(sudo)
    fi
fi
matrix=$(mktemp -d)
trap 'rm -rf "$matrix"' EXIT
sed "s/^limit_mib = 512/limit_mib = ${MEMORY_MIB:-512}/" "$root/bench/demo.toml" > "$matrix/demo.toml"
lenient=()
if [ "$(id -u)" != 0 ] && [ ${#as_root[@]} = 0 ]; then
    echo "demo: no right to make a memory cgroup: the kernel's side runs without a limit, so the table favours it; as root both get the same" >&2
    lenient=(--lenient --state "$matrix/state")
fi
# The matrix refuses a directory that holds runs.
[ -n "${OUT:-}" ] || "${as_root[@]}" rm -rf "$out"
"${as_root[@]}" "$bin/terrace-bench" matrix "$matrix/demo.toml" --bars --dir "${DATA_DIR:-/var/tmp}/terrace-demo" --out "$out" "${lenient[@]}" "$@"

cat <<END_OF_TEXT

Try next, on a program and a directory of yours:
  $bin/terrace-bench demo --on DIR -- YOUR-PROGRAM
END_OF_TEXT
