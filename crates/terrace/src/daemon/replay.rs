//! Replay at the start of terraced: it writes undestaged pages of earlier runs to their files. Programs have
//! synced these pages, and after a power cut only a tier has them. The replay precedes service, except after
//! a crash of terraced: programs have the mount then.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use terrace_engine::{Decision, Engine, FileLookup, Replayed, UndestagedPages};

use crate::error::{Failure, Result, reason};
use crate::size::{KIB, PAGE};

/// Files below a directory, found by inode number.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Name below the directory, and an O_PATH descriptor.
    pub files: HashMap<u64, (PathBuf, OwnedFd)>,
    /// Some directories could not be searched.
    partly: bool,
}

impl Found {
    /// The file with this inode number, and its name.
    pub(crate) fn take(&mut self, file: u64) -> (String, FileLookup) {
        match self.files.remove(&file) {
            Some((name, fd)) => (name.display().to_string(), FileLookup::Found(Arc::new(fd).into())),
            None if self.partly => (format!("inode {file}"), FileLookup::Unknown),
            None => (format!("inode {file}"), FileLookup::Gone),
        }
    }
}

/// Searches a directory for regular files with these inode numbers, within its file system.
pub(crate) fn find(root: BorrowedFd<'_>, wanted: &HashSet<u64>) -> io::Result<Found> {
    let (top, dev) =
        (PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())), rustix::fs::fstat(root)?.st_dev);
    let (mut found, mut left) = (Found::default(), vec![PathBuf::new()]);
    while let Some(dir) = left.pop() {
        if found.files.len() == wanted.len() {
            break;
        }
        let Ok(entries) = std::fs::read_dir(top.join(&dir)) else {
            found.partly = true;
            continue;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                found.partly = true;
                continue;
            };
            let name = dir.join(entry.file_name());
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir {
                // Files of other file systems have no undestaged pages.
                left.extend(entry.metadata().is_ok_and(|meta| meta.dev() == dev).then_some(name));
            } else if wanted.contains(&entry.ino())
                && let Some(fd) = open(&top.join(&name), entry.ino(), dev)
            {
                found.files.insert(entry.ino(), (name, fd));
            }
        }
    }
    Ok(found)
}

/// Opens the file at this path, if it has this inode number.
fn open(path: &Path, ino: u64, dev: u64) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(fd.as_fd()).ok()?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    (regular && (stat.st_ino, stat.st_dev) == (ino, dev)).then_some(fd)
}

/// Replays all undestaged pages of earlier runs; returns the outcome for each file, with its name.
pub(crate) fn replay(
    engine: &Engine,
    root: BorrowedFd<'_>,
    decision: Decision,
) -> io::Result<Vec<(String, UndestagedPages, io::Result<Replayed>)>> {
    let undestaged = engine.undestaged()?;
    if undestaged.is_empty() {
        return Ok(Vec::new());
    }
    // The engine syncs the source through this root, so that deletions are durable.
    let _ = engine.set_source_root(root);
    let mut found = find(root, &undestaged.iter().map(|undestaged| undestaged.file).collect())?;
    let one = |undestaged: UndestagedPages| {
        let (name, at) = found.take(undestaged.file);
        let done = engine.replay(undestaged.file, at, decision);
        (name, undestaged, done)
    };
    Ok(undestaged.into_iter().map(one).collect())
}

/// [`replay_at_start`]; during a recovery, errors are only logged, for programs have the mount already.
///
/// # Errors
/// Those of [`replay_at_start`].
pub(crate) fn before_serving(engine: &Engine, root: BorrowedFd<'_>, recovering: bool) -> Result<()> {
    match replay_at_start(engine, root) {
        Err(failure) if recovering => tracing::error!("{}", failure.line()),
        done => done?,
    }
    Ok(())
}

/// Writes the undestaged pages to their files where possible, and logs the outcome.
///
/// # Errors
/// The undestaged pages or their files cannot be determined: the source must not be served.
fn replay_at_start(engine: &Engine, root: BorrowedFd<'_>) -> Result<()> {
    let cure = "repair the tier or the source; to serve without these data, remove that tier and [dirty] durable = \"tier\" from the configuration";
    let done = replay(engine, root, Decision::Keep).map_err(|err| {
        Failure::new("synced data of a tier cannot be written to the source", reason(err), cure)
    })?;
    for (name, UndestagedPages { target, pages, .. }, done) in done {
        let kib = pages * PAGE / KIB;
        match done {
            Ok(Replayed::Written(_)) => {
                tracing::warn!(
                    "{name}: {kib} KiB from tier {target} are written to this file; the source lacked these data"
                );
            }
            Ok(Replayed::Dropped) => {
                tracing::warn!("{name}: this file is deleted; tier {target} drops {kib} KiB of its data");
            }
            Ok(Replayed::Kept(why)) => tracing::error!(
                "{name}: {why}; {kib} KiB that only tier {target} has are kept: `terrace recover` shows, writes or discards them"
            ),
            Err(err) => {
                tracing::error!(
                    "{name}: {kib} KiB from tier {target} cannot be written to this file ({err}): see `terrace recover`"
                )
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let ino = |name: &str| {
            std::fs::write(dir.path().join(name), "x").unwrap();
            std::fs::metadata(dir.path().join(name)).unwrap().ino()
        };
        let (deep, gone) = (ino("a/b/deep"), ino("gone"));
        ino("other");
        std::fs::remove_file(dir.path().join("gone")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let mut found = find(root.as_fd(), &HashSet::from([deep, gone])).unwrap();
        let (name, at) = found.take(deep);
        assert!(name == "a/b/deep" && matches!(at, FileLookup::Found(_)));
        assert!(matches!(found.take(gone).1, FileLookup::Gone));
        found.partly = true;
        assert!(matches!(found.take(gone).1, FileLookup::Unknown));
    }
}
