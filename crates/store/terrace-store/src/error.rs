//! Errors of a store, one line each: what failed, why, what helps.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of an operation of a store.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation of a store. It changed nothing, unless its docs state a change.
#[derive(Debug)]
pub enum Error {
    /// No room for the change: the disk, or the store's own maximum. Earlier content stays.
    Full {
        /// The file that cannot grow.
        path: PathBuf,
        /// The store's own maximum, bytes, if it was reached.
        capacity: Option<u64>,
    },
    /// The names of buckets and blobs take all of the memory they may.
    NoMemory {
        /// Memory of the index, bytes.
        index: u64,
        /// The limit on all memory, bytes.
        limit: u64,
    },
    /// The last sync of the sync thread failed. Changes are refused until a sync succeeds: they could be
    /// lost.
    NotDurable {
        /// The error of the sync.
        why: String,
        /// The sync failed for lack of room.
        is_full: bool,
    },
    /// Another program, or another store of this program, has the store open.
    InUse {
        /// The file that is locked.
        path: PathBuf,
    },
    /// A bucket of this name exists.
    Exists {
        /// Its name.
        name: String,
    },
    /// The bucket was removed.
    NoBucket {
        /// The name.
        name: String,
    },
    /// A key, a name or a blob is over the maximum.
    TooLarge {
        /// "key", "name" or "blob".
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The maximum, bytes.
        max: u64,
    },
    /// A file is damaged, or not a store's.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// The store was closed.
    Closed,
    /// A parent of this process has opened the store.
    Forked,
    /// An invalid option.
    Invalid {
        /// The invalid value, and the valid ones.
        what: String,
    },
    /// A system call failed.
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Error {
        if source.raw_os_error().is_some_and(is_full_errno) {
            return Error::Full { path: path.to_owned(), capacity: None };
        }
        Error::Io { path: path.to_owned(), action, source }
    }

    /// Whether the disk, or the store's own maximum, has no room.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Full { .. } | Error::NotDurable { is_full: true, .. })
    }

    /// The closest errno, for callers of C.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            Error::Full { .. } | Error::NotDurable { is_full: true, .. } => Errno::NOSPC,
            Error::NotDurable { .. } => Errno::IO,
            Error::NoMemory { .. } => Errno::NOMEM,
            Error::InUse { .. } => Errno::BUSY,
            Error::Exists { .. } => Errno::EXIST,
            Error::NoBucket { .. } => Errno::NOENT,
            Error::TooLarge { .. } => Errno::TOOBIG,
            Error::Damaged { .. } => Errno::UCLEAN,
            Error::Closed | Error::Forked => Errno::BADF,
            Error::Invalid { .. } => Errno::INVAL,
            Error::Io { source, .. } => return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        }
        .raw_os_error()
    }
}

/// ENOSPC and EDQUOT: the file system has no room for this user.
pub(crate) fn is_full_errno(errno: i32) -> bool {
    errno == rustix::io::Errno::NOSPC.raw_os_error() || errno == rustix::io::Errno::DQUOT.raw_os_error()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Full { path, capacity: Some(max) } => {
                write!(
                    f,
                    "{}: the store is full ({max} bytes); remove blobs or raise its capacity",
                    path.display()
                )
            }
            Error::Full { path, capacity: None } => {
                write!(f, "{}: the file system is full; remove blobs or make room there", path.display())
            }
            Error::NoMemory { index, limit } => {
                write!(
                    f,
                    "the index of names takes {index} of {limit} bytes of memory and cannot grow; remove blobs or raise the limit"
                )
            }
            Error::NotDurable { why, .. } => write!(f, "changes are refused until a sync succeeds: {why}"),
            Error::InUse { path } => {
                write!(f, "{}: another program uses this store; end that program first", path.display())
            }
            Error::Exists { name } => write!(f, "bucket {name:?}: a bucket has this name; choose another name"),
            Error::NoBucket { name } => write!(f, "bucket {name:?}: the bucket was removed; get it from the store again"),
            Error::TooLarge { what, bytes, max } => {
                write!(f, "{what} of {bytes} bytes: the maximum is {max}; split it")
            }
            Error::Damaged { path, what } => {
                write!(f, "{}: {what}; restore it from a copy, or remove the store", path.display())
            }
            Error::Closed => f.write_str("the store was closed; open it again"),
            Error::Forked => f.write_str(
                "the store was opened before this process was forked; use it in one process only, or serve it with `terrace serve kv`",
            ),
            Error::Invalid { what } => f.write_str(what),
            Error::Io { path, action, source } => {
                write!(f, "{}: {action}: {source}{}", path.display(), cure(source))
            }
        }
    }
}

/// A hint for an error of the system, if there is one.
fn cure(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; give this user write access to the directory and its files",
        io::ErrorKind::ReadOnlyFilesystem => "; mount the file system writable, or use another directory",
        io::ErrorKind::NotFound => "; make the directory of the store first",
        io::ErrorKind::NotADirectory => "; name a directory for the store",
        _ => "",
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
