//! An instance as other commands find it: a directory with its sockets, its lock and what it says of itself.
//!
//! ```text
//! /run/terrace/            root; $XDG_RUNTIME_DIR/terrace, /tmp/terrace-UID, /dev/shm/terrace-UID for others
//!   4711/                  process id of the keeper
//!     info.json            what is served where, and by whom
//!     lock                 locked while keeper or terraced live
//!     control.sock         commands
//!     door.sock            the fast door
//!     dirty.json           what was unwritten a moment ago
//!     terraced.log
//! ```
//! A directory whose lock is free belongs to an instance that died; the next command removes it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Result, reason};

/// What an instance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A mount for everybody.
    Mount,
    /// The private mount of one command.
    Run,
}

/// info.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Version of this record.
    pub schema: String,
    /// The keeper.
    pub pid: i32,
    /// The daemon; changes when it is restarted.
    pub terraced: i32,
    /// How often it was.
    pub restarts: u32,
    /// Mount or run.
    pub kind: Kind,
    /// What is served.
    pub src: PathBuf,
    /// Where.
    pub mnt: PathBuf,
    /// Memory limit at the start.
    pub memory_bytes: u64,
    /// Eviction policy.
    pub policy: String,
    /// Of terrace.
    pub version: String,
}

/// The value of [`Info::schema`].
pub const SCHEMA: &str = "terrace.instance.v1";

/// A directory of an instance, its own or another's.
#[derive(Debug, Clone)]
pub struct Instance {
    dir: PathBuf,
}

/// The lock of a living instance; free when its last process is gone.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

impl Instance {
    /// A new directory for the keeper that calls; not below `avoid`, which terrace is about to cover.
    pub fn create(avoid: &[&Path]) -> Result<(Instance, Lock)> {
        let parent = writable_parent(avoid)?;
        let dir = parent.join(std::process::id().to_string());
        let fail = |err: io::Error| {
            Failure::new(dir.display(), reason(err), "make the directory above it writable for this user")
        };
        if dir.exists() {
            // Ours by name, so its owner is dead: process ids are reused.
            fs::remove_dir_all(&dir).map_err(fail)?;
        }
        fs::DirBuilder::new().mode(0o700).create(&dir).map_err(fail)?;
        let instance = Instance { dir: dir.clone() };
        let lock = File::create(instance.path("lock")).map_err(fail)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|err| fail(err.into()))?;
        Ok((instance, Lock(lock)))
    }

    /// A file of this instance.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The socket for commands.
    pub fn control_socket(&self) -> PathBuf {
        self.path("control.sock")
    }

    /// The socket of the fast door.
    pub fn door_socket(&self) -> PathBuf {
        self.path("door.sock")
    }

    /// Where messages go.
    pub fn log(&self) -> PathBuf {
        self.path("terraced.log")
    }

    /// What it says of itself; none while it starts.
    pub fn info(&self) -> Option<Info> {
        serde_json::from_slice(&fs::read(self.path("info.json")).ok()?).ok()
    }

    /// Replaces what it says of itself.
    pub fn write_info(&self, info: &Info) -> io::Result<()> {
        self.replace("info.json", &serde_json::to_vec(info)?)
    }

    /// Replaces a file at once: a reader sees the old or the new one.
    pub fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        // Two threads may replace one file.
        let new = self.path(&format!("{name}.{}", rustix::thread::gettid().as_raw_pid()));
        fs::write(&new, content)?;
        fs::rename(&new, self.path(name))
    }

    /// Whether a process of it lives. A killed terraced whose last thread hangs in a request to its own mount holds the
    /// lock, and is dead all the same.
    pub fn is_alive(&self) -> bool {
        let Ok(lock) = File::open(self.path("lock")) else { return false };
        let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err();
        locked && self.info().is_none_or(|info| runs(info.pid) || runs(info.terraced))
    }

    /// Whether it is over: no process of it lives, and its directory is not about to go.
    pub fn has_ended(&self) -> bool {
        !self.dir.exists() || (self.path("lock").exists() && !self.is_alive())
    }

    /// Removes the directory.
    pub fn remove(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Whether a process is there and not a zombie.
fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // `pid (name) state ...`, and the name may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// All instances of this user (for root: of all under /run/terrace), living or dead.
pub fn all() -> Vec<Instance> {
    parents()
        .iter()
        .filter(|parent| is_ours(parent))
        .filter_map(|parent| fs::read_dir(parent).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()))
        .map(|entry| Instance { dir: entry.path() })
        .collect()
}

/// Living instances with what they say of themselves.
pub fn living() -> Vec<(Instance, Info)> {
    all().into_iter().filter(Instance::is_alive).filter_map(|i| i.info().map(|info| (i, info))).collect()
}

/// Instances, living or dead, that say they serve `mnt`.
pub fn recorded_at(mnt: &Path) -> Vec<(Instance, Info)> {
    all()
        .into_iter()
        .filter_map(|i| i.info().map(|info| (i, info)))
        .filter(|(_, info)| info.mnt == mnt)
        .collect()
}

/// Removes the directories of instances that died and have nothing more to tell: those of `run`, and those whose mount point
/// is gone. Other mounts' stay, to tell the next `terrace mount` there what was lost.
pub fn sweep() {
    for instance in all().iter().filter(|instance| !instance.is_alive()) {
        if instance.info().is_some_and(|info| info.kind == Kind::Run || is_gone(&info.mnt)) {
            instance.remove();
        }
    }
}

/// A mount point that is dead is not gone: it answers, with another error.
fn is_gone(mnt: &Path) -> bool {
    fs::symlink_metadata(mnt).is_err_and(|err| err.kind() == io::ErrorKind::NotFound)
}

/// Directories that may hold instances, best first.
fn parents() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| uid != 0 && !dir.is_empty());
    let root = (uid == 0).then(|| PathBuf::from("/run/terrace"));
    root.into_iter()
        .chain(own.map(|dir| Path::new(&dir).join("terrace")))
        .chain([
            PathBuf::from(format!("/tmp/terrace-{uid}")),
            PathBuf::from(format!("/dev/shm/terrace-{uid}")),
        ])
        .collect()
}

/// The first of them that is ours or can be made so, and lies outside `avoid`.
fn writable_parent(avoid: &[&Path]) -> Result<PathBuf> {
    let outside = |dir: &&PathBuf| !avoid.iter().any(|covered| dir.starts_with(covered));
    for dir in parents().iter().filter(outside) {
        let _ = fs::DirBuilder::new().mode(0o700).create(dir);
        if is_ours(dir) && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok() {
            return Ok(dir.clone());
        }
    }
    Err(Failure::new(
        "runtime directory",
        "no place for sockets is writable",
        "set XDG_RUNTIME_DIR to a directory of yours",
    ))
}

/// A directory that nobody else can have prepared or can look into.
fn is_ours(dir: &Path) -> bool {
    let Ok(meta) = fs::symlink_metadata(dir) else { return false };
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() {
        return false;
    }
    meta.mode() & 0o077 == 0 || fs::set_permissions(dir, Permissions::from_mode(0o700)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_tells_the_living_from_the_dead() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance { dir: dir.path().to_owned() };
        assert!(!instance.is_alive(), "no lock file");
        let lock = File::create(instance.path("lock")).unwrap();
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(instance.is_alive());
        drop(lock);
        assert!(!instance.is_alive());
    }

    #[test]
    fn zombies_do_not_run() {
        assert!(runs(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while runs(child.id() as i32) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn what_it_says_of_itself_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance { dir: dir.path().to_owned() };
        assert_eq!(instance.info(), None);
        let info = Info {
            schema: SCHEMA.to_owned(),
            pid: 1,
            terraced: 2,
            restarts: 0,
            kind: Kind::Run,
            src: "/a".into(),
            mnt: "/b c".into(),
            memory_bytes: 1 << 30,
            policy: "strata".to_owned(),
            version: "0".to_owned(),
        };
        instance.write_info(&info).unwrap();
        assert_eq!(instance.info(), Some(info));
    }

    #[test]
    fn a_directory_open_to_others_is_closed_and_a_foreign_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(is_ours(dir.path()));
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(!is_ours(&link));
    }
}
