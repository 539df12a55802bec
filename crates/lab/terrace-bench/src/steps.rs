//! Runs commands one after the other inside the system under test, and reads the meters around each.
//!
//! A system is set up once for a run (`terrace run ... -- terrace-bench steps`), warmed by the first commands
//! and measured by a later one. So the meters are read inside, between commands. The inner process reads a
//! [`Context`], then one [`Step`] a line, and answers each with an [`Outcome`] on a line. The harness can
//! thus keep several systems running and measure them in turn.

use crate::cgroup::{GROUP, Group};
use crate::machine;
use crate::meters::{Counted, METERS, Meters, difference};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use terrace_api::stats::StatReport;

/// Name of the steps that check the data.
pub(crate) const VERIFY: &str = "verify";

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Key of the result.
    pub(crate) name: String,
    /// The command; `{dir}` is replaced by the directory under test.
    pub(crate) argv: Vec<String>,
    /// For a step that fills a cache: repeat it until this many bytes of it are hits of the preload path.
    #[serde(default)]
    pub(crate) until_hit_bytes: Option<u64>,
}

impl Step {
    /// A command that runs once.
    pub(crate) fn new<S: Into<String>>(name: &str, argv: impl IntoIterator<Item = S>) -> Step {
        let argv = argv.into_iter().map(Into::into).collect();
        Step { name: name.to_string(), argv, until_hit_bytes: None }
    }

    pub(crate) fn shell(name: &str, line: &str) -> Step {
        Step::new(name, ["sh", "-c", line])
    }

    /// Repeats the step until `bytes` are hits. Without a preload path it runs twice.
    pub(crate) fn until_hits(mut self, bytes: u64) -> Step {
        self.until_hit_bytes = Some(bytes);
        self
    }
}

/// Input of the inner process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Context {
    /// Directory under test, and the counters that are read around each step.
    pub meters: Meters,
    /// The group of all processes.
    pub(crate) group: Option<Group>,
    /// Directory for outputs (`NAME.out`) and working directory of commands: not below `dir`.
    pub(crate) out: PathBuf,
}

/// Counters of the preload path during a step, and the cache's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreloadBytes {
    /// Bytes of hits.
    pub(crate) hit_bytes: u64,
    /// Bytes of misses that the program itself read from the source.
    pub(crate) miss_bytes: u64,
    /// Memory of the cache at the end of the step, bytes.
    #[serde(default)]
    pub(crate) used_bytes: u64,
}

impl PreloadBytes {
    /// The counters of the instance that serves the directory under test.
    fn read(meters: &Meters) -> Option<PreloadBytes> {
        let stat: StatReport = serde_json::from_slice(&meters.stat()?).ok()?;
        let (preload, used_bytes) = (stat.cache.preload, stat.cache.memory.used_bytes);
        Some(PreloadBytes { hit_bytes: preload.hit_bytes, miss_bytes: preload.miss_bytes, used_bytes })
    }

    fn since(self, before: PreloadBytes) -> PreloadBytes {
        PreloadBytes {
            hit_bytes: self.hit_bytes.saturating_sub(before.hit_bytes),
            miss_bytes: self.miss_bytes.saturating_sub(before.miss_bytes),
            ..self
        }
    }
}

/// Results and costs of a step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The step's name.
    pub(crate) name: String,
    /// Exit code; 128 + signal if killed.
    pub status: i32,
    /// Time from start to end.
    pub(crate) wall_ns: u64,
    /// CPU time of the whole group during the step.
    pub(crate) cpu_ns: Option<u64>,
    /// Bytes that the group read from devices during the step.
    pub(crate) read_bytes: Option<u64>,
    /// CPU time of the whole machine during the step.
    pub(crate) machine_busy_ns: u64,
    /// CPU time taken by the hypervisor during the step.
    pub(crate) machine_steal_ns: u64,
    /// CPU time of kernel threads during the step, included in the machine's.
    pub(crate) kernel_threads_ns: u64,
    /// Counters of the preload path during the step, if terrace serves.
    pub(crate) preload: Option<PreloadBytes>,
    /// I/O of devices and tiers during the step, if the matrix has a device for tiers.
    #[serde(default)]
    pub(crate) counted: Counted,
    /// Standard output.
    pub(crate) output: String,
}

impl Outcome {
    /// Share of the machine's CPU used by other programs, 0 to 1.
    pub(crate) fn foreign_cpu(&self) -> f64 {
        let own = self.cpu_ns.unwrap_or(self.machine_busy_ns);
        let foreign = self.machine_busy_ns.saturating_sub(own + self.kernel_threads_ns);
        (foreign + self.machine_steal_ns) as f64 / self.machine_ns()
    }

    /// Share of the machine's CPU taken by the hypervisor.
    pub(crate) fn stolen_cpu(&self) -> f64 {
        self.machine_steal_ns as f64 / self.machine_ns()
    }

    fn machine_ns(&self) -> f64 {
        self.wall_ns.max(1) as f64 * machine::cpus() as f64
    }
}

/// Writes dirty pages back and drops clean ones. Needs root.
pub(crate) fn drop_caches() -> io::Result<()> {
    // SAFETY: sync takes no arguments and touches no memory of ours.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3")
}

/// Makes the next 3 GiB of allocations come from memory that the host has backed.
///
/// A virtual machine returns free blocks of memory to its host (free page reporting), about 2 s after they
/// became free. The next touch of such a block costs the guest ten times a normal page fault (2 s a GiB when
/// measured), and hits the side that runs after a pause: two equal systems differed by 2.6x. So this function
/// waits until the freed memory is returned, then touches memory and frees it again: for 2 s it stays backed.
/// *Tried:* keeping a page of each block, so that blocks stay too small for reporting. Then the kernel's
/// large folios come from other, untouched blocks, and the effect is worse.
pub(crate) fn warm_memory() {
    const BYTES: usize = 3 << 30;
    if Path::new("/sys/module/page_reporting").exists() {
        std::thread::sleep(Duration::from_millis(2500));
    }
    let (write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping, written by the kernel only, and unmapped before its address is used
    // elsewhere.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), BYTES, write, private, -1, 0);
        if at != libc::MAP_FAILED {
            libc::madvise(at, BYTES, libc::MADV_HUGEPAGE);
            libc::madvise(at, BYTES, libc::MADV_POPULATE_WRITE);
            libc::munmap(at, BYTES);
        }
    }
}

/// Drops the clean pages of the files in `dir`, as an ordinary user can.
pub(crate) fn drop_files(dir: &Path) {
    use std::os::fd::AsRawFd;
    for file in fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| File::open(e.path()).ok()) {
        // SAFETY: takes a descriptor and numbers only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// The inner process: reads a context, then steps, until end of input.
///
/// # Errors
/// An invalid line; a command that cannot be started.
pub fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut lines = input.lines();
    let Some(first) = lines.next() else { return Ok(()) };
    let context: Context = serde_json::from_str(&first?)?;
    for line in lines {
        let outcome = context.repeat(&serde_json::from_str(&line?)?)?;
        serde_json::to_writer(&mut output, &outcome)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

impl Context {
    fn repeat(&self, step: &Step) -> io::Result<Outcome> {
        let mut outcome = self.run(step)?;
        let mut tries = 1;
        while outcome.status == 0 && wants_more(step, &outcome, tries) {
            outcome = self.run(step)?;
            tries += 1;
        }
        Ok(outcome)
    }

    fn run(&self, step: &Step) -> io::Result<Outcome> {
        let dir = self.meters.dir.to_string_lossy();
        let argv: Vec<String> = step.argv.iter().map(|a| a.replace("{dir}", &dir)).collect();
        let path = self.out.join(format!("{}.out", step.name));
        let group = self.group.as_ref();
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).current_dir(&self.out).stdin(Stdio::null()).stdout(File::create(&path)?);
        if let Some(group) = group {
            command.env(GROUP, serde_json::to_string(group)?);
        }
        // Reading terrace's counters costs time: only if devices are metered.
        let meters = Some(&self.meters).filter(|meters| !meters.devices.is_empty());
        if let Some(meters) = meters {
            command.env(METERS, serde_json::to_string(meters)?);
        }
        let read = || (group.and_then(Group::cpu_ns), group.and_then(Group::read_bytes), machine::busy());
        let preload = || PreloadBytes::read(&self.meters);
        // Outside of the meters: the query costs CPU time.
        let preload_before = preload();
        let counted = || meters.map(Meters::read).unwrap_or_default();
        let counted_before = counted();
        let before = read();
        let start = Instant::now();
        let status = command.status().map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", argv[0])))?;
        let wall_ns = start.elapsed().as_nanos() as u64;
        let after = read();
        let (preload_after, counted_after) = (preload(), counted());

        let less = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?));
        Ok(Outcome {
            name: step.name.clone(),
            status: exit_code(status),
            wall_ns,
            cpu_ns: less(before.0, after.0),
            read_bytes: less(before.1, after.1),
            machine_busy_ns: after.2.busy_ns.saturating_sub(before.2.busy_ns),
            machine_steal_ns: after.2.steal_ns.saturating_sub(before.2.steal_ns),
            kernel_threads_ns: after.2.kernel_ns.saturating_sub(before.2.kernel_ns),
            preload: preload_after.zip(preload_before).map(|(after, before)| after.since(before)),
            counted: difference(&counted_after, &counted_before),
            output: String::from_utf8_lossy(&fs::read(&path)?).into_owned(),
        })
    }
}

/// Whether to repeat a filling step. The number of tries is limited: a cache that is not full by then never
/// will be, and the run's validation reports it.
fn wants_more(step: &Step, outcome: &Outcome, tries: u32) -> bool {
    const TRIES_MAX: u32 = 8;
    let Some(bytes) = step.until_hit_bytes else { return false };
    tries < outcome.preload.map_or(2, |preload| if preload.hit_bytes < bytes { TRIES_MAX } else { 2 })
}

/// Exit code as a shell reports it.
pub(crate) fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::instance::Kind;
    use terrace_api::stats::{Instance, PreloadPath, Stats};

    fn serve_steps(dir: &Path, terrace: Option<PathBuf>, steps: &[Step]) -> Vec<Outcome> {
        let meters = Meters { terrace, dir: dir.into(), ..Meters::default() };
        let context = Context { meters, group: None, out: dir.into() };
        let mut input = serde_json::to_string(&context).unwrap();
        for step in steps {
            input += &format!("\n{}", serde_json::to_string(step).unwrap());
        }
        let mut output = Vec::new();
        serve(input.as_bytes(), &mut output).unwrap();
        output
            .split(|b| *b == b'\n')
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).unwrap())
            .collect()
    }

    #[test]
    fn steps_are_answered_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let steps = [Step::shell("one", "echo {dir}"), Step::shell("two", "exit 3")];
        let outcomes = serve_steps(dir.path(), None, &steps);
        assert_eq!(outcomes[0].output, format!("{}\n", dir.path().display()));
        assert_eq!((outcomes[0].status, outcomes[1].status), (0, 3));
    }

    /// Output of `terrace stat` for a mount with this many bytes of hits.
    fn stat(hit_bytes: u64) -> StatReport {
        let preload = PreloadPath { hit_bytes, ..PreloadPath::default() };
        let instance = Instance {
            src: "/data".into(),
            mnt: "/data".into(),
            kind: Kind::Run,
            pid: 1,
            terraced: 2,
            restarts: 0,
            last_death: None,
            metrics: None,
            version: String::new(),
            supervisor_lives: true,
        };
        StatReport { cache: Stats { preload, ..Stats::default() }, instance, kv: None, mrc: None }
    }

    /// The stand-in for `terrace stat` counts 100 more bytes of hits at each call.
    #[test]
    fn a_filling_step_repeats_until_it_hits() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (terrace, ran) = (dir.path().join("terrace"), dir.path().join("ran"));
        let json = serde_json::to_string(&stat(4711)).unwrap().replace("4711", "$((n * n * 10))");
        let script = format!("#!/bin/sh\nn=$(wc -c < \"$2/ran\")\ncat <<END\n{json}\nEND\n");
        fs::write(&terrace, script).unwrap();
        fs::set_permissions(&terrace, fs::Permissions::from_mode(0o755)).unwrap();
        let tries = |terrace: Option<&PathBuf>, bytes| {
            fs::write(&ran, "").unwrap();
            let step = Step::shell("fill", "printf x >> {dir}/ran").until_hits(bytes);
            assert_eq!(serve_steps(dir.path(), terrace.cloned(), &[step])[0].status, 0);
            fs::read(&ran).unwrap().len()
        };
        assert_eq!(tries(None, 1), 2, "no preload path");
        assert_eq!(tries(Some(&terrace), 20), 2);
        assert_eq!(tries(Some(&terrace), 70), 4, "10, 30, 50, 70");
        assert_eq!(tries(Some(&terrace), 1000), 8, "never");
    }

    #[test]
    fn foreign_cpu_is_what_the_group_did_not_use() {
        let second = 1_000_000_000;
        let mut o = Outcome {
            wall_ns: second,
            cpu_ns: Some(second / 10 * 4),
            machine_busy_ns: second / 2,
            ..Outcome::default()
        };
        let share = 0.1 / machine::cpus() as f64;
        assert!((o.foreign_cpu() - share).abs() < 1e-9);
        o.cpu_ns = Some(second / 10 * 6);
        assert_eq!(o.foreign_cpu(), 0.0, "ticks are coarse: never negative");
    }
}
