//! MariaDB under sysbench's OLTP mix of reads and writes: tables of twice the memory, alone and with fio reading beside it.
//!
//! MariaDB's default is O_DIRECT with a large pool of its own: then no cache below it matters. Here `innodb_flush_method=fsync` and a small
//! pool leave the reads to that cache. Without native AIO its reads and writes are ordinary calls; the synchronous reads that a query waits
//! for are so in any case.

use super::shell::{Home, Tree, find, number_after};
use super::{Load, Options, Times, compare};
use crate::pages;
use crate::steps::Step;
use crate::suites::fio::Scale;
use crate::suites::{DATA_SEED, MIB};
use crate::system::{Places, Run, interrupted};
use crate::trial::{Sample, Trial};
use std::io;
use std::path::PathBuf;

const TREE: &str = "terrace-bench-mariadb";
/// What fio reads: below the tree, so that it comes and goes with it.
const BESIDE: &str = "beside";
/// What fio reads a second, whichever side serves it: a faster cache must not mean more pressure.
const BESIDE_MIB_PER_S: u64 = 32;
const TABLES: u64 = 4;
/// Bytes of a row with its share of the index and of pages' free room.
const ROW_BYTES: u64 = 230;

/// Alone, and with pressure.
pub fn run(trial: &mut Trial, scale: Scale, options: &Options) -> io::Result<()> {
    let cells = [("sysbench oltp_read_write", false), ("sysbench oltp_read_write, fio beside it", true)];
    let wanted: Vec<_> = cells.into_iter().filter(|(name, _)| trial.wanted("real", name)).collect();
    if wanted.is_empty() || interrupted() {
        return Ok(());
    }
    let mut maria = Maria::make(&trial.places, scale, options).map_err(io::Error::other)?;
    for (name, beside) in wanted {
        maria.beside = beside;
        let metrics: &[&'static str] = if beside { &METRICS } else { &METRICS[..3] };
        compare(trial, name, scale, metrics, &maria)?;
    }
    Ok(())
}

const METRICS: [&str; 4] = ["tps", "latency_ms_p95", "latency_ms_mean", "beside_mib_per_s"];

#[derive(Debug)]
struct Maria {
    beside: bool,
    home: Home,
    rows: u64,
    clients: u32,
    limit: u64,
    innochecksum: PathBuf,
    tree: Tree,
}

impl Maria {
    /// Makes the tables, and the file that fio reads.
    fn make(places: &Places, scale: Scale, options: &Options) -> Result<Maria, String> {
        find("sysbench", &[], "sysbench")?;
        find("mariadbd", &[PathBuf::from("/usr/sbin")], "mariadb-server")?;
        let innochecksum = find("innochecksum", &[], "mariadb-server")?;
        let home = Home::make("mysql")?;
        let rows = scale.limit * 2 / ROW_BYTES / TABLES;
        let fast = "--innodb-buffer-pool-size=512M --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0";
        let install = format!(
            "mkdir -m 700 {{dir}}/{TREE}; mariadb-install-db --no-defaults --datadir={{dir}}/{TREE} --auth-root-authentication-method=normal \
             --skip-test-db > $home/log 2>&1"
        );
        let fill = format!("{} prepare", sysbench(rows, 2));
        let steps = vec![
            home.step("install", &install),
            home.step("start", &start(fast)),
            home.step("create", &sql("create database sbtest", "")),
            home.step("fill", &fill),
            home.step("stop", STOP),
        ];
        let tree = Tree::make(places, TREE, steps).map_err(|why| format!("{why}{}", home.log()))?;
        let beside = tree.kept().join(BESIDE);
        pages::make_file(&beside, scale.limit, DATA_SEED)
            .map_err(|e| format!("{}: {e}", beside.display()))?;
        let (limit, clients) = (scale.limit, options.clients);
        Ok(Maria { beside: false, home, rows, clients, limit, innochecksum, tree })
    }

    fn load(&self, seconds: u64, seed: u64) -> String {
        let sysbench = sysbench(self.rows, self.clients);
        let load = format!("{sysbench} --time={seconds} --percentile=95 --rand-seed={seed} run");
        if !self.beside {
            return load;
        }
        let size = self.limit;
        format!(
            "fio --name=beside --filename={{dir}}/{TREE}/{BESIDE} --size={size} --rw=read --bs=128k --ioengine=psync \
             --invalidate=0 --time_based=1 --runtime={} --rate={BESIDE_MIB_PER_S}m --output-format=json \
             --output=$home/beside.json & fio=$!; ended=0; {load} || ended=$?; kill -INT $fio; wait $fio || true; exit $ended",
            seconds + 60
        )
    }

    /// What fio read a second, which is an outcome, too: it may have been held back.
    fn beside_rate(&self) -> Result<f64, String> {
        let path = self.home.path().join("beside.json");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let report = crate::fio::parse(&text, "read")?;
        Ok(report.bytes_per_s / MIB as f64)
    }
}

impl Load for Maria {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn steps(&self, times: Times, seed: u64) -> Vec<Step> {
        // sysbench takes 31 bits.
        let seed = seed >> 16 & 0x3fff_ffff;
        let pool = (self.limit / 8 / MIB).max(8);
        let tables: Vec<String> = (1..=TABLES).map(|n| format!("sbtest{n}")).collect();
        let counts: Vec<String> = tables.iter().map(|t| format!("(select count(*) from {t})")).collect();
        let verify = [
            sql(&format!("select concat_ws(' ', {})", counts.join(", ")), "sbtest"),
            sql(&format!("check table {}", tables.join(", ")), "sbtest"),
        ];
        vec![
            self.home.step("start", &start(&format!("--innodb-buffer-pool-size={pool}M"))),
            self.home.step("warm", &self.load(times.warm_s, seed)),
            self.home.step("measure", &self.load(times.measure_s, seed + 1)),
            self.home.step("verify", &verify.join("; ")),
            self.home.step("stop", STOP),
        ]
    }

    fn judge(&self, places: &Places, run: &Run) -> Result<Sample, String> {
        self.contents(&run.step("verify")?.output)?;
        let outcome = run.step("measure")?;
        let seconds = number_after(outcome, "total time:")?;
        let transactions = number_after(outcome, "transactions:")?;
        let mut sample = Sample::from([
            ("tps", transactions / seconds),
            ("transactions", transactions),
            ("latency_ms_mean", number_after(outcome, "avg:")?),
            ("latency_ms_p95", number_after(outcome, "95th percentile:")?),
        ]);
        if self.beside {
            sample.insert("beside_mib_per_s", self.beside_rate()?);
        }
        // The server is gone, and with it terrace: what is on the disk.
        for n in 1..=TABLES {
            let file = self.tree.at(places).join(format!("sbtest/sbtest{n}.ibd"));
            self.home.tool(&self.innochecksum, &[&file.display().to_string()])?;
        }
        Ok(sample)
    }

    fn last_words(&self) -> String {
        self.home.log()
    }
}

impl Maria {
    /// Rows are deleted and inserted in pairs: their number stays. Each table's check ends with the word OK.
    fn contents(&self, told: &str) -> Result<(), String> {
        let mut lines = told.lines();
        let counts = vec![self.rows.to_string(); TABLES as usize].join(" ");
        let found = lines.next().unwrap_or_default();
        if found != counts {
            return Err(format!("the tables have {found:?} rows, not {counts}"));
        }
        let checks: Vec<&str> = lines.collect();
        let good =
            checks.len() == TABLES as usize && checks.iter().all(|line| line.ends_with("\tstatus\tOK"));
        if good { Ok(()) } else { Err(format!("check table says {}", checks.join(" | "))) }
    }
}

fn sysbench(rows: u64, threads: u32) -> String {
    format!(
        "sysbench oltp_read_write --mysql-socket=$home/sock --mysql-user=root --mysql-db=sbtest --tables={TABLES} \
         --table-size={rows} --threads={threads}"
    )
}

fn sql(statement: &str, database: &str) -> String {
    format!("mariadb --no-defaults -S $home/sock -u root -N -B -e \"{statement}\" {database}")
}

/// The server, in a session of its own, and a wait until it answers.
fn start(settings: &str) -> String {
    format!(
        "export PATH=$PATH:/usr/sbin
setsid mariadbd --no-defaults --datadir={{dir}}/{TREE} --socket=$home/sock --pid-file=$home/pid --skip-networking --skip-log-bin \
    --innodb-flush-method=fsync --innodb-use-native-aio=0 --innodb-buffer-pool-load-at-startup=0 \
    --innodb-buffer-pool-dump-at-shutdown=0 --innodb-log-file-size=128M --performance-schema=0 --key-buffer-size=1M \
    --aria-pagecache-buffer-size=8M --max-connections=50 {settings} < /dev/null > $home/log 2>&1 &
for _ in $(seq 1200); do
    mariadb-admin --no-defaults -S $home/sock -u root ping > /dev/null 2>&1 && exit 0
    kill -0 $! || exit 1
    sleep 0.1
done
exit 1"
    )
}

const STOP: &str = "pid=$(cat $home/pid); mariadb-admin --no-defaults -S $home/sock -u root shutdown; \
    for _ in $(seq 1200); do kill -0 $pid 2> /dev/null || exit 0; sleep 0.1; done; exit 1";
