//! Description of the machine, and load by other programs.

use procfs::process::{MountInfo, Process};
use procfs::{CpuInfo, Current, CurrentSI, KernelStats, Meminfo};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Maximum CPU share of other programs; a run above it is marked as disturbed.
pub const FOREIGN_CPU_MAX: f64 = 0.04;

/// Description of the machine, stored with raw results: a number without it is meaningless. Fields that an
/// older file lacks are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Logical processors online.
    pub cpus: usize,
    /// Main memory.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Whether the machine is virtual, as far as the processor shows it.
    pub virtual_machine: bool,
    /// File system under the data.
    pub file_system: String,
    /// Block device under the data.
    pub device: String,
    /// Its I/O scheduler.
    pub scheduler: String,
    /// /sys/kernel/mm/transparent_hugepage/enabled.
    pub huge_pages: String,
    /// Output of `fio --version`.
    pub fio: String,
    /// Commit of the benchmark's sources, if known.
    pub commit: String,
    /// Seconds since 1970 at the start.
    pub time: u64,
}

/// Describes this machine and the device below `dir`.
pub fn describe(dir: &Path) -> Machine {
    let (device, file_system) = mount_of(dir).unwrap_or_default();
    let name = device.trim_start_matches("/dev/").to_string();
    let cpu = CpuInfo::current().ok();
    let flags = cpu.as_ref().and_then(|cpu| cpu.flags(0)).unwrap_or_default();
    Machine {
        cpu: cpu.as_ref().and_then(|cpu| cpu.model_name(0)).unwrap_or_default().to_string(),
        cpus: cpus(),
        memory_bytes: Meminfo::current().map_or(0, |info| info.mem_total),
        kernel: read("/proc/sys/kernel/osrelease"),
        virtual_machine: flags.contains(&"hypervisor"),
        file_system,
        scheduler: chosen(&read(&format!("/sys/block/{name}/queue/scheduler"))),
        device,
        huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        fio: output("fio", &["--version"]),
        commit: output("git", &["rev-parse", "--short", "HEAD"]),
        time: std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    }
}

/// Logical processors online.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory available to programs, bytes.
pub fn memory_available() -> u64 {
    Meminfo::current().ok().and_then(|info| info.mem_available).unwrap_or(0)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// The bracketed word of a sysfs choice: "none [mq-deadline] bfq".
fn chosen(text: &str) -> String {
    text.split_once('[').and_then(|(_, r)| r.split_once(']')).map_or(text, |(w, _)| w).to_string()
}

fn output(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default()
}

/// All mounts, in the order of mounting.
pub fn mounts() -> Vec<MountInfo> {
    let mounts = Process::myself().and_then(|me| me.mountinfo());
    mounts.map_or_else(|_| Vec::new(), |mounts| mounts.into_iter().collect())
}

/// Device and type of the mount that contains `dir`: the longest mount point that is a prefix, the last one
/// of several.
pub fn mount_of(dir: &Path) -> Option<(String, String)> {
    let dir = dir.canonicalize().ok()?;
    let holds = mounts().into_iter().filter(|mount| dir.starts_with(&mount.mount_point));
    let best = holds.max_by_key(|mount| mount.mount_point.as_os_str().len())?;
    Some((best.mount_source.unwrap_or_default(), best.fs_type))
}

/// CPU time of the whole machine since it started, in nanoseconds; tick precision (10 ms).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Busy {
    /// All time except idle and I/O wait.
    pub busy_ns: u64,
    /// Processor time taken by the hypervisor.
    pub steal_ns: u64,
    /// Time of kernel threads, included in `busy_ns`: writeback, loop devices. They also work for the
    /// measured program, so they do not count as other load.
    pub kernel_ns: u64,
}

/// Reads /proc/stat, and the stat file of each kernel thread.
pub fn busy() -> Busy {
    /// The flag of kernel threads.
    const PF_KTHREAD: u32 = 0x0020_0000;
    let ns = |ticks: u64| ticks * 1_000_000_000 / procfs::ticks_per_second();
    let Ok(all) = KernelStats::current().map(|stats| stats.total) else { return Busy::default() };
    let busy = all.user + all.nice + all.system + all.irq.unwrap_or(0) + all.softirq.unwrap_or(0);
    let processes = procfs::process::all_processes().into_iter().flatten().flatten();
    let threads = processes.filter_map(|process| process.stat().ok()).filter(|s| s.flags & PF_KTHREAD != 0);
    let kernel: u64 = threads.map(|stat| stat.utime + stat.stime).sum();
    Busy { busy_ns: ns(busy), steal_ns: ns(all.steal.unwrap_or(0)), kernel_ns: ns(kernel) }
}

/// Waits until the machine has been idle for a second, at most `seconds`.
pub fn wait_until_quiet(seconds: u64) {
    for _ in 0..seconds {
        let before = busy();
        std::thread::sleep(std::time::Duration::from_secs(1));
        let after = busy();
        let used = (after.busy_ns + after.steal_ns).saturating_sub(before.busy_ns + before.steal_ns);
        if used < 30_000_000 * cpus() as u64 || terrace_output::signals::interrupted() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_sysfs_is_the_word_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] bfq"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
    }

    #[test]
    fn this_machine_has_a_description() {
        let m = describe(Path::new("/"));
        assert!(memory_available() > 0 && memory_available() <= m.memory_bytes);
        assert!(m.cpus > 0 && m.memory_bytes > 0 && !m.kernel.is_empty() && !m.file_system.is_empty());
        let busy = busy();
        assert!(busy.busy_ns > 0 && busy.kernel_ns < busy.busy_ns);
    }
}
