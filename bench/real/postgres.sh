#!/bin/bash
# PostgreSQL under pgbench: a database of three times the limit, checksums on. A small `shared_buffers` leaves the reads to the cache below.
#
#   postgres.sh prepare TREE LIMIT_MIB                   makes the database
#   postgres.sh warm TREE LIMIT_MIB LOAD SECONDS SEED    starts the server and warms it up; LOAD is select-only or tpcb-like
#   postgres.sh measure TREE LIMIT_MIB LOAD SECONDS SEED prints the numbers as JSON
#   postgres.sh verify TREE LIMIT_MIB LOAD               what the tables say of themselves; stops the server
#   postgres.sh check TREE                               checksums of the files, when nobody serves them any more
source "$(dirname "$0")/common.sh"
command=$1 tree=$2 limit_mib=${3:-0} load=${4:-} seconds=${5:-} seed=${6:-}
# Debian keeps the programs of each version apart; the newest.
bin=$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | sort -V | tail -n 1)
export PATH="${bin:+$bin:}$PATH"
need pg_checksums postgresql
as_user postgres "$0" "$@"
export PGHOST=$home PGUSER=postgres
unset PGDATA
clients=${CLIENTS:-8}
# A unit of pgbench's scale is 100,000 accounts, 15 MiB with their index.
units=$(((limit_mib * 3 + 14) / 15))

start() {
    pg_ctl -s -w -t 120 -D "$tree" -l "$home/log" start \
        -o "-c listen_addresses='' -c unix_socket_directories=$home -c max_connections=100 $1" > /dev/null
}

stop() {
    pg_ctl -s -w -t 120 -m fast -D "$tree" stop
}

# A log of one transaction in ten gives the percentile; the whole log would take a share of the memory.
run_pgbench() {
    local select=()
    [ "$load" = select-only ] && select=(-S)
    threads=$(nproc)
    [ "$threads" -lt "$clients" ] || threads=$clients
    rm -f "$home"/transactions*
    pgbench -n -M prepared -c "$clients" -j "$threads" -T "$seconds" --random-seed="$seed" "${select[@]}" \
        -l --log-prefix="$home/transactions" --sampling-rate=0.1 bench 2> "$home/pgbench.err" > "$home/pgbench.out" ||
        { cat "$home/pgbench.err" >&2; return 1; }
    [ "$(number 'number of failed transactions:' < "$home/pgbench.out")" = 0 ] || { echo "transactions failed" >&2; return 1; }
    number 'number of transactions actually processed:' < "$home/pgbench.out" >> "$home/counted"
}

# pgbench pads its rows with blanks, which compress nine to one: no real table does. Ours get the same width of something like addresses, keys and dates.
fill() {
    createdb bench
    pgbench -q -i -I dt -s "$units" bench 2>&1
    psql -qX -v ON_ERROR_STOP=1 bench << SQL
insert into pgbench_branches (bid, bbalance) select b, 0 from generate_series(1, $units) b;
insert into pgbench_tellers (tid, bid, tbalance) select t, (t - 1) / 10 + 1, 0 from generate_series(1, $units * 10) t;
insert into pgbench_accounts (aid, bid, abalance, filler)
select a, (a - 1) / 100000 + 1, 0, substr(m, 1, 16) || ' '
    || (array['Garcia','Mueller','Nguyen','Okafor','Rossi','Sato','Smith','Tanaka','Virtanen','Yilmaz','Zhang','Ibrahim'])[1 + h % 12] || ', '
    || (array['Anna','Bela','Chen','Dmitri','Elif','Farid','Grace','Hugo','Ines','Jonas','Kofi','Lena','Maria'])[1 + h / 16 % 13] || ', '
    || h / 64 % 997 || ' '
    || (array['Chestnut Avenue','Harbour Road','High Street','Lindenweg','Main Street','Mill Lane','Rue du Port','Via Roma'])[1 + h / 256 % 8]
    || ' ' || h / 512 % 89999 + 10000 || ' ' || to_char(date '1970-01-01' + h / 1024 % 19000, 'YYYY-MM-DD')
from (select a, md5(a::text) m, hashint4(a) & 2147483647 h from generate_series(1, $units * 100000) a) rows;
SQL
    pgbench -q -i -I vp -s "$units" bench 2>&1
    psql -qX bench -c 'create extension amcheck' -c 'vacuum freeze analyze' -c checkpoint
}

case $command in
    prepare)
        rm -rf "${home:?}"/*
        initdb -k -A trust --no-sync -E UTF8 -D "$tree" > "$home/log"
        start "-c fsync=off -c full_page_writes=off -c shared_buffers=256MB -c max_wal_size=256MB"
        fill
        stop
        ;;
    warm)
        rm -rf "${home:?}"/*
        # What checks the database afterwards must not need more memory than what is measured.
        start "-c shared_buffers=$((limit_mib / 8 > 0 ? limit_mib / 8 : 1))MB -c max_wal_size=1GB -c checkpoint_timeout=30s \
            -c maintenance_work_mem=8MB -c max_parallel_workers=0"
        run_pgbench
        ;;
    measure)
        run_pgbench
        p95=$(cat "$home"/transactions* | cut -d ' ' -f 3 | sort -n | awk '{ us[NR] = $1 } END { if (NR) print us[int((NR * 95 + 99) / 100)] / 1000; else print "null" }')
        printf '{"tps": %s, "latency_ms_mean": %s, "latency_ms_p95": %s, "transactions": %s}\n' "$(number 'tps =' < "$home/pgbench.out")" \
            "$(number 'latency average =' < "$home/pgbench.out")" "$p95" "$(tail -n 1 "$home/counted")"
        ;;
    verify)
        # All accounts are there, money agrees, each transaction left its history.
        history=0
        [ "$load" = select-only ] || history=$(awk '{ n += $1 } END { print n }' "$home/counted")
        told=$(psql -qAtX bench -c "select count(*), (select count(*) from pgbench_history),
            sum(abalance) = (select coalesce(sum(delta), 0) from pgbench_history),
            (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers) from pgbench_accounts")
        [ "$told" = "$((units * 100000))|$history|t|t" ] || { echo "the tables say $told, not $((units * 100000))|$history|t|t" >&2; exit 1; }
        pg_amcheck --heapallindexed bench
        stop
        ;;
    check)
        pg_checksums --check -D "$tree" > /dev/null
        rm -rf "$home"
        ;;
esac
