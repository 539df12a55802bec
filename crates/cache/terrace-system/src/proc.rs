//! Readers of /proc: threads, processes and processors.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// Upper bound for a line of /proc/TID/stat: 52 numbers and a name.
const LINE_MAX: usize = 1280;

/// Flags of a task, from include/linux/sched.h: exiting; past its last system call, for a core dump; writing
/// a core dump.
const PF_EXITING: u32 = 0x4;
const PF_POSTCOREDUMP: u32 = 0x8;
const PF_DUMPCORE: u32 = 0x200;

/// Text of a file in the directory of a process or thread. Names in it need not be UTF-8.
///
/// # Errors
/// The process has ended, or the file is hidden.
pub fn text(pid: impl Display, file: &str) -> io::Result<String> {
    // /proc does not list threads other than the first of a process, but has directories for them.
    fs::read(format!("/proc/{pid}/{file}")).map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// All processes that this user may see.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The fields of `/proc/PID/stat` from the state on: `pid (name) state ppid pgrp session tty tpgid flags
/// ...`. The name may contain anything.
pub fn stat_fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_ascii_whitespace()
}

/// Flags of a task, by its `stat`.
pub fn task_flags(stat: &str) -> u32 {
    stat_fields(stat).nth(6).and_then(|flags| flags.parse().ok()).unwrap_or_default()
}

/// Whether a task makes no more system calls, by its `stat`: dead, exiting, or in a core dump.
pub fn is_ending(stat: &str) -> bool {
    let dead = stat_fields(stat).next().is_some_and(|state| state.starts_with(['Z', 'X']));
    dead || task_flags(stat) & (PF_EXITING | PF_POSTCOREDUMP | PF_DUMPCORE) != 0
}

/// Whether a task writes a core dump, or waits for its other threads to stop before that, by its `stat`.
pub fn is_dumping(stat: &str) -> bool {
    task_flags(stat) & PF_DUMPCORE != 0
}

/// Fields of /proc/PID/stat of a process or thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, ...; `Z`: ended, before its parent's wait.
    pub state: char,
    /// The process that waits for its end.
    pub parent: i32,
    /// Start time, in ticks since boot.
    pub began: u64,
    /// The processor of its last run.
    pub cpu: usize,
    /// Name of the thread, as comm in /proc.
    pub name: String,
}

/// Reads `stat` of a process or thread. None: it is gone.
pub fn stat(pid: impl Display) -> Option<Stat> {
    parse_stat(&text(pid, "stat").ok()?)
}

/// Reads `stat` from its open file. None: the thread has ended.
pub fn stat_in(file: &File) -> Option<Stat> {
    parse_stat(&read_in(file, &mut [0; LINE_MAX])?)
}

/// The text of a small file of /proc, from its beginning.
fn read_in<'a>(file: &File, line: &'a mut [u8]) -> Option<Cow<'a, str>> {
    let n = file.read_at(line, 0).ok()?;
    Some(String::from_utf8_lossy(&line[..n]))
}

fn parse_stat(line: &str) -> Option<Stat> {
    let (open, close) = (line.find('(')?, line.rfind(')')?);
    let mut fields = stat_fields(line);
    // Field 3, the state, is the first after the name.
    let (state, parent) = (fields.next()?.chars().next()?, fields.next()?.parse().ok()?);
    let began = fields.nth(22 - 5)?.parse().ok()?;
    let cpu = fields.nth(39 - 22 - 1)?.parse().ok()?;
    Some(Stat { state, parent, began, cpu, name: line.get(open + 1..close)?.to_owned() })
}

/// Run time of a thread, ns, from /proc/TID/schedstat. None: the thread has ended, or the kernel does not
/// count.
pub fn run_ns(tid: u32) -> Option<u64> {
    parse_run_ns(&text(tid, "schedstat").ok()?)
}

/// Run time from the open file.
pub fn run_ns_in(file: &File) -> Option<u64> {
    parse_run_ns(&read_in(file, &mut [0; LINE_MAX])?)
}

fn parse_run_ns(line: &str) -> Option<u64> {
    line.split(' ').next()?.parse().ok()
}

/// Ticks of a processor since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Without work, or waiting for a device.
    pub idle: u64,
    /// Idle and busy.
    pub all: u64,
    /// Taken by the hypervisor; not in the other fields.
    pub stolen: u64,
}

/// Ticks of all processors together (without a number), and of each.
pub fn ticks() -> Vec<(Option<usize>, Ticks)> {
    fs::read_to_string("/proc/stat").map(|text| ticks_in(&text).collect()).unwrap_or_default()
}

/// Ticks of all processors together.
pub fn ticks_of_all() -> Option<Ticks> {
    // Their line is the first: the lines of the processors are not parsed.
    let text = fs::read_to_string("/proc/stat").ok()?;
    ticks_in(&text).find_map(|(cpu, ticks)| cpu.is_none().then_some(ticks))
}

fn ticks_in(stat: &str) -> impl Iterator<Item = (Option<usize>, Ticks)> {
    stat.lines().map_while(parse_ticks)
}

/// `cpu0 user nice system idle iowait irq softirq steal ...`; user and nice include guest times.
fn parse_ticks(line: &str) -> Option<(Option<usize>, Ticks)> {
    let (cpu, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
    let words = rest.split_whitespace().map(|word| word.parse().ok());
    let n: Vec<u64> = words.take(8).collect::<Option<_>>().filter(|n: &Vec<u64>| n.len() == 8)?;
    let (idle, all, stolen) = (n[3] + n[4], n[..7].iter().sum(), n[7]);
    Some((cpu.parse().ok(), Ticks { idle, all, stolen }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_fields() {
        let mut fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        fields[0] = "S".into();
        let found = parse_stat(&format!("42 (a) b(c) {}\n", fields.join(" "))).unwrap();
        assert_eq!(found, Stat { state: 'S', parent: 4, began: 22, cpu: 39, name: "a) b(c".into() });
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
    fn stolen_ticks_are_neither_idle_nor_busy() {
        let ticks = Ticks { idle: 78, all: 97, stolen: 3000 };
        assert_eq!(parse_ticks("cpu  10 1 5 70 8 1 2 3000 0 0"), Some((None, ticks)));
        assert_eq!(parse_ticks("cpu7 10 1 5 70 8 1 2 3000 100 100"), Some((Some(7), ticks)));
        for bad in ["", "intr 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(parse_ticks(bad), None, "{bad}");
        }
    }

    #[test]
    fn own_thread_is_found() {
        let own = stat(std::process::id()).unwrap();
        assert!(own.began > 0 && run_ns(std::process::id()).is_some_and(|ns| ns > 0));
        assert!(ticks().len() > 1 && stat(u32::MAX).is_none());
    }
}
