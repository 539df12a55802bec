//! The files of a store: created, locked, removed.

use crate::durable::{create_new, new_path};
use crate::error::{Error, Result};
use crate::journal;
use crate::log::Writer;
use crate::options::check_name;
use crate::record::{HEADER, Header};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use terrace_io::Io;

/// The heap file of the store `name`.
fn heap_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.heap"))
}

/// The record log of the store `name`.
fn names_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.names"))
}

/// The locked files of a store.
#[derive(Debug)]
pub(super) struct Files {
    pub dir: Arc<File>,
    pub heap: Arc<OwnedFd>,
    pub heap_path: PathBuf,
    pub names: File,
    pub names_path: PathBuf,
    pub header: Header,
}

impl Files {
    /// Opens the files, creating missing ones.
    ///
    /// # Errors
    /// The directory is missing or not writable; the store is in use; a file is not a store's.
    pub(super) fn open(dir_path: &Path, name: &str, io: &dyn Io) -> Result<Files> {
        let (heap_path, names_path) = (heap_path(dir_path, name), names_path(dir_path, name));
        let dir =
            rustix::fs::open(dir_path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let dir = Arc::new(File::from(dir.map_err(|e| Error::io(dir_path, "open", e.into()))?));
        let heap = open_heap(&heap_path, OFlags::CREATE)?;
        let (names, header) = match open_rw(&names_path) {
            Ok(file) => {
                let header = read_header(&file, &names_path)?;
                (file, header)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if rustix::fs::fstat(&heap).is_ok_and(|stat| stat.st_size > 0) {
                    let what = format!("the log of the store is missing, but {} exists", heap_path.display());
                    return Err(Error::Damaged { path: names_path, what });
                }
                create(&dir, &names_path, io)?
            }
            Err(e) => return Err(Error::io(&names_path, "open", e)),
        };
        // Left by a process that died during a log compaction.
        let _ = std::fs::remove_file(new_path(&names_path));
        Ok(Files { dir, heap: Arc::new(heap), heap_path, names, names_path, header })
    }
}

/// Opens and locks the heap.
fn open_heap(path: &Path, more: OFlags) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
    let heap = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let heap = heap.map_err(|e| Error::io(path, "open", e.into()))?;
    match rustix::fs::flock(&heap, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(heap),
        Err(Errno::WOULDBLOCK) => Err(Error::InUse { path: path.to_owned() }),
        Err(e) => Err(Error::io(path, "lock", e.into())),
    }
}

fn open_rw(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn read_header(file: &File, path: &Path) -> Result<Header> {
    let mut bytes = [0; HEADER];
    let read = file.read_exact_at(&mut bytes, 0);
    if let Some(header) = read.is_ok().then(|| Header::decode(&bytes)).flatten() {
        return Ok(header);
    }
    Err(Error::Damaged {
        path: path.to_owned(),
        what: "the file is no log of a store of this version".into(),
    })
}

/// Creates a log, durable under its name.
fn create(dir: &File, path: &Path, io: &dyn Io) -> Result<(File, Header)> {
    let error = |action| move |e| Error::io(path, action, e);
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::io(path, "get random numbers for", e.into()))?;
    let word = |at: usize| u64::from_le_bytes(random[at..at + 8].try_into().expect("8 bytes"));
    let header = Header { generation: 1, first: 1, store: word(0), seed: word(8) };
    let new = new_path(path);
    let mut writer = Writer::new(io, path, create_new(&new).map_err(error("create"))?, header);
    writer.sync()?;
    std::fs::rename(&new, path).map_err(error("rename"))?;
    io.sync(dir.as_raw_fd(), false).map_err(error("sync the directory of"))?;
    let written = writer.end();
    Ok((written.file, header))
}

/// Removes a store.
///
/// # Errors
/// The store is in use; a file cannot be removed.
pub(crate) fn destroy(dir: &Path, name: &str) -> Result<()> {
    check_name(name)?;
    let (heap, names) = (heap_path(dir, name), names_path(dir, name));
    let _locked = match open_heap(&heap, OFlags::empty()) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        opened => Some(opened?),
    };
    let [first, second] = journal::paths(dir, name);
    for path in [&new_path(&names), &names, &heap, &first, &second] {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io(path, "remove", e)),
            _ => {}
        }
    }
    Ok(())
}
