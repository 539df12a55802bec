//! What a matrix asks for: its TOML, checked. An error names the line and the key.

use serde::Deserialize;
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};

use crate::compare::Better;
use crate::content::Content;

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
    /// What is in the pages.
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
    /// Where the data are.
    #[serde(default)]
    pub device: DeviceSpec,
    /// What is compared.
    pub system: Vec<SystemSpec>,
    /// What they are put under.
    pub load: Vec<LoadSpec>,
}

fn ramp_s() -> u64 {
    10
}

fn measure_s() -> u64 {
    10
}

fn spare_mib() -> u64 {
    crate::suites::fio::SPARE_MIB
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
    /// What is throttled.
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

/// What a throttle is put on.
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
    /// terrace: its `--memory`; by default the largest that stays below the limit.
    pub memory_mib: Option<u64>,
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
    /// `terrace run --no-fast-door`.
    TerraceMainDoor,
    /// The file system with O_DIRECT.
    Direct,
    /// A file system on a compressed RAM disk.
    Zram,
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
    /// fio: psync or io_uring.
    #[serde(default)]
    pub engine: Engine,
    /// fio: requests in flight for each job; above 1 for io_uring only.
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
    /// fio: further options.
    #[serde(default)]
    pub options: Vec<String>,
    /// command: a shell line that prints a number.
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
    /// What a run must show to be one.
    pub expect: Option<Expect>,
    /// Instead of the matrix's.
    pub ramp_s: Option<u64>,
    /// Instead of the matrix's.
    pub measure_s: Option<u64>,
    /// Instead of the matrix's.
    pub file_mib: Option<u64>,
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
}

impl Engine {
    /// As fio names it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Psync => "psync",
            Engine::IoUring => "io_uring",
        }
    }
}

/// What fio does.
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

/// What a run must show to be one.
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

/// A key that is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrong {
    /// As "load.0.bs": tables by name, arrays of tables by number.
    key: String,
    why: String,
}

fn wrong(key: impl Into<String>, why: impl Into<String>) -> Result<(), Wrong> {
    Err(Wrong { key: key.into(), why: why.into() })
}

impl Spec {
    /// Reads and checks the text of a matrix.
    ///
    /// # Errors
    /// "line 7: what is wrong", with the key.
    pub fn parse(text: &str) -> Result<Spec, String> {
        let mut spec: Spec = toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            let key = key_at(text, at).map_or(String::new(), |key| format!("{key}: "));
            format!("line {}: {key}{}", line_of_offset(text, at), e.message())
        })?;
        spec.default_names();
        let checks = [
            Spec::check_sizes,
            Spec::check_patterns,
            Spec::check_device,
            Spec::check_systems,
            Spec::check_loads,
        ];
        for check in checks {
            check(&spec).map_err(|Wrong { key, why }| {
                format!("line {}: {}: {why}", line_of_key(text, &key), key.rsplit('.').next().unwrap_or(&key))
            })?;
        }
        Ok(spec)
    }

    fn default_names(&mut self) {
        for system in self.system.iter_mut().filter(|s| s.name.is_empty()) {
            system.name = system.kind.name().into();
        }
        for load in self.load.iter_mut().filter(|l| l.name.is_empty()) {
            load.name = match load.kind {
                LoadKind::Fio => format!("fio-{}", load.engine.name().replace('_', "-")),
                LoadKind::Command => "command".into(),
            };
        }
    }

    fn check_sizes(&self) -> Result<(), Wrong> {
        if !(1..=1000).contains(&self.repetitions) {
            return wrong("repetitions", "1 to 1000");
        }
        if self.file_set.is_some() && self.file_mib.is_some() {
            return wrong("file_set", "give it or file_mib, not both");
        }
        if self.file_set.is_some_and(|n| !(0.01..=1000.0).contains(&n)) {
            return wrong("file_set", "0.01 to 1000 times the limit");
        }
        if self.file_set.is_some() && self.limit_mib.is_none() {
            return wrong("file_set", "is in times of limit_mib, which is not there; give file_mib");
        }
        if self.limit_mib.is_some_and(|mib| !(32..=1 << 24).contains(&mib)) {
            return wrong("limit_mib", "32 to 16777216 MiB");
        }
        if self.measure_s == 0 {
            return wrong("measure_s", "1 or more seconds");
        }
        let jobs_ok = self.jobs.iter().all(|j| (1..=4096).contains(j));
        if !jobs_ok || !self.jobs.is_empty() && !self.jobs_per_cpu.is_empty() {
            return wrong("jobs", "1 to 4096, and either jobs or jobs_per_cpu");
        }
        if !self.jobs_per_cpu.iter().all(|&n| n > 0.0 && n <= 64.0) {
            return wrong("jobs_per_cpu", "above 0, up to 64");
        }
        let sizes = [("file_mib", self.file_mib)].into_iter().map(|(k, v)| (k.to_string(), v));
        let loads = self.load.iter().enumerate().map(|(i, l)| (format!("load.{i}.file_mib"), l.file_mib));
        match sizes.chain(loads).find(|(_, mib)| mib.is_some_and(|mib| !(1..=1 << 24).contains(&mib))) {
            Some((key, _)) => wrong(key, "1 to 16777216 MiB"),
            None => Ok(()),
        }
    }

    fn check_patterns(&self) -> Result<(), Wrong> {
        match self.patterns.iter().find(|p| distribution(p).is_none()) {
            Some(p) => wrong("patterns", format!("{p:?} is none of random, zipf:THETA, normal:DEV")),
            None if self.patterns.is_empty() => wrong("patterns", "name one or more"),
            None => Ok(()),
        }
    }

    fn check_device(&self) -> Result<(), Wrong> {
        let d = &self.device;
        let throttles = [
            ("latency_us", d.latency_us.is_some()),
            ("mib_s", d.mib_s.is_some()),
            ("iops", d.iops.is_some()),
        ];
        if d.kind != DeviceKind::Throttled {
            if let Some((key, _)) = throttles.iter().find(|(_, given)| *given) {
                return wrong(format!("device.{key}"), "only for kind = \"throttled\"");
            }
            if d.on.is_some() {
                return wrong("device.on", "only for kind = \"throttled\"");
            }
        } else if throttles.iter().all(|(_, given)| !given) {
            return wrong("device.kind", "a throttled device wants latency_us, mib_s or iops");
        }
        if d.path.is_some() && d.base() == Base::Memory {
            return wrong("device.path", "a device in memory has no path");
        }
        if d.latency_us.is_some_and(|us| us == 0 || us % 1000 != 0) {
            return wrong("device.latency_us", "whole milliseconds: device-mapper's delay knows no less");
        }
        if d.latency_us.is_some() && d.base() == Base::Directory {
            return wrong(
                "device.latency_us",
                "only on = \"memory\": a delay wants a block device of its own",
            );
        }
        if d.mib_s == Some(0) || d.iops == Some(0) {
            return wrong("device.kind", "a throttle of 0 lets nothing through");
        }
        Ok(())
    }

    fn check_systems(&self) -> Result<(), Wrong> {
        if self.system.is_empty() {
            return wrong("system", "name one or more");
        }
        for (i, s) in self.system.iter().enumerate() {
            let key = |name: &str| format!("system.{i}.{name}");
            let terrace = matches!(s.kind, SystemKind::Terrace | SystemKind::TerraceMainDoor);
            let command = s.kind == SystemKind::Command;
            check_name(&key("name"), &s.name, self.system[..i].iter().map(|o| &o.name))?;
            let given = [
                ("args", !s.args.is_empty(), terrace),
                ("memory_mib", s.memory_mib.is_some(), terrace),
                ("setup", !s.setup.is_empty(), command),
                ("teardown", !s.teardown.is_empty(), command),
                ("dir", s.dir.is_some(), command),
                ("algorithm", s.algorithm.is_some(), s.kind == SystemKind::Zram),
            ];
            if let Some((name, ..)) = given.iter().find(|(_, given, ok)| *given && !ok) {
                return wrong(key(name), format!("not for kind = \"{}\"", s.kind.name()));
            }
            if terrace && s.memory_mib.is_none() && self.limit_mib.is_none() {
                return wrong(key("kind"), "without a limit_mib, terrace wants memory_mib");
            }
            if s.kind == SystemKind::Zram && self.limit_mib.is_none() {
                return wrong(key("kind"), "zram wants a limit_mib, which it shares with the program");
            }
        }
        Ok(())
    }

    fn check_loads(&self) -> Result<(), Wrong> {
        if self.load.is_empty() {
            return wrong("load", "name one or more");
        }
        for (i, l) in self.load.iter().enumerate() {
            let key = |name: &str| format!("load.{i}.{name}");
            check_name(&key("name"), &l.name, self.load[..i].iter().map(|o| &o.name))?;
            match l.kind {
                LoadKind::Fio => self.check_fio(l, &key)?,
                LoadKind::Command => self.check_command(l, &key)?,
            }
            if l.expect == Some(Expect::Limit) && self.limit_mib.is_none() {
                return wrong(key("expect"), "there is no limit_mib");
            }
        }
        Ok(())
    }

    fn check_fio(&self, l: &LoadSpec, key: &dyn Fn(&str) -> String) -> Result<(), Wrong> {
        let given =
            [("command", l.command.is_some()), ("ramp", l.ramp.is_some()), ("regex", l.regex.is_some())];
        if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
            return wrong(key(name), "not for kind = \"fio\"");
        }
        if l.depth == 0 || l.depth > 4096 || l.depth > 1 && l.engine == Engine::Psync {
            return wrong(key("depth"), "1 to 4096, above 1 for io_uring only");
        }
        if self.file_mib_of(l).is_none() {
            return wrong(key("kind"), "fio wants a data set: file_mib, or file_set and limit_mib");
        }
        if block_bytes(&l.bs).is_none() {
            return wrong(key("bs"), "a multiple of 4k, as 4k or 1m");
        }
        if l.once && l.rw != Access::Randread {
            return wrong(key("once"), "for randread: the others do nothing else");
        }
        Ok(())
    }

    fn check_command(&self, l: &LoadSpec, key: &dyn Fn(&str) -> String) -> Result<(), Wrong> {
        if l.command.is_none() {
            return wrong(key("kind"), "a command load wants its command");
        }
        if let Some(Err(e)) = l.regex.as_ref().map(|r| regex_lite::Regex::new(r)) {
            return wrong(key("regex"), e.to_string());
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if l.metric.is_empty() || !l.metric.chars().all(plain) {
            return wrong(key("metric"), "letters, digits and _");
        }
        if l.better.is_some_and(|better| better != Better::of(&l.metric_key())) {
            let (name, taken) = (l.metric_key(), Better::of(&l.metric_key()).text());
            return wrong(
                key("better"),
                format!(
                    "of a number called {name:?}, {taken}; name it for its unit, as requests_per_s or load_s"
                ),
            );
        }
        if l.once || !l.options.is_empty() {
            return wrong(key("kind"), "once and options are fio's");
        }
        Ok(())
    }

    /// Size of the data set of this load; a command may do without one.
    pub fn file_mib_of(&self, load: &LoadSpec) -> Option<u64> {
        let times = |n: f64| self.limit_mib.map(|mib| ((mib as f64 * n) as u64).max(1));
        load.file_mib.or(self.file_mib).or_else(|| self.file_set.and_then(times))
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
    /// What a command's number is called in the results: its name with its unit, "requests" in "1/s" as "requests_per_s".
    pub fn metric_key(&self) -> String {
        let unit = self.unit.trim().trim_start_matches('1').replace('/', " per ");
        let words =
            [self.metric.as_str()].into_iter().chain(unit.split(|c: char| !c.is_ascii_alphanumeric()));
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
    }
}

/// A name is a part of ids, which are cut at slashes.
fn check_name<'a>(key: &str, name: &str, mut before: impl Iterator<Item = &'a String>) -> Result<(), Wrong> {
    if name.contains('/') || name.chars().any(char::is_control) {
        return wrong(key, "no slashes in names");
    }
    if before.any(|other| other == name) {
        return wrong(key, format!("there is another {name:?}"));
    }
    Ok(())
}

impl DeviceSpec {
    /// What is at the bottom.
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
            SystemKind::TerraceMainDoor => "terrace-main-door",
            SystemKind::Direct => "direct",
            SystemKind::Zram => "zram",
            SystemKind::Command => "command",
        }
    }
}

/// fio's name of a pattern: the hot spot of a zipf stays where it is when the seed changes. `None` for what is no pattern.
pub fn distribution(pattern: &str) -> Option<String> {
    let number = |text: &str, max: f64| text.parse::<f64>().is_ok_and(|n| n > 0.0 && n <= max);
    match pattern.split_once(':') {
        None if pattern == "random" => Some("random".into()),
        Some(("zipf", theta)) if number(theta, 10.0) && theta.parse() != Ok(1.0) => {
            Some(format!("zipf:{theta}:0.5"))
        }
        Some(("normal", dev)) if number(dev, 100.0) => Some(format!("normal:{dev}")),
        _ => None,
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

/// The line, from 1, of byte `offset`.
fn line_of_offset(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count()
}

/// The key written on the line of byte `offset`, where one is.
fn key_at(text: &str, offset: usize) -> Option<&str> {
    let line = text.lines().nth(line_of_offset(text, offset) - 1)?;
    let key = line.split_once('=')?.0.trim();
    key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)).then_some(key)
}

/// The line of a key, or of its nearest table that is written.
fn line_of_key(text: &str, key: &str) -> usize {
    let Ok(root) = DeTable::parse(text) else { return 1 };
    let mut table = root.get_ref();
    let mut parts = key.split('.').peekable();
    let mut offset = 0;
    while let Some(part) = parts.next() {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == part) else { break };
        offset = key.span().start;
        let inner = match value.get_ref() {
            DeValue::Table(inner) => Some(inner),
            DeValue::Array(all) => {
                let entry =
                    parts.next_if(|n| n.parse::<usize>().is_ok()).and_then(|n| n.parse::<usize>().ok());
                entry.and_then(|n| all.get(n)).and_then(|entry| {
                    offset = entry.span().start;
                    entry.get_ref().as_table()
                })
            }
            _ => None,
        };
        let Some(inner) = inner else { break };
        table = inner;
    }
    line_of_offset(text, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"name = "x"
repetitions = 3
limit_mib = 64
file_set = 2.0
patterns = ["random", "zipf:0.8", "normal:40"]
jobs_per_cpu = [1, 2]

[device]
kind = "directory"

[[system]]
kind = "kernel"

[[system]]
kind = "terrace"
args = ["--policy", "lru"]

[[load]]
kind = "fio"
bs = "4k"
"#;

    fn error(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        Spec::parse(&GOOD.replace(from, to)).unwrap_err()
    }

    #[test]
    fn a_matrix_is_read() {
        let spec = Spec::parse(GOOD).unwrap();
        assert_eq!(spec.file_mib_of(&spec.load[0]), Some(128));
        assert_eq!((spec.jobs_on(2), spec.jobs_on(1)), (vec![2, 4], vec![1, 2]));
        let names: Vec<_> = spec.system.iter().map(|s| s.name.as_str()).collect();
        assert_eq!((names, spec.load[0].name.as_str()), (vec!["kernel", "terrace"], "fio-psync"));
        let half = Spec::parse(&GOOD.replace("[1, 2]", "[0.1, 0.5, 1]")).unwrap();
        assert_eq!(half.jobs_on(2), [1, 2], "never none, none twice");
    }

    #[test]
    fn errors_name_line_and_key() {
        for (from, to, said) in [
            ("repetitions = 3", "repetitions = 0", "line 2: repetitions: 1 to 1000"),
            ("repetitions = 3", "repetitions = \"a\"", "line 2: repetitions: invalid type"),
            ("limit_mib = 64", "limit_mib = 64\nlimits = 1", "line 4: limits: unknown field `limits`"),
            ("limit_mib = 64\n", "", "line 3: file_set: is in times of limit_mib"),
            ("zipf:0.8", "zipf", "line 5: patterns: \"zipf\" is none of"),
            ("[1, 2]", "[0]", "line 6: jobs_per_cpu: above 0"),
            ("kind = \"directory\"", "kind = \"disk\"", "line 9: kind: unknown variant `disk`"),
            (
                "kind = \"directory\"",
                "kind = \"directory\"\niops = 5",
                "line 10: iops: only for kind = \"throttled\"",
            ),
            ("kind = \"directory\"", "kind = \"throttled\"", "line 9: kind: a throttled device wants"),
            (
                "kind = \"directory\"",
                "kind = \"throttled\"\nlatency_us = 50",
                "line 10: latency_us: whole milliseconds",
            ),
            (
                "kind = \"kernel\"",
                "kind = \"kernel\"\nargs = [\"x\"]",
                "line 13: args: not for kind = \"kernel\"",
            ),
            ("kind = \"kernel\"", "kind = \"terrace\"", "line 14: name: there is another \"terrace\""),
            ("bs = \"4k\"", "bs = \"5k\"", "line 20: bs: a multiple of 4k"),
            ("bs = \"4k\"", "depth = 8", "line 20: depth: 1 to 4096, above 1 for io_uring only"),
            ("bs = \"4k\"", "regex = \"(\"", "line 20: regex: not for kind = \"fio\""),
            ("kind = \"fio\"", "kind = \"command\"", "line 19: kind: a command load wants its command"),
            ("name = \"x\"", "name = ", "line 1: name: "),
            (
                "kind = \"fio\"\nbs = \"4k\"",
                "kind = \"command\"\ncommand = \"x\"\nbetter = \"lower\"",
                "line 21: better: of a number called \"value\", which way is better is not known",
            ),
        ] {
            let why = error(from, to);
            assert!(why.starts_with(said), "{to:?} says {why:?}, not {said:?}");
        }
    }

    #[test]
    fn a_number_is_called_by_its_unit() {
        let text = |more: &str| {
            GOOD.replace(
                "kind = \"fio\"\nbs = \"4k\"",
                &format!("kind = \"command\"\ncommand = \"x\"\n{more}"),
            )
        };
        let key = |more: &str| Spec::parse(&text(more)).unwrap().load[0].metric_key();
        assert_eq!(key("metric = \"requests\"\nunit = \"1/s\"\nbetter = \"higher\""), "requests_per_s");
        assert_eq!(key("metric = \"load\"\nunit = \"s\"\nbetter = \"lower\""), "load_s");
        assert_eq!(key("metric = \"moved\"\nunit = \"MiB/s\""), "moved_MiB_per_s");
        assert_eq!(key("metric = \"score\""), "score");
    }

    #[test]
    fn patterns_of_fio() {
        assert_eq!(distribution("zipf:0.8").unwrap(), "zipf:0.8:0.5");
        assert_eq!(distribution("normal:40").unwrap(), "normal:40");
        assert!(["zipf:1", "zipf:x", "normal:0", "pareto:0.9", ""].iter().all(|p| distribution(p).is_none()));
        assert_eq!(
            (block_bytes("4k"), block_bytes("1M"), block_bytes("8192")),
            (Some(4096), Some(1 << 20), Some(8192))
        );
        assert!(["", "k", "0k", "100", "4kb"].iter().all(|bs| block_bytes(bs).is_none()));
    }
}
