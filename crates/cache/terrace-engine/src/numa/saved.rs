//! File with the affinity masks of moved threads. After a crash the next daemon restores the masks, or the
//! command that finds the instance dead.
//!
//! One line per thread: `tid began own given before`, with lists of processors.

use super::act::{Kernel, Moved, ThreadMover, list_of, set_of};
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Replaces the file; without threads it is removed.
pub(super) fn write(path: &Path, moved: &BTreeMap<u32, Moved>) -> io::Result<()> {
    if moved.is_empty() {
        return match std::fs::remove_file(path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
            _ => Ok(()),
        };
    }
    let mut text = String::new();
    for (tid, Moved { began, own, given, before }) in moved {
        let _ = writeln!(text, "{tid} {began} {} {} {}", list(own), list(given), list(before));
    }
    let new = path.with_added_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

/// Saved threads; none if the file cannot be read.
pub(super) fn read(path: &Path) -> BTreeMap<u32, Moved> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (tid, began) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let mut set = || words.next().map(|list| set_of(terrace_system::list(list)));
        Some((tid, Moved { began, own: set()?, given: set()?, before: set()? }))
    };
    std::fs::read_to_string(path).unwrap_or_default().lines().filter_map(line).collect()
}

/// Restores the masks of threads moved by a dead daemon, and removes the file.
pub fn restore(path: &Path) {
    let moved = read(path);
    if !moved.is_empty() {
        drop(ThreadMover::new(Box::new(Kernel), CpuSet::new(), moved));
        let _ = std::fs::remove_file(path);
    }
}

fn list(cpus: &CpuSet) -> String {
    list_of(cpus).iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_survive_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("affinity");
        let moved = |tid, own: &[usize]| {
            let own = set_of(own.iter().copied());
            (tid, Moved { began: 9, own, given: set_of([1, 2]), before: own })
        };
        let all = BTreeMap::from([moved(5, &[0, 1, 2]), moved(70, &[3])]);
        write(&path, &all).unwrap();
        assert_eq!(read(&path), all);
        write(&path, &BTreeMap::new()).unwrap();
        assert!(!path.exists() && read(&path).is_empty());
        write(&path, &BTreeMap::new()).unwrap();
    }
}
