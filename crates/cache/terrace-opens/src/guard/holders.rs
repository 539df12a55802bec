//! The processes that can write a file without another open: by a descriptor or a shared mapping.
//!
//! /proc shows neither descriptors in flight in a UNIX socket, nor io_uring's registered files, nor files of
//! the kernel itself (loop devices), nor processes of outer PID namespaces. An open that is under way has no
//! descriptor yet. The look takes no snapshot: a descriptor that moves between two processes meanwhile may be
//! missed. The file is compared by the inode that the kernel's file names, so overlayfs hides it.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, Statx, StatxFlags, makedev, statat, statx};
use rustix::io::Errno;
use terrace_system::proc::{self, is_gone};

use super::file_id::FileId;

/// Result of a look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writers {
    /// Processes that can write the file.
    pub found: Vec<i32>,
    /// Processes that may be writers: the kernel hides them, also from root in a container, or a file system
    /// does not tell which file one of their descriptors has.
    pub unknown: Vec<i32>,
}

/// Whether a process, a thread or a link of /proc gives write access to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    None,
    Unknown,
    Write,
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
        match of_process(pid, file) {
            Ok(Access::Write) => writers.found.push(pid),
            Ok(Access::Unknown) => writers.unknown.push(pid),
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => writers.unknown.push(pid),
            Err(err) if !is_gone(&err) => return Err(err),
            Ok(Access::None) | Err(_) => {}
        }
    }
    Ok(writers)
}

/// A thread may have its own table of descriptors, and the first thread may have ended.
fn of_process(pid: i32, file: FileId) -> io::Result<Access> {
    let mut tables = Vec::new();
    let mut has_maps = false;
    let mut access = Access::None;
    for tid in proc::tasks(pid)? {
        let found = (|| {
            let mut found = Access::None;
            if !tables.iter().any(|seen| share_descriptors(*seen, tid)) {
                tables.push(tid);
                found = by_descriptor(tid, file)?;
            }
            if found == Access::Write || has_maps {
                return Ok(found);
            }
            let maps = proc::text(tid, "maps")?;
            has_maps = !maps.is_empty();
            Ok(found.max(by_mapping(tid, &maps, file)?))
        })();
        match found {
            Ok(Access::Write) => return Ok(Access::Write),
            Ok(found) => access = access.max(found),
            Err(err) if !is_gone(&err) => return Err(err),
            Err(_) => {}
        }
    }
    Ok(access)
}

/// Whether two threads have one table of descriptors. False also if the kernel does not tell.
fn share_descriptors(one: i32, other: i32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) == 0 }
}

fn by_descriptor(tid: i32, file: FileId) -> io::Result<Access> {
    let table = File::open(format!("/proc/{tid}/fd"))?;
    let mut access = Access::None;
    for entry in Dir::read_from(&table)? {
        let entry = entry?;
        if entry.file_type() != FileType::Symlink {
            continue;
        }
        match by_link(&table, entry.file_name(), file) {
            Ok(Access::Write) => return Ok(Access::Write),
            Ok(found) => access = access.max(found),
            // Closed meanwhile.
            Err(err) if is_gone(&err.into()) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(access)
}

/// Whether a link of /proc leads to the file, opened for writing. The mode of the link is that of the open.
fn by_link(dir: &File, link: impl rustix::path::Arg + Copy, file: FileId) -> rustix::io::Result<Access> {
    let opened = Mode::from_raw_mode(statat(dir, link, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    if !opened.contains(Mode::WUSR) {
        return Ok(Access::None);
    }
    // A file server that does not answer must not delay the look.
    let stat = |what| statx(dir, link, AtFlags::STATX_DONT_SYNC, what);
    let device = |stat: &Statx| makedev(stat.stx_dev_major, stat.stx_dev_minor);
    match stat(StatxFlags::INO) {
        Ok(stat) if stat.stx_ino == file.ino && device(&stat) == file.dev => Ok(Access::Write),
        Ok(_) => Ok(Access::None),
        Err(err @ (Errno::NOENT | Errno::SRCH)) => Err(err),
        // Also another user's FUSE gives its device, without the inode.
        Err(_) => match stat(StatxFlags::empty()) {
            Ok(stat) if device(&stat) != file.dev => Ok(Access::None),
            Err(err @ (Errno::NOENT | Errno::SRCH)) => Err(err),
            Ok(_) | Err(_) => Ok(Access::Unknown),
        },
    }
}

fn by_mapping(tid: i32, maps: &str, file: FileId) -> io::Result<Access> {
    let of_inode = proc::mappings(maps).filter(|mapping| mapping.is_shared && mapping.inode == file.ino);
    let mut access = Access::None;
    for mapping in of_inode {
        // The names have no leading zeros, other than those in the table.
        let name = format!("{:x}-{:x}", mapping.range.start, mapping.range.end);
        let dir = File::open(Path::new("/proc").join(tid.to_string()).join("map_files"))?;
        match by_link(&dir, name.as_str(), file) {
            // A mapping that was changed meanwhile counts.
            Ok(Access::Write) | Err(Errno::NOENT) => return Ok(Access::Write),
            Ok(found) => access = access.max(found),
            Err(err) => return Err(err.into()),
        }
    }
    Ok(access)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A link without an end stands for a descriptor on a file system that fails.
    #[test]
    fn unreadable_descriptor_may_be_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "").unwrap();
        for (link, target) in
            [("good", "file"), ("gone", "missing"), ("circle", "circle"), ("no_dir", "file/x")]
        {
            symlink(target, path(link)).unwrap();
        }
        let (opened, file) = (File::open(dir.path()).unwrap(), File::open(path("file")).unwrap());
        let (id, other) = (FileId::of(&file).unwrap(), FileId { dev: 0, ino: 0 });
        let access = |link: &str| by_link(&opened, link, id);
        assert_eq!(access("good"), Ok(Access::Write));
        assert_eq!(by_link(&opened, "good", other), Ok(Access::None));
        assert_eq!(access("gone"), Err(Errno::NOENT));
        assert_eq!((access("circle"), access("no_dir")), (Ok(Access::Unknown), Ok(Access::Unknown)));
    }
}
