//! Leftovers of a test: a check that no mounts, processes or runtime directories stay behind, and their
//! removal after a failure.

use crate::process;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_api::instance::Info;
use terrace_system::mounts::{self, Entry};
use terrace_system::proc;
use terrace_testkit::wait::holds_within;

/// Directory of the instances' sockets, by the product's own rule.
pub(crate) fn runtime_dir() -> PathBuf {
    // SAFETY: no arguments.
    let uid = unsafe { libc::geteuid() };
    if uid == 0 {
        return "/run/terrace".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => Path::new(&dir).join("terrace"),
        None => format!("/tmp/terrace-{uid}").into(),
    }
}

/// The instance directories with their info.json.
pub fn instances() -> Vec<(PathBuf, Info)> {
    let Ok(list) = std::fs::read_dir(runtime_dir()) else { return Vec::new() };
    list.filter_map(|entry| {
        let dir = entry.ok()?.path();
        let text = std::fs::read_to_string(dir.join("info.json")).ok()?;
        Some((dir, serde_json::from_str(&text).ok()?))
    })
    .collect()
}

/// All leftovers of work below `dir`, one line each. Waits briefly for processes that are ending.
pub fn find(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    holds_within(Duration::from_secs(30), || {
        found = look(dir);
        found.is_empty()
    });
    found
}

fn look(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let name = dir.to_str().expect("a UTF-8 path");
    found.extend(mounts_of(name).map(|mount| format!("mount: {mount:?}")));
    for (place, info) in instances() {
        if format!("{info:?}").contains(name) {
            found.push(format!("instance: {} {info:?}", place.display()));
        }
    }
    for pid in proc::pids() {
        if pid != std::process::id() as i32 && process::alive(pid) && mentions(pid, name) {
            let comm = proc::text(pid, "comm").unwrap_or_default();
            found.push(format!("process: {pid} {} {}", comm.trim(), process::state(pid)));
        }
    }
    found
}

/// Running supervisors and daemons of mounts below `dir`, including one just started that no instance's
/// record names yet.
pub(crate) fn daemons(dir: &Path) -> Vec<i32> {
    let name = dir.to_str().expect("a UTF-8 path");
    let is_named = |pid: &i32| proc::text(pid, "comm").is_ok_and(|comm| comm.starts_with("terrace"));
    proc::pids().filter(|pid| is_named(pid) && process::alive(*pid) && mentions(*pid, name)).collect()
}

/// Whether the arguments or the working directory of a process contain the place. (Its mounts are no
/// evidence: every process of this mount namespace sees those of a test.)
fn mentions(pid: i32, name: &str) -> bool {
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|p| p.starts_with(name));
    cwd || proc::text(pid, "cmdline").is_ok_and(|arguments| arguments.contains(name))
}

/// Ends the results of [`find`], by process id: for tests that failed half-way. FUSE connections come first:
/// a dying terraced may wait for a lock of a program that waits for terraced's answer, and no signal ends
/// either. Returns the mounts that remain, one line each.
pub fn clear(dir: &Path) -> Vec<String> {
    let name = dir.to_str().expect("a UTF-8 path");
    unmount_below(name, libc::MNT_FORCE);
    for pid in proc::pids() {
        if pid != std::process::id() as i32 && process::alive(pid) && mentions(pid, name) {
            process::kill(pid, libc::SIGKILL);
        }
    }
    for _ in 0..4 {
        unmount_below(name, libc::MNT_DETACH);
    }
    for (place, info) in instances() {
        if format!("{info:?}").contains(name) {
            let _ = std::fs::remove_dir_all(place);
        }
    }
    mounts_of(name).map(|mount| format!("mount: {mount:?}")).collect()
}

/// Mounts with the place in their point, source or root.
fn mounts_of(name: &str) -> impl Iterator<Item = Entry> {
    let all = mounts::table_of("self").expect("/proc is mounted");
    all.into_iter().filter(move |mount| format!("{mount:?}").contains(name))
}

/// Whether something is mounted at this place. The name need not be UTF-8.
pub fn is_mounted(at: &Path) -> bool {
    terrace_system::mounts::at(at).is_some()
}

fn unmount_below(name: &str, how: i32) {
    for mount in mounts_of(name) {
        let point = std::ffi::CString::new(mount.point.into_os_string().into_vec()).expect("no NUL");
        // SAFETY: a NUL-terminated path below the test's own directory.
        unsafe { libc::umount2(point.as_ptr(), how) };
    }
}
