//! An instance as other commands see it: a directory with sockets, lock and description.
//!
//! ```text
//! /run/terrace/            root; $XDG_RUNTIME_DIR/terrace, /tmp/terrace-UID, /dev/shm/terrace-UID for others
//!   4711.18c2f3a9/         process id of the supervisor, and its start time, so that names are unique
//!     info.json            source, mount point, processes
//!     lock                 locked while supervisor or terraced live
//!     control.sock         commands
//!     preload.sock         the preload path
//!     dirty.json           data that were unwritten a moment ago
//!     refusal              the source's reason for refusing the last writes
//!     tiers.json           targets after a change, for the next terraced
//!     tiers-gone.json      targets that were unusable at the start, and are removed
//!     affinity             threads moved between memory nodes, while there are any
//!     stopping             exists while a stop writes everything back, before the unmount
//!     terraced.log
//! ```
//! A free lock means that the instance is dead. The next command then removes the directory, unless it still
//! has to report lost data.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use terrace_system::proc;

use crate::error::{Failure, Result, reason};
use crate::mounts;

pub(crate) use terrace_api::instance::{Info, Kind, SCHEMA};

/// Are the process ids of an instance valid in our namespace?
pub(crate) fn in_our_pid_namespace(info: &Info) -> bool {
    info.pid_namespace == pid_namespace()
}

/// The process id namespace of this process, by the kernel's name.
pub(crate) fn pid_namespace() -> PathBuf {
    fs::read_link("/proc/self/ns/pid").unwrap_or_default()
}

/// The directory of an instance: our own, or another one.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) dir: PathBuf,
}

/// Space for an instance's records and a short log, bytes.
const ROOM: usize = 64 << 10;

/// Time that other commands may hold a new instance's lock.
const LOCKED_WITHIN: Duration = Duration::from_secs(10);

/// The lock of a living instance: the kernel frees it with the last process.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code)] File);

impl Instance {
    /// Creates a directory for the calling supervisor; not below `avoid`, which terrace is about to cover.
    pub(crate) fn create(avoid: &[&Path]) -> Result<(Instance, Lock)> {
        let mut why = None;
        for parent in writable_parents(avoid) {
            match Instance::create_in(&parent) {
                Ok(made) => return Ok(made),
                Err(err) => why = why.or(Some((parent, err))),
            }
        }
        Err(match why {
            Some((parent, err)) => {
                Failure::new(parent.display(), reason(err), "free space there, and let this user write there")
            }
            None => Failure::new(
                "runtime directory",
                "no place for sockets is writable",
                "set XDG_RUNTIME_DIR to a directory of yours",
            ),
        })
    }

    pub(crate) fn create_in(parent: &Path) -> io::Result<(Instance, Lock)> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let dir = parent.join(format!("{}.{began:x}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        let instance = Instance { dir };
        match instance.lock_new() {
            Ok(lock) => Ok((instance, lock)),
            Err(err) => {
                instance.remove();
                Err(err)
            }
        }
    }

    /// Takes the lock, and checks the space for records: without them no other command finds the instance.
    fn lock_new(&self) -> io::Result<Lock> {
        let lock = private().open(self.path("lock"))?;
        lock_for_life(&lock)?;
        let room = self.path("room");
        private().open(&room)?.write_all(&[0; ROOM])?;
        fs::remove_file(room)?;
        Ok(Lock(lock))
    }

    /// A file of this instance.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        self.path("control.sock")
    }

    pub(crate) fn preload_socket(&self) -> PathBuf {
        self.path("preload.sock")
    }

    /// File with the threads moved between memory nodes, and their own processors.
    pub(crate) fn affinity(&self) -> PathBuf {
        self.path("affinity")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("terraced.log")
    }

    /// Cure of a failure that the log explains. An instance in the foreground logs to its standard error.
    pub(crate) fn see_log(&self) -> String {
        let log = self.log();
        match log.exists() {
            true => format!("see the log {}", log.display()),
            false if !self.dir.exists() => {
                "the instance has ended; `terrace stat` lists the others".to_owned()
            }
            false => "see the log on the standard error of its process, or in its unit's journal".to_owned(),
        }
    }

    /// Description of the instance; none while it starts.
    pub(crate) fn info(&self) -> Option<Info> {
        serde_json::from_slice(&fs::read(self.path("info.json")).ok()?).ok()
    }

    pub(crate) fn write_info(&self, info: &Info) -> io::Result<()> {
        self.replace("info.json", &serde_json::to_vec(info)?)
    }

    /// Replaces a file atomically: a reader sees the old or the new one.
    pub(crate) fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        // Two threads may replace the same file.
        let new = self.path(&format!("{name}.{}", rustix::thread::gettid().as_raw_pid()));
        private().truncate(true).open(&new)?.write_all(content)?;
        fs::rename(&new, self.path(name))
    }

    /// Opens the log for appending.
    pub(crate) fn open_log(&self) -> io::Result<File> {
        private().append(true).open(self.log())
    }

    /// Is a process of the instance alive? A killed terraced counts as dead even if its last thread hangs in
    /// its own mount with the lock.
    pub(crate) fn is_alive(&self) -> bool {
        File::open(self.path("lock")).is_ok_and(|lock| self.is_held(&lock))
    }

    /// Is it dead without having removed its directory? (An instance that ends in order, and loses nothing,
    /// removes it.)
    pub(crate) fn is_dead(&self) -> bool {
        File::open(self.path("lock")).is_ok_and(|lock| !self.is_held(&lock))
    }

    fn is_held(&self, lock: &File) -> bool {
        let locked = rustix::fs::flock(lock, FlockOperation::NonBlockingLockShared).is_err();
        let runs = |info: Info| !in_our_pid_namespace(&info) || runs(info.pid) || runs(info.terraced);
        locked && self.info().is_none_or(runs)
    }

    /// Start time, from the directory's name. Process ids show no order, for they are reused.
    pub(crate) fn began(&self) -> u128 {
        let name = self.dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.split_once('.').and_then(|(_, nanos)| u128::from_str_radix(nanos, 16).ok()).unwrap_or_default()
    }

    /// Time since the directory changed.
    pub(crate) fn age(&self) -> Duration {
        let changed = fs::symlink_metadata(&self.dir).and_then(|meta| meta.modified());
        changed.ok().and_then(|then| then.elapsed().ok()).unwrap_or_default()
    }

    /// Marks a stop, which lasts as long as unwritten data need; or removes the mark after a failed stop.
    pub(crate) fn note_stopping(&self, stopping: bool) {
        let mark = self.path("stopping");
        let noted = if stopping { private().open(mark).map(drop) } else { fs::remove_file(mark) };
        if let Err(err) = noted
            && err.kind() != io::ErrorKind::NotFound
        {
            let mark = self.path("stopping");
            let mark = mark.display();
            match stopping {
                true => tracing::warn!(
                    "{mark}: the mark of a stop cannot be created ({err}): a mount of this source fails instead of waiting for the stop; free \
                     space there"
                ),
                false => tracing::warn!(
                    "{mark}: the mark of a stop cannot be removed ({err}): the next mount waits until this instance ends; remove the file"
                ),
            }
        }
    }

    /// Is a stop under way?
    pub(crate) fn is_stopping(&self) -> bool {
        self.path("stopping").exists()
    }

    /// Has the instance ended: no process lives, or the directory is gone?
    pub(crate) fn has_ended(&self) -> bool {
        !self.dir.exists() || self.is_dead()
    }

    /// Removes the directory. Repeats it, for a thread of the instance may still create its record meanwhile.
    pub(crate) fn remove(&self) {
        terrace_engine::numa::restore(&self.affinity());
        let _ = (0..3).any(|_| fs::remove_dir_all(&self.dir).is_ok());
    }
}

/// Options that create files for this user alone. The directory is private too, but a descriptor could be
/// passed on.
fn private() -> fs::OpenOptions {
    let mut options = File::options();
    options.create(true).write(true).mode(0o600);
    options
}

/// Takes the lock of a new instance. Another command may hold it for a moment, to check whether it is free.
fn lock_for_life(lock: &File) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < LOCKED_WITHIN => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return Ok(done?),
        }
    }
}

/// Is a process alive and not exiting? A process counts as dead if its threads hang during the exit.
fn runs(pid: i32) -> bool {
    proc::text(pid, "stat").is_ok_and(|stat| !proc::is_ending(&stat))
}

/// All instances of this user (for root: of all under /run/terrace), living or dead.
pub(crate) fn all() -> Vec<Instance> {
    let others = socket_parents().into_iter().filter(|parent| is_private(parent));
    let parents: BTreeSet<PathBuf> = parents().into_iter().filter(|dir| is_ours(dir)).chain(others).collect();
    parents
        .iter()
        .filter_map(|parent| fs::read_dir(parent).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| entry.file_name().to_str().is_some_and(is_a_name))
        .map(|entry| Instance { dir: entry.path() })
        .collect()
}

fn is_a_name(name: &str) -> bool {
    let id = name.split_once('.').map_or(name, |(id, _)| id);
    id.parse::<u32>().is_ok()
}

/// Living instances with their descriptions.
pub(crate) fn living() -> Vec<(Instance, Info)> {
    all().into_iter().filter(Instance::is_alive).filter_map(|i| i.info().map(|info| (i, info))).collect()
}

/// The living instance that serves `path`: that of the mount there, or else the newest with this path.
pub(crate) fn serving(path: &Path) -> Option<(Instance, Info)> {
    let device = mounts::device_at(path);
    let is_mounted = |info: &Info| device.is_some() && info.device == device;
    let mut living = living();
    living.retain(|(_, info)| {
        is_mounted(info) || info.mnt == path && (device.is_none() || info.device.is_none())
    });
    let found = living.into_iter().max_by_key(|(instance, info)| (is_mounted(info), instance.began()));
    found.or_else(|| of_other_user(path, device?))
}

/// For root: the instance of another user's mount, found through the kernel's list of sockets. Only a record
/// in a directory of the mount's owner counts.
fn of_other_user(path: &Path, device: (u32, u32)) -> Option<(Instance, Info)> {
    let owner = mounts::at(path)?.user_id()?;
    let is_of_owner = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.uid() == owner);
    let of = |parent: PathBuf| fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut dirs = socket_parents().into_iter().filter(|parent| is_of_owner(parent)).flat_map(of);
    dirs.find_map(|dir| {
        let instance = Instance { dir };
        let is_file = fs::symlink_metadata(instance.path("info.json")).is_ok_and(|meta| meta.is_file());
        let info = if is_file { instance.info()? } else { return None };
        (info.device == Some(device) && instance.is_alive()).then_some((instance, info))
    })
}

/// Runtime directories, from the paths of bound control sockets: an instance may have been started with
/// another XDG_RUNTIME_DIR.
fn socket_parents() -> BTreeSet<PathBuf> {
    let text = fs::read("/proc/net/unix").unwrap_or_default();
    let names = text.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.windows(2).position(|pair| pair == b" /")?;
        let dir = Path::new(OsStr::from_bytes(&line[at + 1..])).parent()?;
        let is_control = line.ends_with(b"/control.sock");
        dir.parent().filter(|_| is_control && dir.file_name().and_then(OsStr::to_str).is_some_and(is_a_name))
    });
    names.map(Path::to_owned).collect()
}

/// Instances, living or dead, with `mnt` in their record.
pub(crate) fn recorded_at(mnt: &Path) -> Vec<(Instance, Info)> {
    all()
        .into_iter()
        .filter_map(|i| i.info().map(|info| (i, info)))
        .filter(|(_, info)| info.mnt == mnt)
        .collect()
}

/// Is there a mount of terrace with a dead daemon at `mnt`?
///
/// Checks the instances' records first: the mount itself may not answer.
pub(crate) fn is_dead_at(mnt: &Path) -> bool {
    if mounts::at(mnt).is_none_or(|entry| entry.fstype != mounts::FSTYPE) {
        return false;
    }
    let (alive, dead): (Vec<_>, Vec<_>) =
        recorded_at(mnt).into_iter().partition(|(instance, _)| instance.is_alive());
    match alive.is_empty() {
        true => !dead.is_empty() || mounts::is_disconnected(mnt),
        false => false,
    }
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

/// Those of [`parents`] that are ours or can be created, and lie outside `avoid`.
fn writable_parents(avoid: &[&Path]) -> impl Iterator<Item = PathBuf> {
    let outside = |dir: &PathBuf| !avoid.iter().any(|covered| dir.starts_with(covered));
    parents().into_iter().filter(outside).filter(|dir| {
        let _ = fs::DirBuilder::new().mode(0o700).create(dir);
        is_ours(dir) && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
    })
}

/// [`is_ours`] without changing the mode.
fn is_private(dir: &Path) -> bool {
    let of_this_user = |meta: &fs::Metadata| meta.uid() == rustix::process::geteuid().as_raw();
    fs::symlink_metadata(dir)
        .is_ok_and(|meta| meta.is_dir() && of_this_user(&meta) && meta.mode() & 0o077 == 0)
}

/// Is this a directory that no other user can have prepared, or can read? Removes others' permissions if
/// needed.
fn is_ours(dir: &Path) -> bool {
    let Ok(meta) = fs::symlink_metadata(dir) else { return false };
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() {
        return false;
    }
    meta.mode() & 0o077 == 0 || fs::set_permissions(dir, Permissions::from_mode(0o700)).is_ok()
}

#[cfg(test)]
pub(crate) mod tests {
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

    pub(crate) fn info() -> Info {
        Info {
            schema: SCHEMA.to_owned(),
            pid: 1,
            terraced: 2,
            pid_namespace: pid_namespace(),
            restarts: 0,
            last_death: None,
            kind: Kind::Run,
            src: "/a".into(),
            mnt: "/b c".into(),
            device: None,
            claim: None,
            memory_bytes: 1 << 30,
            policy: "strata".to_owned(),
            tiers: Vec::new(),
            metrics: None,
            version: "0".to_owned(),
        }
    }

    #[test]
    fn no_name_comes_twice() {
        let parent = tempfile::tempdir().unwrap();
        let (first, _first) = Instance::create_in(parent.path()).unwrap();
        let (second, _second) = Instance::create_in(parent.path()).unwrap();
        assert!(first.is_alive() && second.is_alive());
        assert_ne!(first.dir, second.dir);
        assert!(first.dir.file_name().unwrap().to_str().is_some_and(is_a_name));
    }

    #[test]
    fn a_full_directory_keeps_no_instance() {
        let parent = tempfile::tempdir().unwrap();
        let no_room = Instance { dir: parent.path().join("x") };
        assert!(no_room.lock_new().is_err(), "the directory does not exist");
        let (instance, _lock) = Instance::create_in(parent.path()).unwrap();
        assert!(!instance.path("room").exists());
    }

    #[test]
    fn a_look_at_a_new_lock_does_not_refuse_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let (lock, look) = (File::create(&path).unwrap(), File::open(&path).unwrap());
        rustix::fs::flock(&look, FlockOperation::NonBlockingLockShared).unwrap();
        let waits = std::thread::spawn(move || lock_for_life(&lock));
        std::thread::sleep(Duration::from_millis(50));
        drop(look);
        waits.join().unwrap().unwrap();
    }

    #[test]
    fn process_ids_of_elsewhere_say_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let (instance, _lock) = Instance::create_in(parent.path()).unwrap();
        // No process has this id.
        let nobody = Info { pid: i32::MAX, terraced: i32::MAX, ..info() };
        instance.write_info(&nobody).unwrap();
        assert!(!instance.is_alive(), "what is left of a killed process holds the lock");
        instance.write_info(&Info { pid_namespace: "pid:[1]".into(), ..nobody }).unwrap();
        assert!(instance.is_alive());
    }

    #[test]
    fn description_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance { dir: dir.path().to_owned() };
        assert_eq!(instance.info(), None);
        let info = info();
        instance.write_info(&info).unwrap();
        assert_eq!(instance.info(), Some(info));
    }

    #[test]
    fn directory_open_to_others_is_closed_and_foreign_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(is_ours(dir.path()));
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(!is_ours(&link));
    }
}
