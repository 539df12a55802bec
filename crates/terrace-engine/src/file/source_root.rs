//! The directory that the mount serves, by which everything on its file system is made stable at once.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use terrace_sync::Mutex;

/// The source's directory, opened for syncfs.
#[derive(Debug)]
pub(crate) struct SourceRoot {
    /// Number of its file system.
    pub dev: u64,
    pub fd: OwnedFd,
    /// Held while it is synced.
    pub syncing: Mutex<()>,
}

impl SourceRoot {
    /// Opens the directory anew.
    ///
    /// # Errors
    /// It cannot be opened for reading.
    pub(crate) fn open(root: BorrowedFd<'_>) -> io::Result<SourceRoot> {
        let path = format!("/proc/self/fd/{}", root.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let dev = rustix::fs::fstat(&fd)?.st_dev;
        Ok(SourceRoot { dev, fd, syncing: Mutex::new(()) })
    }
}
