//! Readers of the kernel's files: processes in /proc, the mount table, control groups.
//!
//! The crate procfs was tried for the mount table. It does not decode octal escapes, and fails for a table
//! with a name that is not UTF-8.

pub mod cgroup;
pub mod mounts;
pub mod proc;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Reads a kernel file. None: this kernel or group does not have it, or a container hides it.
///
/// # Errors
/// It cannot be read at the moment, for example for lack of a descriptor.
pub fn read(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        Err(err) => Err(err),
    }
}

/// A file's number. None for other text, such as `max`.
///
/// # Errors
/// Those of [`read`].
pub fn number(file: &Path) -> io::Result<Option<u64>> {
    Ok(read(file)?.and_then(|text| text.trim().parse().ok()))
}

/// The text behind `name` in lines of `name text` or `name: text`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let end = [':', ' ', '\t'];
    let value = |line: &'a str| line.strip_prefix(name).filter(|rest| rest.starts_with(end));
    text.lines().find_map(value).map(|rest| rest.trim_start_matches(end).trim_end())
}

/// The number behind `name`, without its unit.
pub fn count(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split(' ').next()?.parse().ok()
}

/// Bytes behind `name` in lines of `name: number kB`.
pub fn bytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// Sum of the numbers behind these names.
fn sum(text: &str, names: &[impl AsRef<str>]) -> u64 {
    names.iter().filter_map(|name| count(text, name.as_ref())).sum()
}

/// Parses a list of numbers in the kernel's format: `0-3,8,10-11`. Fields that are no numbers are skipped.
pub fn list(text: &str) -> Vec<usize> {
    /// More than any kernel's number of processors or nodes.
    const NUMBER_MAX: usize = 1 << 16;
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.trim().parse::<usize>().ok()?, to.trim().parse::<usize>().ok()?);
        (to < NUMBER_MAX).then_some(from..=to)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(list("\n").is_empty());
        assert_eq!(list("x,4-2,7"), [7]);
    }

    #[test]
    fn values_are_found_by_their_whole_name() {
        let text = "MemTotalled: 1 kB\nMemTotal:   20 kB\nflags\t\t: fpu vme\noom 2\noom_kill 3\nGroups:\t\n";
        assert_eq!((bytes(text, "MemTotal"), count(text, "MemTotal")), (Some(20 << 10), Some(20)));
        assert_eq!((field(text, "flags"), field(text, "Groups")), (Some("fpu vme"), Some("")));
        assert_eq!((count(text, "oom_kill"), bytes(text, "oom"), count(text, "Mem")), (Some(3), None, None));
    }
}
