//! The claim of an instance on its source: a tree of files has at most one cache of written data.
//!
//! Two mounts of one tree have separate writes and locks, and destroy a database that is open through both.
//! So an instance holds read locks (fcntl(2), open file description locks). They cover bytes of the source's
//! root directory and of all directories above it. The instance also searches these bytes for locks of other
//! instances. Locks belong to inodes, so they are visible across bind mounts, mount namespaces, users and
//! runtime directories. The kernel frees them when the last process of the instance ends.
//!
//! | range | lies on | belongs to |
//! |---|---|---|
//! | `MOUNTS_BELOW` | each directory above the source | a mount |
//! | `MOUNTS` | the source | a mount |
//! | `LEASES` | the source | `run` by leases |
//! | `LEASES_BELOW` | each directory above the source | `run` by leases |
//!
//! A write lock needs a descriptor open for writing, which directories do not have. So the order is: set the
//! own read locks, search for others, and release the own if others exist. Of two instances that begin at
//! once, at least one sees the other.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::mount::{OpenTreeFlags, open_tree};
use terrace_api::control::Release;

use crate::control::Client;
use crate::error::{Failure, Result};
use crate::holders;
use crate::instance::{self, Info, Instance, Kind};
use crate::mounts::{self, Entry, FSTYPE};

/// First byte of all ranges, beyond the bytes that programs lock.
const BASE: i64 = 1 << 61;
/// Bytes of a range: one for each claim number.
const BYTES: i64 = 1 << 32;
const MOUNTS_BELOW: i64 = 0;
const MOUNTS: i64 = 1;
const LEASES: i64 = 2;
const LEASES_BELOW: i64 = 3;

/// Wait for a claim without a record: its instance is beginning or ending.
const UNKNOWN_WITHIN: Duration = Duration::from_secs(2);
/// Wait for an instance that is dead, or has no mount here any more.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// A longer wait prints a message.
const SILENT_FOR: Duration = Duration::from_secs(1);

/// Locks of this instance.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Byte of the claim in each range; the instance's record has the same number.
    pub number: u32,
    /// The claim of a mount, which shares its source with no other instance.
    is_mount: bool,
    /// The source's root, if this user may read it.
    root: Option<OwnedFd>,
    /// The directories above the source that this user may read.
    above: Vec<OwnedFd>,
}

impl Claim {
    /// Claims the source `src`; waits for an instance that ends.
    ///
    /// # Errors
    /// Another instance serves the source, a directory above it or one below it.
    pub(crate) fn take(src: &Path, src_fd: BorrowedFd<'_>, is_mount: bool) -> Result<Claim> {
        let claim = Claim::open(src, src_fd, is_mount);
        let began = Instant::now();
        let mut is_silent = true;
        loop {
            let Some(number) = claim.set() else { return Ok(claim) };
            let other = Other::find(number);
            if other.stays(began.elapsed()) {
                return Err(other.refusal(src));
            }
            if is_silent && began.elapsed() > SILENT_FOR {
                terrace_output::error_line!(
                    "terrace: {}: waiting for the unmount of another terrace of this directory",
                    src.display()
                );
                is_silent = false;
            }
            // Two instances that begin at once pause for different times.
            std::thread::sleep(Duration::from_millis(20 + u64::from(claim.number % 40)));
        }
    }

    fn open(src: &Path, src_fd: BorrowedFd<'_>, is_mount: bool) -> Claim {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = |path: PathBuf| open_above(&path, flags, mount_of(src_fd)).ok();
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Claim {
            number: began.subsec_nanos() ^ std::process::id().rotate_left(16),
            is_mount,
            root: rustix::fs::openat(src_fd, OsStr::new("."), flags, Mode::empty()).ok(),
            above: above(&mounts::table(), src).into_iter().filter_map(open).collect(),
        }
    }

    /// Sets the locks, unless a conflicting claim exists: then returns that claim's number.
    fn set(&self) -> Option<u32> {
        let (own, own_below) = if self.is_mount { (MOUNTS, MOUNTS_BELOW) } else { (LEASES, LEASES_BELOW) };
        // On a file system without such locks, `lock` fails and there are no claims.
        self.root.iter().for_each(|dir| drop(lock(dir, own, self.number)));
        self.above.iter().for_each(|dir| drop(lock(dir, own_below, self.number)));
        let found = self.other();
        if found.is_some() {
            self.release();
        }
        found
    }

    /// The number of a conflicting claim.
    fn other(&self) -> Option<u32> {
        let (at_root, above) = match self.is_mount {
            true => (MOUNTS_BELOW..LEASES_BELOW + 1, MOUNTS..LEASES + 1),
            false => (MOUNTS_BELOW..MOUNTS + 1, MOUNTS..MOUNTS + 1),
        };
        let found = self.root.iter().find_map(|dir| holder(dir, at_root.clone()));
        found.or_else(|| self.above.iter().find_map(|dir| holder(dir, above.clone())))
    }

    /// Releases the claim before the instance ends.
    pub(crate) fn release(&self) {
        for dir in self.root.iter().chain(&self.above) {
            let _ = fcntl(dir, libc::F_OFD_SETLK, libc::F_UNLCK, BASE, (LEASES_BELOW + 1) * BYTES);
        }
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.root.iter().chain(&self.above).map(AsRawFd::as_raw_fd)
    }
}

/// Opens a directory above the source. If it is on another mount than the source, it is opened through a
/// detached copy of that mount. The mount itself can then be unmounted. Only root can make such copies.
fn open_above(path: &Path, flags: OFlags, mount: Option<u64>) -> rustix::io::Result<OwnedFd> {
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    if mount_of(dir.as_fd()) == mount {
        return Ok(dir);
    }
    let copy =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let apart =
        open_tree(&dir, "", copy).and_then(|copy| rustix::fs::openat(copy, ".", flags, Mode::empty()));
    Ok(apart.unwrap_or(dir))
}

/// The kernel's id of a file's mount.
fn mount_of(file: BorrowedFd<'_>) -> Option<u64> {
    let status = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (status.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(status.stx_mnt_id)
}

fn lock(dir: &OwnedFd, range: i64, number: u32) -> io::Result<libc::flock> {
    fcntl(dir, libc::F_OFD_SETLK, libc::F_RDLCK, BASE + range * BYTES + i64::from(number), 1)
}

/// The number of another instance's claim in these ranges.
fn holder(dir: &OwnedFd, ranges: Range<i64>) -> Option<u32> {
    let (start, bytes) = (BASE + ranges.start * BYTES, (ranges.end - ranges.start) * BYTES);
    let found = fcntl(dir, libc::F_OFD_GETLK, libc::F_WRLCK, start, bytes).ok()?;
    let number = u32::try_from((found.l_start - BASE) & (BYTES - 1)).unwrap_or_default();
    (found.l_type != libc::F_UNLCK as libc::c_short).then_some(number)
}

fn fcntl(dir: &OwnedFd, command: i32, kind: i32, start: i64, bytes: i64) -> io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    };
    // SAFETY: an open descriptor and a whole record, which the kernel reads and writes.
    match unsafe { libc::fcntl(dir.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(lock),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does a mount serve this directory, or one above or below it?
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let opened = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.is_ok_and(|fd| Claim::open(dir, fd.as_fd(), false).other().is_some())
}

/// All directories above `path` by its name. In a bind mount, also the parents in its file system that
/// another mount shows.
fn above(table: &[Entry], path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_owned).collect();
    let Some((entry, inside)) = mounts::inside(table, path) else { return found };
    for wanted in inside.ancestors().skip(1) {
        let shown = table.iter().filter(|other| other.dev == entry.dev).find_map(|other| {
            let path = other.point.join(wanted.strip_prefix(&other.root).ok()?);
            let is_seen = mounts::inside(table, &path).is_some_and(|(top, _)| top == other);
            is_seen.then(|| path.components().collect::<PathBuf>())
        });
        found.extend(shown.filter(|path| !found.contains(path)));
    }
    found
}

/// The instance with a conflicting claim.
struct Other(Option<(Instance, Info)>);

impl Other {
    fn find(number: u32) -> Other {
        let records = instance::all().into_iter().filter_map(|i| i.info().map(|info| (i, info)));
        Other(records.into_iter().find(|(_, info)| info.claim == Some(number)))
    }

    /// Will it keep its claim? Requests the release from an unmounted instance.
    fn stays(&self, waited: Duration) -> bool {
        let Some((instance, info)) = &self.0 else { return waited > UNKNOWN_WITHIN };
        if !instance.is_alive() {
            return waited > ENDS_WITHIN;
        }
        if !is_unmounted(info) {
            return !instance.is_stopping();
        }
        let asked = Client::connect(&instance.control_socket())
            .and_then(|client| client.ask_within(Release {}, ENDS_WITHIN));
        // The mount may exist only in the mount namespace of its daemon, where this process does not see it.
        asked.is_ok_and(|it| it.mounted && !instance.is_stopping()) || waited > ENDS_WITHIN
    }

    fn refusal(&self, src: &Path) -> Failure {
        let name = src.display();
        let Some((_, info)) = &self.0 else {
            let mounted = mounts::table().into_iter().find(|entry| {
                entry.fstype == FSTYPE && (src.starts_with(entry.source()) || entry.source().starts_with(src))
            });
            let by = mounted.map_or("for another user or container".to_owned(), |entry| {
                format!("at {}", entry.point.display())
            });
            let why = format!("terrace serves this tree, or a part of it, {by}");
            return Failure::new(name, why, "use that mount, or end it; two caches of one tree destroy data");
        };
        let served = if info.src == src { "it".to_owned() } else { info.src.display().to_string() };
        let mnt = info.mnt.display();
        if info.kind == Kind::Run {
            let why = format!("`terrace run` (pid {}) serves {served}", info.pid);
            return Failure::new(name, why, "wait for its end: a mount and a `run` of one tree destroy data");
        }
        if is_unmounted(info) {
            let seen = info.device.map(holders::seeing).unwrap_or_default();
            let by = match seen.is_empty() {
                true => "programs that have files open for writing".to_owned(),
                false => holders::told(&seen),
            };
            let why = format!("terrace (pid {}) serves {served}, not mounted here, for {by}", info.pid);
            return Failure::new(name, why, "end these programs, then repeat");
        }
        let why = format!("terrace serves {served} at {mnt} (pid {})", info.pid);
        Failure::new(name, why, format!("use {mnt}, or end that mount with `terrace umount {mnt}`"))
    }
}

/// Is the instance's mount missing from this process's mount table?
fn is_unmounted(info: &Info) -> bool {
    let ours = |entry: &Entry| Some(entry.dev) == info.device && entry.fstype == FSTYPE;
    info.kind == Kind::Mount && info.device.is_some() && !mounts::table().iter().any(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(dir: &Path, is_mount: bool) -> Claim {
        let root = rustix::fs::open(dir, OFlags::PATH, Mode::empty()).unwrap();
        Claim::open(dir, root.as_fd(), is_mount)
    }

    #[test]
    fn one_mount_of_a_tree_and_runs_beside_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().canonicalize().unwrap();
        let (child, other) = (parent.join("child/grandchild"), parent.join("other"));
        std::fs::create_dir_all(&child).unwrap();
        std::fs::create_dir(&other).unwrap();
        for (first, second) in [(&parent, &parent), (&parent, &child), (&child, &parent)] {
            for (is_mount, beside) in [(true, true), (true, false), (false, true), (false, false)] {
                let held = claim(first, is_mount);
                assert_eq!(held.set(), None);
                let met = claim(second, beside);
                let expected = (is_mount || beside).then_some(held.number);
                assert_eq!(met.set(), expected, "{first:?} {second:?} {is_mount} {beside}");
                held.release();
                assert_eq!(met.set(), None, "released");
            }
        }
        let (child, other) = (claim(&child, true), claim(&other, true));
        assert_eq!((child.set(), other.set()), (None, None), "trees beside each other");
    }

    #[test]
    fn directories_above_a_bind_mount_are_those_of_its_file_system() {
        let entry = |dev, root: &str, point: &str| Entry {
            dev: (8, dev),
            root: root.into(),
            point: point.into(),
            fstype: "ext4".to_owned(),
            ..Entry::default()
        };
        let table = [entry(1, "/", "/"), entry(2, "/", "/data"), entry(2, "/a/b", "/bound")];
        let found = above(&table, Path::new("/bound/c"));
        for path in ["/bound", "/", "/data/a/b", "/data/a", "/data"] {
            assert!(found.contains(&path.into()) || path == "/data/a/b", "{path}: {found:?}");
        }
        let hidden = [&table[..], &[entry(3, "/", "/data")]].concat();
        assert!(!above(&hidden, Path::new("/bound/c")).contains(&"/data/a".into()));
    }
}
