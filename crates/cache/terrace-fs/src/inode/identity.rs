//! Identity of a file of the source.
//!
//! On local file systems (device, inode number) names one file as long as a descriptor of it is open. FUSE
//! and network file systems keep no such promise: the server chooses the numbers, and two files may share
//! one. A number may return while an O_PATH descriptor of its first file is open. On these file systems the
//! identity is the kernel's file handle: on FUSE node and generation, on NFS the server's. Without file
//! handles the identity is the file's place (directory and name), and no inode has two names.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Stat;
use rustix::io::Errno;
use terrace_sync::Mutex;

/// File systems with inode numbers of a server, by their magic numbers (statfs(2); Linux:
/// include/uapi/linux/magic.h, fs/smb/common/smb2pdu.h).
const SERVED: [i64; 7] = [
    FUSE,
    NFS,
    0xff53_4d42, /* CIFS */
    0xfe53_4d42, /* SMB2 */
    0x0102_1997, /* 9P */
    0x5346_414f, /* AFS */
    0x7375_7245, /* Coda */
];
const FUSE: i64 = 0x6573_5546;
const NFS: i64 = 0x6969;

/// Bytes of a file handle, at most (Linux: MAX_HANDLE_SZ).
const HANDLE_BYTES_MAX: usize = 128;

/// What distinguishes the files of one file system.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum IdentityKind {
    Numbers,
    Handles,
    /// Nothing but their names.
    Places,
}

/// Distinguishes a file from all others of its device.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Mark {
    Number(u64),
    Handle(Box<[u8]>),
    /// The hash of a place, as [`hash_of`].
    Place(u64),
}

/// The identity of a file of the source at one look.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) mark: Mark,
}

/// The hash of a name in a directory; never 0, and the same in every daemon.
pub(crate) fn hash_of(parent: u64, name: &OsStr) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, name.as_bytes()).hash(&mut hasher);
    hasher.finish().max(1)
}

#[derive(Debug)]
pub(crate) struct Devices {
    root_dev: u64,
    root: IdentityKind,
    others: Mutex<HashMap<u64, IdentityKind>>,
}

impl Identity {
    pub(crate) fn key(&self) -> (u64, Mark) {
        (self.dev, self.mark.clone())
    }

    /// Whether the inode number identifies the file.
    pub(crate) fn is_numbered(&self) -> bool {
        matches!(self.mark, Mark::Number(_))
    }
}

impl Devices {
    pub(crate) fn new(root: BorrowedFd<'_>, dev: u64) -> Self {
        Self { root_dev: dev, root: kind_of(root), others: Mutex::default() }
    }

    fn known(&self, dev: u64) -> Option<IdentityKind> {
        if dev == self.root_dev { Some(self.root) } else { self.others.lock().get(&dev).copied() }
    }

    /// The identity of the file `name` of `dir`, with its status `stat`. `None`: its device is unknown, and
    /// so is the file.
    ///
    /// # Errors
    /// The file is gone.
    pub(crate) fn of_name(
        &self,
        parent: u64,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        stat: &Stat,
    ) -> rustix::io::Result<Option<Identity>> {
        let Some(kind) = self.known(stat.st_dev) else { return Ok(None) };
        let handle = if kind == IdentityKind::Handles { handle_of(dir, name)? } else { None };
        Ok(Some(identity(stat, kind, handle, || hash_of(parent, name))))
    }

    /// The identity of an open file, found at a place of this hash.
    pub(crate) fn of_fd(&self, fd: BorrowedFd<'_>, stat: &Stat, place: u64) -> rustix::io::Result<Identity> {
        let kind = self.look(fd, stat.st_dev);
        let handle = if kind == IdentityKind::Handles { handle_of(fd, OsStr::new(""))? } else { None };
        Ok(identity(stat, kind, handle, || place))
    }

    /// The mark of an inode of an earlier daemon. If its server is gone, the place is the mark.
    pub(crate) fn mark_again(&self, fd: BorrowedFd<'_>, dev: u64, ino: u64, place: u64) -> Mark {
        match self.look(fd, dev) {
            IdentityKind::Numbers => Mark::Number(ino),
            IdentityKind::Handles => match handle_of(fd, OsStr::new("")) {
                Ok(Some(handle)) => Mark::Handle(handle),
                _ => Mark::Place(place),
            },
            IdentityKind::Places => Mark::Place(place),
        }
    }

    /// Other devices are checked at each call: the kernel reuses the number of a removed device.
    fn look(&self, fd: BorrowedFd<'_>, dev: u64) -> IdentityKind {
        if dev == self.root_dev {
            return self.root;
        }
        let kind = kind_of(fd);
        self.others.lock().insert(dev, kind);
        kind
    }
}

fn identity(
    stat: &Stat,
    kind: IdentityKind,
    handle: Option<Box<[u8]>>,
    place: impl FnOnce() -> u64,
) -> Identity {
    let mark = match (kind, handle) {
        (IdentityKind::Numbers, _) => Mark::Number(stat.st_ino),
        (IdentityKind::Handles, Some(handle)) => Mark::Handle(handle),
        _ => Mark::Place(place()),
    };
    Identity { dev: stat.st_dev, ino: stat.st_ino, mark }
}

fn kind_of(fd: BorrowedFd<'_>) -> IdentityKind {
    let magic = rustix::fs::fstatfs(fd).map_or(FUSE, |fs| fs.f_type);
    match magic {
        FUSE | NFS if matches!(handle_of(fd, OsStr::new("")), Ok(Some(_))) => IdentityKind::Handles,
        magic if SERVED.contains(&magic) => IdentityKind::Places,
        _ => IdentityKind::Numbers,
    }
}

/// The kernel's handle of the file `name` of `dir`, or of `dir` itself for an empty name. `None`: the file
/// system has none.
///
/// # Errors
/// The file is gone, or its server.
pub(crate) fn handle_of(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Option<Box<[u8]>>> {
    /// Since Linux 6.5 more file systems offer handles, which only distinguish files.
    static KNOWS_FID: AtomicBool = AtomicBool::new(true);
    #[repr(C)]
    struct Buffer {
        bytes: u32,
        kind: i32,
        handle: [u8; HANDLE_BYTES_MAX],
    }
    let path = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    loop {
        let fid = KNOWS_FID.load(Ordering::Relaxed);
        let flags =
            if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 } | if fid { libc::AT_HANDLE_FID } else { 0 };
        let mut buffer = Buffer { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
        let mut mount = 0;
        // SAFETY: the kernel writes one number and a `file_handle`. The handle's first field states its
        // maximum of bytes, which `buffer` has.
        let done = unsafe {
            libc::name_to_handle_at(
                dir.as_raw_fd(),
                path.as_ptr(),
                (&raw mut buffer).cast(),
                &raw mut mount,
                flags,
            )
        };
        if done == 0 {
            let handle = &buffer.handle[..(buffer.bytes as usize).min(HANDLE_BYTES_MAX)];
            return Ok(Some([&buffer.kind.to_ne_bytes()[..], handle].concat().into()));
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
            Errno::INVAL if fid => KNOWS_FID.store(false, Ordering::Relaxed),
            Errno::OPNOTSUPP | Errno::OVERFLOW | Errno::INVAL | Errno::NOSYS | Errno::PERM => {
                return Ok(None);
            }
            errno => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_names_of_a_file_have_one_handle_and_two_files_two() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), b"a").unwrap();
        std::fs::write(dir.path().join("c"), b"c").unwrap();
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let of = |name: &str| handle_of(fd.as_fd(), OsStr::new(name));
        if of("a") == Ok(None) {
            return terrace_testkit::skipped!("the file system of temporary files has no handles");
        }
        assert_eq!(of("a"), of("b"));
        assert_ne!(of("a"), of("c"));
        let open = std::fs::File::open(dir.path().join("a")).unwrap();
        assert_eq!(handle_of(open.as_fd(), OsStr::new("")), of("a"));
        assert_eq!(of("none"), Err(Errno::NOENT));
    }

    #[test]
    fn hash_of_a_place_is_of_its_directory_and_its_name() {
        let hash = |parent, name: &str| hash_of(parent, OsStr::new(name));
        assert_eq!(hash(7, "a"), hash(7, "a"));
        assert!(hash(7, "a") != hash(7, "b") && hash(7, "a") != hash(8, "a"));
    }
}
