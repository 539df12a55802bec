//! A control group for a program and its terrace together: one memory limit for both, one meter for their
//! CPU.
//!
//! Version 1 (a directory per controller) and version 2 (one tree) differ in file names only. A counter that
//! the machine lacks is `None`, and its user decides: a demo continues without a limit, a comparison under a
//! limit refuses.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_system::cgroup::{self, Version};
use terrace_system::{count, number, proc};

/// Where control groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// Environment variable with a step's group, as JSON: a loop reads the group's CPU time around its timed
/// part.
pub const GROUP: &str = "TERRACE_BENCH_GROUP";

/// Directories of a group; can be handed to another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    version: Version,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    /// Directory of the controller of shares; in version 1 it differs from that of CPU time.
    shares: Option<PathBuf>,
    /// Directory of the I/O controller; made only for a throttle.
    #[serde(default)]
    io: Option<PathBuf>,
}

/// Limits of a group's reads and writes on a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throttle {
    /// Major and minor number.
    pub(crate) device: (u32, u32),
    /// Bytes a second, in either direction.
    pub(crate) bytes_per_s: Option<u64>,
    /// Requests a second, in either direction.
    pub(crate) iops: Option<u64>,
    /// No other program uses the device. Version 1 counts the kernel's writeback as the root group's, so the limits
    /// are the root group's there.
    pub(crate) is_own: bool,
}

/// Counters of the group's memory controller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Peak of the charged bytes.
    pub(crate) usage_max: u64,
    /// Number of times the limit was hit (and memory was reclaimed).
    pub(crate) limit_hits: u64,
    /// Processes killed by the OOM killer.
    pub(crate) oom_kills: u64,
    /// Page faults that read from a device: the text of programs was dropped for lack of memory.
    pub(crate) major_faults: u64,
    /// Bytes that reclaim cannot free by dropping file pages: usage less the file cache, but with shared
    /// memory.
    pub(crate) pinned: u64,
}

impl Group {
    /// The group of this process's step.
    pub(crate) fn of_step() -> Option<Group> {
        std::env::var(GROUP).ok().and_then(|json| serde_json::from_str(&json).ok())
    }

    /// The directories of a group below `root`; made on request.
    fn at(root: &Path, name: &str, make: bool) -> io::Result<Group> {
        let name = Path::new(name);
        if !root.join("cgroup.controllers").exists() {
            let of = |controller: &str| group_in(&root.join(controller), name, make).ok().flatten();
            let (memory, cpu, shares) = (of("memory"), of("cpuacct"), of("cpu"));
            let io = if make { None } else { of("blkio") };
            return Ok(Group { version: Version::V1, memory, cpu, shares, io });
        }
        // One by one: a kernel without one of them refuses the whole line.
        for controller in ["+memory", "+cpu"].iter().filter(|_| make) {
            let _ = fs::write(root.join("cgroup.subtree_control"), controller);
        }
        let dir = group_in(root, name, make)?;
        let with = |file: &str| dir.clone().filter(|dir| dir.join(file).exists());
        let (memory, cpu) = (with("memory.max"), with("cpu.stat"));
        Ok(Group { version: Version::V2, memory, cpu, shares: None, io: None })
    }

    /// Control files that take a process id; writing "0" moves the writer.
    pub(crate) fn procs_files(&self) -> Vec<PathBuf> {
        self.dirs().iter().map(|d| d.join("cgroup.procs")).collect()
    }

    fn dirs(&self) -> Vec<&PathBuf> {
        let all = [&self.memory, &self.cpu, &self.shares, &self.io];
        let mut dirs: Vec<&PathBuf> = all.into_iter().flatten().collect();
        dirs.dedup();
        dirs
    }

    /// Process ids in the group.
    fn processes(&self) -> Vec<i32> {
        let text = self.procs_files().first().and_then(|file| fs::read_to_string(file).ok());
        text.unwrap_or_default().lines().flat_map(str::parse).collect()
    }

    /// CPU time of all processes that were ever in the group.
    pub(crate) fn cpu_ns(&self) -> Option<u64> {
        let dir = self.cpu.as_ref()?;
        match self.version {
            Version::V1 => number(&dir.join("cpuacct.usage")).ok()?,
            Version::V2 => Some(count(&fs::read_to_string(dir.join("cpu.stat")).ok()?, "usage_usec")? * 1000),
        }
    }

    /// Bytes read from block devices by the processes in the group, and by children that they waited for.
    ///
    /// From `/proc/PID/io`, which counts a process's direct reads, the page-cache reads that it caused, and
    /// all reads of children that it waited for. Rejected: the blkio controller, because version 1 counts
    /// only under a throttle.
    pub(crate) fn read_bytes(&self) -> Option<u64> {
        let procs = fs::read_to_string(self.procs_files().first()?).ok()?;
        let of = |pid| count(&proc::text(pid, "io").ok()?, "read_bytes");
        Some(procs.lines().filter_map(of).sum())
    }

    /// Counters of the memory controller.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let group = cgroup::Group { version: self.version, dir: self.memory.clone()? };
        let (stat, usage) = (group.stat().ok()??, group.used().ok()??);
        let of = |v1: &str, v2: &str| count(&stat, group.named(v1, v2)).unwrap_or(0);
        let peak = number(&group.file("memory.max_usage_in_bytes", "memory.peak"));
        let file_pages = of("total_cache", "file").saturating_sub(of("total_shmem", "shmem"));
        Some(Memory {
            usage_max: peak.ok().flatten().unwrap_or(usage),
            limit_hits: limit_hits(&group).unwrap_or(0),
            oom_kills: group.kills().ok().flatten().unwrap_or(0),
            major_faults: of("total_pgmajfault", "pgmajfault"),
            pinned: usage.saturating_sub(file_pages),
        })
    }
}

/// Times that use reached the limit for memory. Version 2 counts reclaim at `memory.high` apart.
fn limit_hits(group: &cgroup::Group) -> Option<u64> {
    match group.version {
        Version::V1 => group.met().ok(),
        Version::V2 => count(&fs::read_to_string(group.dir.join("memory.events")).ok()?, "max"),
    }
}

/// A group made for one run; removed when dropped.
#[derive(Debug)]
pub(crate) struct OwnedGroup {
    group: Group,
    /// Files and lines that end throttles of the root group.
    unthrottle: Vec<(PathBuf, String)>,
}

impl std::ops::Deref for OwnedGroup {
    type Target = Group;
    fn deref(&self) -> &Group {
        &self.group
    }
}

impl OwnedGroup {
    /// Makes the group below the machine's cgroup tree, with an optional memory limit.
    pub(crate) fn create(name: &str, limit: Option<u64>) -> io::Result<OwnedGroup> {
        Self::create_below(Path::new(ROOT), name, limit)
    }

    fn create_below(root: &Path, name: &str, limit: Option<u64>) -> io::Result<OwnedGroup> {
        let owned = OwnedGroup { group: Group::at(root, name, true)?, unthrottle: Vec::new() };
        if owned.dirs().is_empty() {
            return Err(io::Error::other("no control groups here"));
        }
        if let Some(bytes) = limit {
            let file = if owned.version == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
            let dir = owned.memory.clone().ok_or_else(|| io::Error::other("no memory controller"))?;
            fs::write(dir.join(file), bytes.to_string())?;
        }
        Ok(owned)
    }

    /// Gives the group nearly all of the processors under contention: for machines that are not quiet.
    pub(crate) fn favour(&self) {
        let (file, value) = match self.version {
            Version::V1 => (self.shares.as_ref().map(|d| d.join("cpu.shares")), "262144"),
            Version::V2 => (self.cpu.as_ref().map(|d| d.join("cpu.weight")), "10000"),
        };
        if let Some(file) = file {
            let _ = fs::write(file, value);
        }
    }

    /// Ends the remaining processes of a load: SIGTERM, SIGKILL after 10 s. Processes of the program `server`
    /// end by themselves when they have no more users; they are killed only after 20 s more.
    pub(crate) fn end_all(&self, server: &Path) {
        let serves = |&pid: &i32| runs(pid, server);
        let others = || self.processes().into_iter().filter(|pid| !serves(pid)).collect::<Vec<_>>();
        for (signal, seconds) in [(libc::SIGTERM, 10), (libc::SIGKILL, 5)] {
            signal_all(&others(), signal);
            wait_for(seconds, || others().is_empty());
        }
        if !wait_for(20, || self.processes().is_empty()) {
            signal_all(&self.processes(), libc::SIGKILL);
            wait_for(5, || self.processes().is_empty());
        }
    }

    /// Throttles the group on one device.
    ///
    /// # Errors
    /// There is no I/O controller, or it refuses the device.
    pub(crate) fn throttle(&mut self, throttle: &Throttle) -> io::Result<()> {
        let lines = throttle.lines(self.version);
        if throttle.is_own && self.version == Version::V1 {
            self.unthrottle = throttle.ends();
            let root = Path::new(ROOT).join("blkio");
            return lines.iter().try_for_each(|(file, line)| fs::write(root.join(file), line));
        }
        let name = self.dirs().first().and_then(|dir| dir.file_name()).map(PathBuf::from).unwrap_or_default();
        let dir = match self.version {
            Version::V1 => group_in(&Path::new(ROOT).join("blkio"), &name, true).ok().flatten(),
            Version::V2 => {
                let root = Path::new(ROOT);
                let _ = fs::write(root.join("cgroup.subtree_control"), "+io");
                Some(root.join(&name)).filter(|dir| dir.join("io.max").exists())
            }
        };
        let dir =
            dir.ok_or_else(|| io::Error::other("no control group controller for devices (blkio, io)"))?;
        self.group.io = Some(dir.clone());
        lines.iter().try_for_each(|(file, line)| fs::write(dir.join(file), line))
    }
}

impl Throttle {
    /// Files of the root group of version 1, and the lines that end its limits. Empty if its limits do not change.
    pub(crate) fn ends(&self) -> Vec<(PathBuf, String)> {
        let root = Path::new(ROOT).join("blkio");
        if !self.is_own || !root.exists() {
            return Vec::new();
        }
        let none = Throttle { bytes_per_s: self.bytes_per_s.map(|_| 0), iops: self.iops.map(|_| 0), ..*self };
        let lines = none.lines(Version::V1).into_iter();
        lines.map(|(file, line)| (root.join(file), line)).collect()
    }

    /// Control files, and the lines to write.
    fn lines(&self, version: Version) -> Vec<(String, String)> {
        let (major, minor) = self.device;
        let limits = [("bps", self.bytes_per_s), ("iops", self.iops)];
        let limits = limits.iter().filter_map(|(unit, limit)| Some((unit, (*limit)?)));
        match version {
            Version::V1 => {
                let file = |unit: &str, way: &str| format!("blkio.throttle.{way}_{unit}_device");
                let of = |(unit, limit): (&&str, u64)| {
                    ["read", "write"].map(|way| (file(unit, way), format!("{major}:{minor} {limit}")))
                };
                limits.flat_map(of).collect()
            }
            Version::V2 => {
                let words: String =
                    limits.map(|(unit, limit)| format!(" r{unit}={limit} w{unit}={limit}")).collect();
                vec![("io.max".into(), format!("{major}:{minor}{words}"))]
            }
        }
    }
}

/// Removes the groups of this name that a killed harness left, and ends their processes. No group is no
/// error.
///
/// # Errors
/// A group that cannot be removed.
pub(crate) fn remove(name: &str) -> io::Result<()> {
    let group = Group::at(Path::new(ROOT), name, false)?;
    let dirs: Vec<PathBuf> = group.dirs().into_iter().cloned().collect();
    let group = OwnedGroup { group, unthrottle: Vec::new() };
    group.end_all(Path::new(""));
    drop(group);
    match dirs.into_iter().find(|dir| dir.exists()) {
        Some(dir) => {
            Err(io::Error::other(format!("{} cannot be removed: it still has processes", dir.display())))
        }
        None => Ok(()),
    }
}

/// Whether a process runs this program. A program replaced by a new build still counts.
fn runs(pid: i32, program: &Path) -> bool {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    exe.to_string_lossy().trim_end_matches(" (deleted)") == program.to_string_lossy()
}

fn signal_all(pids: &[i32], signal: i32) {
    for &pid in pids {
        // SAFETY: sends a signal to a process that was in a group of ours a moment ago; touches no memory.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Waits for a condition, at most `seconds`; returns its last value.
fn wait_for(seconds: u64, is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > Duration::from_secs(seconds) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

impl Drop for OwnedGroup {
    fn drop(&mut self) {
        for (file, line) in &self.unthrottle {
            let _ = fs::write(file, line);
        }
        if let (Version::V1, Some(dir)) = (self.version, &self.memory) {
            // Otherwise cached file pages would stay charged to a removed group.
            let _ = fs::write(dir.join("memory.force_empty"), "0");
        }
        for dir in self.dirs() {
            // The last process may still be exiting.
            for _ in 0..50 {
                match fs::remove_dir(dir) {
                    Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// The group's directory in a tree, if it has one; made on request.
fn group_in(tree: &Path, name: &Path, make: bool) -> io::Result<Option<PathBuf>> {
    let dir = tree.join(name);
    if make {
        fs::create_dir_all(&dir)?;
    }
    Ok(Some(dir).filter(|dir| dir.join("cgroup.procs").exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(version: Version, dir: &Path) -> Group {
        let dir = Some(dir.to_path_buf());
        Group { version, memory: dir.clone(), cpu: dir, shares: None, io: None }
    }

    #[test]
    fn version_1_files_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("cpuacct.usage", "123456789\n");
        put("memory.usage_in_bytes", "1000\n");
        put("memory.max_usage_in_bytes", "2000\n");
        put("memory.failcnt", "3\n");
        put("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        put("memory.stat", "cache 1\nshmem 1\ntotal_cache 700\ntotal_shmem 600\n");
        let g = group(Version::V1, dir.path());
        assert_eq!(g.cpu_ns(), Some(123_456_789));
        let m = g.memory().unwrap();
        assert_eq!((m.usage_max, m.limit_hits, m.oom_kills, m.pinned), (2000, 3, 2, 900));
    }

    #[test]
    fn reads_of_ended_children_count_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.procs"), std::process::id().to_string()).unwrap();
        fs::write(dir.path().join("data"), vec![7u8; 1 << 20]).unwrap();
        let g = group(Version::V2, dir.path());
        let before = g.read_bytes().unwrap();
        let from = format!("if={}", dir.path().join("data").display());
        let dd = std::process::Command::new("dd")
            .args([&from, "of=/dev/null", "bs=1M", "iflag=direct"])
            .output()
            .unwrap();
        // A file system without direct reads counts nothing.
        if dd.status.success() && fs::read_to_string("/proc/self/io").is_ok() {
            let read = g.read_bytes().unwrap() - before;
            assert!((1 << 20..2 << 20).contains(&read), "1 MiB was read, {read} bytes are counted");
        }
    }

    #[test]
    fn throttles_of_both_versions() {
        let throttle =
            Throttle { device: (7, 3), bytes_per_s: Some(1 << 20), iops: Some(500), is_own: false };
        let v1 = throttle.lines(Version::V1);
        assert_eq!(v1.len(), 4);
        assert_eq!(v1[0], ("blkio.throttle.read_bps_device".into(), "7:3 1048576".into()));
        assert_eq!(v1[3], ("blkio.throttle.write_iops_device".into(), "7:3 500".into()));
        let v2 = [("io.max".to_string(), "7:3 rbps=1048576 wbps=1048576 riops=500 wiops=500".to_string())];
        assert_eq!(throttle.lines(Version::V2), v2);
    }

    /// A directory of plain files stands in for a version 2 tree.
    #[test]
    fn a_version_2_limit_is_written() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory io").unwrap();
        let group = dir.path().join("g");
        fs::create_dir(&group).unwrap();
        for file in ["memory.max", "cpu.stat", "cgroup.procs"] {
            fs::write(group.join(file), "").unwrap();
        }
        let owned = OwnedGroup::create_below(dir.path(), "g", Some(64 << 20)).unwrap();
        assert_eq!(fs::read_to_string(group.join("memory.max")).unwrap(), "67108864");
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap(), "+cpu");
        assert_eq!(owned.procs_files(), [group.join("cgroup.procs")], "one directory, once");
    }

    #[test]
    fn version_2_files_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("cpu.stat", "usage_usec 77\nuser_usec 7\n");
        put("memory.current", "500\n");
        put("memory.peak", "800\n");
        put("memory.events", "low 0\nhigh 4\nmax 9\noom 1\noom_kill 1\n");
        put("memory.stat", "anon 100\nfile 300\nshmem 100\n");
        let g = group(Version::V2, dir.path());
        assert_eq!(g.cpu_ns(), Some(77_000));
        let m = g.memory().unwrap();
        assert_eq!((m.usage_max, m.limit_hits, m.oom_kills, m.pinned), (800, 9, 1, 300));
    }

    #[test]
    fn processes_left_in_the_group_are_ended() {
        let dir = tempfile::tempdir().unwrap();
        let owned = OwnedGroup { group: group(Version::V2, dir.path()), unthrottle: Vec::new() };
        let mut left = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut server = std::process::Command::new("tail").args(["-f", "/dev/null"]).spawn().unwrap();
        let list = |pids: &[u32]| {
            let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
            fs::write(dir.path().join("cgroup.procs"), text).unwrap();
        };
        list(&[left.id(), server.id()]);
        let program = fs::read_link(format!("/proc/{}/exe", server.id())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| owned.end_all(&program));
            // A real group removes an ended process; then the server ends, too.
            left.wait().unwrap();
            list(&[server.id()]);
            std::thread::sleep(Duration::from_millis(200));
            assert!(server.try_wait().unwrap().is_none(), "the server was not left alone");
            server.kill().unwrap();
            server.wait().unwrap();
            list(&[]);
        });
    }
}
