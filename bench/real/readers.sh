#!/bin/bash
# Programs that the preload library does not reach: a statically linked one in C, and one in Go.
#
#   readers.sh prepare TREE     builds both
#   readers.sh read PROGRAM BENCH FILE PATTERN JOBS SEED SECONDS    PROGRAM (TREE/reader-c, TREE/reader-go) reads FILE by a pattern
source "$(dirname "$0")/common.sh"
here=$(dirname "$0")
case $1 in
    prepare)
        need gcc gcc
        need go golang-go
        mkdir -p "$2"
        gcc -O2 -Wall -static -pthread -o "$2/reader-c" "$here/reader.c"
        build=$(mktemp -d)
        trap 'rm -rf "$build"' EXIT
        GOCACHE=$build GO111MODULE=off CGO_ENABLED=0 go build -o "$2/reader-go" "$here/reader.go"
        ;;
    read) "$3" worker keys --file "$4" --pattern "$5" --seed "$7" | "$2" "$4" "$6" "$8" ;;
esac
