//! Conversions between the namespace's types and those of `fuser`.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{Attr, Caller, Error, Kernel, Kind, Opened, SetTime, Time};
use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, Notifier, Request, TimeOrNow,
};

pub(super) fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), tid: req.pid(), unique: req.unique().0 }
}

pub(super) fn errno(error: &Error) -> Errno {
    let number = error.errno();
    if matches!(number, libc::EIO | libc::ENFILE) || matches!(error, Error::UnknownNode(_)) {
        tracing::warn!("{error}");
    }
    Errno::from_i32(number)
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind()),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Reply for a negative dentry: node id 0.
pub(super) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.sec.unsigned_abs());
    let whole = if time.sec < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nsec.into()))).unwrap_or(UNIX_EPOCH)
}

/// The time in a SETATTR. `fuser` turns seconds and nanoseconds before 1970 into `1970 - (seconds +
/// nanoseconds)`, where the nanoseconds should count upwards. Splitting the value undoes that.
pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(match at.duration_since(UNIX_EPOCH) {
            Ok(since) => Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
            Err(before) => {
                let until = before.duration();
                Time { sec: -(until.as_secs() as i64), nsec: until.subsec_nanos() }
            }
        }),
    }
}

/// An open file in the reply to the kernel.
pub(super) struct Answer {
    pub(super) fh: FileHandle,
    pub(super) flags: FopenFlags,
    /// Backing file for FOPEN_PASSTHROUGH; 0 for none.
    pub(super) backing: u32,
}

pub(super) fn opened(opened: &Opened) -> Answer {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_NOFLUSH, opened.no_flush);
    Answer { fh: FileHandle(opened.fh), flags, backing: opened.backing }
}

/// The kernel's caches, changed by notifications.
#[derive(Debug)]
pub(super) struct KernelCaches {
    notifier: Notifier,
    device: OwnedFd,
}

impl KernelCaches {
    pub(super) fn new(notifier: Notifier, device: OwnedFd) -> Self {
        Self { notifier, device }
    }
}

const FUSE_NOTIFY_INVAL_ENTRY: u32 = 3;
/// Since Linux 6.2; older kernels drop the name.
const FUSE_EXPIRE_ONLY: u32 = 1;
const FUSE_NOTIFY_PRUNE: u32 = 9;
/// `_IOW(229, 2, uint32_t)`
const FUSE_DEV_IOC_BACKING_CLOSE: libc::Ioctl = 0x4004_e502u32 as libc::Ioctl;

/// A header, a count, padding, and the node ids.
fn prune_message(nodeids: &[u64]) -> Vec<u8> {
    let len = (32 + 8 * nodeids.len()) as u32;
    let words = [len, FUSE_NOTIFY_PRUNE, 0, 0, nodeids.len() as u32, 0, 0, 0];
    let head = words.into_iter().flat_map(u32::to_ne_bytes);
    head.chain(nodeids.iter().flat_map(|nodeid| nodeid.to_ne_bytes())).collect()
}

/// A header, the directory, the length of the name, flags, and the name with a NUL.
fn expire_message(parent: u64, name: &OsStr) -> Vec<u8> {
    let name = name.as_bytes();
    let len = (16 + 16 + name.len() + 1) as u32;
    let head = [len, FUSE_NOTIFY_INVAL_ENTRY, 0, 0].into_iter().flat_map(u32::to_ne_bytes);
    let flags = [name.len() as u32, FUSE_EXPIRE_ONLY].into_iter().flat_map(u32::to_ne_bytes);
    head.chain(parent.to_ne_bytes()).chain(flags).chain(name.iter().copied()).chain([0]).collect()
}

impl Kernel for KernelCaches {
    fn invalidate_attributes(&self, nodeid: u64) {
        // A negative offset invalidates the attributes only.
        if let Err(err) = self.notifier.inval_inode(INodeNo(nodeid), -1, 0) {
            tracing::debug!("inode {nodeid}: attributes not invalidated: {err}");
        }
    }

    fn prune(&self, nodeids: &[u64]) -> bool {
        rustix::io::write(&self.device, &prune_message(nodeids)).is_ok()
    }

    fn invalidate_content(&self, nodeid: u64, range: Range<u64>) {
        let len = range.end - range.start;
        if let Err(err) = self.notifier.inval_inode(INodeNo(nodeid), range.start as i64, len as i64) {
            tracing::debug!("inode {nodeid}: content not invalidated: {err}");
        }
    }

    fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        BackingId::create_raw(&self.device, file)
    }

    fn close_backing(&self, backing: u32) {
        // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads one u32.
        if unsafe { libc::ioctl(self.device.as_raw_fd(), FUSE_DEV_IOC_BACKING_CLOSE, &raw const backing) }
            != 0
        {
            tracing::debug!("backing file {backing} not given back: {}", io::Error::last_os_error());
        }
    }

    fn expire_name(&self, parent: u64, name: &OsStr) {
        match rustix::io::write(&self.device, &expire_message(parent, name)) {
            // The kernel does not know the name.
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(err) => tracing::debug!("name in {parent} not expired: {err}"),
        }
    }

    fn invalidate_name(&self, parent: u64, name: &OsStr) {
        if let Err(err) = self.notifier.inval_entry(INodeNo(parent), name) {
            tracing::debug!("name in {parent} not invalidated: {err}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_upwards() {
        let time = Time { sec: -2, nsec: 800_000_000 };
        let before = UNIX_EPOCH.duration_since(system_time(time)).unwrap();
        assert_eq!(before, Duration::from_millis(1200));
        // As fuser gives (-2 s, 800,000,000 ns).
        let sent = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(set_time(TimeOrNow::SpecificTime(sent)), SetTime::At(time));
        let after = UNIX_EPOCH + Duration::new(5, 6);
        assert_eq!(set_time(TimeOrNow::SpecificTime(after)), SetTime::At(Time { sec: 5, nsec: 6 }));
    }

    #[test]
    fn absurd_times_do_not_panic() {
        system_time(Time { sec: i64::MAX, nsec: 999_999_999 });
        system_time(Time { sec: i64::MIN, nsec: 0 });
    }
}
