//! Readers of /proc: threads, processes and processors.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
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

/// All processes that this user may see. Empty if /proc cannot be listed.
pub fn pids() -> impl Iterator<Item = i32> {
    processes().into_iter().flatten()
}

/// All processes that this user may see.
///
/// # Errors
/// /proc cannot be listed, for example for lack of a descriptor.
pub fn processes() -> io::Result<Vec<i32>> {
    numbers_in("/proc")
}

/// Threads of a process.
///
/// # Errors
/// The process has ended ([`is_gone`]), or its threads cannot be listed.
pub fn tasks(pid: i32) -> io::Result<Vec<i32>> {
    numbers_in(&format!("/proc/{pid}/task"))
}

/// The process of a thread. None: the thread has ended.
pub fn process_of(tid: impl Display) -> Option<u32> {
    crate::field(&text(tid, "status").ok()?, "Tgid")?.parse().ok()
}

/// Number and arguments of the system call in which a thread waits (proc(5), `syscall`). None: the thread runs, has
/// ended, or is hidden. A 32-bit program has other numbers.
pub fn system_call(tid: impl Display) -> Option<(i64, [i64; 6])> {
    parse_system_call(&text(tid, "syscall").ok()?)
}

/// `number 0xarg ... 0xstack 0xinstruction`
fn parse_system_call(line: &str) -> Option<(i64, [i64; 6])> {
    let mut fields = line.split_ascii_whitespace();
    let number = fields.next()?.parse().ok()?;
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()? as i64;
    }
    Some((number, args))
}

fn numbers_in(dir: &str) -> io::Result<Vec<i32>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name()));
    let names: io::Result<Vec<_>> = names.collect();
    Ok(names?.into_iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Whether a reader of /proc failed because the process or thread has ended.
pub fn is_gone(err: &io::Error) -> bool {
    /// ESRCH.
    const NO_SUCH_PROCESS: i32 = 3;
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(NO_SUCH_PROCESS)
}

/// A mapping of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses.
    pub range: Range<u64>,
    /// Stores reach the file.
    pub is_shared: bool,
    /// Inode number of the file. 0: none.
    pub inode: u64,
}

/// The mappings in `maps` of a process. Lines of another form are skipped.
pub fn mappings(maps: &str) -> impl Iterator<Item = Mapping> {
    maps.lines().filter_map(parse_mapping)
}

/// `begin-end rwxs offset device inode path`
fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    let address = |digits| u64::from_str_radix(digits, 16).ok();
    let range = address(begin)?..address(end)?;
    let is_shared = fields.next()?.ends_with('s');
    Some(Mapping { range, is_shared, inode: fields.nth(2)?.parse().ok()? })
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
    fn mappings_are_read_as_the_kernel_writes_them() {
        let maps = "00400000-7f1200452000 rw-s 001b5000 fe:00 135522   /data/a b\n\
                    7ffc0000-7ffd0000 rw-p 00000000 00:00 0 [stack]\nx\n";
        let found: Vec<Mapping> = mappings(maps).collect();
        let file = Mapping { range: 0x40_0000..0x7f12_0045_2000, is_shared: true, inode: 135_522 };
        let stack = Mapping { range: 0x7ffc_0000..0x7ffd_0000, is_shared: false, inode: 0 };
        assert_eq!(found, [file, stack]);
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
    fn system_calls_are_read_as_the_kernel_writes_them() {
        let line = "257 0xffffffffffffff9c 0x7ffd 0x241 0x1b6 0x0 0x7f 0x7ffd10 0x7f10\n";
        assert_eq!(parse_system_call(line), Some((257, [-100, 0x7ffd, 0x241, 0x1b6, 0, 0x7f])));
        for other in ["running\n", "-1 0x7ffd10 0x7f10\n", ""] {
            assert_eq!(parse_system_call(other), None, "{other}");
        }
    }

    #[test]
    fn own_thread_is_found() {
        let own = stat(std::process::id()).unwrap();
        assert!(own.began > 0 && run_ns(std::process::id()).is_some_and(|ns| ns > 0));
        assert!(ticks().len() > 1 && stat(u32::MAX).is_none());
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(processes().unwrap().contains(&pid) && tasks(pid).unwrap().contains(&pid));
        assert!(tasks(i32::MAX).is_err_and(|err| is_gone(&err)));
        assert_eq!(process_of(pid), Some(std::process::id()));
        assert_eq!(process_of(i32::MAX), None);
    }
}
