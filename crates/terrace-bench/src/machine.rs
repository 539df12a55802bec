//! What the machine is, and whether anybody else was using it.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The description that goes with raw results: a number without it says nothing. What an older file does not tell is empty.
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
    /// Virtualised, as far as the processor tells.
    pub virtual_machine: bool,
    /// File system under the data.
    pub file_system: String,
    /// Block device under the data.
    pub device: String,
    /// Its I/O scheduler.
    pub scheduler: String,
    /// /sys/kernel/mm/transparent_hugepage/enabled.
    pub huge_pages: String,
    /// `fio --version`.
    pub fio: String,
    /// Commit of the benchmark's sources, where known.
    pub commit: String,
    /// Seconds since 1970 at the start.
    pub time: u64,
}

/// Describes this machine and the device below `dir`.
pub fn describe(dir: &Path) -> Machine {
    let (device, file_system) = mount_of(dir).unwrap_or_default();
    let name = device.trim_start_matches("/dev/").to_string();
    let cpuinfo = read("/proc/cpuinfo");
    Machine {
        cpu: line_after(&cpuinfo, "model name").unwrap_or_default(),
        cpus: cpus(),
        memory_bytes: meminfo("MemTotal"),
        kernel: read("/proc/sys/kernel/osrelease"),
        virtual_machine: cpuinfo.contains("hypervisor"),
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

/// Memory that programs could still have, bytes.
pub fn memory_available() -> u64 {
    meminfo("MemAvailable")
}

fn meminfo(key: &str) -> u64 {
    line_after(&read("/proc/meminfo"), key)
        .and_then(|v| v.trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn line_after(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|l| Some(l.strip_prefix(key)?.trim_start_matches([' ', '\t', ':']).to_string()))
}

/// The bracketed word of a sysfs choice: "none [mq-deadline] bfq".
fn chosen(text: &str) -> String {
    text.split_once('[').and_then(|(_, r)| r.split_once(']')).map_or(text, |(w, _)| w).to_string()
}

fn output(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default()
}

/// Device and type of the mount that holds `dir`: the longest mount point that is a prefix.
pub fn mount_of(dir: &Path) -> Option<(String, String)> {
    let dir = dir.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let best = mounts
        .lines()
        .filter_map(|l| {
            let mut words = l.split(' ');
            Some((words.next()?, words.next()?, words.next()?))
        })
        .filter(|(_, at, _)| dir.starts_with(at))
        .max_by_key(|(_, at, _)| at.len())?;
    Some((best.0.to_string(), best.2.to_string()))
}

/// CPU time of the whole machine since it started, in nanoseconds; tick precision (10 ms).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Busy {
    /// Everything but idle and waiting.
    pub busy_ns: u64,
    /// What the hypervisor took.
    pub steal_ns: u64,
    /// What kernel threads used of it: writing back, the work of a loop device. They work for whoever asked, and are no sign of others.
    pub kernel_ns: u64,
}

/// Reads /proc/stat.
pub fn busy() -> Busy {
    let busy = parse_busy(&fs::read_to_string("/proc/stat").unwrap_or_default());
    let names = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    let processes = names.filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    let stats = processes.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    Busy { kernel_ns: stats.filter_map(|stat| kernel_thread_ns(&stat)).sum(), ..busy }
}

/// CPU time of a kernel thread, from its `/proc/PID/stat`; `None` for a program.
fn kernel_thread_ns(stat: &str) -> Option<u64> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let at = |i: usize| words.get(i)?.parse::<u64>().ok();
    // Behind the name: state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime.
    (at(6)? & PF_KTHREAD != 0).then_some((at(11)? + at(12)?) * 10_000_000)
}

fn parse_busy(stat: &str) -> Busy {
    let ticks: Vec<u64> =
        stat.lines().next().unwrap_or("").split_whitespace().skip(1).flat_map(str::parse).collect();
    let at = |i: usize| ticks.get(i).copied().unwrap_or(0) * 10_000_000;
    // user nice system idle iowait irq softirq steal
    Busy { busy_ns: at(0) + at(1) + at(2) + at(5) + at(6), steal_ns: at(7), kernel_ns: 0 }
}

/// Waits until the machine was idle for a second, at most `seconds`.
pub fn wait_until_quiet(seconds: u64) {
    for _ in 0..seconds {
        let before = busy();
        std::thread::sleep(std::time::Duration::from_secs(1));
        let after = busy();
        let used = (after.busy_ns + after.steal_ns).saturating_sub(before.busy_ns + before.steal_ns);
        if used < 30_000_000 * cpus() as u64 || crate::system::interrupted() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_and_sysfs_choices() {
        let b = parse_busy("cpu  10 1 5 1000 50 2 3 4 0 0\ncpu0 1 1 1\n");
        assert_eq!((b.busy_ns, b.steal_ns), (210_000_000, 40_000_000));
        let thread = "12 (kworker/u8:1-loop) I 2 0 0 0 -1 69238880 0 0 0 0 3 40 0 0 20 0 1 0 9 0 0";
        assert_eq!(kernel_thread_ns(thread), Some(430_000_000));
        assert_eq!(kernel_thread_ns(&thread.replace("69238880", "4194560")), None, "a program");
        assert_eq!(chosen("none [mq-deadline] bfq"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
        assert_eq!(line_after("a: 1\nmodel name\t: EPYC 7\n", "model name").unwrap(), "EPYC 7");
    }

    #[test]
    fn this_machine_has_a_description() {
        let m = describe(Path::new("/"));
        assert!(memory_available() > 0 && memory_available() <= m.memory_bytes);
        assert!(m.cpus > 0 && m.memory_bytes > 0 && !m.kernel.is_empty() && !m.file_system.is_empty());
    }
}
