//! Threads of another process, from /proc.

use std::fs;
use std::time::{Duration, Instant};

/// Part of one processor that the threads of a process with this name use during some work.
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
