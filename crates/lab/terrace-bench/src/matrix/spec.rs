//! Data types of a benchmark matrix's TOML file. `check.rs` parses and checks the file.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::compare::Better;
use crate::content::Content;
use crate::pattern::Pattern;

/// A whole matrix.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    /// Name in results and reports.
    pub(crate) name: String,
    /// Runs of each system in each cell, 1 to 1000.
    pub(crate) repetitions: u32,
    /// Seed of order and loads; default: derived from the text.
    pub(crate) seed: Option<u64>,
    /// Maximum memory of program, system and cache together, MiB; default: no limit.
    pub(crate) limit_mib: Option<u64>,
    /// Size of the data set, as a multiple of the limit.
    pub(crate) file_set: Option<f64>,
    /// The data set's size in MiB is an alternative to `file_set`.
    pub(crate) file_mib: Option<u64>,
    /// Content of the pages.
    #[serde(default)]
    pub(crate) content: Content,
    /// Seconds of warm-up, with another seed than the measurement.
    #[serde(default = "ramp_s")]
    pub(crate) ramp_s: u64,
    /// Seconds measured.
    #[serde(default = "measure_s")]
    pub(crate) measure_s: u64,
    /// Concurrency, as jobs for each processor.
    #[serde(default)]
    pub(crate) jobs_per_cpu: Vec<f64>,
    /// Concurrency, as jobs.
    #[serde(default)]
    pub(crate) jobs: Vec<u32>,
    /// Access patterns of random loads: random, zipf:THETA, normal:DEV.
    #[serde(default = "patterns")]
    pub(crate) patterns: Vec<String>,
    /// Free memory (MiB) below the limit in terrace's runs, besides the permanent memory of programs and
    /// daemon.
    #[serde(default = "spare_mib")]
    pub(crate) spare_mib: u64,
    /// terrace's `--memory` is the limit less this, without a measurement of the programs' memory.
    pub(crate) headroom_mib: Option<u64>,
    /// The systems of a cell run one right after the other, and are compared by pairs: slow drift affects
    /// both.
    #[serde(default)]
    pub(crate) pairing: bool,
    /// The systems of a cell run side by side and are measured in turn; after this many turns each is started
    /// anew. For differences of a few per cent, smaller than a virtual machine's noise within a minute.
    pub(crate) interleave: Option<u32>,
    /// Device of the data.
    #[serde(default)]
    pub(crate) device: DeviceSpec,
    /// The systems to compare.
    pub(crate) system: Vec<SystemSpec>,
    pub(crate) load: Vec<LoadSpec>,
    /// Targets of the results.
    #[serde(default)]
    pub(crate) target: Vec<TargetSpec>,
}

fn ramp_s() -> u64 {
    10
}

fn measure_s() -> u64 {
    10
}

/// Memory for the programs' code pages and the readahead of their faults, MiB. With 16 MiB, and faults that
/// read 8 MiB around, programs evict each other's code pages; code is then a quarter of the device reads
/// (zipf).
fn spare_mib() -> u64 {
    32
}

fn patterns() -> Vec<String> {
    vec!["random".into()]
}

/// The device under the data.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceSpec {
    #[serde(default)]
    pub(crate) kind: DeviceKind,
    /// A directory on the device to be measured; default: that of `--dir`.
    pub(crate) path: Option<PathBuf>,
    /// The storage to throttle.
    pub(crate) on: Option<Base>,
    /// Room for trees on a device in memory, MiB.
    #[serde(default)]
    pub(crate) mib: u64,
    /// Delay of each access, in whole milliseconds (device-mapper's resolution).
    pub(crate) latency_us: Option<u64>,
    /// Maximum MiB a second, for reads and for direct writes.
    pub(crate) mib_s: Option<u64>,
    /// Maximum requests a second, for reads and for direct writes.
    pub(crate) iops: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DeviceKind {
    /// A plain directory.
    #[default]
    Directory,
    /// A block device in memory, made for the run.
    Memory,
    Throttled,
}

/// Storage below a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Base {
    /// The device below the directory.
    Directory,
    /// A block device in memory, made for the run.
    Memory,
}

/// A system under test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SystemSpec {
    pub(crate) kind: SystemKind,
    /// Its name in the results; default: that of its kind.
    #[serde(default)]
    pub(crate) name: String,
    /// terrace: further arguments of `terrace run`.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    /// terrace: another build, with its library beside it, as a path relative to the matrix's file. So two
    /// builds can be compared.
    pub(crate) program: Option<PathBuf>,
    /// terrace: its `--memory`; default: the largest below the limit. foyer: maximum memory of its process.
    pub(crate) memory_mib: Option<u64>,
    /// terrace: sizes itself, by `--memory auto`.
    #[serde(default)]
    pub(crate) auto: bool,
    /// terrace, foyer: size of a tier on an unthrottled device in memory.
    pub(crate) tier_mib: Option<u64>,
    /// command: shell lines that start it, run inside the memory limit.
    #[serde(default)]
    pub(crate) setup: Vec<String>,
    /// command: shell lines that shut it down, also after a failure.
    #[serde(default)]
    pub(crate) teardown: Vec<String>,
    /// command: the directory that loads use.
    pub(crate) dir: Option<String>,
    /// zram: its compressor.
    pub(crate) algorithm: Option<String>,
}

/// Kinds of systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SystemKind {
    /// The page cache, as the machine has it.
    Kernel,
    /// The page cache with MGLRU on.
    KernelMglru,
    /// `terrace run`.
    Terrace,
    /// `terrace run --no-preload`.
    TerraceMount,
    /// The file system with O_DIRECT.
    Direct,
    /// A file system on a compressed RAM disk.
    Zram,
    /// The plain pass-through FUSE of terrace-bench, with eight threads.
    PassThrough,
    /// The hybrid cache of foyer in the reading program itself (bench/foyer), past the page cache.
    Foyer,
    /// A system started by shell lines.
    Command,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadSpec {
    pub(crate) kind: LoadKind,
    /// Its name in the results; default: `fio-ENGINE` or `command`.
    #[serde(default)]
    pub(crate) name: String,
    /// fio: psync, io_uring, libaio or mmap.
    #[serde(default)]
    pub(crate) engine: Engine,
    /// fio: requests in flight for each job; above 1 for io_uring and libaio only.
    #[serde(default = "one")]
    pub(crate) depth: u32,
    /// fio: kind of access.
    #[serde(default)]
    pub(crate) rw: Access,
    /// fio: bytes of a request, in fio's notation.
    #[serde(default = "bs")]
    pub(crate) bs: String,
    /// fio: each block once, until the time is over; caches are cold.
    #[serde(default)]
    pub(crate) once: bool,
    /// fio: further options; `{cpus}` is the number of processors.
    #[serde(default)]
    pub(crate) options: Vec<String>,
    /// fio, sequential, interleaved: number of parts of the file; each turn reads the next one.
    #[serde(default = "one")]
    pub(crate) parts: u32,
    /// command: a shell line that prints a number, or, on its last line, a JSON object of numbers.
    pub(crate) command: Option<String>,
    /// command: a shell line that warms up.
    pub(crate) ramp: Option<String>,
    /// command: a regular expression with the number as its first group; default: the last number printed.
    pub(crate) regex: Option<String>,
    /// command: name of the number in the results.
    #[serde(default = "metric")]
    pub(crate) metric: String,
    /// command: its unit, which becomes a part of the name: comparisons derive the better direction from
    /// names.
    #[serde(default)]
    pub(crate) unit: String,
    /// command: the better direction, checked against the name.
    pub(crate) better: Option<Better>,
    /// command: a directory below the served one, made once by `prepare`; each run gets a copy.
    pub(crate) tree: Option<String>,
    /// command: a shell line that makes the tree, on the plain directory and without a limit.
    pub(crate) prepare: Option<String>,
    /// command: the tree's files are never written, so its copies are links.
    #[serde(default)]
    pub(crate) links: bool,
    /// command: a shell line that fails on wrong data; runs inside the system after the measurement.
    pub(crate) verify: Option<String>,
    /// command: a check on the plain directory after the system was shut down.
    pub(crate) check: Option<String>,
    /// Conditions that make a run a measurement.
    pub(crate) expect: Option<Expect>,
    /// terrace: minimum share of reads by the preload path; below it the run is refused.
    pub(crate) preload: Option<Preload>,
    /// reads, terrace: restart after the measurement, and measure again from the new start.
    #[serde(default)]
    pub(crate) restart: bool,
    /// This load's value replaces the value of the matrix.
    pub(crate) ramp_s: Option<u64>,
    /// This load's value replaces the value of the matrix.
    pub(crate) measure_s: Option<u64>,
    /// This load's value replaces the value of the matrix.
    pub(crate) file_mib: Option<u64>,
    /// This load's value replaces the value of the matrix.
    pub(crate) limit_mib: Option<u64>,
    /// This load's value replaces the value of the matrix.
    pub(crate) headroom_mib: Option<u64>,
    /// This load's value replaces the value of the matrix.
    pub(crate) patterns: Option<Vec<String>>,
    /// Only on these systems; by default on all.
    #[serde(default)]
    pub(crate) systems: Vec<String>,
}

fn one() -> u32 {
    1
}

fn bs() -> String {
    "4k".into()
}

fn metric() -> String {
    "value".into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LoadKind {
    Fio,
    /// Threads of this program that read pages by the pattern, in one process with their warm-up.
    Reads,
    /// A command that prints a number.
    Command,
}

/// fio's engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Engine {
    /// pread, pwrite.
    #[default]
    Psync,
    IoUring,
    /// Linux's native asynchronous I/O; without O_DIRECT it is synchronous.
    Libaio,
    /// Loads from a mapping.
    Mmap,
}

impl Engine {
    /// Whether it has several requests in flight.
    pub(crate) fn is_deep(self) -> bool {
        matches!(self, Engine::IoUring | Engine::Libaio)
    }
}

/// The kind of fio's accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Access {
    /// Random reads, in the matrix's patterns.
    #[default]
    Randread,
    /// From the beginning to the end.
    Read,
    /// A new file from its beginning to its end, then fsync.
    Write,
}

/// Minimum share of reads by the preload path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preload {
    /// 99 % of the bytes read, by the load's own count.
    All,
    Some,
}

/// Bounds for the ratio of two systems, in each of its cells.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TargetSpec {
    /// The number.
    pub(crate) metric: String,
    /// The system judged.
    #[serde(default = "terrace")]
    pub(crate) system: String,
    #[serde(default = "kernel")]
    pub(crate) baseline: String,
    /// The bound is for the metric of `system` itself, not for a ratio.
    #[serde(default)]
    pub(crate) alone: bool,
    /// Only in cells of this load.
    pub(crate) load: Option<String>,
    /// Only in cells of this pattern.
    pub(crate) pattern: Option<String>,
    /// Maximum of the ratio.
    pub(crate) at_most: Option<f64>,
    /// Minimum of the ratio.
    pub(crate) at_least: Option<f64>,
    /// The whole interval of the ratio must be above this.
    pub(crate) above: Option<f64>,
    /// Only in cells in which every run answered at least half of its reads from memory.
    #[serde(default)]
    pub(crate) where_hits: bool,
}

fn terrace() -> String {
    "terrace".into()
}

fn kernel() -> String {
    "kernel".into()
}

/// Conditions that make a run a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Expect {
    /// The memory limit was hit, and reads missed.
    Limit,
    /// 99 % of the reads were answered from memory.
    Hits,
    /// 99 % of the reads came from the device.
    Misses,
    Nothing,
}

impl Spec {
    /// Whether systems are compared by pairs of runs.
    pub(crate) fn is_paired(&self) -> bool {
        self.pairing || self.interleave.is_some()
    }

    /// Size of this load's data set; optional for a command.
    pub(crate) fn file_mib_of(&self, load: &LoadSpec) -> Option<u64> {
        let limit_mib = self.limit_mib_of(load);
        let times = |n: f64| limit_mib.map(|mib| ((mib as f64 * n) as u64).max(1));
        load.file_mib.or(self.file_mib).or_else(|| self.file_set.and_then(times))
    }

    /// The memory limit of this load.
    pub(crate) fn limit_mib_of(&self, load: &LoadSpec) -> Option<u64> {
        load.limit_mib.or(self.limit_mib)
    }

    /// terrace's memory for this load, if it follows from the limit alone.
    pub(crate) fn fixed_mib_of(&self, load: &LoadSpec) -> Option<u64> {
        let headroom = load.headroom_mib.or(self.headroom_mib)?;
        self.limit_mib_of(load).map(|limit| limit.saturating_sub(headroom))
    }

    /// The access patterns of this load: none for sequential loads, and none for commands without the
    /// placeholder `{pattern}` if the matrix has patterns.
    pub(crate) fn patterns_of<'a>(&'a self, load: &'a LoadSpec) -> Vec<&'a str> {
        let all = load.patterns.as_ref().unwrap_or(&self.patterns);
        match load.kind {
            LoadKind::Fio if load.rw != Access::Randread => vec!["sequential"],
            LoadKind::Command if *all != patterns() && !load.names("{pattern}") => vec!["none"],
            _ => all.iter().map(String::as_str).collect(),
        }
    }

    /// The distinct numbers of jobs on a machine with `cpus` processors.
    pub(crate) fn jobs_on(&self, cpus: usize) -> Vec<u32> {
        let of_cpus = self.jobs_per_cpu.iter().map(|n| ((n * cpus as f64).round() as u32).max(1));
        let mut all: Vec<u32> = self.jobs.iter().copied().chain(of_cpus).collect();
        if all.is_empty() {
            all.push(1);
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|jobs| seen.insert(*jobs));
        all
    }
}

impl LoadSpec {
    /// Whether one of its lines has this placeholder.
    fn names(&self, what: &str) -> bool {
        [&self.command, &self.ramp].into_iter().flatten().any(|line| line.contains(what))
    }

    /// Whether the load runs on this system.
    pub(crate) fn is_for(&self, system: &SystemSpec) -> bool {
        self.systems.is_empty() || self.systems.contains(&system.name)
    }

    /// A command's metric name with its unit: "requests" in "1/s" is "requests_per_s".
    pub(crate) fn metric_key(&self) -> String {
        let unit = self.unit.trim().trim_start_matches('1').replace('/', " per ");
        let words =
            [self.metric.as_str()].into_iter().chain(unit.split(|c: char| !c.is_ascii_alphanumeric()));
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
    }
}

impl DeviceSpec {
    /// The storage at the bottom.
    pub(crate) fn base(&self) -> Base {
        match self.kind {
            DeviceKind::Directory => Base::Directory,
            DeviceKind::Memory => Base::Memory,
            DeviceKind::Throttled => {
                self.on.unwrap_or(if self.path.is_some() { Base::Directory } else { Base::Memory })
            }
        }
    }
}

/// fio's name of a pattern, with a fixed hot spot for zipf. `None` for an invalid pattern.
pub(crate) fn distribution(pattern: &str) -> Option<String> {
    match pattern.parse().ok()? {
        Pattern::Zipf(_) => Some(format!("{pattern}:0.5")),
        Pattern::Random | Pattern::Normal(_) => Some(pattern.to_string()),
    }
}

/// Bytes of a block size in fio's notation; whole pages only.
pub(crate) fn block_bytes(bs: &str) -> Option<u64> {
    let (digits, unit) = bs.split_at(bs.find(|c: char| !c.is_ascii_digit()).unwrap_or(bs.len()));
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        _ => return None,
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    (bytes > 0 && bytes % crate::pages::PAGE as u64 == 0 && bytes <= 1 << 28).then_some(bytes)
}

#[cfg(test)]
mod tests;
