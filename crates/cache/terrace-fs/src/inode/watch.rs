//! Changes of names behind the mount: a mark of fanotify(7) on each directory in which a name was looked up.
//!
//! The kernel caches a name of the mount as long as its directory is marked, and otherwise for a second.
//! Events of this process are ignored: the kernel knows its changes already. A mark does not hold its
//! directory in memory, and ends with it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use terrace_sync::Mutex;

use super::identity::handle_of;

const EVENTS: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVE
    | libc::FAN_ATTRIB
    | libc::FAN_EVENT_ON_CHILD
    | libc::FAN_ONDIR;

/// Bytes of events in one read.
const BUFFER_BYTES: usize = 64 * 1024;
const METADATA_BYTES: usize = size_of::<libc::fanotify_event_metadata>();
/// Bytes of an event's record before its file handle: header and file system.
const INFO_BYTES: usize = 4 + 8;

#[derive(Debug, Eq, PartialEq)]
pub(crate) enum SourceEvent<'a> {
    /// A name in these directories was given, removed or moved, or its file's attributes changed.
    Name(&'a [u64], &'a OsStr),
    /// The attributes of these directories changed.
    Itself(&'a [u64]),
    /// The kernel's event queue overflowed.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Watches {
    group: OwnedFd,
    ended: OwnedFd,
    /// Number of marked inodes by handle hash and node id. Two file systems may have the same handle. The
    /// next inode of a number may be marked before the last one is forgotten.
    marked: Mutex<BTreeMap<(u64, u64), u32>>,
}

impl Watches {
    /// # Errors
    /// The kernel has no such group (before Linux 5.13 for users other than root), or the user's limit is
    /// reached.
    pub(crate) fn new() -> io::Result<Self> {
        if !kernel_expires_names() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let kind =
            libc::FAN_CLASS_NOTIF | libc::FAN_REPORT_DFID_NAME | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        // Only root may have marks without a limit.
        let group = Self::group(kind | libc::FAN_UNLIMITED_MARKS).or_else(|_| Self::group(kind))?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { group, ended, marked: Mutex::default() })
    }

    fn group(flags: libc::c_uint) -> io::Result<OwnedFd> {
        // SAFETY: plain numbers; the result is a new descriptor.
        let fd = unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_uint) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Marks a directory. Returns the hash of its handle, or `None` if it cannot be marked.
    pub(crate) fn mark(&self, dir: BorrowedFd<'_>, nodeid: u64) -> Option<u64> {
        let hash = hash_of(&handle_of(dir, OsStr::new("")).ok()??);
        // Recorded first, since an event may come at once.
        *self.marked.lock().entry((hash, nodeid)).or_default() += 1;
        let how = libc::FAN_MARK_ADD | libc::FAN_MARK_ONLYDIR | libc::FAN_MARK_EVICTABLE;
        // SAFETY: numbers, and a literal that ends with NUL.
        let done = unsafe {
            libc::fanotify_mark(self.group.as_raw_fd(), how, EVENTS, dir.as_raw_fd(), c".".as_ptr())
        };
        if done != 0 {
            tracing::debug!("inode {nodeid}: no mark: {}", io::Error::last_os_error());
            self.forget(hash, nodeid);
            return None;
        }
        Some(hash)
    }

    /// A directory has left the table.
    pub(crate) fn forget(&self, hash: u64, nodeid: u64) {
        if let Entry::Occupied(mut inodes) = self.marked.lock().entry((hash, nodeid)) {
            *inodes.get_mut() -= 1;
            if *inodes.get() == 0 {
                inodes.remove();
            }
        }
    }

    /// Waits for events and calls `report` for those of other processes. The caller should pause after
    /// `Wake::Own`.
    ///
    /// # Errors
    /// The group cannot be read.
    pub(crate) fn wait(
        &self,
        buffer: &mut Vec<u8>,
        mut report: impl FnMut(SourceEvent<'_>),
    ) -> io::Result<Wake> {
        buffer.resize(BUFFER_BYTES, 0);
        let mut ready = [PollFd::new(&self.group, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !ready[1].revents().is_empty() {
            return Ok(Wake::End);
        }
        let len = match rustix::io::read(&self.group, &mut **buffer) {
            Ok(len) => len,
            Err(Errno::INTR | Errno::AGAIN) => 0,
            Err(errno) => return Err(errno.into()),
        };
        Ok(if self.parse(&buffer[..len], &mut report) { Wake::Event } else { Wake::Own })
    }

    /// Whether any event was another process's.
    fn parse(&self, mut events: &[u8], report: &mut impl FnMut(SourceEvent<'_>)) -> bool {
        let own = std::process::id() as i32;
        let mut any = false;
        while events.len() >= METADATA_BYTES {
            // SAFETY: the loop's condition ensures these bytes, and any bit pattern is valid.
            let event = unsafe { events.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() };
            let len = (event.event_len as usize).clamp(METADATA_BYTES, events.len());
            let infos = &events[METADATA_BYTES..len];
            events = &events[len..];
            if event.mask & libc::FAN_Q_OVERFLOW != 0 {
                report(SourceEvent::Lost);
            } else if event.pid != own {
                self.report_infos(infos, report);
            } else {
                continue;
            }
            any = true;
        }
        any
    }

    /// Each record: type, padding, length; file system; a file handle; a name that ends with NUL.
    fn report_infos(&self, mut infos: &[u8], report: &mut impl FnMut(SourceEvent<'_>)) {
        while infos.len() > INFO_BYTES + 8 {
            let len =
                usize::from(u16::from_ne_bytes([infos[2], infos[3]])).clamp(INFO_BYTES + 8, infos.len());
            let (kind, info) = (infos[0], &infos[INFO_BYTES..len]);
            infos = &infos[len..];
            let bytes = u32::from_ne_bytes(info[..4].try_into().expect("four bytes")) as usize;
            let Some(handle) = info.get(4..8 + bytes) else { return };
            let nodeids = self.nodeids(hash_of(handle));
            if nodeids.is_empty() {
                continue;
            }
            let name = info[8 + bytes..].split(|&byte| byte == 0).next().unwrap_or_default();
            match (kind, name) {
                (libc::FAN_EVENT_INFO_TYPE_DFID, _) | (_, b"." | b"") => {
                    report(SourceEvent::Itself(&nodeids))
                }
                (libc::FAN_EVENT_INFO_TYPE_DFID_NAME, name) => {
                    report(SourceEvent::Name(&nodeids, OsStr::from_bytes(name)));
                }
                _ => {}
            }
        }
    }

    fn nodeids(&self, hash: u64) -> Vec<u64> {
        self.marked.lock().range((hash, 0)..=(hash, u64::MAX)).map(|(&(_, nodeid), _)| nodeid).collect()
    }

    pub(crate) fn end(&self) {
        let _ = rustix::io::write(self.ended.as_fd(), &1u64.to_ne_bytes());
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wake {
    /// Other processes changed names.
    Event,
    /// Only this process changed names.
    Own,
    End,
}

fn hash_of(handle: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    handle.hash(&mut hasher);
    // The two smallest numbers stand for no mark.
    hasher.finish().max(2)
}

/// Since Linux 6.2 a name can expire. Older kernels drop it together with the mounts below it.
fn kernel_expires_names() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Waits for an event of this name in directory 7. Returns the names up to it.
    fn names_until(watches: &Watches, last: &str) -> Vec<String> {
        let (mut buffer, mut names) = (Vec::new(), Vec::new());
        while !names.iter().any(|name| name == last) {
            let report = |event: SourceEvent<'_>| {
                if let SourceEvent::Name([7], name) = event {
                    names.push(name.to_str().unwrap().to_owned());
                }
            };
            watches.wait(&mut buffer, report).unwrap();
        }
        names
    }

    #[test]
    fn names_that_others_change_are_reported_and_own_ones_are_not() {
        let Ok(watches) = Watches::new() else { return terrace_testkit::skipped!("no fanotify") };
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let Some(hash) = watches.mark(fd.as_fd(), 7) else { return terrace_testkit::skipped!("no mark") };
        std::fs::write(dir.path().join("own"), b"").unwrap();
        let run = |program: &str, args: &[&str]| {
            let args = args.iter().map(|arg| dir.path().join(arg));
            assert!(Command::new(program).args(args).status().unwrap().success());
        };
        run("touch", &["theirs"]);
        assert!(!names_until(&watches, "theirs").contains(&"own".to_owned()));
        run("mkdir", &["made"]);
        names_until(&watches, "made");
        run("mv", &["theirs", "moved"]);
        names_until(&watches, "moved");
        // A directory can be found again before its first inode is forgotten.
        assert_eq!(watches.mark(fd.as_fd(), 7), Some(hash));
        watches.forget(hash, 7);
        run("touch", &["again"]);
        names_until(&watches, "again");
        watches.forget(hash, 7);
        assert!(watches.nodeids(hash).is_empty());
        watches.end();
        while watches.wait(&mut Vec::new(), |_| {}).unwrap() != Wake::End {}
    }
}
