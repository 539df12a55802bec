//! Workload of a matrix cell: its steps, which run inside the system under test. They are filling, warm-up,
//! measurement, and a check of the data.

use super::spec::{Access, Expect, LoadKind, LoadSpec, Spec, SystemKind, block_bytes, distribution};
use crate::content::Content;
use crate::fio::random_options;
use crate::format::name_of;
use crate::machine;
use crate::pages::{self, MIB};
use crate::steps::{Step, VERIFY};
use crate::system::Places;
use std::path::{Path, PathBuf};

/// A load of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Its definition.
    pub(crate) spec: &'a LoadSpec,
    /// Access pattern, as in the matrix.
    pub(crate) pattern: &'a str,
    /// Concurrent jobs.
    pub(crate) jobs: u32,
    /// Size of its data set; optional for a command.
    pub(crate) file_mib: Option<u64>,
    /// Content of the data set.
    pub(crate) content: Content,
    /// Seconds of warm-up.
    pub(crate) ramp_s: u64,
    /// Seconds measured.
    pub(crate) measure_s: u64,
    /// The memory limit; 0: none.
    pub(crate) limit_mib: u64,
}

/// Further inputs of a run's steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    /// Programs and directories.
    pub(crate) places: &'a Places,
    /// Directory of the matrix's file.
    pub(crate) here: &'a Path,
    /// Seed of the run.
    pub(crate) seed: u64,
    /// Bypass the page cache.
    pub(crate) direct: bool,
    /// terrace serves by mount path and preload path.
    pub(crate) two_paths: bool,
    /// terrace's memory; 0 for others.
    pub(crate) memory_mib: u64,
    /// Set if the cache is in the reading program.
    pub(crate) hybrid: Option<&'a Hybrid>,
}

/// A hybrid cache in the reading program itself.
#[derive(Clone, Debug)]
pub(crate) struct Hybrid {
    pub(crate) program: PathBuf,
    /// Maximum memory of its process, bytes.
    pub(crate) memory: u64,
    /// Bytes of its tier.
    pub(crate) tier_bytes: u64,
}

/// The step that the meters count.
pub(crate) const MEASURE: &str = "measure";
/// The step that warms up.
pub(crate) const WARM: &str = "warm";
/// Pages checked in full at the end of each run, at one latency of the device each.
const PAGES_CHECKED: u64 = 1024;
/// Interval of a series.
pub(crate) const SERIES_MS: u64 = 500;

impl<'a> Load<'a> {
    /// The load of a cell.
    pub(crate) fn new(spec: &'a Spec, load: &'a LoadSpec, pattern: &'a str, jobs: u32) -> Load<'a> {
        // A cold run has no warm-up.
        let cold = load.once || load.kind == LoadKind::Fio && load.rw == Access::Write;
        let cold = cold || load.rw == Access::Read && spec.interleave.is_none();
        Load {
            spec: load,
            pattern,
            jobs,
            file_mib: spec.file_mib_of(load),
            content: spec.content,
            ramp_s: if cold { 0 } else { load.ramp_s.unwrap_or(spec.ramp_s) },
            measure_s: load.measure_s.unwrap_or(spec.measure_s),
            limit_mib: spec.limit_mib_of(load).unwrap_or(0),
        }
    }

    /// Name of its data file.
    pub(crate) fn file(&self) -> Option<String> {
        self.file_mib.map(|mib| format!("{}-{mib}", name_of(self.content)))
    }

    /// MiB that the load writes, for which the device must have room.
    pub(crate) fn written_mib(&self) -> u64 {
        if self.spec.rw == Access::Write { self.file_mib.unwrap_or(0) } else { 0 }
    }

    /// Conditions that a run on this kind of system must meet.
    pub(crate) fn expect(&self, system: SystemKind, limit: Option<u64>) -> Expect {
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

    /// All steps inside the system: filling, warm-up, measurement, check of the data.
    pub(crate) fn steps(&self, setting: &Setting<'_>) -> Vec<Step> {
        let mut steps = self.warm_steps(setting);
        steps.push(self.measure_step(setting, 0));
        steps.extend(self.verify_steps(setting));
        steps
    }

    /// Steps to measure a system's memory beside its cache: the warm-up alone, uniform, a few seconds.
    pub(crate) fn short_steps(&self, setting: &Setting<'_>) -> Vec<Step> {
        let short = Load { pattern: "random", ramp_s: self.ramp_s.clamp(2, 8), measure_s: 2, ..*self };
        let mut steps = short.steps(setting);
        // A command's check may also stop its warm-up.
        steps.retain(|step| step.name != VERIFY || self.spec.verify.is_some());
        steps
    }

    /// Steps before the measurement.
    pub(crate) fn warm_steps(&self, setting: &Setting<'_>) -> Vec<Step> {
        let mut steps = Vec::new();
        if let (Some(Expect::Hits), Some(file), false) = (self.spec.expect, self.file(), setting.direct) {
            let fill = [("file", format!("{{dir}}/{file}")), ("content", name_of(self.content))];
            let fill = worker_step(setting.places, "fill", "fill", &fill);
            steps.push(fill.until_hits(self.file_mib.unwrap_or(0) * MIB));
        }
        match (self.spec.kind, self.spec.rw) {
            (LoadKind::Reads, _) => {}
            (LoadKind::Command, _) => {
                steps.extend(self.spec.ramp.iter().map(|line| self.shell(WARM, line, setting, self.ramp_s)));
            }
            (LoadKind::Fio, Access::Write) => steps.push(remove_step()),
            (LoadKind::Fio, _) if self.ramp_s > 0 => {
                steps.push(self.fio_step(WARM, self.ramp_s, setting, setting.seed, 0));
            }
            (LoadKind::Fio, _) => steps.push(self.text_step(setting.direct)),
        }
        steps
    }

    /// The measurement; for loads with parts, that of turn `turn`, from 0.
    pub(crate) fn measure_step(&self, setting: &Setting<'_>, turn: u32) -> Step {
        match (self.spec.kind, &self.spec.command) {
            (LoadKind::Reads, _) => self.reads_step(self.ramp_s, setting),
            (LoadKind::Command, Some(line)) => self.shell(MEASURE, line, setting, self.measure_s),
            _ if self.spec.rw == Access::Write => {
                self.write_step(MEASURE, setting.direct, &["--end_fsync=1", "--do_verify=0"])
            }
            _ => self.fio_step(MEASURE, self.measure_s, setting, setting.seed + 1, turn),
        }
    }

    /// The measurement after a restart: from the first read on.
    pub(crate) fn restarted_steps(&self, setting: &Setting<'_>) -> Vec<Step> {
        let mut steps = vec![self.reads_step(0, &Setting { seed: setting.seed + 2, ..*setting })];
        steps.extend(self.verify_steps(setting));
        steps
    }

    fn reads_step(&self, ramp_s: u64, setting: &Setting<'_>) -> Step {
        let mut options = vec![
            ("file", format!("{{dir}}/{}", self.data_file())),
            ("pattern", self.pattern.to_string()),
            ("threads", self.jobs.to_string()),
            ("ramp-s", ramp_s.to_string()),
            ("seconds", self.measure_s.to_string()),
            ("seed", setting.seed.to_string()),
            ("content", name_of(self.content)),
        ];
        let Some(hybrid) = setting.hybrid else {
            options.push(("direct", u8::from(setting.direct).to_string()));
            return worker_step(setting.places, MEASURE, "reads", &options);
        };
        let tier = setting.places.tier.as_deref().map(|path| path.display().to_string());
        options.push(("memory", hybrid.memory.to_string()));
        options.push(("tier", tier.unwrap_or_default()));
        options.push(("tier-bytes", hybrid.tier_bytes.to_string()));
        Step::new(MEASURE, argv_of(vec![hybrid.program.display().to_string(), "reads".into()], &options))
    }

    /// Steps after the measurement: by both paths, if there are two.
    pub(crate) fn verify_steps(&self, setting: &Setting<'_>) -> Vec<Step> {
        let mut steps: Vec<Step> =
            self.spec.verify.iter().map(|line| self.shell(VERIFY, line, setting, 0)).collect();
        match self.file() {
            _ if self.spec.rw == Access::Write => {
                steps.push(self.write_step(VERIFY, setting.direct, &["--verify_only=1"]));
                steps.push(remove_step());
            }
            Some(file) => {
                let options = [
                    ("file", format!("{{dir}}/{file}")),
                    ("pages", PAGES_CHECKED.to_string()),
                    ("content", name_of(self.content)),
                ];
                let verify = worker_step(setting.places, VERIFY, "verify", &options);
                if setting.two_paths {
                    let without = ["env", "-u", "LD_PRELOAD"].map(String::from).into_iter();
                    steps.push(Step::new(VERIFY, without.chain(verify.argv.clone())));
                }
                steps.push(verify);
            }
            None => {}
        }
        steps
    }

    /// Reads one page, so that fio's text is loaded before the measurement of cold reads.
    fn text_step(&self, direct: bool) -> Step {
        let more = if direct { vec!["--direct=1".into()] } else { Vec::new() };
        let (rw, bs, options) = (Access::Read, "4k".into(), Vec::new());
        let spec = &LoadSpec { rw, bs, options, ..self.spec.clone() };
        Load { spec, ..*self }.fio("text", &self.data_file(), pages::PAGE as u64, 0, more)
    }

    fn data_file(&self) -> String {
        self.file().expect("the matrix was checked: fio has a data set")
    }

    /// Whether the load ends after one pass over all blocks.
    fn once(&self) -> bool {
        self.spec.once || self.spec.rw == Access::Write || self.spec.rw == Access::Read && self.ramp_s == 0
    }

    fn fio_step(&self, name: &str, seconds: u64, setting: &Setting<'_>, seed: u64, turn: u32) -> Step {
        let parts = u64::from(self.spec.parts);
        let bytes = self.file_mib.unwrap_or(0) * MIB / parts;
        let mut more = self.options(setting.direct, bytes);
        if self.spec.rw == Access::Randread {
            let distribution = distribution(self.pattern).expect("the matrix was checked: it is a pattern");
            more.extend(random_options(&distribution, self.jobs, seed));
        } else if !self.once() {
            more.push(format!("--numjobs={}", self.jobs));
            more.push(format!("--offset={}", u64::from(turn) % parts * bytes));
        }
        if self.once() {
            more.retain(|option| option != "--norandommap=1");
            more.push(format!("--runtime={seconds}"));
        }
        self.fio(name, &self.data_file(), bytes, if self.once() { 0 } else { seconds }, more)
    }

    /// A fio command on a file; `seconds` 0: one pass over it.
    fn fio(&self, name: &str, file: &str, size: u64, seconds: u64, more: Vec<String>) -> Step {
        let mut argv = vec![
            "fio".to_string(),
            "--name=bench".into(),
            "--output-format=json".into(),
            "--group_reporting=1".into(),
            format!("--ioengine={}", name_of(self.spec.engine)),
            format!("--rw={}", name_of(self.spec.rw)),
            format!("--bs={}", self.spec.bs),
            format!("--filename={{dir}}/{file}"),
            format!("--size={size}"),
            // Otherwise fio would drop the file's cached pages at its start, and the warm-up would be lost.
            "--invalidate=0".into(),
            "--create_on_open=1".into(),
        ];
        if seconds > 0 {
            argv.extend(["--time_based=1".into(), format!("--runtime={seconds}")]);
        }
        if name == MEASURE {
            // Before options of the matrix, which may start another job.
            argv.extend([
                format!("--write_bw_log={MEASURE}"),
                "--per_job_logs=0".into(),
                format!("--log_avg_msec={SERIES_MS}"),
                "--percentile_list=50:75:90:95:99:99.5:99.9:99.99".into(),
            ]);
        }
        let cpus = machine::cpus().to_string();
        argv.extend(more);
        argv.extend(self.spec.options.iter().map(|option| option.replace("{cpus}", &cpus)));
        Step::new(name, argv)
    }

    /// Common options of warm-up and measurement.
    fn options(&self, direct: bool, bytes: u64) -> Vec<String> {
        let mut more = Vec::new();
        if self.spec.engine.is_deep() {
            more.push(format!("--iodepth={}", self.spec.depth));
        }
        if direct {
            more.push("--direct=1".into());
        }
        if self.once() {
            // Each job has its own part, or every job would read each block.
            let block = block_bytes(&self.spec.bs).unwrap_or(4096);
            let part = (bytes / u64::from(self.jobs) / block).max(1) * block;
            more.extend([format!("--size={part}"), format!("--offset_increment={part}")]);
            more.push(format!("--numjobs={}", self.jobs));
        }
        more
    }

    /// Writes a new file and fsyncs it; each block contains its own offset, which fio checks afterwards.
    fn write_step(&self, name: &str, direct: bool, last: &[&str]) -> Step {
        let bytes = self.file_mib.unwrap_or(0) * MIB;
        let mut more = self.options(direct, bytes);
        let pattern = ["--verify=pattern", "--verify_pattern=%o"];
        more.extend(pattern.iter().chain(last).map(ToString::to_string));
        self.fio(name, WRITTEN, bytes, 0, more)
    }

    /// A shell line of the matrix with its placeholders replaced.
    pub(crate) fn shell(&self, name: &str, line: &str, setting: &Setting<'_>, seconds: u64) -> Step {
        let path =
            |name: &Option<String>| name.as_ref().map_or(String::new(), |name| format!("{{dir}}/{name}"));
        let seed = setting.seed + u64::from(name == MEASURE);
        let filled = [
            ("{file}", path(&self.file())),
            ("{tree}", path(&self.spec.tree)),
            ("{tier}", setting.places.tier.as_ref().map_or(String::new(), |p| p.display().to_string())),
            ("{memory_mib}", setting.memory_mib.to_string()),
            ("{here}", setting.here.display().to_string()),
            ("{bench}", setting.places.bench.display().to_string()),
            ("{content}", name_of(self.content)),
            ("{direct}", u8::from(setting.direct).to_string()),
            ("{jobs}", self.jobs.to_string()),
            ("{pattern}", self.pattern.to_string()),
            ("{limit_mib}", self.limit_mib.to_string()),
            ("{seed}", seed.to_string()),
            ("{seconds}", seconds.to_string()),
        ];
        Step::shell(
            name,
            &filled.iter().fold(line.to_string(), |line, (name, value)| line.replace(name, value)),
        )
    }
}

/// Name of the files of a writing load.
const WRITTEN: &str = "written";

fn remove_step() -> Step {
    Step::new("remove", ["rm", "-f", &format!("{{dir}}/{WRITTEN}")])
}

/// A step that runs a loop of this program.
fn worker_step(places: &Places, name: &str, load: &str, options: &[(&str, String)]) -> Step {
    let argv = vec![places.bench.display().to_string(), "worker".into(), load.into()];
    Step::new(name, argv_of(argv, options))
}

fn argv_of(mut argv: Vec<String>, options: &[(&str, String)]) -> Vec<String> {
    for (name, value) in options {
        argv.extend([format!("--{name}"), value.clone()]);
    }
    argv
}
