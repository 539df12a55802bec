//! A journal of changes to the machine, in a file, so that they are undone even after a kill.
//!
//! Each set-up is recorded *before* it is made, and removed from the file after it was undone. A starting
//! harness reads the files of dead processes and undoes their set-ups, last first. So every undo must work if
//! the set-up was made in part, or not at all.
//!
//! ```text
//!   STATE/PID.jsonl    {"pid": 4711, "start": 8812345}       owner; the start time tells reused ids apart
//!                      {"mount": "/var/tmp/x/tmpfs"}         one set-up a line, in the order they were made
//!                      {"loop": "/var/tmp/x/tmpfs/image"}
//! ```

use crate::cgroup;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use terrace_output::named;
use terrace_system::{mounts, proc};

/// One change to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setup {
    /// A mount at this place.
    Mount(PathBuf),
    /// A FUSE mount at this place, made by a system under test.
    Fuse(PathBuf),
    /// The loop device of this file.
    Loop(PathBuf),
    /// A device-mapper device of this name.
    Mapper(String),
    /// Control groups of this name, and their processes.
    Group(String),
    /// A file or directory; never one with a mount below it.
    Path(PathBuf),
    /// A directory of the user's choice, removed if empty.
    Directory(PathBuf),
    /// A kernel setting.
    Value {
        /// Its file.
        file: PathBuf,
        /// Its value before the change.
        was: String,
    },
    /// A compressed RAM disk by name, such as "zram0".
    Zram(String),
    /// Shell lines that shut a system down.
    Teardown(Vec<String>),
}

impl Setup {
    /// Undoes the change; a missing one counts as undone.
    fn undo(&self) -> io::Result<()> {
        match self {
            Setup::Mount(at) => unmount(at, |_| true),
            Setup::Fuse(at) => unmount(at, |kind| kind.starts_with("fuse")),
            Setup::Loop(image) => detach(image),
            Setup::Mapper(name) if Path::new("/dev/mapper").join(name).exists() => {
                tool("dmsetup", &["remove", "--retry", name]).map(drop)
            }
            Setup::Mapper(_) => Ok(()),
            Setup::Group(name) => cgroup::remove(name),
            Setup::Path(path) => remove(path),
            Setup::Directory(path) => match fs::remove_dir(path) {
                Err(e)
                    if e.kind() != io::ErrorKind::NotFound
                        && e.kind() != io::ErrorKind::DirectoryNotEmpty =>
                {
                    Err(e)
                }
                _ => Ok(()),
            },
            Setup::Value { file, was } => fs::write(file, was),
            Setup::Zram(name) => fs::write(format!("/sys/block/{name}/reset"), "1"),
            Setup::Teardown(lines) => lines.iter().try_for_each(|line| tool("sh", &["-c", line]).map(drop)),
        }
    }
}

/// Runs a system program and returns its output; the error is the first line of its stderr.
pub fn tool(program: &str, args: &[&str]) -> io::Result<String> {
    let out = Command::new(program)
        .args(args)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("{program}: {e}")))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).trim().to_string());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let said = said.lines().next().unwrap_or("no message").trim();
    Err(io::Error::other(format!("{program} {}: {said}", args.join(" "))))
}

/// Unmounts `at`, repeatedly if it is mounted several times.
fn unmount(at: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    // A double mount needs two calls. A busy mount gets 5 s, then is detached lazily.
    for attempt in 0..100 {
        if !mounts::at(at).is_some_and(|mount| wanted(&mount.fstype)) {
            return Ok(());
        }
        let flags = if attempt < 50 { 0 } else { libc::MNT_DETACH };
        let name = CString::new(at.as_os_str().as_bytes())?;
        // SAFETY: a C string that outlives the call, and flags.
        if unsafe { libc::umount2(name.as_ptr(), flags) } != 0 {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Err(io::Error::other(format!("{} stays mounted", at.display())))
}

/// Names of the loop devices over `image`.
pub(crate) fn loops_of(image: &Path) -> Vec<String> {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| {
            let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
            file.is_ok_and(|file| Path::new(file.trim().trim_end_matches(" (deleted)")) == image)
        })
        .collect()
}

fn detach(image: &Path) -> io::Result<()> {
    for _ in 0..50 {
        let loops = loops_of(image);
        if loops.is_empty() {
            return Ok(());
        }
        for name in &loops {
            tool("losetup", &["--detach", &format!("/dev/{name}")])?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(io::Error::other(format!("the loop device of {} stays in use", image.display())))
}

fn remove(path: &Path) -> io::Result<()> {
    if let Some(at) = mounts::table().into_iter().map(|mount| mount.point).find(|at| at.starts_with(path)) {
        return Err(io::Error::other(format!(
            "{} is kept: something is mounted at {}",
            path.display(),
            at.display()
        )));
    }
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(named(path)),
    }
}

/// A process, identified by id and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    pid: u32,
    /// Start of the process, in clock ticks since boot; 0 if unknown.
    start: u64,
}

impl Owner {
    fn of(pid: u32) -> Option<Owner> {
        let stat = proc::stat(pid)?;
        (!matches!(stat.state, 'Z' | 'X')).then_some(Owner { pid, start: stat.began })
    }

    fn lives(&self) -> bool {
        Owner::of(self.pid).is_some_and(|now| now == *self)
    }
}

/// The set-ups of this process; dropping undoes the remaining ones.
#[derive(Debug)]
pub(crate) struct Cleanup {
    path: PathBuf,
    file: File,
    end: u64,
    /// Each with the offset of its line.
    setups: Vec<(u64, Setup)>,
}

/// A position in the list, for undoing back to it.
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

impl Cleanup {
    /// Opens this process's file in `state`, after undoing the set-ups of dead processes.
    ///
    /// # Errors
    /// A directory that cannot be written: then nothing may be set up.
    pub(crate) fn open(state: &Path) -> io::Result<Cleanup> {
        let named = named(state);
        fs::create_dir_all(state).map_err(named)?;
        undo_left(state);
        let pid = std::process::id();
        let path = state.join(format!("{pid}.jsonl"));
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(&path).map_err(named)?;
        let mut cleanup = Cleanup { path, file, end: 0, setups: Vec::new() };
        let owner = Owner::of(pid).unwrap_or(Owner { pid, start: 0 });
        cleanup.append(&serde_json::to_vec(&owner)?)?;
        Ok(cleanup)
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let mut line = line.to_vec();
        line.push(b'\n');
        self.file.write_all_at(&line, self.end)?;
        self.end += line.len() as u64;
        Ok(())
    }

    /// The current position.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.setups.len())
    }

    /// Records a set-up before it is made.
    ///
    /// # Errors
    /// The record could not be written: do not make the set-up.
    pub(crate) fn note(&mut self, setup: Setup) -> io::Result<()> {
        let begin = self.end;
        self.append(&serde_json::to_vec(&setup)?)?;
        self.setups.push((begin, setup));
        Ok(())
    }

    /// Removes the records after `mark`, which were undone elsewhere.
    pub(crate) fn forget(&mut self, mark: Mark) {
        while self.setups.len() > mark.0 {
            self.strike();
        }
    }

    /// Undoes all set-ups after `mark`, last first.
    ///
    /// # Errors
    /// The first failure; the remaining set-ups are undone all the same.
    pub(crate) fn undo(&mut self, mark: Mark) -> io::Result<()> {
        let mut result = Ok(());
        while self.setups.len() > mark.0 {
            let done = self.setups.last().map_or(Ok(()), |(_, setup)| setup.undo());
            result = result.and(done);
            self.strike();
        }
        result
    }

    fn strike(&mut self) {
        if let Some((begin, _)) = self.setups.pop() {
            self.end = begin;
            let _ = self.file.set_len(begin);
        }
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Err(e) = self.undo(Mark(0)) {
            let _ = writeln!(io::stderr(), "terrace-bench: not undone: {e}");
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Undoes the set-ups of dead processes.
fn undo_left(state: &Path) {
    for entry in fs::read_dir(state).into_iter().flatten().flatten() {
        let path = entry.path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        let Some(owner) = text.lines().next().and_then(|l| serde_json::from_str::<Owner>(l).ok()) else {
            continue;
        };
        if owner.lives() {
            continue;
        }
        // A torn last line was written before its set-up, which was therefore never made.
        let setups: Vec<Setup> = text.lines().skip(1).filter_map(|l| serde_json::from_str(l).ok()).collect();
        terrace_output::error_line!(
            "terrace-bench: undoing {} set-ups that process {} left behind",
            setups.len(),
            owner.pid
        );
        for setup in setups.iter().rev() {
            if let Err(e) = setup.undo() {
                terrace_output::error_line!("terrace-bench: {e}");
            }
        }
        let _ = fs::remove_file(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(dir: &Path, name: &str, was: &str) -> Setup {
        Setup::Value { file: dir.join(name), was: was.into() }
    }

    #[test]
    fn set_ups_are_undone_last_first_and_struck_out() {
        let dir = tempfile::tempdir().unwrap();
        let (state, file) = (dir.path().join("state"), dir.path().join("value"));
        let read = || fs::read_to_string(&file).unwrap();
        let mut cleanup = Cleanup::open(&state).unwrap();
        cleanup.note(value(dir.path(), "value", "first")).unwrap();
        let mark = cleanup.mark();
        cleanup.note(value(dir.path(), "value", "second")).unwrap();
        fs::write(&file, "now").unwrap();
        cleanup.undo(mark).unwrap();
        assert_eq!(read(), "second");
        let lines = fs::read_to_string(&cleanup.path).unwrap().lines().count();
        assert_eq!(lines, 2, "its owner, and what is set up still");
        cleanup.note(value(dir.path(), "value", "third")).unwrap();
        cleanup.forget(mark);
        drop(cleanup);
        assert_eq!(read(), "first");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
    }

    #[test]
    fn next_start_undoes_changes_of_dead_harness_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        let write = |name: &str, owner: Owner| {
            let lines = [
                serde_json::to_string(&owner).unwrap(),
                serde_json::to_string(&value(dir.path(), name, "before")).unwrap(),
                serde_json::to_string(&Setup::Path(dir.path().join(format!("{name}.dir")))).unwrap(),
                // Torn.
                r#"{"mount": "/etc"#.to_string(),
            ];
            fs::write(state.join(format!("{name}.jsonl")), lines.join("\n")).unwrap();
            fs::write(dir.path().join(name), "now").unwrap();
            fs::create_dir_all(dir.path().join(format!("{name}.dir/inner"))).unwrap();
        };
        let me = Owner::of(std::process::id()).unwrap();
        write("dead", Owner { start: me.start + 1, ..me });
        write("living", me);
        let cleanup = Cleanup::open(&state).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((read("dead").as_str(), read("living").as_str()), ("before", "now"));
        assert!(!dir.path().join("dead.dir").exists() && dir.path().join("living.dir").exists());
        assert!(!state.join("dead.jsonl").exists() && state.join("living.jsonl").exists());
        drop(cleanup);
    }

    #[test]
    fn files_of_the_user_in_a_directory_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
        fs::create_dir(&empty).unwrap();
        fs::create_dir_all(full.join("results")).unwrap();
        for path in [&empty, &full] {
            Setup::Directory(path.clone()).undo().unwrap();
        }
        assert!(!empty.exists() && full.join("results").exists());
    }

    #[test]
    fn failed_create_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for setup in [
            Setup::Mount(path.clone()),
            Setup::Fuse(path.clone()),
            Setup::Loop(path.clone()),
            Setup::Path(path.clone()),
            Setup::Directory(path),
            Setup::Mapper("terrace-bench-never-made".into()),
            Setup::Group("terrace-bench-never-made".into()),
        ] {
            setup.undo().unwrap();
        }
    }
}
