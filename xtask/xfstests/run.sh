#!/usr/bin/env bash
# Runs the `generic` tests of xfstests on terrace mounts, and repeats failing ones on ext4.
#
#   run.sh DIR [TEST...]      DIR: a checkout of git://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git, built here if necessary
#
# GROUP=quick               the group to run if no TEST is given
# XFSTESTS_SECONDS=600      time limit of a test; exceeding it is a failure, and the stacks of all its processes are saved
# XFSTESTS_WORK=/var/tmp/terrace-xfstests     images of two file systems (sparse, 8 GiB each), results
#
# Fails for each test that fails here, passes on ext4, and is not in known.txt. The system stays unchanged: mounts, the helpers of
# mount(8) and the users required by xfstests exist in a mount namespace only, and each test has its own process namespace.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
known=$here/known.txt
terrace=${TERRACE_BIN_DIR:-$here/../../target/release}/terrace
work=${XFSTESTS_WORK:-/var/tmp/terrace-xfstests}
limit=${XFSTESTS_SECONDS:-600}
PATH=$PATH:/usr/sbin:/sbin

fail() {
    echo "xfstests: $*" >&2
    exit 2
}

# Requirements, checked before any change.
check_machine() {
    [[ $(id -u) == 0 ]] || fail "not root; run it as root, on a machine that may be lost"
    [[ -x $terrace ]] || fail "$terrace is missing; run \`make build\`"
    [[ -x $xfstests/check ]] || fail "$xfstests is no checkout of xfstests; clone git://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git"
    [[ $work != *[[:space:],:]* && $xfstests != *[[:space:],:]* ]] || fail "xfstests cannot have blanks, commas or colons in paths; set XFSTESTS_WORK"
    [[ -e /dev/fuse && -e /dev/loop-control ]] || fail "no /dev/fuse or no loop devices; load the modules fuse and loop"
}

build() {
    [[ -x $xfstests/ltp/fsstress && -s $xfstests/tests/generic/group.list ]] && return
    echo "building $xfstests, see $work/build.log"
    make -C "$xfstests" -j"$(nproc)" >"$work/build.log" 2>&1 || fail "$xfstests does not build; see $work/build.log"
}

# xfstests runs df on every mount, and a hanging mount would block it. So other FUSE mounts are detached in this namespace, which
# then does not keep them alive either.
leave_other_mounts() {
    local point
    awk '/ - fuse/ { print $5 }' /proc/self/mountinfo | while read -r point; do
        umount --internal-only --lazy "$(printf '%b' "$point")" || true
    done
}

# Puts the helpers into /sbin of this namespace, where alone mount(8) and umount(8) look for them.
provide_helpers() {
    local sbin
    sbin=$(readlink -f /sbin)
    mkdir -p "$work/sbin" "$work/bin"
    cp "$terrace" "$work/bin/terrace"
    ln -sf "$work/bin/terrace" "$work/sbin/mount.fuse.terrace"
    ln -sf "$work/bin/terrace" "$work/sbin/umount.fuse.terrace"
    mount -t overlay overlay -o "lowerdir=$work/sbin:$sbin" "$sbin" ||
        fail "no overlay over $sbin; link mount.fuse.terrace and umount.fuse.terrace there to terrace, or load the module overlay"
}

# Adds the user and group NAME to this namespace, unless the system has them.
provide_user() {
    local id=$1 name=$2
    getent passwd "$name" >/dev/null || echo "$name:x:$id:$id::$work:/bin/bash" >>"$work/etc/passwd"
    getent group "$name" >/dev/null || echo "$name:x:$id:" >>"$work/etc/group"
    getent shadow "$name" >/dev/null || echo "$name:*:19000:0:99999:7:::" >>"$work/etc/shadow"
}

provide_users() {
    local file
    mkdir -p "$work/etc"
    for file in passwd group shadow; do
        cp --preserve=mode,ownership "/etc/$file" "$work/etc/$file"
    done
    provide_user 61001 fsgqa
    provide_user 61002 fsgqa2
    provide_user 61003 123456-fsgqa
    for file in passwd group shadow; do
        mount --bind "$work/etc/$file" "/etc/$file"
    done
}

# Makes fresh file systems on loop devices, TEST and SCRATCH of SYSTEM.
provide_devices() {
    local system=$1 name
    for name in test scratch; do
        rm -f "$work/$system.$name.img"
        truncate -s 8G "$work/$system.$name.img"
        mkfs.ext4 -q -F "$work/$system.$name.img"
        loops[$system.$name]=$(losetup --find --show "$work/$system.$name.img") || fail "no free loop device"
        mkdir -p "$work/$system.$name" "$work/$system.$name.mnt"
    done
}

# xfstests does not support a file system whose device is a directory: df prints a subtype, and umount(8) takes the directory for
# a mount point. These wrappers correct both.
provide_wrappers() {
    cat >"$work/bin/df" <<EOF
#!/bin/sh
exec df "\$@" | sed 's/ fuse\.terrace / fuse /'
EOF
    cat >"$work/bin/umount" <<EOF
#!/bin/bash
set -- "\${@/%terrace.test/terrace.test.mnt}"
exec umount "\${@/%terrace.scratch/terrace.scratch.mnt}"
EOF
    chmod +x "$work/bin/df" "$work/bin/umount"
}

configure_terrace() {
    provide_devices terrace
    mount "${loops[terrace.test]}" "$work/terrace.test"
    mount "${loops[terrace.scratch]}" "$work/terrace.scratch"
    provide_wrappers
    cat >"$work/terrace.config" <<EOF
export DF_PROG="$work/bin/df -T -P" UMOUNT_PROG=$work/bin/umount
export FSTYP=fuse FUSE_SUBTYP=.terrace
export TEST_DEV=$work/terrace.test TEST_DIR=$work/terrace.test.mnt
export SCRATCH_DEV=$work/terrace.scratch SCRATCH_MNT=$work/terrace.scratch.mnt
export TEST_FS_MOUNT_OPTS="-o memory=64MiB" MOUNT_OPTIONS="-o memory=64MiB"
export RESULT_BASE=$results/terrace
EOF
}

configure_ext4() {
    provide_devices ext4
    cat >"$work/ext4.config" <<EOF
export FSTYP=ext4
export TEST_DEV=${loops[ext4.test]} TEST_DIR=$work/ext4.test.mnt
export SCRATCH_DEV=${loops[ext4.scratch]} SCRATCH_MNT=$work/ext4.scratch.mnt
export RESULT_BASE=$results/ext4
EOF
}

clean_up() {
    local mounted loop
    [[ -z $check ]] || kill -KILL "$check" 2>/dev/null || true
    for mounted in terrace.test.mnt terrace.scratch.mnt terrace.test terrace.scratch ext4.test.mnt ext4.scratch.mnt; do
        umount -l "$work/$mounted" 2>/dev/null || true
    done
    for loop in "${loops[@]}"; do
        losetup --detach "$loop" 2>/dev/null || true
    done
}

tests_to_run() {
    local list=$xfstests/tests/generic/group.list group=${GROUP:-quick}
    if (( $# )); then
        printf '%s\n' "$@"
    else
        awk -v group="$group" '$1 ~ /^[0-9]+$/ { for (i = 2; i <= NF; i++) if ($i == group) { print "generic/" $1; break } }' "$list"
    fi
}

# Prints the kernel stack of every thread of a process namespace.
save_stacks() {
    local namespace=$1 process task
    for process in /proc/[0-9]*; do
        [[ $process/ns/pid -ef $namespace ]] || continue
        for task in "$process"/task/*; do
            echo "== ${task#/proc/} $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null | head -c 200)"
            grep -E '^(Name|State)' "$task/status" 2>/dev/null || true
            cat "$task/stack" 2>/dev/null || true
        done
    done
}

# Ends a test after its time limit. Its mounts are aborted first: processes that wait for one of them cannot be killed.
end_test() {
    local pid=$1 stacks=$2 init dev
    init=$(<"/proc/$pid/task/$pid/children") && init=${init%% *}
    save_stacks "/proc/$init/ns/pid" >"$stacks" || true
    for dev in $(awk '/ - fuse.terrace / { sub("0:", "", $3); print $3 }' "/proc/$init/mountinfo" 2>/dev/null); do
        { echo 1 >"/sys/fs/fuse/connections/$dev/abort"; } 2>/dev/null || true
    done
    kill -KILL "$pid" 2>/dev/null || true
}

# Prints lines `TEST OUTCOME` from the output of `check` so far: pass, fail, notrun; a test with an incomplete line is running.
outcomes_in() {
    awk '
        /^generic\/[0-9]+/ {
            if (name != "") print name, outcome
            name = $1
            outcome = /\[not run\]/ ? "notrun" : / [0-9]+s$/ && !/\[failed/ ? "pass" : NF == 1 || / \.\.\. *$/ ? "running" : "fail"
        }
        /^(Ran|Interrupted)/ { ended = 1 }
        END { if (name != "") print name, (outcome == "running" && ended) ? "fail" : outcome }' "$1"
}

# Runs tests on SYSTEM until one exceeds its time limit or all are done. Their outcomes go to the file OUTCOMES, one a line.
run_some() {
    local system=$1 outcomes=$2 log seen="" now end
    shift 2
    log=$results/$system/check-$(( ++runs )).log
    (
        cd "$xfstests"
        HOST_OPTIONS=$work/$system.config exec setsid unshare --pid --fork --kill-child --mount-proc \
            ./check "$@" >"$log" 2>&1 </dev/null
    ) &
    check=$!
    end=$((SECONDS + limit))
    while kill -0 "$check" 2>/dev/null; do
        sleep 0.5
        now=$(outcomes_in "$log" | tail -n 1)
        [[ ${now% *} == "${seen% *}" ]] || end=$((SECONDS + limit))
        seen=$now
        if (( SECONDS > end )); then
            end_test "$check" "$results/$system/stacks-$runs"
            break
        fi
    done
    outcomes_in "$log" | sed 's/ running$/ hang/' >>"$outcomes"
    [[ -s $outcomes ]] || fail "xfstests does not start: see $log"
}

# Runs all tests on SYSTEM; after a hanging one, it continues with the rest.
run_tests() {
    local system=$1 outcomes=$2 before rest
    shift 2
    rest=("$@")
    : >"$outcomes"
    while (( ${#rest[@]} )); do
        before=$(wc -l <"$outcomes")
        run_some "$system" "$outcomes" "${rest[@]}"
        (( $(wc -l <"$outcomes") > before )) || fail "xfstests does not go on: see $results/$system"
        mapfile -t rest < <(printf '%s\n' "${rest[@]}" | grep -vxFf <(cut -d' ' -f1 "$outcomes") || true)
    done
}

reason() {
    sed -n "s|^$1  *||p" "$known"
}

# Prints each failure, known ones with their reasons, and collects the suspects.
judge() {
    local name outcome why
    while read -r name outcome; do
        why=$(reason "$name")
        case $outcome in
            pass) [[ -z $why ]] || echo "$name" >>"$results/passes-now" ;;
            # A hang is never a known failure.
            hang) why= && echo "$name" >>"$results/suspects" ;;
            fail) [[ -n $why ]] || echo "$name" >>"$results/suspects" ;;
            notrun) why= ;;
        esac
        [[ $outcome == pass || $outcome == notrun ]] || echo "$name: $outcome${why:+, known: $why}"
    done <"$results/outcomes"
}

# Repeats the suspects on ext4: a test that fails there, too, is not terrace's fault.
judge_suspects() {
    local name outcome suspects
    mapfile -t suspects <"$results/suspects"
    configure_ext4
    run_tests ext4 "$results/outcomes-ext4" "${suspects[@]}"
    while read -r name outcome; do
        echo "$name on ext4: $outcome"
        [[ $outcome == fail || $outcome == hang ]] || echo "$name" >>"$results/failures"
    done <"$results/outcomes-ext4"
}

sum_up() {
    local outcome
    for outcome in pass fail hang notrun; do
        echo "$outcome: $(grep -c " $outcome\$" "$results/outcomes" || true)"
    done
    if [[ -s $results/passes-now ]]; then
        echo "passes now, take it out of $known:" && cat "$results/passes-now"
    fi
    if [[ -s $results/failures ]]; then
        echo "FAILED here and not on ext4 (logs and stacks in $results/terrace):" && cat "$results/failures"
        return 1
    fi
    echo "no failure that is neither known nor ext4's as well; logs in $results"
}

xfstests=$(readlink -f "${1:?usage: run.sh DIR [TEST...]}")
shift
results=$work/results
check_machine
if [[ ${XFSTESTS_INSIDE:-} != yes ]]; then
    mkdir -p "$work"
    build
    XFSTESTS_INSIDE=yes exec unshare --mount --propagation private "$0" "$xfstests" "$@"
fi
declare -A loops=()
runs=0
check=
trap clean_up EXIT
trap 'exit 130' INT TERM
rm -rf "$results"
mkdir -p "$results/terrace" "$results/ext4"
leave_other_mounts
provide_helpers
provide_users
configure_terrace
mapfile -t tests < <(tests_to_run "$@")
(( ${#tests[@]} )) || fail "no tests in the group ${GROUP:-quick}"
run_tests terrace "$results/outcomes" "${tests[@]}"
judge
[[ ! -s $results/suspects ]] || judge_suspects
sum_up
