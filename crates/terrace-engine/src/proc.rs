//! Readings of /proc about a thread and the processors.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// More than a line of /proc/TID/stat has: 52 numbers and a name.
const LINE_MAX: usize = 1280;

/// A thread's line in /proc/TID/stat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// When it began, in ticks since the machine did.
    pub began: u64,
    /// The processor that it last ran on.
    pub cpu: usize,
    /// Its name.
    pub name: String,
}

/// Of a thread; none: it is gone.
pub fn stat(tid: u32) -> Option<Stat> {
    // A thread that is not the first of its process is not listed in /proc, but has a directory there.
    parse_stat(&fs::read_to_string(format!("/proc/{tid}/stat")).ok()?)
}

/// The same of its file, which stays open; none: the thread is gone.
pub fn stat_in(file: &File) -> Option<Stat> {
    parse_stat(read_in(file, &mut [0; LINE_MAX])?)
}

/// The text of a small file of /proc from its beginning.
fn read_in<'a>(file: &File, line: &'a mut [u8]) -> Option<&'a str> {
    let n = file.read_at(line, 0).ok()?;
    str::from_utf8(&line[..n]).ok()
}

/// The name may hold blanks and brackets: fields are counted from the last bracket.
fn parse_stat(line: &str) -> Option<Stat> {
    let (open, close) = (line.find('(')?, line.rfind(')')?);
    let mut fields = line.get(close + 1..)?.split_ascii_whitespace();
    // Field 3, the state, is the first behind the name.
    let began = fields.nth(22 - 3)?.parse().ok()?;
    let cpu = fields.nth(39 - 22 - 1)?.parse().ok()?;
    Some(Stat { began, cpu, name: line.get(open + 1..close)?.to_owned() })
}

/// Nanoseconds that a thread has run, of /proc/TID/schedstat; none: it is gone, or the kernel does not count.
pub fn run_ns(tid: u32) -> Option<u64> {
    parse_run_ns(&fs::read_to_string(format!("/proc/{tid}/schedstat")).ok()?)
}

/// The same of its file, which stays open.
pub fn run_ns_in(file: &File) -> Option<u64> {
    parse_run_ns(read_in(file, &mut [0; LINE_MAX])?)
}

fn parse_run_ns(line: &str) -> Option<u64> {
    line.split(' ').next()?.parse().ok()
}

/// Of each processor, ticks that it was busy and all ticks, by its number.
pub fn cpu_ticks() -> Vec<(usize, u64, u64)> {
    fs::read_to_string("/proc/stat").map(|text| parse_ticks(&text)).unwrap_or_default()
}

fn parse_ticks(text: &str) -> Vec<(usize, u64, u64)> {
    let of = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let cpu = words.next()?.parse().ok()?;
        // user nice system idle iowait irq softirq steal; guest times are in user and nice already.
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
