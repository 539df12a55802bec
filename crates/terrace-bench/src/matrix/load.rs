//! A load: its steps, and what they say in numbers.

use super::spec::{Access, Engine, Expect, LoadKind, LoadSpec, Spec, SystemKind, block_bytes, distribution};
use crate::cgroup::Group;
use crate::content::Content;
use crate::fio::{self, Job, random_options};
use crate::pages;
use crate::steps::{Outcome, Step};
use crate::suites::{MIB, fill_step, worker_step};
use crate::system::{Places, Run};
use std::collections::BTreeMap;

/// A load as one cell has it.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// As it is written.
    pub spec: &'a LoadSpec,
    /// Access pattern, as it is written.
    pub pattern: &'a str,
    /// Concurrent jobs.
    pub jobs: u32,
    /// Size of its data set; a command may have none.
    pub file_mib: Option<u64>,
    /// What is in the data set.
    pub content: Content,
    /// Seconds of warm-up.
    pub ramp_s: u64,
    /// Seconds measured.
    pub measure_s: u64,
}

/// Numbers by name.
pub type Metrics = BTreeMap<String, f64>;

/// What one run gave.
#[derive(Debug, Default)]
pub struct Numbers {
    /// By name, the unit last.
    pub metrics: Metrics,
    /// Over time.
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
    /// Of the latency.
    pub percentiles_us: Vec<(f64, f64)>,
}

/// The step whose meters count.
pub const MEASURE: &str = "measure";
const VERIFY: &str = "verify";
/// Pages checked in full at the end of each run; on a slow device that takes as many of its latencies.
const PAGES_CHECKED: u64 = 1024;
/// Width of a step of a series.
const SERIES_MS: u64 = 500;

impl<'a> Load<'a> {
    /// The load of a cell.
    pub fn new(spec: &'a Spec, load: &'a LoadSpec, pattern: &'a str, jobs: u32) -> Load<'a> {
        // Cold caches and a warm-up exclude each other.
        let cold = load.once || load.kind == LoadKind::Fio && load.rw != Access::Randread;
        Load {
            spec: load,
            pattern,
            jobs,
            file_mib: spec.file_mib_of(load),
            content: spec.content,
            ramp_s: if cold { 0 } else { load.ramp_s.unwrap_or(spec.ramp_s) },
            measure_s: load.measure_s.unwrap_or(spec.measure_s),
        }
    }

    /// Its data file's name.
    pub fn file(&self) -> Option<String> {
        self.file_mib.map(|mib| format!("{}-{mib}", self.content.name()))
    }

    /// What it writes, whose room the device must have.
    pub fn written_mib(&self) -> u64 {
        if self.spec.rw == Access::Write { self.file_mib.unwrap_or(0) } else { 0 }
    }

    /// What a run on this kind of system must show.
    pub fn expect(&self, system: SystemKind, limit: Option<u64>) -> Expect {
        let larger = self.file_mib.zip(limit).is_some_and(|(mib, limit)| mib * MIB > limit);
        match self.spec.expect {
            Some(expect) => expect,
            None if self.spec.kind == LoadKind::Command || self.spec.rw != Access::Randread => {
                Expect::Nothing
            }
            None if self.spec.once || system == SystemKind::Direct => Expect::Misses,
            None if larger => Expect::Limit,
            None => Expect::Nothing,
        }
    }

    /// All that runs inside the system: filling, warm-up, measurement, the check of the data.
    pub fn steps(&self, places: &Places, group: Option<&Group>, seed: u64, direct: bool) -> Vec<Step> {
        let mut steps = match self.spec.kind {
            LoadKind::Fio => self.fio_steps(places, group, seed, direct),
            LoadKind::Command => self.command_steps(seed),
        };
        if let Some(file) = self.file().filter(|_| self.spec.rw != Access::Write) {
            let options = [
                ("file", format!("{{dir}}/{file}")),
                ("pages", PAGES_CHECKED.to_string()),
                ("content", self.content.name().to_string()),
            ];
            steps.push(worker_step(places, group, VERIFY, 1, &options));
        }
        steps
    }

    /// For the memory that a system holds beside its cache: the warm-up alone, uniform, a few seconds.
    pub fn short_steps(&self, places: &Places) -> Vec<Step> {
        let file_mib = self.file_mib;
        let short =
            Load { pattern: "random", ramp_s: self.ramp_s.clamp(2, 8), measure_s: 2, file_mib, ..*self };
        let mut steps = short.steps(places, None, 1, false);
        steps.retain(|step| step.name != VERIFY);
        steps
    }

    fn fio_steps(&self, places: &Places, group: Option<&Group>, seed: u64, direct: bool) -> Vec<Step> {
        let file = self.file().expect("the matrix was checked: fio has a data set");
        let bytes = self.file_mib.unwrap_or(0) * MIB;
        let mut steps = Vec::new();
        if self.spec.rw == Access::Write {
            return self.write_steps(bytes, direct);
        }
        if self.spec.expect == Some(Expect::Hits) && !direct {
            let mut fill = fill_step(places, group, &file, bytes);
            fill.argv.extend(["--content".into(), self.content.name().into()]);
            steps.push(fill);
        }
        let step = |name: &str, seconds, seed| {
            let mut more = self.options(direct, bytes);
            if self.spec.rw == Access::Randread {
                let distribution =
                    distribution(self.pattern).expect("the matrix was checked: it is a pattern");
                more.extend(random_options(&distribution, self.jobs, seed));
            }
            if self.once() {
                more.retain(|option| option != "--norandommap=1");
                more.push(format!("--runtime={seconds}"));
            }
            self.fio(name, &file, bytes, if self.once() { 0 } else { seconds }, more)
        };
        if self.ramp_s > 0 {
            steps.push(step("warm", self.ramp_s, seed));
        } else {
            steps.push(self.text_step(&file, direct));
        }
        steps.push(step(MEASURE, self.measure_s, seed + 1));
        steps
    }

    /// Reads one page: fio's own text comes from the device now, and not in the measurement of cold reads.
    fn text_step(&self, file: &str, direct: bool) -> Step {
        let engine = self.spec.engine.name();
        let more = if direct { vec!["--direct=1".into()] } else { Vec::new() };
        let job = Job { engine, rw: "read", bs: "4k", file, size: pages::PAGE as u64, seconds: 0, more };
        Step::new("text", job.argv())
    }

    /// Ends when each block was read or written.
    fn once(&self) -> bool {
        self.spec.once || self.spec.rw != Access::Randread
    }

    fn fio(&self, name: &str, file: &str, size: u64, seconds: u64, more: Vec<String>) -> Step {
        let (engine, rw, bs) = (self.spec.engine.name(), self.spec.rw.name(), self.spec.bs.as_str());
        let mut argv = Job { engine, rw, bs, file, size, seconds, more }.argv();
        if name == MEASURE {
            argv.extend([format!("--write_bw_log={MEASURE}"), "--per_job_logs=0".into()]);
            argv.extend([
                format!("--log_avg_msec={SERIES_MS}"),
                "--percentile_list=50:75:90:95:99:99.5:99.9:99.99".into(),
            ]);
        }
        Step::new(name, argv)
    }

    /// What warm-up and measurement share.
    fn options(&self, direct: bool, bytes: u64) -> Vec<String> {
        let mut more = self.spec.options.clone();
        if self.spec.engine == Engine::IoUring {
            more.push(format!("--iodepth={}", self.spec.depth));
        }
        if direct {
            more.push("--direct=1".into());
        }
        if self.once() {
            // Each job has a part of its own, or a block would be read by each of them.
            let block = block_bytes(&self.spec.bs).unwrap_or(4096);
            let part = (bytes / u64::from(self.jobs) / block).max(1) * block;
            more.extend([format!("--size={part}"), format!("--offset_increment={part}")]);
            more.retain(|option| !option.starts_with("--numjobs"));
            more.push(format!("--numjobs={}", self.jobs));
        }
        more
    }

    /// A new file, with fsync at its end; each block holds its own offset, which fio checks afterwards.
    fn write_steps(&self, bytes: u64, direct: bool) -> Vec<Step> {
        let file = "written";
        let step = |name: &str, last: &[&str]| {
            let mut more = self.options(direct, bytes);
            more.extend(
                ["--verify=pattern", "--verify_pattern=%o"].iter().chain(last).map(ToString::to_string),
            );
            self.fio(name, file, bytes, 0, more)
        };
        vec![
            Step::new("remove", ["rm", "-f", &format!("{{dir}}/{file}")]),
            step(MEASURE, &["--end_fsync=1", "--do_verify=0"]),
            step(VERIFY, &["--verify_only=1"]),
            Step::new("remove", ["rm", "-f", &format!("{{dir}}/{file}")]),
        ]
    }

    fn command_steps(&self, seed: u64) -> Vec<Step> {
        let shell = |name: &str, line: &str, seed: u64, seconds: u64| {
            let file = self.file().map_or(String::new(), |file| format!("{{dir}}/{file}"));
            let line = [
                ("{file}", file),
                ("{jobs}", self.jobs.to_string()),
                ("{pattern}", self.pattern.to_string()),
                ("{seed}", seed.to_string()),
                ("{seconds}", seconds.to_string()),
            ]
            .iter()
            .fold(line.to_string(), |line, (name, value)| line.replace(name, value));
            Step::new(name, ["sh", "-c", &line])
        };
        let ramp = self.spec.ramp.iter().map(|line| shell("warm", line, seed, self.ramp_s));
        let measure = self.spec.command.iter().map(|line| shell(MEASURE, line, seed + 1, self.measure_s));
        ramp.chain(measure).collect()
    }

    /// The numbers of a run. `log` is fio's bandwidth log.
    ///
    /// # Errors
    /// What fio or the command printed is no result.
    pub fn numbers(&self, run: &Run, log: &str) -> Result<Numbers, String> {
        let outcome = run.step(MEASURE)?;
        let mut numbers = match self.spec.kind {
            LoadKind::Fio => self.fio_numbers(outcome, log)?,
            LoadKind::Command => self.command_numbers(outcome)?,
        };
        let metrics = &mut numbers.metrics;
        metrics.insert("foreign_cpu_percent".into(), outcome.foreign_cpu() * 100.0);
        if let Some(memory) = run.memory {
            metrics.insert("memory_max_mib".into(), memory.usage_max as f64 / MIB as f64);
            metrics.insert("limit_hits".into(), memory.limit_hits as f64);
            metrics.insert("major_faults".into(), memory.major_faults as f64);
            metrics.insert("pinned_max_mib".into(), run.pinned_max as f64 / MIB as f64);
        }
        Ok(numbers)
    }

    fn fio_numbers(&self, outcome: &Outcome, log: &str) -> Result<Numbers, String> {
        let direction = if self.spec.rw == Access::Write { "write" } else { "read" };
        let report = fio::parse(&outcome.output, direction)?;
        let mut metrics = Metrics::new();
        let mut put = |name: &str, value: Option<f64>| {
            metrics.extend(value.map(|value| (name.to_string(), value)));
        };
        put("throughput_mib_s", Some(report.bytes_per_s / MIB as f64));
        put("iops", Some(report.iops));
        put("ops", Some(report.ios));
        put("mean_us", Some(report.latency_us_mean));
        for (name, percent) in [("p50_us", 50.0), ("p95_us", 95.0), ("p99_us", 99.0), ("p999_us", 99.9)] {
            put(name, report.percentile_us(percent));
        }
        put("fio_cpu_us_per_op", Some(report.fio_cpu_us_per_op));
        put("cpu_us_per_op", outcome.cpu_ns.map(|ns| ns as f64 / 1000.0 / report.ios));
        put("kernel_threads_us_per_op", Some(outcome.kernel_threads_ns as f64 / 1000.0 / report.ios));
        if direction == "read" {
            put("miss_ratio", outcome.read_bytes.map(|bytes| bytes as f64 / report.bytes));
        }
        let series = fio::throughput_series(log, SERIES_MS);
        let series = (!series.is_empty()).then(|| ("throughput_mib_s".to_string(), series));
        Ok(Numbers { metrics, series: series.into_iter().collect(), percentiles_us: report.percentiles_us })
    }

    fn command_numbers(&self, outcome: &Outcome) -> Result<Numbers, String> {
        let value = number_in(&outcome.output, self.spec.regex.as_deref())?;
        let mut metrics = Metrics::from([(self.spec.metric_key(), value)]);
        metrics.insert("wall_s".into(), outcome.wall_ns as f64 / 1e9);
        metrics.extend(outcome.cpu_ns.map(|ns| ("cpu_s".to_string(), ns as f64 / 1e9)));
        metrics.extend(
            outcome.read_bytes.map(|bytes| ("device_read_mib".to_string(), bytes as f64 / MIB as f64)),
        );
        Ok(Numbers { metrics, ..Numbers::default() })
    }
}

/// The number that a command printed: the regular expression's first group, else the last one there is.
fn number_in(text: &str, regex: Option<&str>) -> Result<f64, String> {
    let last_line = || text.lines().last().unwrap_or_default();
    let number = |word: &str| word.parse::<f64>().ok().filter(|n| n.is_finite());
    let found = match regex {
        Some(regex) => {
            let regex = regex_lite::Regex::new(regex).map_err(|e| e.to_string())?;
            regex.captures(text).and_then(|found| number(found.get(1).or(found.get(0))?.as_str()))
        }
        None => {
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')));
            words.rev().find_map(|word| number(word.trim_end_matches('.')))
        }
    };
    found.ok_or_else(|| format!("the command printed no number, but {:?}", last_line()))
}

/// Why a run failed, where its last step says more than its exit code.
pub fn told(why: &str) -> String {
    if why.ends_with(&format!("last step: {VERIFY}")) {
        return format!("the data were wrong, or could not be read ({why})");
    }
    why.to_string()
}

/// Least share of misses, or of hits, of a run that is to be all misses, or all hits.
const ALL: f64 = 0.99;
/// With fewer misses than this, what was read was cached by somebody else.
const MISSES_MIN: f64 = 0.001;

/// Why a run is no measurement; `None` for one that is.
pub fn refusal(
    expect: Expect,
    system: SystemKind,
    limit: Option<u64>,
    metrics: &Metrics,
    stats: Option<&serde_json::Value>,
) -> Option<String> {
    let misses = metrics.get("miss_ratio").copied();
    match (expect, misses) {
        (Expect::Nothing, _) => None,
        (Expect::Limit, Some(misses)) if misses < MISSES_MIN => {
            Some("nothing was read from the device: the data are cached outside the limit".into())
        }
        (Expect::Limit, _) => unbound(system, limit?, metrics, stats),
        (Expect::Hits | Expect::Misses, None) => Some("nobody counted what the device read".into()),
        (Expect::Hits, Some(misses)) if misses > 1.0 - ALL => {
            Some(format!("{:.1} % of the reads missed, where all were to hit", misses * 100.0))
        }
        (Expect::Misses, Some(misses)) if misses < ALL => {
            Some(format!("{:.1} % of the reads hit, where all were to miss", (1.0 - misses) * 100.0))
        }
        _ => None,
    }
}

/// Why the memory limit did not bind.
fn unbound(
    system: SystemKind,
    limit: u64,
    metrics: &Metrics,
    stats: Option<&serde_json::Value>,
) -> Option<String> {
    let Some(used) = metrics.get("memory_max_mib").copied() else {
        return Some("no memory controller: there was no limit".into());
    };
    let share = used * MIB as f64 / limit as f64;
    let told = format!("the memory limit did not bind: {used:.0} of {} MiB used", limit / MIB);
    match system {
        SystemKind::Direct => None,
        SystemKind::Terrace | SystemKind::TerraceMainDoor => {
            let evicted = stats.and_then(|s| s.pointer("/reclaim/pgsteal")?.as_u64());
            (evicted.unwrap_or(0) == 0).then(|| format!("{told}, and terrace evicted nothing"))
        }
        // Its cache may have a size of its own, and then the kernel need not reclaim.
        SystemKind::Command => (share < 0.9).then_some(told),
        SystemKind::Kernel | SystemKind::KernelMglru | SystemKind::Zram => {
            let met = metrics.get("limit_hits").is_some_and(|n| *n > 0.0);
            (!met || share < 0.98).then_some(told)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(pairs: &[(&str, f64)]) -> Metrics {
        pairs.iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    #[test]
    fn a_limit_that_does_not_bind_is_told() {
        let limit = Some(64 * MIB);
        let judge = |system, pairs: &[(&str, f64)], stats: Option<serde_json::Value>| {
            refusal(Expect::Limit, system, limit, &metrics(pairs), stats.as_ref())
        };
        let bound = [("miss_ratio", 0.3), ("memory_max_mib", 64.0), ("limit_hits", 9.0)];
        let half = [("miss_ratio", 0.3), ("memory_max_mib", 32.0), ("limit_hits", 0.0)];
        let cached = [("miss_ratio", 0.0), ("memory_max_mib", 64.0), ("limit_hits", 9.0)];
        assert_eq!(judge(SystemKind::Kernel, &bound, None), None);
        let why = judge(SystemKind::Kernel, &half, None).unwrap();
        assert_eq!(why, "the memory limit did not bind: 32 of 64 MiB used");
        assert!(judge(SystemKind::Kernel, &cached, None).unwrap().contains("outside the limit"));
        assert!(judge(SystemKind::Kernel, &bound[..1], None).unwrap().contains("no memory controller"));
        let evicted = |n: u64| Some(serde_json::json!({"reclaim": {"pgsteal": n}}));
        assert_eq!(judge(SystemKind::Terrace, &half, evicted(7)), None);
        assert!(judge(SystemKind::Terrace, &bound, evicted(0)).unwrap().contains("evicted nothing"));
        assert!(judge(SystemKind::Terrace, &bound, None).is_some());
        assert!(judge(SystemKind::Command, &half, None).is_some());
        assert_eq!(judge(SystemKind::Command, &bound[..2], None), None);
        assert_eq!(judge(SystemKind::Direct, &half, None), None);
    }

    #[test]
    fn hits_and_misses_are_held_to_their_name() {
        let judge = |expect, misses| {
            refusal(expect, SystemKind::Kernel, None, &metrics(&[("miss_ratio", misses)]), None)
        };
        assert_eq!((judge(Expect::Hits, 0.005), judge(Expect::Misses, 0.995)), (None, None));
        assert!(judge(Expect::Hits, 0.02).unwrap().contains("2.0 % of the reads missed"));
        assert!(judge(Expect::Misses, 0.5).unwrap().contains("50.0 % of the reads hit"));
        assert!(refusal(Expect::Hits, SystemKind::Kernel, None, &Metrics::new(), None).is_some());
        assert_eq!(judge(Expect::Nothing, 0.5), None);
    }

    #[test]
    fn the_number_of_a_command() {
        assert_eq!(number_in("did 5 things\nin 2.5 s.\n", None), Ok(2.5));
        assert_eq!(number_in("rate=1e3/s", None), Ok(1000.0));
        assert_eq!(number_in("tps 812.5 (of 900)", Some(r"tps ([\d.]+)")), Ok(812.5));
        assert!(number_in("tps none", Some(r"tps (\d+)")).unwrap_err().contains("tps none"));
        assert!(number_in("nothing at all", None).is_err());
        assert!(number_in("nan inf", None).is_err());
    }
}
