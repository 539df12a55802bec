//! Metadata rates of the store: making, finding and removing buckets and blobs. These are the five tables
//! that Hermes' wiki left empty, for the store in a program.
//!
//! Each cell has its own store in a new directory. Threads share the store; each works on its own part of the
//! names. Phases start at a barrier: make buckets, find them, remove them; then make blobs in one bucket a
//! thread, and remove them. The store's counts and a sample of the blobs are checked: failed work must not
//! count in a rate. `--sync` sets when changes become durable.

use clap::{Args, ValueEnum};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use terrace_output::Progress;
use terrace_store::{Bucket, Store, StoreOptions, SyncPolicy};

use crate::machine::{self, Machine};

/// Version of the JSON's layout.
const SCHEMA: u32 = 1;
/// The phases in order; each is one table.
const TABLES: [&str; 5] = ["create_bucket", "get_bucket", "destroy_bucket", "create_blob", "destroy_blob"];

/// When the store of a cell syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sync {
    /// Every second, in the background: the store's default.
    Second,
    /// At the end only.
    Never,
}

/// Options of `terrace-bench metadata`.
#[derive(Debug, Args)]
pub struct Options {
    /// Directory of the stores, which are removed again.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Buckets and blobs of a cell.
    #[arg(long, value_delimiter = ',', default_value = "20000,40000,80000,160000,320000,640000")]
    counts: Vec<u64>,
    /// Threads of a cell.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    threads: Vec<u64>,
    /// Runs of each cell; the median is shown.
    #[arg(long, default_value_t = 5)]
    repeat: u32,
    /// Bytes of a blob.
    #[arg(long, default_value_t = 0)]
    blob_bytes: usize,
    /// Memory of each store, MiB.
    #[arg(long, default_value_t = 1024)]
    memory_mib: u64,
    /// When the stores sync.
    #[arg(long, value_enum, default_value = "second")]
    sync: Sync,
    /// JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// One cell: operations a second of each run.
#[derive(Debug, Serialize)]
struct Cell {
    table: &'static str,
    count: u64,
    threads: u64,
    ops_per_second: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Results {
    schema: u32,
    machine: Machine,
    version: &'static str,
    sync: Sync,
    blob_bytes: usize,
    cells: Vec<Cell>,
}

/// Runs all cells and prints the tables.
///
/// # Errors
/// A store that fails, or lacks its content.
pub fn run(o: &Options) -> io::Result<()> {
    if o.repeat == 0 || o.threads.contains(&0) || o.counts.iter().any(|&count| !(8..NAMES).contains(&count)) {
        let why = "threads and repeat are 1 or more, counts 8 or more and below 100 million";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut cells: Vec<Cell> = Vec::new();
    let mut progress = Progress::default();
    for run in 0..o.repeat {
        for &count in &o.counts {
            for &threads in &o.threads {
                progress.now(|| format!("run {} of {}: {count} by {threads} threads", run + 1, o.repeat));
                for (table, rate) in TABLES.into_iter().zip(cell(o, count, threads)?) {
                    let is_it =
                        |cell: &&mut Cell| (cell.table, cell.count, cell.threads) == (table, count, threads);
                    match cells.iter_mut().find(is_it) {
                        Some(cell) => cell.ops_per_second.push(rate),
                        None => cells.push(Cell { table, count, threads, ops_per_second: vec![rate] }),
                    }
                }
            }
        }
    }
    progress.clear();
    terrace_output::print(&if o.json { json(o, cells)? } else { tables(o, &cells) })
}

fn json(o: &Options, cells: Vec<Cell>) -> io::Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let machine = machine::describe(&o.dir);
    let results = Results { schema: SCHEMA, machine, version, sync: o.sync, blob_bytes: o.blob_bytes, cells };
    Ok(serde_json::to_string_pretty(&results).map_err(io::Error::other)? + "\n")
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}

/// Five tables: a row a count, a column a number of threads, thousands of operations a second.
fn tables(o: &Options, cells: &[Cell]) -> String {
    let mut out = String::new();
    for table in TABLES {
        out.push_str(&format!("{}, thousands a second (median of {})\n", table.replace('_', " "), o.repeat));
        out.push_str(&format!("{:>10}", "count"));
        o.threads.iter().for_each(|threads| out.push_str(&format!("{:>12}", format!("{threads} threads"))));
        for &count in &o.counts {
            out.push_str(&format!("\n{count:>10}"));
            for &threads in &o.threads {
                let found = cells.iter().find(|c| (c.table, c.count, c.threads) == (table, count, threads));
                let rate = found.map_or(0.0, |cell| median(&cell.ops_per_second));
                out.push_str(&format!("{:>12.0}", rate / 1000.0));
            }
        }
        out.push_str("\n\n");
    }
    out
}

/// The store of one cell, and its parameters.
struct StoreUnderTest<'a> {
    store: &'a Store,
    count: u64,
    threads: u64,
    value: Vec<u8>,
}

/// Runs one cell: the rate of each table.
fn cell(o: &Options, count: u64, threads: u64) -> io::Result<[f64; 5]> {
    let name = format!("metadata-{}", std::process::id());
    let sync = match o.sync {
        Sync::Second => SyncPolicy::Every(Duration::from_secs(1)),
        Sync::Never => SyncPolicy::Never,
    };
    let options = StoreOptions { name, memory_bytes: o.memory_mib << 20, sync, ..StoreOptions::default() };
    // Also if opening fails after files were made.
    let _gone = Gone { dir: &o.dir, name: &options.name };
    let store = Store::open(&o.dir, &options).map_err(io::Error::other)?;
    let cellar = StoreUnderTest { store: &store, count, threads, value: vec![7; o.blob_bytes] };
    let rates = cellar.measure();
    store.close().map_err(io::Error::other)?;
    rates
}

/// Removes the store of a cell, also when the cell failed.
struct Gone<'a> {
    dir: &'a Path,
    name: &'a str,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let _ = Store::destroy(self.dir, self.name);
    }
}

/// Number of digits at the end of each name.
const DIGITS: usize = 8;
const NAMES: u64 = 10u64.pow(DIGITS as u32);

fn name(kind: &str, number: u64) -> String {
    format!("{kind}-{number:0DIGITS$}")
}

/// Changes the number of a name in place. Formatting a new name takes a tenth of the store's own time.
fn rename(name: &mut String, number: u64) {
    let mut digits = [b'0'; DIGITS];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name.truncate(name.len() - DIGITS);
    name.push_str(std::str::from_utf8(&digits).expect("digits are text"));
}

impl StoreUnderTest<'_> {
    fn measure(&self) -> io::Result<[f64; 5]> {
        let store = self.store;
        let create = self.phase("bucket", |_, name| store.bucket(name).map(|_| true))?;
        self.expect("buckets", self.count, store.usage().buckets)?;
        let get = self.phase("bucket", |_, name| Ok(store.find_bucket(name).is_some()))?;
        let destroy = self.phase("bucket", |_, name| store.remove_bucket(name))?;
        self.expect("buckets", 0, store.usage().buckets)?;
        let made: Result<Vec<Bucket>, _> =
            (0..self.threads).map(|t| store.bucket(&format!("blobs-{t}"))).collect();
        let buckets = made.map_err(io::Error::other)?;
        let of = |i: u64| &buckets[(i % self.threads) as usize];
        let create_blob =
            self.phase("blob", |i, key| of(i).put(key.as_bytes(), &self.value).map(|()| true))?;
        self.expect("blobs", self.count, store.usage().blobs)?;
        for i in (0..self.count).step_by(997) {
            let found = of(i).get(name("blob", i).as_bytes()).map_err(io::Error::other)?;
            self.expect("wrong blobs", 0, u64::from(found.as_ref() != Some(&self.value)))?;
        }
        let destroy_blob = self.phase("blob", |i, key| of(i).remove(key.as_bytes()))?;
        self.expect("blobs", 0, store.usage().blobs)?;
        Ok([create, get, destroy, create_blob, destroy_blob])
    }

    fn expect(&self, what: &str, want: u64, found: u64) -> io::Result<()> {
        if want == found {
            return Ok(());
        }
        let (count, threads) = (self.count, self.threads);
        Err(io::Error::other(format!("{count} by {threads} threads: {found} {what}, not {want}")))
    }

    /// Calls `f` once for each number and its name, divided among the threads. `f` returns whether it had an
    /// effect. Returns the rate, calls a second.
    fn phase(
        &self,
        kind: &str,
        f: impl Fn(u64, &str) -> terrace_store::Result<bool> + std::marker::Sync,
    ) -> io::Result<f64> {
        let barrier = Barrier::new(self.threads as usize);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|t| {
                    let (barrier, f) = (&barrier, &f);
                    scope.spawn(move || {
                        let mut named = name(kind, 0);
                        barrier.wait();
                        let (began, mut done) = (Instant::now(), 0);
                        for i in (t..self.count).step_by(self.threads as usize) {
                            rename(&mut named, i);
                            done += u64::from(f(i, &named)?);
                        }
                        Ok::<_, terrace_store::Error>((began, Instant::now(), done))
                    })
                })
                .collect();
            // By the threads' own clocks: a further thread that waits for the start would be scheduled late.
            let (mut first, mut last, mut done) = (None, None, 0);
            for thread in threads {
                let joined = thread.join().expect("a thread does not panic");
                let (began, ended, part) = joined.map_err(io::Error::other)?;
                first = first.min(Some(began)).or(Some(began));
                last = last.max(Some(ended));
                done += part;
            }
            self.expect("done", self.count, done)?;
            let took = last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first);
            Ok(self.count as f64 / took.as_secs_f64())
        })
    }
}
