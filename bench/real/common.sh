# For the scripts beside this one: an unprivileged user, a short directory for sockets and logs, the last words of a server that failed.
#
# Servers do not run as root, and terrace serves its preload path to its own user only. So ours run in a user namespace in which root has the
# name of the server's user: everybody is the same to the system, and the server is content.

set -euo pipefail
export LC_ALL=C
# The distribution's own places: a cut PATH may lack them.
export PATH="$PATH:/usr/sbin:/sbin"

# as_user USER "$0" "$@": goes on as this user.
as_user() {
    user=$1
    shift
    if [ "${TERRACE_BENCH_USER:-}" != "$user" ]; then
        exec env TERRACE_BENCH_USER="$user" unshare --user --map-user="$user" --map-group="$user" -- "$@"
    fi
    # A socket's path has 107 bytes at most.
    home=/tmp/terrace-bench-$user
    mkdir -p "$home"
    trap 'status=$?; [ $status = 0 ] || { [ ! -f "$home/log" ] || tail -n 3 "$home/log" >&2; }; exit $status' EXIT
}

# need PROGRAM PACKAGE
need() {
    command -v "$1" > /dev/null || { echo "$0: $1 is not there: install $2, or run \`make bench-databases\`, which does" >&2; exit 2; }
}

# number LABEL < TEXT: the first number behind a label.
number() {
    sed -n "s/^ *$1[^0-9]*\([0-9.]*[0-9]\).*/\1/p" | head -n 1
}

# seconds FROM TO: between two values of EPOCHREALTIME
seconds() {
    awk -v a="$1" -v b="$2" 'BEGIN { print b - a }'
}
