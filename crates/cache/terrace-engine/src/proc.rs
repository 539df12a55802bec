//! Readers of /proc: threads, processes and processors.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Upper bound for a line of /proc/TID/stat: 52 numbers and a name.
const LINE_MAX: usize = 1280;

/// Flags of a task, from include/linux/sched.h: exiting; past its last system call, for a core dump; writing
/// a core dump.
const PF_EXITING: u32 = 0x4;
const PF_POSTCOREDUMP: u32 = 0x8;
const PF_DUMPCORE: u32 = 0x200;

/// The fields of `/proc/PID/stat` from the state on: `pid (name) state ppid pgrp session tty tpgid flags
/// ...`. The name may contain anything.
pub fn stat_fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_ascii_whitespace()
}

/// Flags of a task, by its `stat`.
pub fn task_flags(stat: &str) -> u32 {
    stat_fields(stat).nth(6).and_then(|flags| flags.parse().ok()).unwrap_or_default()
}

/// Whether a task makes no more system calls, by its `stat`: it is dead or exiting, perhaps delayed by a core
/// dump.
pub fn is_ending(stat: &str) -> bool {
    let dead = stat_fields(stat).next().is_some_and(|state| state.starts_with(['Z', 'X']));
    dead || task_flags(stat) & (PF_EXITING | PF_POSTCOREDUMP | PF_DUMPCORE) != 0
}

/// Whether a task writes a core dump, or waits for its other threads to stop before that, by its `stat`.
pub fn is_dumping(stat: &str) -> bool {
    task_flags(stat) & PF_DUMPCORE != 0
}

/// Fields of a thread's /proc/TID/stat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Start time, in ticks since boot.
    pub(crate) began: u64,
    /// The processor of its last run.
    pub(crate) cpu: usize,
    pub(crate) name: String,
}

/// Reads a thread's `stat`. None: the thread has ended.
pub(crate) fn stat(tid: u32) -> Option<Stat> {
    // /proc does not list threads other than the first of a process, but has directories for them.
    parse_stat(&fs::read_to_string(format!("/proc/{tid}/stat")).ok()?)
}

/// Reads `stat` from its open file. None: the thread has ended.
pub(crate) fn stat_in(file: &File) -> Option<Stat> {
    parse_stat(read_in(file, &mut [0; LINE_MAX])?)
}

/// The text of a small file of /proc, from its beginning.
fn read_in<'a>(file: &File, line: &'a mut [u8]) -> Option<&'a str> {
    let n = file.read_at(line, 0).ok()?;
    str::from_utf8(&line[..n]).ok()
}

fn parse_stat(line: &str) -> Option<Stat> {
    let (open, close) = (line.find('(')?, line.rfind(')')?);
    let mut fields = stat_fields(line);
    // Field 3, the state, is the first after the name.
    let began = fields.nth(22 - 3)?.parse().ok()?;
    let cpu = fields.nth(39 - 22 - 1)?.parse().ok()?;
    Some(Stat { began, cpu, name: line.get(open + 1..close)?.to_owned() })
}

/// Run time of a thread, ns, from /proc/TID/schedstat. None: the thread has ended, or the kernel does not
/// count.
pub(crate) fn run_ns(tid: u32) -> Option<u64> {
    parse_run_ns(&fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?)
}

/// Run time from the open file.
pub(crate) fn run_ns_in(file: &File) -> Option<u64> {
    parse_run_ns(read_in(file, &mut [0; LINE_MAX])?)
}

fn parse_run_ns(line: &str) -> Option<u64> {
    line.split(' ').next()?.parse().ok()
}

/// Number, busy ticks and total ticks of each processor.
pub(crate) fn cpu_ticks() -> Vec<(usize, u64, u64)> {
    fs::read_to_string("/proc/stat").map(|text| parse_ticks(&text)).unwrap_or_default()
}

fn parse_ticks(text: &str) -> Vec<(usize, u64, u64)> {
    let of = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let cpu = words.next()?.parse().ok()?;
        // user nice system idle iowait irq softirq steal; user and nice include guest times.
        let ticks: Vec<u64> = words.take(8).map(|word| word.parse().unwrap_or(0)).collect();
        let (all, idle) = (ticks.iter().sum::<u64>(), ticks.iter().skip(3).take(2).sum::<u64>());
        Some((cpu, all - idle, all))
    };
    text.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_fields() {
        let mut fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        fields[0] = "S".into();
        let found = parse_stat(&format!("42 (a) b(c) {}\n", fields.join(" "))).unwrap();
        assert_eq!(found, Stat { began: 22, cpu: 39, name: "a) b(c".into() });
        assert_eq!(parse_stat("42 (a"), None);
    }

    #[test]
    fn a_task_that_ends_is_told_by_its_flags() {
        let stat = |state: char, flags: u32| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 28 0");
        assert!(!is_ending(&stat('S', 0x40_0040)) && !is_ending(&stat('D', 0x40_0440)) && !is_ending(""));
        assert!(is_ending(&stat('Z', 0)) && is_ending(&stat('X', 0)));
        assert!([PF_EXITING, PF_POSTCOREDUMP, PF_DUMPCORE].iter().all(|flag| is_ending(&stat('D', *flag))));
        assert!(is_dumping(&stat('D', PF_DUMPCORE)) && !is_dumping(&stat('I', PF_POSTCOREDUMP)));
    }

    #[test]
    fn busy_ticks_are_without_idle_and_waiting() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 50 6 7 8 100 100\ncpu1 0 0 0 5\nintr 1\n";
        assert_eq!(parse_ticks(text), [(0, 27, 117), (1, 0, 5)]);
    }

    #[test]
    fn own_thread_is_found() {
        let own = stat(std::process::id()).unwrap();
        assert!(own.began > 0 && run_ns(std::process::id()).is_some_and(|ns| ns > 0));
        assert!(!cpu_ticks().is_empty() && stat(u32::MAX).is_none());
    }
}
