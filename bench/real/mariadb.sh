#!/bin/bash
# MariaDB under sysbench's OLTP mix of reads and writes: four tables of twice the limit together, alone or with fio reading beside it.
#
# MariaDB's default is O_DIRECT with a large pool of its own: then no cache below it matters. `innodb_flush_method=fsync` and a small pool leave the
# reads to that cache. Without native AIO its reads and writes are ordinary calls; the synchronous reads that a query waits for are so in any case.
#
#   mariadb.sh prepare TREE LIMIT_MIB                     makes the tables, and the file that fio reads
#   mariadb.sh warm TREE LIMIT_MIB LOAD SECONDS SEED      starts the server and warms it up; LOAD is alone, beside, read-only, or installed
#                                                         (O_DIRECT and native AIO, as MariaDB is installed, and a pool of a quarter of the limit)
#   mariadb.sh measure TREE LIMIT_MIB LOAD SECONDS SEED   prints the numbers as JSON
#   mariadb.sh verify TREE LIMIT_MIB                      rows and tables are all right; stops the server
#   mariadb.sh check TREE                                 checksums of the files, when nobody serves them any more
source "$(dirname "$0")/common.sh"
command=$1 tree=$2 limit_mib=${3:-0} load=${4:-alone} seconds=${5:-} seed=${6:-}
need sysbench sysbench
need mariadbd mariadb-server
need innochecksum mariadb-server
as_user mysql "$0" "$@"
tables=4
# A row with its share of the index and of pages' free room takes 230 bytes.
rows=$((limit_mib * 1024 * 1024 * 2 / 230 / tables))

start() {
    setsid mariadbd --no-defaults --datadir="$tree" --socket="$home/sock" --pid-file="$home/pid" --skip-networking --skip-log-bin \
        --innodb-flush-method=fsync --innodb-use-native-aio=0 --innodb-buffer-pool-load-at-startup=0 \
        --innodb-buffer-pool-dump-at-shutdown=0 --innodb-log-file-size=128M --performance-schema=0 --key-buffer-size=1M \
        --aria-pagecache-buffer-size=8M --max-connections=50 "$@" < /dev/null > "$home/log" 2>&1 &
    server=$!
    for _ in $(seq 1200); do
        mariadb-admin --no-defaults -S "$home/sock" -u root ping > /dev/null 2>&1 && return
        kill -0 $server || return 1
        sleep 0.1
    done
    return 1
}

stop() {
    pid=$(cat "$home/pid")
    mariadb-admin --no-defaults -S "$home/sock" -u root shutdown
    for _ in $(seq 1200); do
        kill -0 "$pid" 2> /dev/null || return 0
        sleep 0.1
    done
    return 1
}

sql() {
    mariadb --no-defaults -S "$home/sock" -u root -N -B -e "$1" ${2:+"$2"}
}

oltp() {
    local mix=oltp_read_write
    [ "$load" != read-only ] || mix=oltp_read_only
    sysbench $mix --mysql-socket="$home/sock" --mysql-user=root --mysql-db=sbtest --tables=$tables --table-size=$rows "$@"
}

# fio reads a file as large as the limit, 32 MiB/s on either side: a faster cache must not make more pressure.
run_sysbench() {
    local fio=
    if [ "$load" = beside ]; then
        fio --name=beside --filename="$tree/beside" --size="${limit_mib}m" --rw=read --bs=128k --ioengine=psync --invalidate=0 \
            --time_based=1 --runtime=$((seconds + 60)) --rate=32m --output-format=json --output="$home/beside.json" &
        fio=$!
    fi
    local ended=0
    # sysbench takes seeds of 31 bits.
    oltp --threads="${CLIENTS:-8}" --time="$seconds" --percentile=95 --rand-seed=$((seed & 0x3fffffff)) run > "$home/sysbench.out" || ended=$?
    [ -z "$fio" ] || { kill -INT "$fio"; wait "$fio" || true; }
    return $ended
}

case $command in
    prepare)
        rm -rf "${home:?}"/*
        mkdir -m 700 "$tree"
        mariadb-install-db --no-defaults --datadir="$tree" --auth-root-authentication-method=normal --skip-test-db > "$home/log" 2>&1
        start --innodb-buffer-pool-size=512M --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0
        sql "create database sbtest"
        oltp --threads=2 prepare > /dev/null
        stop
        fio --name=beside --filename="$tree/beside" --size="${limit_mib}m" --rw=write --bs=1m --end_fsync=1 --output=/dev/null
        ;;
    warm)
        rm -rf "${home:?}"/*
        if [ "$load" = installed ]; then
            start --innodb-flush-method=O_DIRECT --innodb-use-native-aio=1 --innodb-buffer-pool-size=$((limit_mib / 4))M
        else
            start --innodb-buffer-pool-size=$((limit_mib / 8 > 8 ? limit_mib / 8 : 8))M
        fi
        run_sysbench
        ;;
    measure)
        run_sysbench
        transactions=$(number 'transactions:' < "$home/sysbench.out")
        beside=null
        # What fio read a second is an outcome, too: it may have been held back.
        [ "$load" != beside ] || beside=$(sed -n 's/.*"bw_bytes" : \([0-9]*\).*/\1/p' "$home/beside.json" | head -n 1 | awk '{ print $1 / 1048576 }')
        printf '{"tps": %s, "latency_ms_mean": %s, "latency_ms_p95": %s, "transactions": %s, "beside_mib_s": %s}\n' \
            "$(awk -v n="$transactions" -v s="$(number 'total time:' < "$home/sysbench.out")" 'BEGIN { print n / s }')" \
            "$(number 'avg:' < "$home/sysbench.out")" "$(number '95th percentile:' < "$home/sysbench.out")" "$transactions" "$beside"
        ;;
    verify)
        # Rows are deleted and inserted in pairs: their number stays.
        for n in $(seq $tables); do
            found=$(sql "select count(*) from sbtest$n" sbtest)
            [ "$found" = "$rows" ] || { echo "sbtest$n has $found rows, not $rows" >&2; exit 1; }
            sql "check table sbtest$n" sbtest | grep -q $'\tstatus\tOK$' || { echo "check table sbtest$n does not say OK" >&2; exit 1; }
        done
        stop
        ;;
    check)
        for n in $(seq $tables); do innochecksum "$tree/sbtest/sbtest$n.ibd"; done
        rm -rf "$home"
        ;;
esac
