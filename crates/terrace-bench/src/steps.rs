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
    /// The step fills a cache: it is run again until so many bytes of it are hits at the fast door.
    #[serde(default)]
    pub until_hit_bytes: Option<u64>,
}

impl Step {
    /// A step without dropping caches.
    pub fn new<S: Into<String>>(name: &str, argv: impl IntoIterator<Item = S>) -> Step {
        let argv = argv.into_iter().map(Into::into).collect();
        Step { name: name.to_string(), argv, drop_caches: false, until_hit_bytes: None }
    }

    /// The same, with cold caches.
    pub fn cold(mut self) -> Step {
        self.drop_caches = true;
        self
    }

    /// The same, again until so many bytes are hits. Where there is no fast door it runs twice.
    pub fn until_hits(mut self, bytes: u64) -> Step {
        self.until_hit_bytes = Some(bytes);
        self
    }
}

/// All that the inner process must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Directory under test.
    pub dir: PathBuf,
    /// The product, where the directory is served by terrace: its counters are read around each step.
    pub terrace: Option<PathBuf>,
    /// The group that holds everything.
    pub group: Option<Group>,
    /// Commands, in order.
    pub steps: Vec<Step>,
    /// Where outputs (`NAME.out`) and `results.json` go: not below `dir`.
    pub out: PathBuf,
}

/// What the fast door did during a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// Bytes of hits.
    pub hit_bytes: u64,
    /// Bytes of misses that the program itself read from the source.
    pub miss_bytes: u64,
}

impl Door {
    /// The counters of the instance that serves `dir`.
    fn read(terrace: &Path, dir: &Path) -> Option<Door> {
        let told = Command::new(terrace).arg("stat").arg(dir).arg("--json").output().ok()?;
        let stat: serde_json::Value = serde_json::from_slice(&told.stdout).ok()?;
        let bytes = |name: &str| stat["fast_door"][name].as_u64();
        Some(Door { hit_bytes: bytes("hit_bytes")?, miss_bytes: bytes("miss_bytes")? })
    }

    fn since(self, before: Door) -> Door {
        Door {
            hit_bytes: self.hit_bytes.saturating_sub(before.hit_bytes),
            miss_bytes: self.miss_bytes.saturating_sub(before.miss_bytes),
        }
    }
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
    /// CPU time of kernel threads meanwhile, which is in that of the machine.
    #[serde(default)]
    pub kernel_threads_ns: u64,
    /// Memory of the group at the end.
    pub memory: Option<Memory>,
    /// What the fast door did meanwhile, where terrace serves.
    #[serde(default)]
    pub door: Option<Door>,
    /// Standard output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
}

impl Outcome {
    /// Share of the machine's CPU that others used meanwhile, 0 to 1.
    pub fn foreign_cpu(&self) -> f64 {
        let own = self.cpu_ns.unwrap_or(self.machine_busy_ns);
        let foreign =
            self.machine_busy_ns.saturating_sub(own + self.kernel_threads_ns) + self.machine_steal_ns;
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
pub fn warm_memory() {
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
        let mut outcome = run_step(&plan, step)?;
        let mut tries = 1;
        while outcome.status == 0 && wants_more(step, &outcome, tries) {
            outcome = run_step(&plan, step)?;
            tries += 1;
        }
        let status = outcome.status;
        outcomes.push(outcome);
        fs::write(plan.out.join("results.json"), serde_json::to_vec(&outcomes)?)?;
        if status != 0 {
            return Ok(status);
        }
    }
    Ok(0)
}

/// A step that fills is repeated; a cache that does not fill in some tries never will, and whoever judges the run will see it.
fn wants_more(step: &Step, outcome: &Outcome, tries: u32) -> bool {
    const TRIES_MAX: u32 = 8;
    let Some(bytes) = step.until_hit_bytes else { return false };
    tries < outcome.door.map_or(2, |door| if door.hit_bytes < bytes { TRIES_MAX } else { 2 })
}

fn run_step(plan: &Plan, step: &Step) -> io::Result<Outcome> {
    let dir = plan.dir.to_string_lossy();
    let argv: Vec<String> = step.argv.iter().map(|a| a.replace("{dir}", &dir)).collect();
    let path = plan.out.join(format!("{}.out", step.name));
    let group = plan.group.as_ref();
    let read = || (group.and_then(Group::cpu_ns), group.and_then(Group::read_bytes), machine::busy());

    let door = || plan.terrace.as_ref().and_then(|terrace| Door::read(terrace, &plan.dir));
    // Outside of the meters: asking costs CPU time too.
    let door_before = door();
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
    let door_after = door();

    let difference = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?));
    Ok(Outcome {
        name: step.name.clone(),
        status: exit_code(status),
        wall_ns,
        cpu_ns: difference(before.0, after.0),
        read_bytes: difference(before.1, after.1),
        machine_busy_ns: after.2.busy_ns.saturating_sub(before.2.busy_ns),
        machine_steal_ns: after.2.steal_ns.saturating_sub(before.2.steal_ns),
        kernel_threads_ns: after.2.kernel_ns.saturating_sub(before.2.kernel_ns),
        memory: group.and_then(Group::memory),
        door: door_after.zip(door_before).map(|(after, before)| after.since(before)),
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
        let out = dir.path().to_path_buf();
        let plan = Plan { dir: "/some/where".into(), terrace: None, group: None, steps, out };
        let file = dir.path().join("plan.json");
        fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
        assert_eq!(run(&file).unwrap(), 3);
        let outcomes: Vec<Outcome> =
            serde_json::from_slice(&fs::read(dir.path().join("results.json")).unwrap()).unwrap();
        assert_eq!(outcomes.len(), 2);
        assert_eq!(outcomes[0].output, "/some/where\n");
        assert_eq!((outcomes[0].status, outcomes[1].status), (0, 3));
    }

    /// The stand-in for `terrace stat` counts 100 bytes more of hits each time it is asked.
    #[test]
    fn a_step_that_fills_is_repeated_until_it_hits() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (terrace, ran) = (dir.path().join("terrace"), dir.path().join("ran"));
        let script = r#"#!/bin/sh
            n=$(wc -c < "$2/ran"); echo "{\"fast_door\": {\"hit_bytes\": $((n * n * 10)), \"miss_bytes\": 0}}""#;
        fs::write(&terrace, script).unwrap();
        fs::set_permissions(&terrace, fs::Permissions::from_mode(0o755)).unwrap();
        let tries = |terrace: Option<&PathBuf>, bytes| {
            fs::write(&ran, "").unwrap();
            let step = Step::new("fill", ["sh", "-c", "printf x >> {dir}/ran"]).until_hits(bytes);
            let (dir, out) = (dir.path().to_path_buf(), dir.path().to_path_buf());
            let plan = Plan { dir, terrace: terrace.cloned(), group: None, steps: vec![step], out };
            let file = plan.out.join("plan.json");
            fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
            assert_eq!(run(&file).unwrap(), 0);
            fs::read(&ran).unwrap().len()
        };
        assert_eq!(tries(None, 1), 2, "no fast door");
        assert_eq!(tries(Some(&terrace), 20), 2);
        assert_eq!(tries(Some(&terrace), 70), 4, "10, 30, 50, 70");
        assert_eq!(tries(Some(&terrace), 1000), 8, "never");
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
