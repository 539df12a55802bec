//! The processes that can write a file without another open: by a descriptor or a shared mapping.
//!
//! /proc shows neither descriptors in flight in a UNIX socket, nor io_uring's registered files, nor files of
//! the kernel itself (loop devices), nor processes of outer PID namespaces. An open that is under way has no
//! descriptor yet. The look takes no snapshot: a descriptor that moves between two processes meanwhile may be
//! missed. The file is compared by the inode that the kernel's file names, so overlayfs hides it.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, StatxFlags, makedev, readlinkat, statat, statx};
use rustix::io::Errno;
use terrace_system::proc::{self, is_gone};

use super::file_id::FileId;

/// Result of a look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writers {
    /// Processes that can write the file.
    pub found: Vec<i32>,
    /// Processes that the kernel hides, also from root in a container. They may be writers.
    pub hidden: Vec<i32>,
}

/// The processes, except `except`, that have the file open for writing, or have a shared mapping of it that is
/// writable or can become so. Waits for a process that changes its mappings. A process that ends meanwhile is
/// no error.
///
/// # Errors
/// /proc cannot be read, for example for lack of a descriptor.
pub fn writers(file: FileId, except: &[i32]) -> io::Result<Writers> {
    let mut writers = Writers::default();
    for pid in proc::processes()?.into_iter().filter(|pid| !except.contains(pid)) {
        match can_write(pid, file) {
            Ok(true) => writers.found.push(pid),
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => writers.hidden.push(pid),
            Err(err) if !is_gone(&err) => return Err(err),
            Ok(false) | Err(_) => {}
        }
    }
    Ok(writers)
}

/// A thread may have its own table of descriptors, and the first thread may have ended.
fn can_write(pid: i32, file: FileId) -> io::Result<bool> {
    let mut tables = Vec::new();
    let mut has_maps = false;
    for tid in proc::tasks(pid)? {
        let found = (|| {
            if !tables.iter().any(|seen| share_descriptors(*seen, tid)) {
                tables.push(tid);
                if has_descriptor(tid, file)? {
                    return Ok(true);
                }
            }
            if has_maps {
                return Ok(false);
            }
            let maps = proc::text(tid, "maps")?;
            has_maps = !maps.is_empty();
            has_mapping(tid, &maps, file)
        })();
        match found {
            Ok(true) => return Ok(true),
            Err(err) if !is_gone(&err) => return Err(err),
            Ok(false) | Err(_) => {}
        }
    }
    Ok(false)
}

/// Whether two threads have one table of descriptors. False also if the kernel does not tell.
fn share_descriptors(one: i32, other: i32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) == 0 }
}

fn has_descriptor(tid: i32, file: FileId) -> io::Result<bool> {
    let table = File::open(format!("/proc/{tid}/fd"))?;
    for entry in Dir::read_from(&table)? {
        let entry = entry?;
        if entry.file_type() != FileType::Symlink {
            continue;
        }
        match is_writable_file(&table, entry.file_name(), file) {
            Ok(true) => return Ok(true),
            // Closed meanwhile.
            Ok(false) | Err(Errno::NOENT) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(false)
}

/// Whether a link of /proc leads to the file, opened for writing. The mode of the link is that of the open.
fn is_writable_file(
    dir: &File,
    link: impl rustix::path::Arg + Copy,
    file: FileId,
) -> rustix::io::Result<bool> {
    let opened = Mode::from_raw_mode(statat(dir, link, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    if !opened.contains(Mode::WUSR) {
        return Ok(false);
    }
    // A file server that does not answer must not delay the look.
    let stat = match statx(dir, link, AtFlags::STATX_DONT_SYNC, StatxFlags::INO) {
        // The file system refused, such as another user's FUSE: it is not the file's own.
        Err(Errno::ACCESS) if readlinkat(dir, link, Vec::new()).is_ok() => return Ok(false),
        // The file system failed.
        Err(err) if ![Errno::NOENT, Errno::ACCESS, Errno::PERM].contains(&err) => return Ok(false),
        stat => stat?,
    };
    Ok(stat.stx_ino == file.ino && makedev(stat.stx_dev_major, stat.stx_dev_minor) == file.dev)
}

fn has_mapping(tid: i32, maps: &str, file: FileId) -> io::Result<bool> {
    let of_inode = proc::mappings(maps).filter(|mapping| mapping.is_shared && mapping.inode == file.ino);
    for mapping in of_inode {
        // The names have no leading zeros, other than those in the table.
        let name = format!("{:x}-{:x}", mapping.range.start, mapping.range.end);
        let dir = File::open(Path::new("/proc").join(tid.to_string()).join("map_files"))?;
        match is_writable_file(&dir, name.as_str(), file) {
            Ok(false) => {}
            // A mapping that was changed meanwhile counts.
            Ok(true) | Err(Errno::NOENT) => return Ok(true),
            Err(err) => return Err(err.into()),
        }
    }
    Ok(false)
}
