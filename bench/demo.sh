#!/bin/bash
# One load, twice in the same memory: through the kernel's page cache, and under `terrace run`. See bench/README.md.
# Needs fio and a built workspace (`make demo` sees to both). Leaves nothing behind, also on ^C.
#
# MEMORY_MIB=256   memory for either side; the data set is twice as large
# DATA_DIR=...     where the data set goes: a real disk, not tmpfs (default /var/tmp)
# WARM_S, MEASURE_S  seconds of warm-up and of measurement (15 and 15)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=${TERRACE_BIN:-$root/target/release}
memory=${MEMORY_MIB:-256}
bytes=$((memory * 2 * 1024 * 1024))

for program in "$bin/terrace" "$bin/terrace-bench"; do
    [ -x "$program" ] || { echo "demo: $program is not there; run \`make demo\`, which builds it" >&2; exit 2; }
done
command -v fio >/dev/null || { echo "demo: fio is not installed; run \`make demo\` or install the package fio" >&2; exit 2; }
[ -e /dev/fuse ] || { echo "demo: no /dev/fuse here; load the module fuse (modprobe fuse)" >&2; exit 2; }

# A memory limit for the kernel's side is root's to give. Without it terrace-bench goes on, and says that the table favours the kernel.
as_root=()
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null; then
    if sudo -n true 2>/dev/null || { [ -t 0 ] && echo "demo: a memory cgroup for both sides needs root" && sudo -v; }; then
        as_root=(sudo)
    fi
fi

dir=$(mktemp -d "${DATA_DIR:-/var/tmp}/terrace-demo.XXXXXX")
# After ^C the shell comes here only when terrace-bench has ended, and with it the mount.
trap 'rm -rf --one-file-system "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$dir/files"
data=$dir/files/data
echo "Data set: $((memory * 2)) MiB of this machine's own files ..."
# Texts, libraries, programs; once round again where a small system has less than is asked for. `head` ends the pipe early: that is no error.
while [ "$(stat -c %s "$data" 2>/dev/null || echo 0)" -lt "$bytes" ]; do
    have=$(stat -c %s "$data" 2>/dev/null || echo 0)
    { find /usr/share /usr/lib /usr/bin -xdev -type f -size +3k -print0 | sort -z | xargs -0 cat -- 2>/dev/null || true; } \
        | head -c $((bytes - have)) >> "$data"
done
sync "$data"

"${as_root[@]}" "$bin/terrace-bench" demo --dir "$dir/files" --memory-mib "$memory" --warm "${WARM_S:-15}" --measure "${MEASURE_S:-15}"

cat <<END

Try next, on a directory of yours:
  $bin/terrace run --on DIR --memory 1GiB -- YOUR-PROGRAM
END
