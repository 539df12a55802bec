//! Location of a target or source: its mount, and its path within the file system. A file system can have
//! several mounts.

use super::error::Fault;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use terrace_system::mounts::{self, Entry};

/// Prefix of the types of terrace's own mounts.
const OWN_TYPE: &str = "fuse.terrace";

/// A directory or file, by the mount table.
#[derive(Debug)]
pub(super) struct Place {
    pub(crate) mount: Entry,
    /// Path from the root of the file system.
    pub(crate) within: PathBuf,
}

impl Place {
    /// Looks up a path without symbolic links. None: its mount is not visible.
    pub(super) fn of(path: &Path) -> Option<Place> {
        let id = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?.stx_mnt_id;
        let mount = mounts::table().into_iter().find(|mount| mount.id == id)?;
        let within = mount.root.join(path.strip_prefix(&mount.point).ok()?);
        Some(Place { mount, within })
    }

    /// Whether this place is `other`, or lies below it.
    fn is_in(&self, other: &Place) -> bool {
        self.mount.dev == other.mount.dev && self.within.starts_with(&other.within)
    }
}

/// Refuses an absolute path, without symbolic links, in the source or on a mount of terrace.
///
/// # Errors
/// It lies there, or the source cannot be examined.
pub fn check_outside(path: &Path, source: &Path) -> Result<(), Fault> {
    let identity = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let its = identity(source).map_err(Fault::Io)?;
    let inside = || Err(Fault::InsideSource(source.to_owned()));
    if path.ancestors().any(|dir| identity(dir).is_ok_and(|it| it == its)) {
        return inside();
    }
    let Some(place) = Place::of(path) else { return Ok(()) };
    if place.mount.fstype.starts_with(OWN_TYPE) {
        return Err(Fault::InsideMount);
    }
    // A bind mount may show a directory below the source.
    match Place::of(source).is_some_and(|source| place.is_in(&source)) {
        true => inside(),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_names_server_and_directory() {
        let proc = Place::of(Path::new("/proc")).unwrap();
        assert_eq!((proc.mount.fstype.as_str(), proc.within.as_path()), ("proc", Path::new("/")));
        let sys = Place::of(Path::new("/proc/sys/vm")).unwrap();
        assert!(sys.is_in(&proc) && !proc.is_in(&sys));
        assert!(!Place::of(Path::new("/sys")).unwrap().is_in(&proc));
    }
}
