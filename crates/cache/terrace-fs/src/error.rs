//! Errors of the namespace, and the error number that a program sees.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// An error of a namespace operation.
#[derive(Debug)]
pub enum Error {
    /// The source file system refused a system call.
    Source(Errno),
    /// The page cache failed: a read, a write-back, a limit.
    Cache(io::Error),
    /// The kernel named an inode that was never handed out or was forgotten.
    UnknownNode(u64),
    /// The kernel named a handle that is not open.
    UnknownHandle(u64),
    /// The operation does not fit the kind of inode or handle.
    WrongKind,
    /// A fixed table is full; the field names it.
    TableFull(&'static str),
}

/// Result of a namespace operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno that the calling program gets.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Source(errno) => errno.raw_os_error(),
            Self::Cache(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Self::UnknownNode(_) => libc::ESTALE,
            Self::UnknownHandle(_) => libc::EBADF,
            Self::WrongKind => libc::EINVAL,
            Self::TableFull(_) => libc::ENFILE,
        }
    }

    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Source(e) if *e == errno)
    }

    /// Whether a resource is used up that later closes free: descriptors, table slots.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::Source(Errno::MFILE | Errno::NFILE) | Self::TableFull(_))
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Source(errno)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::Source(Errno::from_raw_os_error(errno)),
            None => Self::Cache(error),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Cache(error) => error,
            other => Self::from_raw_os_error(other.errno()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(errno) => write!(f, "source: {errno}"),
            Self::Cache(error) => write!(f, "cache: {error}"),
            Self::UnknownNode(node) => write!(f, "inode {node} is not known"),
            Self::UnknownHandle(handle) => write!(f, "handle {handle:#x} is not open"),
            Self::WrongKind => write!(f, "operation does not fit the kind of file"),
            Self::TableFull(table) => write!(f, "the {table} table is full"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_an_errno() {
        assert_eq!(Error::from(Errno::NOENT).errno(), libc::ENOENT);
        assert_eq!(Error::from(io::Error::from_raw_os_error(libc::ENOSPC)).errno(), libc::ENOSPC);
        assert_eq!(Error::from(io::Error::other("checksum")).errno(), libc::EIO);
        assert_eq!(Error::UnknownNode(7).errno(), libc::ESTALE);
        assert_eq!(Error::TableFull("inode").errno(), libc::ENFILE);
        assert!(Error::from(Errno::EXIST).is(Errno::EXIST));
    }
}
