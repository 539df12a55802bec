//! Memory and threads of another process, from /proc.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Bytes in each memory file that a process has open, by device and inode number.
///
/// # Panics
/// If its descriptors cannot be listed.
#[track_caller]
pub fn memory_files(pid: i32) -> BTreeMap<(u64, u64), u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors of the process");
    // Descriptors may be closed meanwhile; those of memory files stay.
    let paths = descriptors.flatten().map(|entry| entry.path());
    let is_memory = |to: std::path::PathBuf| to.to_string_lossy().starts_with("/memfd:");
    let files = paths.filter(|path| fs::read_link(path).is_ok_and(is_memory)).flat_map(fs::metadata);
    files.map(|file| ((file.dev(), file.ino()), file.blocks() * 512)).collect()
}

/// Private memory of a process, bytes.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn private_memory(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("maps of the process");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a line Anonymous");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

/// Processor time of the threads of a process with this name.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn processor_share(pid: i32, thread: &str, work: impl FnOnce()) -> f64 {
    let (begin, before) = (Instant::now(), processor_time(pid, thread));
    work();
    (processor_time(pid, thread) - before).as_secs_f64() / begin.elapsed().as_secs_f64()
}

#[track_caller]
fn processor_time(pid: i32, thread: &str) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
    let paths = tasks.map(|task| task.expect("a thread").path());
    let named =
        paths.filter(|path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == thread));
    let times = named.map(|path| {
        let text = fs::read_to_string(path.join("schedstat")).expect("the thread is there");
        Duration::from_nanos(text.split(' ').next().and_then(|ran| ran.parse().ok()).expect("a number"))
    });
    times.reduce(|sum, time| sum + time).unwrap_or_else(|| panic!("no thread of {pid} is called {thread}"))
}
