//! Checks of `terrace doctor`: the preload library, and the directory to be served (file system, leases,
//! O_DIRECT).

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use terrace_api::doctor::{Check, State};
use terrace_io::AlignedBuf;

use crate::claim;
use crate::error::reason;
use crate::mountpoint;
use crate::mounts::{self, FSTYPE};
use crate::run;
use crate::size::human;

/// Directory entries searched for a file that can be opened.
const LOOKED_AT_MAX: usize = 1000;

pub(super) fn library() -> Check {
    match run::find_library() {
        Ok(path) => Check::good("preload library", path.display().to_string()),
        Err(_) => {
            let cost = "programs under `terrace run` take the mount path: each hit costs a request of FUSE";
            let cure = "put libterrace_preload.so beside terrace or in ../lib/terrace, or name it in TERRACE_PRELOAD";
            Check::bad("preload library", State::Limited, "it is not found", cost, cure)
        }
    }
}

/// Findings about a directory.
pub(super) fn of(dir: &Path) -> Vec<Check> {
    let path = match dir.canonicalize() {
        Ok(path) if path.is_dir() => path,
        Ok(_) => return vec![unserved("it is no directory", "name a directory")],
        Err(err) => {
            return vec![unserved(&reason(err), "name a directory that exists and that this user may read")];
        }
    };
    if let Err(err) = fs::read_dir(&path) {
        return vec![unserved(&reason(err), "run as a user who may read it")];
    }
    if let Some(fstype) = mountpoint::made_up_type(&path) {
        return vec![unserved(
            &format!("{fstype} holds no stored files"),
            "name a directory on a disk or a network",
        )];
    }
    vec![directory(&path), leases(&path), direct_reads(&path)]
}

fn unserved(found: &str, cure: &str) -> Check {
    Check::bad("directory", State::Missing, found, "there is nothing to serve", cure)
}

fn directory(path: &Path) -> Check {
    let table = mounts::table();
    let shown = mounts::inside(&table, path);
    let fstype = shown.as_ref().map_or("an unknown file system", |(entry, _)| entry.fstype.as_str());
    let room = rustix::fs::statvfs(path).map_or(0, |stat| stat.f_blocks * stat.f_frsize);
    let found = format!("{}: {fstype}, {}", path.display(), human(room));
    if claim::is_mounted(path) {
        let found = format!("{found}; a mount of terrace serves it, or a part of it");
        let cost = "programs beside the mount see neither its locks nor its unwritten data: a database open on both sides is destroyed";
        return Check::bad("directory", State::Limited, found, cost, "use that mount alone");
    }
    match fstype {
        "tmpfs" | "ramfs" => {
            let cost = "the files are in memory already: terrace keeps a second copy of them";
            Check::bad("directory", State::Limited, found, cost, "serve a directory on a disk or a network")
        }
        FSTYPE => {
            let cost = "terrace serves it already: two caches keep the same pages";
            Check::bad("directory", State::Limited, found, cost, "use that mount, or `terrace umount` it")
        }
        _ => Check::good("directory", found),
    }
}

/// Can `terrace run` work without a mount?
fn leases(path: &Path) -> Check {
    let gives = File::open(path).is_ok_and(run::gives_leases);
    if gives {
        return Check::good(
            "leases",
            "`terrace run` needs no mount: it serves reads of large files that no program writes; --exclusive serves written ones, too",
        );
    }
    let found = "none for this user: the file system has none, or another user owns it";
    let cost = "`terrace run` mounts: each open, and each write, costs a request of FUSE";
    Check::bad(
        "leases",
        State::Limited,
        found,
        cost,
        "serve a directory of this user's on a local disk (ext4, xfs, btrfs)",
    )
}

/// Do its files allow O_DIRECT?
fn direct_reads(path: &Path) -> Check {
    let Some(file) = some_file(path) else { return Check::good("direct reads", "no file to try them with") };
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK | libc::O_NOATIME)
        .open(&file);
    let opened = match opened {
        // O_NOATIME needs ownership.
        Err(err) if err.kind() == ErrorKind::PermissionDenied => {
            File::options().read(true).custom_flags(libc::O_DIRECT | libc::O_NONBLOCK).open(&file)
        }
        done => done,
    };
    match opened.and_then(|file| read_page(&file)) {
        Ok(()) => Check::good("direct reads", "its file system has O_DIRECT"),
        Err(err) => {
            let found = format!("{}: O_DIRECT: {}", file.display(), reason(err));
            let cost = "pages are in the kernel's page cache and in terrace's: less fits in memory";
            Check::bad("direct reads", State::Limited, found, cost, "ext4, xfs, btrfs and NFS have it")
        }
    }
}

/// Reads the first page: some file systems refuse direct I/O only at the read.
fn read_page(file: &File) -> std::io::Result<()> {
    AlignedBuf::default().with(4096, |page| std::os::unix::fs::FileExt::read_at(file, page, 0).map(drop))
}

/// A regular file in the directory or just below.
fn some_file(dir: &Path) -> Option<PathBuf> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().take(LOOKED_AT_MAX);
    let here: Vec<_> = entries(dir).collect();
    let is = |entry: &fs::DirEntry, file: bool| {
        entry.file_type().is_ok_and(|kind| if file { kind.is_file() } else { kind.is_dir() })
    };
    let below = here.iter().filter(|entry| is(entry, false)).flat_map(|entry| entries(&entry.path()));
    let found = here.iter().find(|entry| is(entry, true)).map(fs::DirEntry::path);
    found.or_else(|| below.into_iter().find(|entry| is(entry, true)).map(|entry| entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_in_memory_is_told() {
        let checks = of(Path::new("/dev/shm"));
        assert_eq!(checks[0].state, State::Limited, "{checks:?}");
        assert!(checks[0].found.contains("tmpfs"), "{checks:?}");
    }

    #[test]
    fn file_below_a_subdirectory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(some_file(dir.path()), None);
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/b"), "").unwrap();
        assert_eq!(some_file(dir.path()), Some(dir.path().join("a/b")));
        assert_eq!(of(dir.path()).len(), 3);
        assert_eq!(of(&dir.path().join("a/b"))[0].state, State::Missing);
    }
}
