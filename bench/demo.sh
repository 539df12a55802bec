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

# The data are texts, programs and logs of this machine; every run checks pages of them, read by both paths.
cat > "$dir/demo.toml" <<END
name = "demo"
repetitions = 1
limit_mib = $memory
file_set = 2.0
content = "real"
ramp_s = ${WARM_S:-15}
measure_s = ${MEASURE_S:-15}
patterns = ["zipf:0.8"]
jobs = [2]
[[system]]
kind = "kernel"
[[system]]
kind = "terrace"
[[load]]
kind = "fio"
END

lenient=()
if [ "$(id -u)" != 0 ] && [ ${#as_root[@]} = 0 ]; then
    echo "demo: no right to make a memory cgroup: the kernel's side runs without a limit, so the table favours it; as root both get the same" >&2
    lenient=(--lenient --state "$dir/state")
fi
echo "fio, 2 jobs, random 4 KiB reads (zipf 0.8) of $((memory * 2)) MiB of files in $memory MiB of memory: a minute for each side ..."
"${as_root[@]}" "$bin/terrace-bench" matrix "$dir/demo.toml" --dir "$dir/work" --out "$dir/out" "${lenient[@]}"

cat <<END

Try next, on a directory of yours:
  $bin/terrace run --on DIR --memory 1GiB -- YOUR-PROGRAM
END
