//! Description of the machine that runs a benchmark, and the processor time of other programs.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;
use terrace_system::{bytes, field, mounts, proc};

/// Maximum CPU share of other programs; a run above it is marked as disturbed.
pub(crate) const FOREIGN_CPU_MAX: f64 = 0.04;

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
pub(crate) fn describe(dir: &Path) -> Machine {
    let (device, file_system) = mount_of(dir).unwrap_or_default();
    let name = device.trim_start_matches("/dev/").to_string();
    let cpu = read("/proc/cpuinfo");
    Machine {
        cpu: field(&cpu, "model name").unwrap_or_default().to_string(),
        cpus: cpus(),
        memory_bytes: bytes(&read("/proc/meminfo"), "MemTotal").unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease"),
        virtual_machine: field(&cpu, "flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
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
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory available to programs, bytes.
pub(crate) fn memory_available() -> u64 {
    bytes(&read("/proc/meminfo"), "MemAvailable").unwrap_or(0)
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

/// Device and type of the mount that contains `dir`.
pub(crate) fn mount_of(dir: &Path) -> Option<(String, String)> {
    let dir = dir.canonicalize().ok()?;
    let table = mounts::table();
    let (mount, _) = mounts::inside(&table, &dir)?;
    let device = mount.source().to_string_lossy().into_owned();
    Some((if device == "none" { String::new() } else { device }, mount.fstype.clone()))
}

/// CPU time of the whole machine since it started, in nanoseconds; tick precision (10 ms).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Busy {
    /// All time except idle and I/O wait.
    pub(crate) busy_ns: u64,
    /// Processor time taken by the hypervisor.
    pub(crate) steal_ns: u64,
    /// Time of kernel threads, included in `busy_ns`: writeback, loop devices. They also work for the
    /// measured program, so they do not count as other load.
    pub(crate) kernel_ns: u64,
}

/// Reads /proc/stat, and the stat file of each kernel thread.
pub(crate) fn busy() -> Busy {
    /// The flag of kernel threads.
    const PF_KTHREAD: u32 = 0x0020_0000;
    let ns = |ticks: u64| ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second();
    let Some(all) = proc::ticks_of_all() else { return Busy::default() };
    let stats = proc::pids().filter_map(|pid| proc::text(pid, "stat").ok());
    let threads = stats.filter(|stat| proc::task_flags(stat) & PF_KTHREAD != 0);
    // Fields 14 and 15: user and system time.
    let used =
        |stat: String| proc::stat_fields(&stat).skip(11).take(2).flat_map(str::parse::<u64>).sum::<u64>();
    Busy { busy_ns: ns(all.all - all.idle), steal_ns: ns(all.stolen), kernel_ns: ns(threads.map(used).sum()) }
}

/// Waits until the machine has been idle for a second, at most `seconds`.
pub(crate) fn wait_until_quiet(seconds: u64) {
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
