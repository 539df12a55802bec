//! PostgreSQL under pgbench: a database three times the memory, checksums on. A small `shared_buffers` leaves the reads to the cache below.
//!
//! pgbench fills its rows with spaces, which compress nine to one: no real table does. Ours get the same width of something like
//! addresses, keys and dates.

use super::shell::{Home, Tree, find, number_after, p95};
use super::{Load, Options, Times, compare};
use crate::steps::{Outcome, Step};
use crate::suites::MIB;
use crate::suites::fio::Scale;
use crate::system::{Places, Run, interrupted};
use crate::trial::{Sample, Trial};
use std::fs;
use std::io;
use std::path::PathBuf;

const TREE: &str = "terrace-bench-postgres";
/// Bytes of 100,000 accounts with their index: a unit of pgbench's scale.
const SCALE_BYTES: u64 = 15 * MIB;
const ACCOUNTS: u64 = 100_000;
/// A log of one transaction in ten gives the percentile; the whole log would take a share of the memory.
const SAMPLING: &str = "--sampling-rate=0.1";

/// Select-only and TPC-B-like.
pub fn run(trial: &mut Trial, scale: Scale, options: &Options) -> io::Result<()> {
    let kinds = [("pgbench select-only", Kind::Select), ("pgbench tpcb-like", Kind::TpcB)];
    let wanted: Vec<_> = kinds.into_iter().filter(|(name, _)| trial.wanted("real", name)).collect();
    if wanted.is_empty() || interrupted() {
        return Ok(());
    }
    let mut postgres = Postgres::make(&trial.places, scale, options).map_err(io::Error::other)?;
    for (name, kind) in wanted {
        postgres.kind = kind;
        compare(trial, name, scale, &["tps", "latency_ms_p95", "latency_ms_mean"], &postgres)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Select,
    TpcB,
}

#[derive(Debug)]
struct Postgres {
    kind: Kind,
    home: Home,
    bin: PathBuf,
    units: u64,
    clients: u32,
    shared_buffers: u64,
    tree: Tree,
}

impl Postgres {
    /// Makes the database.
    fn make(places: &Places, scale: Scale, options: &Options) -> Result<Postgres, String> {
        let bin = find("pg_checksums", &versions(), "postgresql")?.with_file_name("");
        let home = Home::make("postgres")?;
        let units = (scale.limit * 3).div_ceil(SCALE_BYTES);
        let script = |text: &str| format!("{}\n{text}", prelude(&bin));
        let start = script(&start(
            "-c fsync=off -c full_page_writes=off -c shared_buffers=256MB -c max_wal_size=256MB",
        ));
        let steps = vec![
            home.step(
                "initdb",
                &script("initdb -k -A trust --no-sync -E UTF8 -D {dir}/terrace-bench-postgres"),
            ),
            home.step("start", &start),
            home.step("fill", &script(&fill(units))),
            home.step("stop", &script(STOP)),
        ];
        let tree = Tree::make(places, TREE, steps).map_err(|why| format!("{why}{}", home.log()))?;
        let shared_buffers = (scale.limit / 8 / MIB).max(1);
        Ok(Postgres { kind: Kind::Select, home, bin, units, clients: options.clients, shared_buffers, tree })
    }

    fn step(&self, name: &str, script: &str) -> Step {
        self.home.step(name, &format!("{}\n{script}", prelude(&self.bin)))
    }

    fn pgbench(&self, seconds: u64, seed: u64, more: &str) -> String {
        let load = if self.kind == Kind::Select { "-S" } else { "" };
        let (clients, threads) = (self.clients, crate::machine::cpus().min(self.clients as usize));
        format!(
            "pgbench -n -M prepared -c {clients} -j {threads} -T {seconds} --random-seed={seed} {load} {more} bench \
             2> >(grep -v 'setting random seed' >&2)"
        )
    }

    /// Transactions that pgbench counted in a step.
    fn transactions(outcome: &Outcome) -> Result<f64, String> {
        if number_after(outcome, "number of failed transactions:")? != 0.0 {
            return Err(format!("{}: transactions failed", outcome.name));
        }
        number_after(outcome, "number of transactions actually processed:")
    }

    /// What the tables say of themselves: all accounts are there, money agrees, each transaction left its history.
    fn contents(&self, run: &Run) -> Result<(), String> {
        let counted = Self::transactions(run.step("warm")?)? + Self::transactions(run.step("measure")?)?;
        let history = if self.kind == Kind::Select { 0.0 } else { counted };
        let wanted = format!("{}|{history}|t|t", self.units * ACCOUNTS);
        let told = run.step("verify")?.output.trim().to_string();
        if told == wanted { Ok(()) } else { Err(format!("the tables say {told}, not {wanted}")) }
    }
}

impl Load for Postgres {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn steps(&self, times: Times, seed: u64) -> Vec<Step> {
        let (seed, buffers) = (seed >> 16 & 0xffff_ffff, self.shared_buffers);
        // What checks the database afterwards must not need more memory than what is measured.
        let settings = format!(
            "-c shared_buffers={buffers}MB -c max_wal_size=1GB -c checkpoint_timeout=30s -c maintenance_work_mem=8MB \
             -c max_parallel_workers=0"
        );
        let log = format!("-l --log-prefix=$home/transactions {SAMPLING}");
        vec![
            self.step("start", &format!("rm -f $home/transactions*; {}", start(&settings))),
            self.step("warm", &self.pgbench(times.warm_s, seed, "")),
            self.step("measure", &self.pgbench(times.measure_s, seed + 1, &log)),
            self.step("verify", VERIFY),
            self.step("amcheck", "pg_amcheck --heapallindexed bench"),
            self.step("stop", STOP),
        ]
    }

    fn judge(&self, places: &Places, run: &Run) -> Result<Sample, String> {
        let latencies = latencies(&self.home)?;
        self.contents(run)?;
        let outcome = run.step("measure")?;
        let mut sample = Sample::from([
            ("tps", number_after(outcome, "tps =")?),
            ("latency_ms_mean", number_after(outcome, "latency average =")?),
            ("transactions", Self::transactions(outcome)?),
        ]);
        sample.extend(p95(latencies).map(|us| ("latency_ms_p95", us / 1000.0)));
        // The server is gone, and with it terrace: what is on the disk.
        let data = self.tree.at(places).display().to_string();
        self.home.tool(&self.bin.join("pg_checksums"), &["--check", "-D", &data])?;
        Ok(sample)
    }

    fn last_words(&self) -> String {
        self.home.log()
    }
}

/// Debian keeps the programs of each version apart; the newest first.
fn versions() -> Vec<PathBuf> {
    let all = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = all.map(|entry| entry.path().join("bin")).collect();
    dirs.sort();
    dirs.reverse();
    dirs
}

fn prelude(bin: &std::path::Path) -> String {
    format!("export PATH={}:$PATH PGHOST=$home PGUSER=postgres LC_ALL=C; unset PGDATA", bin.display())
}

fn start(settings: &str) -> String {
    format!(
        "pg_ctl -s -w -t 120 -D {{dir}}/{TREE} -l $home/log start -o \"-c listen_addresses='' -c unix_socket_directories=$home \
         -c max_connections=100 {settings}\""
    )
}

const STOP: &str = "pg_ctl -s -w -t 120 -m fast -D {dir}/terrace-bench-postgres stop";

const VERIFY: &str = "psql -qAtX bench -c \"select count(*), (select count(*) from pgbench_history), \
    sum(abalance) = (select coalesce(sum(delta), 0) from pgbench_history), \
    (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers) from pgbench_accounts\"";

/// pgbench's tables, with rows of 84 characters that are not blank.
fn fill(units: u64) -> String {
    format!(
        "createdb bench; pgbench -q -i -I dt -s {units} bench 2>&1; psql -qX -v ON_ERROR_STOP=1 bench <<'SQL'
insert into pgbench_branches (bid, bbalance) select b, 0 from generate_series(1, {units}) b;
insert into pgbench_tellers (tid, bid, tbalance) select t, (t - 1) / 10 + 1, 0 from generate_series(1, {units} * 10) t;
insert into pgbench_accounts (aid, bid, abalance, filler)
select a, (a - 1) / {ACCOUNTS} + 1, 0, substr(m, 1, 16) || ' '
    || (array['Garcia','Mueller','Nguyen','Okafor','Rossi','Sato','Smith','Tanaka','Virtanen','Yilmaz','Zhang','Ibrahim'])[1 + h % 12] || ', '
    || (array['Anna','Bela','Chen','Dmitri','Elif','Farid','Grace','Hugo','Ines','Jonas','Kofi','Lena','Maria'])[1 + h / 16 % 13] || ', '
    || h / 64 % 997 || ' '
    || (array['Chestnut Avenue','Harbour Road','High Street','Lindenweg','Main Street','Mill Lane','Rue du Port','Via Roma'])[1 + h / 256 % 8]
    || ' ' || h / 512 % 89999 + 10000 || ' ' || to_char(date '1970-01-01' + h / 1024 % 19000, 'YYYY-MM-DD')
from (select a, md5(a::text) m, hashint4(a) & 2147483647 h from generate_series(1, {units} * {ACCOUNTS}) a) rows;
SQL
pgbench -q -i -I vp -s {units} bench 2>&1; psql -qX bench -c 'create extension amcheck' -c 'vacuum freeze analyze' -c checkpoint"
    )
}

/// Latencies in us that pgbench logged (third column), and the logs removed.
fn latencies(home: &Home) -> Result<Vec<f64>, String> {
    let dir = home.path();
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let is_log = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("transactions"))
    };
    let mut all = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()).filter(is_log) {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        all.extend(text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<f64>().ok()));
        let _ = fs::remove_file(&path);
    }
    Ok(all)
}
