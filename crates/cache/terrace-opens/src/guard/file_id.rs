//! The identity of a file: device and inode number.

use std::io;
use std::os::fd::AsFd;

/// A file as fstat(2) reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// st_dev.
    pub dev: u64,
    /// st_ino.
    pub ino: u64,
}

impl FileId {
    /// The file of a descriptor.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(file: impl AsFd) -> io::Result<FileId> {
        let stat = rustix::fs::fstat(file)?;
        Ok(FileId { dev: stat.st_dev, ino: stat.st_ino })
    }
}
