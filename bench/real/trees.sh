#!/bin/bash
# Directories of many small files, as checkouts are: listed, searched, packed and unpacked.
#
#   trees.sh prepare TREE             8,000 files in 200 directories with a git repository, an archive of them, and what each command says on the plain directory
#   trees.sh measure TREE WHAT RUNS   one of find, grep, git-status, tar, python: seconds of the first run, on cold caches, and the median of RUNS more
#   trees.sh unpack TREE              tar x, git clone, rm -rf: seconds of each; what is unpacked is checked
#   trees.sh verify TREE              the files are those of the plain directory, byte for byte
source "$(dirname "$0")/common.sh"
shopt -s inherit_errexit
command=$1 tree=$2 what=${3:-} runs=${4:-5}
for program in git python3 tar; do need $program $program; done
# The program itself: what is found by PATH may be a script that looks for it.
python=$(python3 -c 'import sys; print(sys.executable)')
export GIT_AUTHOR_NAME=b GIT_AUTHOR_EMAIL=b@b GIT_COMMITTER_NAME=b GIT_COMMITTER_EMAIL=b@b GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
if [ "$command" != prepare ]; then
    said=$(mktemp /tmp/terrace-bench-trees.XXXXXX)
    trap 'rm -f "$said"' EXIT
fi

# Python's small files, read as a program reads its modules or a data set.
read_all='
import sys, zlib
sum = 0
for n in range(5000):
    with open(f"{sys.argv[1]}/files/d{n % 200:03}/f{n // 200:02}.c", "rb") as file:
        sum = zlib.crc32(file.read(), sum)
print(sum)'

do_it() {
    case $what in
        find) find "$tree/files" -name .git -prune -o -type f -print ;;
        grep) grep -r --exclude-dir=.git -c needle "$tree/files" ;;
        git-status) git -C "$tree/files" status --porcelain ;;
        tar) tar -cf - -C "$tree" --exclude=.git files | wc -c ;;
        python) "$python" -c "$read_all" "$tree" ;;
        *) echo "$0: nothing is called ${what}" >&2; exit 2 ;;
    esac
}

# What it says, in an order and with names that do not depend on the place.
told() {
    sed "s:$tree::" "$1" | LC_ALL=C sort | sha256sum
}

digest() {
    tar -cf - -C "$1" --sort=name --exclude=.git . | sha256sum
}

same() {
    [ "$1" = "$(cat "$tree/expected/$2")" ] || { echo "$2 says something else than on the plain directory" >&2; exit 1; }
}

timed() {
    local start=$EPOCHREALTIME
    do_it > "$said"
    seconds "$start" "$EPOCHREALTIME"
    same "$(told "$said")" "$what"
}

case $command in
    prepare)
        mkdir -p "$tree/expected"
        python3 - "$tree/files" << 'PYTHON'
import os, random, sys
rng = random.Random(7)
words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz_", k=rng.randint(3, 10))) for _ in range(3000)]
for n in range(8000):
    at = f"{sys.argv[1]}/d{n % 200:03}"
    os.makedirs(at, exist_ok=True)
    size, text = rng.randint(500, 11500), []
    while size > 0:
        line = b" ".join(rng.choices(words, k=9)) + (b" needle\n" if rng.random() < 0.002 else b"\n")
        text.append(line)
        size -= len(line)
    with open(f"{at}/f{n // 200:02}.c", "wb") as file:
        file.write(b"".join(text))
PYTHON
        find "$tree/files" -exec touch -d 2026-01-01 {} +
        git -C "$tree/files" init -q
        git -C "$tree/files" add .
        git -C "$tree/files" -c gc.auto=0 commit -qm all
        git -C "$tree/files" gc -q
        tar -cf "$tree/files.tar" -C "$tree" --exclude=.git files
        for what in find grep git-status tar python; do
            do_it > "$tree/expected/said"
            told "$tree/expected/said" > "$tree/expected/$what"
        done
        digest "$tree/files" > "$tree/expected/content"
        ;;
    measure)
        cold=$(timed)
        warm=$(for ((i = 0; i < runs; i++)); do timed; done | sort -g | awk '{ s[NR] = $1 } END { print s[int((NR + 1) / 2)] }')
        printf '{"cold_s": %s, "warm_s": %s}\n' "$cold" "$warm"
        ;;
    unpack)
        mkdir "$tree/unpacked"
        start=$EPOCHREALTIME
        tar -xf "$tree/files.tar" -C "$tree/unpacked"
        untar=$(seconds "$start" "$EPOCHREALTIME")
        same "$(digest "$tree/unpacked/files")" content
        start=$EPOCHREALTIME
        git clone -q "$tree/files" "$tree/clone"
        clone=$(seconds "$start" "$EPOCHREALTIME")
        [ -z "$(git -C "$tree/clone" status --porcelain)" ] || { echo "the clone differs from its commit" >&2; exit 1; }
        start=$EPOCHREALTIME
        rm -rf "$tree/unpacked" "$tree/clone"
        remove=$(seconds "$start" "$EPOCHREALTIME")
        printf '{"untar_s": %s, "clone_s": %s, "remove_s": %s}\n' "$untar" "$clone" "$remove"
        ;;
    verify) same "$(digest "$tree/files")" content ;;
esac
