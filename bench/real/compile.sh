#!/bin/bash
# A compile loop: 100 small programs that include 40 of 150 headers each, a compiler for each of them, several at once.
#
#   compile.sh prepare TREE         writes the sources and compiles them once, on the plain directory: the digest that counts
#   compile.sh measure TREE JOBS    compiles twice, and prints the seconds of both times
#   compile.sh verify TREE          the objects are those of the plain directory, byte for byte
source "$(dirname "$0")/common.sh"
shopt -s inherit_errexit
command=$1 tree=$2 jobs=${3:-$(nproc)}
for program in gcc python3; do need $program $program; done

compile() {
    rm -rf "$tree/out"
    mkdir "$tree/out"
    (cd "$tree" && seq 100 | xargs -P "$jobs" -I N gcc -O0 -Iinclude -c src/pN.c -o out/pN.o)
}

digest() {
    (cd "$tree/out" && cat $(seq -f p%g.o 100) | sha256sum)
}

timed() {
    local start=$EPOCHREALTIME
    compile
    seconds "$start" "$EPOCHREALTIME"
}

case $command in
    prepare)
        mkdir -p "$tree/src" "$tree/include"
        python3 - "$tree" << 'PYTHON'
import random, sys
rng, tree = random.Random(7), sys.argv[1]
for h in range(150):
    with open(f"{tree}/include/h{h}.h", "w") as file:
        file.write(f"#ifndef H{h}\n#define H{h}\n")
        for n in range(40):
            file.write(f"struct h{h}_{n} {{ int a, b; char name[{rng.randint(1, 99)}]; }};\nint h{h}_f{n}(struct h{h}_{n} *it, int by);\n")
        file.write("#endif\n")
for p in range(1, 101):
    used = rng.sample(range(150), 40)
    with open(f"{tree}/src/p{p}.c", "w") as file:
        file.writelines(f'#include "h{h}.h"\n' for h in used)
        file.write(f"int p{p}(int by)\n{{\n    int sum = 0;\n")
        file.writelines(f"    {{ struct h{h}_0 it; sum += h{h}_f0(&it, by); }}\n" for h in used)
        file.write("    return sum;\n}\n")
PYTHON
        compile
        digest > "$tree/digest"
        rm -r "$tree/out"
        ;;
    measure)
        cold=$(timed)
        warm=$(timed)
        printf '{"cold_build_s": %s, "build_s": %s}\n' "$cold" "$warm"
        ;;
    verify) [ "$(digest)" = "$(cat "$tree/digest")" ] || { echo "other objects than those of the plain directory" >&2; exit 1; } ;;
esac
