//! The source's root directory, opened for syncfs(2): one call makes all files of its file system durable.
//!
//! The kernel does not send syncfs to the servers of FUSE, 9p and SMB: their files are synced one by one.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use terrace_sync::Mutex;

/// File systems without a block device, where syncfs(2) makes all files stable, by statfs's type: btrfs,
/// bcachefs, zfs, ubifs, overlay, tmpfs, ramfs, NFS, Ceph.
const SYNCED_WHOLE: [u64; 9] = [
    0x9123_683e,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x2405_1905,
    0x794c_7630,
    0x0102_1994,
    0x8584_58f6,
    0x6969,
    0x00c3_6400,
];

/// Whether syncfs(2) makes the files of this device and type stable.
fn is_synced_whole(dev: u64, kind: u64) -> bool {
    rustix::fs::major(dev) != 0 || SYNCED_WHOLE.contains(&kind)
}

/// The source's directory, opened for syncfs.
#[derive(Debug)]
pub(crate) struct SourceRoot {
    pub(crate) dev: u64,
    pub(crate) reaches_files: bool,
    pub(crate) fd: OwnedFd,
    pub(crate) syncing: Mutex<()>,
}

impl SourceRoot {
    /// Opens the directory again, for reading.
    ///
    /// # Errors
    /// It cannot be opened for reading.
    pub(crate) fn open(root: BorrowedFd<'_>) -> io::Result<SourceRoot> {
        let path = format!("/proc/self/fd/{}", root.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let dev = rustix::fs::fstat(&fd)?.st_dev;
        let reaches_files = is_synced_whole(dev, rustix::fs::fstatfs(&fd)?.f_type as u64);
        Ok(SourceRoot { dev, reaches_files, fd, syncing: Mutex::new(()) })
    }

    /// Whether a syncfs reaches the files of device `dev`.
    pub(crate) fn reaches(&self, dev: u64) -> bool {
        self.reaches_files && self.dev == dev
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_servers_are_synced_one_by_one() {
        let (disk, anonymous) = (rustix::fs::makedev(8, 1), rustix::fs::makedev(0, 57));
        let (ext4, btrfs, fuse) = (0xef53, 0x9123_683e, 0x6573_5546);
        assert!(is_synced_whole(disk, ext4) && is_synced_whole(anonymous, btrfs));
        assert!(!is_synced_whole(anonymous, fuse), "the kernel sends a server no sync of all");
    }
}
