//! The processes that can write a file without another open: by a descriptor or a shared mapping.
//!
//! /proc shows neither descriptors in flight in a UNIX socket, nor io_uring's registered files, nor files of
//! the kernel itself (loop devices), nor processes of outer PID namespaces. An open that is under way has no
//! descriptor yet. The look takes no snapshot: a descriptor that moves between two processes meanwhile may be
//! missed. The file is compared by the inode that the kernel's file names, so overlayfs hides it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, Statx, StatxFlags, makedev, statat, statx};
use rustix::io::Errno;
use terrace_system::proc::{self, is_gone};

use super::file_id::FileId;

/// Result of a look at one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writers {
    /// Processes that can write the file.
    pub found: Vec<i32>,
    /// Processes that may be writers: the kernel hides them, also from root in a container, or a file system
    /// does not tell which file one of their descriptors has.
    pub unknown: Vec<i32>,
}

impl Writers {
    /// No process can write the file.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.unknown.is_empty()
    }
}

/// Whether a process, a thread or a link of /proc gives write access to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    None,
    Unknown,
    Write,
}

/// The accesses of one process to the files of a look.
type Found = BTreeMap<FileId, Access>;

/// The processes, except `except`, that have the files open for writing, or have a shared mapping of them that
/// is writable or can become so. Waits for a process that changes its mappings. A process that ends meanwhile
/// is no error. One look at all processes serves all files.
///
/// # Errors
/// /proc cannot be read, for example for lack of a descriptor.
pub fn writers(
    files: impl IntoIterator<Item = FileId>,
    except: &[i32],
) -> io::Result<BTreeMap<FileId, Writers>> {
    let none: Found = files.into_iter().map(|file| (file, Access::None)).collect();
    let mut writers: BTreeMap<FileId, Writers> =
        none.keys().map(|&file| (file, Writers::default())).collect();
    for pid in proc::processes()?.into_iter().filter(|pid| !except.contains(pid)) {
        let mut found = none.clone();
        match of_process(pid, &mut found) {
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
                note(&mut found, Access::Unknown, |_| true)
            }
            Err(err) if !is_gone(&err) => return Err(err),
            Ok(()) | Err(_) => {}
        }
        for (file, access) in found {
            let writers = writers.entry(file).or_default();
            match access {
                Access::Write => writers.found.push(pid),
                Access::Unknown => writers.unknown.push(pid),
                Access::None => {}
            }
        }
    }
    Ok(writers)
}

/// Raises the access to the files that `concerns` selects.
fn note(found: &mut Found, access: Access, concerns: impl Fn(&FileId) -> bool) {
    let some = found.iter_mut().filter(|(file, _)| concerns(file));
    some.for_each(|(_, known)| *known = access.max(*known));
}

/// A thread may have its own table of descriptors, and the first thread may have ended.
fn of_process(pid: i32, found: &mut Found) -> io::Result<()> {
    let mut tables = Vec::new();
    let mut has_maps = false;
    for tid in proc::tasks(pid)? {
        let looked = (|| {
            if !tables.iter().any(|seen| share_descriptors(*seen, tid)) {
                tables.push(tid);
                by_descriptor(tid, found)?;
            }
            if has_maps {
                return Ok(());
            }
            let maps = proc::text(tid, "maps")?;
            has_maps = !maps.is_empty();
            by_mapping(tid, &maps, found)
        })();
        if let Err(err) = looked
            && !is_gone(&err)
        {
            return Err(err);
        }
    }
    Ok(())
}

/// Whether two threads have one table of descriptors. False also if the kernel does not tell.
fn share_descriptors(one: i32, other: i32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) == 0 }
}

fn by_descriptor(tid: i32, found: &mut Found) -> io::Result<()> {
    let table = File::open(format!("/proc/{tid}/fd"))?;
    for entry in Dir::read_from(&table)? {
        let entry = entry?;
        if entry.file_type() != FileType::Symlink {
            continue;
        }
        match by_link(&table, entry.file_name(), found) {
            Ok(()) => {}
            // Closed meanwhile.
            Err(err) if is_gone(&err.into()) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

/// Notes the access of a link of /proc, opened for writing. The mode of the link is that of the open.
fn by_link(dir: &File, link: impl rustix::path::Arg + Copy, found: &mut Found) -> rustix::io::Result<()> {
    let opened = Mode::from_raw_mode(statat(dir, link, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    if !opened.contains(Mode::WUSR) {
        return Ok(());
    }
    // A file server that does not answer must not delay the look.
    let stat = |fields| statx(dir, link, AtFlags::STATX_DONT_SYNC, fields);
    let device = |stat: &Statx| makedev(stat.stx_dev_major, stat.stx_dev_minor);
    match stat(StatxFlags::INO) {
        Ok(stat) => {
            let id = FileId { dev: device(&stat), ino: stat.stx_ino };
            note(found, Access::Write, |file| *file == id);
        }
        Err(err @ (Errno::NOENT | Errno::SRCH)) => return Err(err),
        // Also another user's FUSE gives its device, without the inode.
        Err(_) => match stat(StatxFlags::empty()) {
            Ok(stat) => note(found, Access::Unknown, |file| file.dev == device(&stat)),
            Err(err @ (Errno::NOENT | Errno::SRCH)) => return Err(err),
            Err(_) => note(found, Access::Unknown, |_| true),
        },
    }
    Ok(())
}

fn by_mapping(tid: i32, maps: &str, found: &mut Found) -> io::Result<()> {
    let inodes: Vec<u64> = found.keys().map(|file| file.ino).collect();
    for mapping in proc::mappings(maps).filter(|mapping| mapping.is_shared && inodes.contains(&mapping.inode))
    {
        // The names have no leading zeros, other than those in the table.
        let name = format!("{:x}-{:x}", mapping.range.start, mapping.range.end);
        let dir = File::open(Path::new("/proc").join(tid.to_string()).join("map_files"))?;
        match by_link(&dir, name.as_str(), found) {
            // A mapping that was changed meanwhile counts.
            Err(Errno::NOENT) => note(found, Access::Write, |file| file.ino == mapping.inode),
            looked => looked?,
        }
    }
    Ok(())
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
        let access_to = |file: FileId, link: &str| {
            let mut found = Found::from([(file, Access::None)]);
            by_link(&opened, link, &mut found).map(|()| found[&file])
        };
        let access = |link: &str| access_to(id, link);
        assert_eq!(access("good"), Ok(Access::Write));
        assert_eq!(access_to(other, "good"), Ok(Access::None));
        assert_eq!(access("gone"), Err(Errno::NOENT));
        assert_eq!((access("circle"), access("no_dir")), (Ok(Access::Unknown), Ok(Access::Unknown)));
    }
}
