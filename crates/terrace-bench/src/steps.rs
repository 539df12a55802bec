//! A list of commands run one after the other inside the system under test, with the meters read around each.
//!
//! A system is set up once for a run (`terrace run ... -- terrace-bench steps PLAN`), warmed by the first commands and measured by a later
//! one; so what a meter says must be read between commands, from inside.

use crate::cgroup::{Group, Memory};
use crate::machine;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// What the result is found by.
    pub name: String,
    /// The command; `{dir}` stands for the directory under test.
    pub argv: Vec<String>,
    /// Forget cached pages before it.
    pub drop_caches: bool,
}

impl Step {
    /// A step without dropping caches.
    pub fn new<S: Into<String>>(name: &str, argv: impl IntoIterator<Item = S>) -> Step {
        Step { name: name.to_string(), argv: argv.into_iter().map(Into::into).collect(), drop_caches: false }
    }

    /// The same, with cold caches.
    pub fn cold(mut self) -> Step {
        self.drop_caches = true;
        self
    }
}

/// All that the inner process must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Directory under test.
    pub dir: PathBuf,
    /// The group that holds everything.
    pub group: Option<Group>,
    /// Commands, in order.
    pub steps: Vec<Step>,
    /// Where outputs (`NAME.out`) and `results.json` go: not below `dir`.
    pub out: PathBuf,
}

/// What a step did and cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The step's name.
    pub name: String,
    /// Exit code; 128 + signal when killed.
    pub status: i32,
    /// Time from start to end.
    pub wall_ns: u64,
    /// CPU time of the whole group meanwhile.
    pub cpu_ns: Option<u64>,
    /// Bytes that the group read from devices meanwhile.
    pub read_bytes: Option<u64>,
    /// CPU time of the whole machine meanwhile.
    pub machine_busy_ns: u64,
    /// CPU time that the hypervisor took meanwhile.
    pub machine_steal_ns: u64,
    /// Memory of the group at the end.
    pub memory: Option<Memory>,
    /// Standard output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
}

impl Outcome {
    /// Share of the machine's CPU that others used meanwhile, 0 to 1.
    pub fn foreign_cpu(&self) -> f64 {
        let own = self.cpu_ns.unwrap_or(self.machine_busy_ns);
        let foreign = self.machine_busy_ns.saturating_sub(own) + self.machine_steal_ns;
        foreign as f64 / (self.wall_ns.max(1) as f64 * machine::cpus() as f64)
    }
}

/// Writes dirty pages back and forgets the clean ones. Only root may; told so where it fails.
pub fn drop_caches() -> io::Result<()> {
    // SAFETY: sync takes no arguments and touches no memory of ours.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3")
}

/// Makes sure that the next 3 GiB that anybody allocates are really there.
///
/// A virtual machine gives free blocks of memory back to its host (free page reporting), about 2 s after they became free. Their next touch
/// costs the guest ten times what a page fault costs, 2 s a GiB where this was found, and hits whichever side happens to come after a
/// pause: two equal systems differed by 2.6x. So what was freed is left to go, then memory is touched and freed again: for 2 s, nobody
/// takes it away. Keeping a page of each block was tried, so that blocks stay too small to be reported: then the kernel's large folios
/// come from other, untouched blocks, and it is all worse.
fn warm_memory() {
    const BYTES: usize = 3 << 30;
    if Path::new("/sys/module/page_reporting").exists() {
        std::thread::sleep(Duration::from_millis(2500));
    }
    let (write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping, written by the kernel only, unmapped before anybody else could know of it.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), BYTES, write, private, -1, 0);
        if at != libc::MAP_FAILED {
            libc::madvise(at, BYTES, libc::MADV_HUGEPAGE);
            libc::madvise(at, BYTES, libc::MADV_POPULATE_WRITE);
            libc::munmap(at, BYTES);
        }
    }
}

/// What an ordinary user can do instead: the kernel forgets the clean pages of the files in `dir`.
pub fn drop_files(dir: &Path) {
    use std::os::fd::AsRawFd;
    for file in fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| File::open(e.path()).ok()) {
        // SAFETY: takes a descriptor and numbers only.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// The inner process: runs the plan in `file`, writes results.json, stops at the first failure.
pub fn run(file: &Path) -> io::Result<i32> {
    let plan: Plan = serde_json::from_slice(&fs::read(file)?)?;
    let mut outcomes = Vec::new();
    for step in &plan.steps {
        if step.drop_caches {
            drop_caches().map_err(|e| io::Error::new(e.kind(), format!("drop_caches: {e}; run as root")))?;
            warm_memory();
        }
        let outcome = run_step(&plan, step)?;
        let status = outcome.status;
        outcomes.push(outcome);
        fs::write(plan.out.join("results.json"), serde_json::to_vec(&outcomes)?)?;
        if status != 0 {
            return Ok(status);
        }
    }
    Ok(0)
}

fn run_step(plan: &Plan, step: &Step) -> io::Result<Outcome> {
    let dir = plan.dir.to_string_lossy();
    let argv: Vec<String> = step.argv.iter().map(|a| a.replace("{dir}", &dir)).collect();
    let path = plan.out.join(format!("{}.out", step.name));
    let group = plan.group.as_ref();
    let read = || (group.and_then(Group::cpu_ns), group.and_then(Group::read_bytes), machine::busy());

    let before = read();
    let start = Instant::now();
    let status = Command::new(&argv[0])
        .args(&argv[1..])
        .current_dir(&plan.out)
        .stdin(Stdio::null())
        .stdout(File::create(&path)?)
        .status()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", argv[0])))?;
    let wall_ns = start.elapsed().as_nanos() as u64;
    let after = read();

    let difference = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?));
    Ok(Outcome {
        name: step.name.clone(),
        status: exit_code(status),
        wall_ns,
        cpu_ns: difference(before.0, after.0),
        read_bytes: difference(before.1, after.1),
        machine_busy_ns: after.2.busy_ns.saturating_sub(before.2.busy_ns),
        machine_steal_ns: after.2.steal_ns.saturating_sub(before.2.steal_ns),
        memory: group.and_then(Group::memory),
        output: fs::read_to_string(&path)?,
    })
}

/// A shell's view of how a command ended.
pub fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_runs_in_order_and_stops_at_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let steps = vec![
            Step::new("one", ["sh", "-c", "echo {dir}"]),
            Step::new("two", ["sh", "-c", "exit 3"]),
            Step::new("three", ["sh", "-c", "echo never"]),
        ];
        let plan = Plan { dir: "/some/where".into(), group: None, steps, out: dir.path().to_path_buf() };
        let file = dir.path().join("plan.json");
        fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
        assert_eq!(run(&file).unwrap(), 3);
        let outcomes: Vec<Outcome> =
            serde_json::from_slice(&fs::read(dir.path().join("results.json")).unwrap()).unwrap();
        assert_eq!(outcomes.len(), 2);
        assert_eq!(outcomes[0].output, "/some/where\n");
        assert_eq!((outcomes[0].status, outcomes[1].status), (0, 3));
    }

    #[test]
    fn foreign_cpu_is_what_the_group_did_not_use() {
        let mut o: Outcome = serde_json::from_value(serde_json::json!({
            "name": "x", "status": 0, "wall_ns": 1_000_000_000u64, "cpu_ns": 400_000_000u64, "read_bytes": null,
            "machine_busy_ns": 500_000_000u64, "machine_steal_ns": 0, "memory": null
        }))
        .unwrap();
        let share = 0.1 / machine::cpus() as f64;
        assert!((o.foreign_cpu() - share).abs() < 1e-9);
        o.cpu_ns = Some(600_000_000);
        assert_eq!(o.foreign_cpu(), 0.0, "ticks are coarse: never negative");
    }
}
