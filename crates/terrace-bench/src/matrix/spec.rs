//! The TOML of a matrix, checked. An error names the line and the key.

use serde::Deserialize;
use std::path::PathBuf;

use crate::compare::Better;
use crate::content::Content;
use crate::pattern::Pattern;

/// A whole matrix.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name, in results and reports.
    pub name: String,
    /// Runs of each system in each cell, 1 to 1000.
    pub repetitions: u32,
    /// Seed of order and loads; without one it follows from the text.
    pub seed: Option<u64>,
    /// Memory of program, system and cache together; without it there is no limit.
    pub limit_mib: Option<u64>,
    /// Size of the data set in limits.
    pub file_set: Option<f64>,
    /// Size of the data set in MiB, instead.
    pub file_mib: Option<u64>,
    /// Content of the pages.
    #[serde(default)]
    pub content: Content,
    /// Seconds of warm-up, with another seed than the measurement.
    #[serde(default = "ramp_s")]
    pub ramp_s: u64,
    /// Seconds measured.
    #[serde(default = "measure_s")]
    pub measure_s: u64,
    /// Concurrency, as jobs for each processor.
    #[serde(default)]
    pub jobs_per_cpu: Vec<f64>,
    /// Concurrency, as jobs.
    #[serde(default)]
    pub jobs: Vec<u32>,
    /// Access patterns of random loads: random, zipf:THETA, normal:DEV.
    #[serde(default = "patterns")]
    pub patterns: Vec<String>,
    /// MiB that terrace's side leaves free below the limit, beside what programs and daemon hold for good.
    #[serde(default = "spare_mib")]
    pub spare_mib: u64,
    /// terrace's `--memory` is the limit less this, whatever programs hold: nothing is measured first.
    pub headroom_mib: Option<u64>,
    /// The systems of a cell run one right after the other, and are compared by pairs: what drifts slowly drifts for both.
    #[serde(default)]
    pub pairing: bool,
    /// The systems of a cell stand side by side and are measured in turn; after so many turns each is set up anew. For differences of a few
    /// per cent, less than what a virtual machine's neighbours take and give back within a minute.
    pub interleave: Option<u32>,
    /// Where the data are.
    #[serde(default)]
    pub device: DeviceSpec,
    /// The systems that are compared.
    pub system: Vec<SystemSpec>,
    /// The loads.
    pub load: Vec<LoadSpec>,
    /// Targets of the results.
    #[serde(default)]
    pub target: Vec<TargetSpec>,
}

fn ramp_s() -> u64 {
    10
}

fn measure_s() -> u64 {
    10
}

/// The programs' text, and what a fault in it reads around itself. With 16, where faults read 8 MiB around, the programs of a full group
/// pushed each other's text out: a quarter of what the device read in zipf was text.
fn spare_mib() -> u64 {
    32
}

fn patterns() -> Vec<String> {
    vec!["random".into()]
}

/// The device under the data.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Which.
    #[serde(default)]
    pub kind: DeviceKind,
    /// A directory on the device to be measured; without one, that of `--dir`.
    pub path: Option<PathBuf>,
    /// The throttled resources.
    pub on: Option<Base>,
    /// Added to each access, in whole milliseconds (device-mapper knows no less).
    pub latency_us: Option<u64>,
    /// Most MiB a second read, and most written past the page cache.
    pub mib_s: Option<u64>,
    /// Most reads a second, and most writes past the page cache.
    pub iops: Option<u64>,
}

/// Kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A directory as it is.
    #[default]
    Directory,
    /// A block device in memory, made for the run.
    Memory,
    /// One of these, made slower.
    Throttled,
}

/// The place of a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// The device below the directory.
    Directory,
    /// A block device in memory, made for the run.
    Memory,
}

/// One system.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemSpec {
    /// Which.
    pub kind: SystemKind,
    /// Its name in the results; by default its kind's.
    #[serde(default)]
    pub name: String,
    /// terrace: further arguments of `terrace run`.
    #[serde(default)]
    pub args: Vec<String>,
    /// terrace: another build of it, with its library beside it; a path from the matrix's file on. So two builds are compared.
    pub program: Option<PathBuf>,
    /// terrace: its `--memory`; by default the largest that stays below the limit. foyer: all that its process may hold.
    pub memory_mib: Option<u64>,
    /// terrace: it finds its memory itself, by `--memory auto`.
    #[serde(default)]
    pub auto: bool,
    /// terrace, foyer: size of a tier on a device in memory of its own, which nothing slows down.
    pub tier_mib: Option<u64>,
    /// command: shell lines that bring it up, run inside the memory limit.
    #[serde(default)]
    pub setup: Vec<String>,
    /// command: shell lines that take it down, also after a failure.
    #[serde(default)]
    pub teardown: Vec<String>,
    /// command: the directory that loads use.
    pub dir: Option<String>,
    /// zram: its compressor.
    pub algorithm: Option<String>,
}

/// Kinds of systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SystemKind {
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
    /// Anything that shell lines bring up.
    Command,
}

/// One load.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// Which.
    pub kind: LoadKind,
    /// Its name in the results; by default `fio-ENGINE` or `command`.
    #[serde(default)]
    pub name: String,
    /// fio: psync, io_uring, libaio or mmap.
    #[serde(default)]
    pub engine: Engine,
    /// fio: requests in flight for each job; above 1 for io_uring and libaio only.
    #[serde(default = "one")]
    pub depth: u32,
    /// fio: what is done.
    #[serde(default)]
    pub rw: Access,
    /// fio: bytes of a request, as fio writes them.
    #[serde(default = "bs")]
    pub bs: String,
    /// fio: each block once, until the time is over; caches are cold.
    #[serde(default)]
    pub once: bool,
    /// fio: further options; `{cpus}` is the number of processors.
    #[serde(default)]
    pub options: Vec<String>,
    /// fio, sequential, in turns: a turn has one of so many parts of the file, the next one in the next.
    #[serde(default = "one")]
    pub parts: u32,
    /// command: a shell line that prints a number, or, on its last line, a JSON object of numbers.
    pub command: Option<String>,
    /// command: a shell line that warms up.
    pub ramp: Option<String>,
    /// command: finds the number, in its first group; by default it is the last number printed.
    pub regex: Option<String>,
    /// command: name of the number in the results.
    #[serde(default = "metric")]
    pub metric: String,
    /// command: its unit, which becomes a part of the name: comparisons know by names which way is better.
    #[serde(default)]
    pub unit: String,
    /// command: which is better, where the name should say so and be checked.
    pub better: Option<Better>,
    /// command: a directory below the served one, made once by `prepare`; each run gets a copy.
    pub tree: Option<String>,
    /// command: a shell line that makes the tree, on the plain directory and without a limit.
    pub prepare: Option<String>,
    /// command: nobody writes the tree's files, so a copy of it is links.
    #[serde(default)]
    pub links: bool,
    /// command: a shell line that fails where the data are wrong, inside the system and after the measurement.
    pub verify: Option<String>,
    /// command: another one, on the plain directory when the system has been taken down.
    pub check: Option<String>,
    /// Conditions that make a run a measurement.
    pub expect: Option<Expect>,
    /// terrace: how much of the reads must go by the preload path, or the run measured something else.
    pub preload: Option<Preload>,
    /// reads, terrace: it is taken down after the measurement, and measured again from its next start.
    #[serde(default)]
    pub restart: bool,
    /// Instead of the matrix's.
    pub ramp_s: Option<u64>,
    /// Instead of the matrix's.
    pub measure_s: Option<u64>,
    /// Instead of the matrix's.
    pub file_mib: Option<u64>,
    /// Instead of the matrix's.
    pub limit_mib: Option<u64>,
    /// Instead of the matrix's.
    pub headroom_mib: Option<u64>,
    /// Instead of the matrix's.
    pub patterns: Option<Vec<String>>,
    /// Only on these systems; by default on all.
    #[serde(default)]
    pub systems: Vec<String>,
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

/// Kinds of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// fio.
    Fio,
    /// Threads of this program that read pages by the pattern, in one process with their warm-up.
    Reads,
    /// A command that prints a number.
    Command,
}

/// fio's engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// pread, pwrite.
    #[default]
    Psync,
    /// io_uring.
    IoUring,
    /// Linux's native asynchronous I/O; without O_DIRECT it is synchronous.
    Libaio,
    /// Loads from a mapping.
    Mmap,
}

impl Engine {
    /// As fio names it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Psync => "psync",
            Engine::IoUring => "io_uring",
            Engine::Libaio => "libaio",
            Engine::Mmap => "mmap",
        }
    }

    /// Does it have several requests in flight?
    pub fn is_deep(self) -> bool {
        matches!(self, Engine::IoUring | Engine::Libaio)
    }
}

/// The kind of fio's accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Random reads, in the matrix's patterns.
    #[default]
    Randread,
    /// From the beginning to the end.
    Read,
    /// A new file from its beginning to its end, then fsync.
    Write,
}

impl Access {
    /// As fio names it.
    pub fn name(self) -> &'static str {
        match self {
            Access::Randread => "randread",
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// How much goes by the preload path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preload {
    /// 99 % of the bytes that the load says it read.
    All,
    /// Anything.
    Some,
}

/// Bounds for the ratio of two systems, in each cell that it names.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSpec {
    /// The number.
    pub metric: String,
    /// Whose.
    #[serde(default = "terrace")]
    pub system: String,
    /// Compared with whose.
    #[serde(default = "kernel")]
    pub baseline: String,
    /// The bound is for the number of `system` itself, not for a ratio.
    #[serde(default)]
    pub alone: bool,
    /// Only in cells of this load.
    pub load: Option<String>,
    /// Only in cells of this pattern.
    pub pattern: Option<String>,
    /// The ratio must not be above.
    pub at_most: Option<f64>,
    /// The ratio must not be below.
    pub at_least: Option<f64>,
    /// The ratio must be above, the whole interval of it.
    pub above: Option<f64>,
    /// Only in cells in which each run answered half of its reads from memory, or more.
    #[serde(default)]
    pub where_hits: bool,
}

fn terrace() -> String {
    SystemKind::Terrace.name().into()
}

fn kernel() -> String {
    SystemKind::Kernel.name().into()
}

/// Conditions that make a run a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// The memory limit was met, and reads missed.
    Limit,
    /// 99 % of the reads were answered from memory.
    Hits,
    /// 99 % of the reads came from the device.
    Misses,
    /// Nothing.
    Nothing,
}

impl Spec {
    /// Are systems compared by pairs of runs?
    pub fn is_paired(&self) -> bool {
        self.pairing || self.interleave.is_some()
    }

    /// Size of the data set of this load; a command may do without one.
    pub fn file_mib_of(&self, load: &LoadSpec) -> Option<u64> {
        let limit_mib = self.limit_mib_of(load);
        let times = |n: f64| limit_mib.map(|mib| ((mib as f64 * n) as u64).max(1));
        load.file_mib.or(self.file_mib).or_else(|| self.file_set.and_then(times))
    }

    /// The memory limit of this load.
    pub fn limit_mib_of(&self, load: &LoadSpec) -> Option<u64> {
        load.limit_mib.or(self.limit_mib)
    }

    /// terrace's memory for this load, where it follows from the limit alone.
    pub fn fixed_mib_of(&self, load: &LoadSpec) -> Option<u64> {
        let headroom = load.headroom_mib.or(self.headroom_mib)?;
        self.limit_mib_of(load).map(|limit| limit.saturating_sub(headroom))
    }

    /// The access patterns of this load: sequential loads have none, nor have commands that name none, where the matrix names some.
    pub fn patterns_of<'a>(&'a self, load: &'a LoadSpec) -> Vec<&'a str> {
        let all = load.patterns.as_ref().unwrap_or(&self.patterns);
        match load.kind {
            LoadKind::Fio if load.rw != Access::Randread => vec!["sequential"],
            LoadKind::Command if *all != patterns() && !load.names("{pattern}") => vec!["none"],
            _ => all.iter().map(String::as_str).collect(),
        }
    }

    /// The numbers of jobs on a machine with so many processors, each once.
    pub fn jobs_on(&self, cpus: usize) -> Vec<u32> {
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
    /// Does a line of it have this to be filled in?
    fn names(&self, what: &str) -> bool {
        [&self.command, &self.ramp].into_iter().flatten().any(|line| line.contains(what))
    }

    /// Is it for this system?
    pub fn is_for(&self, system: &SystemSpec) -> bool {
        self.systems.is_empty() || self.systems.contains(&system.name)
    }

    /// The name of a command's number in the results: its name with its unit, "requests" in "1/s" as "requests_per_s".
    pub fn metric_key(&self) -> String {
        let unit = self.unit.trim().trim_start_matches('1').replace('/', " per ");
        let words =
            [self.metric.as_str()].into_iter().chain(unit.split(|c: char| !c.is_ascii_alphanumeric()));
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
    }
}

impl DeviceSpec {
    /// The storage at the bottom.
    pub fn base(&self) -> Base {
        match self.kind {
            DeviceKind::Directory => Base::Directory,
            DeviceKind::Memory => Base::Memory,
            DeviceKind::Throttled => {
                self.on.unwrap_or(if self.path.is_some() { Base::Directory } else { Base::Memory })
            }
        }
    }
}

impl SystemKind {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            SystemKind::Kernel => "kernel",
            SystemKind::KernelMglru => "kernel-mglru",
            SystemKind::Terrace => "terrace",
            SystemKind::TerraceMount => "terrace-mount",
            SystemKind::Direct => "direct",
            SystemKind::Zram => "zram",
            SystemKind::PassThrough => "pass-through",
            SystemKind::Foyer => "foyer",
            SystemKind::Command => "command",
        }
    }
}

/// fio's name of a pattern: the hot spot of a zipf stays where it is when the seed changes. `None` for what is no pattern.
pub fn distribution(pattern: &str) -> Option<String> {
    match pattern.parse().ok()? {
        Pattern::Zipf(_) => Some(format!("{pattern}:0.5")),
        Pattern::Random | Pattern::Normal(_) => Some(pattern.to_string()),
    }
}

/// Bytes of a block size as fio writes it; whole pages only.
pub fn block_bytes(bs: &str) -> Option<u64> {
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
