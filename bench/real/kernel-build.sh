#!/bin/bash
# Building a kernel (Linux, `tinyconfig`) with many compilers at once, sources and build on the served directory.
#
#   kernel-build.sh prepare TREE        unpacks the distribution's sources and builds them once, on the plain directory: the digest that counts
#   kernel-build.sh measure TREE JOBS   builds, and prints the seconds
#   kernel-build.sh verify TREE         `vmlinux` and `System.map` are those of the plain build, byte for byte
source "$(dirname "$0")/common.sh"
command=$1 tree=$2 jobs=${3:-$(nproc)}
for program in make gcc flex bison bc; do need $program $program; done
export KBUILD_BUILD_TIMESTAMP=2026-01-01 KBUILD_BUILD_USER=b KBUILD_BUILD_HOST=b KBUILD_BUILD_VERSION=1

build() {
    make -s -C "$tree/src" O="$tree/out" tinyconfig
    make -s -C "$tree/src" O="$tree/out" -j"$1" vmlinux
}

digest() {
    cat "$tree/out/vmlinux" "$tree/out/System.map" | sha256sum
}

case $command in
    prepare)
        sources=$(ls /usr/src/linux-source-*.tar.xz 2> /dev/null | sort -V | tail -n 1)
        [ -n "$sources" ] || { echo "$0: no kernel sources in /usr/src: install linux-source, or run \`make bench-real\`, which does" >&2; exit 2; }
        mkdir -p "$tree/src"
        # But for code that the smallest kernel never builds: 50,000 files.
        tar -xf "$sources" -C "$tree/src" --strip-components=1 --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/net/*.[ch]' \
            --exclude='*/drivers/media/*.[ch]' --exclude='*/drivers/staging/*.[ch]' --exclude='*/sound/*.[ch]' \
            --exclude='*/Documentation/*/*' --exclude='*/tools/testing/*' --exclude='*/tools/perf/*'
        build "$(nproc)"
        digest > "$tree/digest"
        rm -r "$tree/out"
        ;;
    measure)
        start=$EPOCHREALTIME
        build "$jobs"
        end=$EPOCHREALTIME
        printf '{"build_s": %s, "objects": %s}\n' "$(seconds "$start" "$end")" "$(find "$tree/out" -name '*.o' | wc -l)"
        ;;
    verify) [ "$(digest)" = "$(cat "$tree/digest")" ] || { echo "another kernel than that of the plain directory" >&2; exit 1; } ;;
esac
