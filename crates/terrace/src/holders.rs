//! Processes that keep a mount busy.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use terrace_system::proc;

use crate::mounts;

/// A process that uses a path at or below the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub pid: i32,
    pub name: String,
    /// Kind of use: `cwd`, `root`, `open file`, `mapping` or `own mount namespace`.
    pub how: &'static str,
    /// The path in use.
    pub path: PathBuf,
    /// The process was forked and has not yet called exec: until then it holds its parent's open files.
    pub starting: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}, {} {})", self.name, self.pid, self.how, self.path.display())
    }
}

/// Processes that use a path at or below `mnt`, each once. Reads only links of /proc: no request reaches the
/// mount.
pub(crate) fn of(mnt: &Path) -> Vec<Holder> {
    proc::pids().filter_map(|pid| holder(pid, mnt)).collect()
}

/// Processes that see the mount of device `dev`, one for each mount namespace.
pub(crate) fn seeing(dev: (u32, u32)) -> Vec<Holder> {
    let mut known = Vec::new();
    let mut seen = Vec::new();
    for pid in proc::pids() {
        let Some(namespace) = namespace(pid) else { continue };
        if known.contains(&namespace) {
            continue;
        }
        let table = terrace_system::mounts::table_of(pid).unwrap_or_default();
        if !table.is_empty() {
            known.push(namespace);
        }
        // The device number of a mount that is gone may be reused.
        let ours = |entry: &mounts::Entry| entry.dev == dev && entry.fstype == mounts::FSTYPE;
        if let Some(entry) = table.into_iter().find(ours) {
            seen.push(Holder::new(pid, "own mount namespace", entry.point));
        }
    }
    seen
}

/// Selects the processes in mount namespaces that `terrace run` (of any user) has made for its command. Such
/// a namespace copies all mounts. Where mounts are private, an unmount elsewhere does not reach the copies.
pub(crate) fn under_runs(seen: &[Holder]) -> Vec<Holder> {
    let own = namespace("self");
    let of_runs = proc::pids().filter(|pid| is_run(*pid)).filter_map(namespace);
    let of_runs: Vec<PathBuf> = of_runs.filter(|made| Some(made) != own.as_ref()).collect();
    let under = |holder: &&Holder| namespace(holder.pid).is_some_and(|its| of_runs.contains(&its));
    seen.iter().filter(under).cloned().collect()
}

/// Is a process `terrace run`, or its supervisor, which has the same arguments?
fn is_run(pid: i32) -> bool {
    let line = text(pid, "cmdline");
    let mut words = line.split('\0');
    words.next().is_some_and(|name| name == "terrace" || name.ends_with("/terrace"))
        && words.next() == Some("run")
}

/// The mount namespace of a process.
fn namespace(pid: impl fmt::Display) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

impl Holder {
    fn new(pid: i32, how: &'static str, path: PathBuf) -> Holder {
        let name = text(pid, "comm").trim().to_owned();
        let starting = proc::task_flags(&text(pid, "stat")) & FORKED_NOT_BEGUN != 0;
        Holder { pid, name, how, path, starting }
    }
}

/// The holders as part of a message; the first few by name.
pub(crate) fn told(holders: &[Holder]) -> String {
    const TOLD_MAX: usize = 4;
    let mut names: Vec<String> = holders.iter().take(TOLD_MAX).map(Holder::to_string).collect();
    if holders.len() > TOLD_MAX {
        names.push(format!("{} more", holders.len() - TOLD_MAX));
    }
    match names.is_empty() {
        true => "a process that this user may not inspect".to_owned(),
        false => names.join(", "),
    }
}

fn holder(pid: i32, mnt: &Path) -> Option<Holder> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let below = |path: PathBuf| path.starts_with(mnt).then_some(path);
    let link = |name: &str| fs::read_link(dir.join(name)).ok().and_then(below);
    let open = || {
        let fds = fs::read_dir(dir.join("fd")).ok()?;
        fds.flatten().find_map(|fd| fs::read_link(fd.path()).ok().and_then(below))
    };
    let found = link("cwd").map(|path| ("cwd", path));
    let found = found.or_else(|| link("root").map(|path| ("root", path)));
    let found = found.or_else(|| open().map(|path| ("open file", path)));
    let (how, path) = found.or_else(|| mapped(&dir, mnt).map(|path| ("mapping", path)))?;
    Some(Holder::new(pid, how, path))
}

/// PF_FORKNOEXEC of include/linux/sched.h.
const FORKED_NOT_BEGUN: u32 = 0x40;

/// `7f00-7f10 r--p 00000000 00:2a 17    /path`
fn mapped(dir: &Path, mnt: &Path) -> Option<PathBuf> {
    let maps = fs::read(dir.join("maps")).ok()?;
    maps.split(|byte| *byte == b'\n')
        .filter_map(|line| line.windows(2).position(|pair| pair == b" /").map(|at| &line[at + 1..]))
        .map(|path| PathBuf::from(OsStr::from_bytes(path)))
        .find(|path| path.starts_with(mnt))
}

/// [`proc::text`], empty if unreadable.
fn text(pid: i32, file: &str) -> String {
    proc::text(pid, file).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn an_open_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let own = std::process::id() as i32;
        assert!(!of(&path).iter().any(|holder| holder.pid == own));
        let _file = fs::File::create(path.join("file")).unwrap();
        let found = of(&path);
        let ours = found.iter().find(|holder| holder.pid == own).unwrap();
        assert_eq!((ours.how, &ours.path), ("open file", &path.join("file")));
        assert!(told(&found).contains(&format!("pid {own}, open file")));
    }

    #[test]
    fn a_process_that_has_not_begun_is_told_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let file = fs::File::create(path.join("file")).unwrap();
        let (go, mut begin) = std::io::pipe().unwrap();
        let mut command = std::process::Command::new("true");
        // SAFETY: between fork and exec; a read is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                let _ = rustix::io::read(&go, &mut [0u8; 1]);
                Ok(())
            })
        };
        let child = std::thread::spawn(move || command.spawn().unwrap().wait().unwrap());
        let others = || of(&path).into_iter().filter(|holder| holder.pid != std::process::id() as i32);
        while others().count() == 0 {
            std::thread::yield_now();
        }
        assert!(others().all(|holder| holder.starting));
        assert!(of(&path).iter().any(|holder| !holder.starting), "we have begun");
        begin.write_all(b"g").unwrap();
        assert!(child.join().unwrap().success());
        drop(file);
    }

    #[test]
    fn many_are_counted() {
        let one = Holder { pid: 1, name: "x".to_owned(), how: "cwd", path: "/m".into(), starting: false };
        assert!(told(&vec![one; 9]).ends_with(", 5 more"));
    }
}
