//! Location of a path: its mount, and its path within the file system, which may be mounted at several
//! places.

use super::error::Fault;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Prefix of the types of terrace's own mounts.
const OWN_TYPE: &[u8] = b"fuse.terrace";

/// A directory or file, by the mount table.
#[derive(Debug)]
pub(super) struct Place {
    pub(crate) kind: Vec<u8>,
    pub(crate) server: Vec<u8>,
    /// Path from the root of the file system.
    pub(crate) within: PathBuf,
    /// Device number of the file system.
    device: Vec<u8>,
}

impl Place {
    /// Looks up a path without symbolic links. None: its mount is not visible.
    pub(super) fn of(path: &Path) -> Option<Place> {
        let mount = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?.stx_mnt_id;
        let table = std::fs::read("/proc/self/mountinfo").ok()?;
        let fields = |line: &[u8]| line.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect::<Vec<_>>();
        let is_it = |line: &Vec<Vec<u8>>| line[0] == mount.to_string().as_bytes();
        let line = table.split(|byte| *byte == b'\n').map(fields).find(is_it)?;
        // "36 35 98:0 /root /mount/point rw,noatime master:1 - type server rw": any number of fields before
        // the dash.
        let dash = line.iter().position(|field| field == b"-")?;
        let below =
            path.strip_prefix(Path::new(std::ffi::OsStr::from_bytes(&unescaped(line.get(4)?)))).ok()?;
        let root = unescaped(line.get(3)?);
        let within = Path::new(std::ffi::OsStr::from_bytes(&root)).join(below);
        let (kind, server) = (line.get(dash + 1)?.clone(), line.get(dash + 2)?.clone());
        Some(Place { kind, server, within, device: line.get(2)?.clone() })
    }

    /// Whether this place is `other`, or lies below it.
    fn is_in(&self, other: &Place) -> bool {
        self.device == other.device && self.within.starts_with(&other.within)
    }
}

/// Decodes a path of the mount table, which has blanks and backslashes in octal.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    bytes
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
    if place.kind.starts_with(OWN_TYPE) {
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
        assert_eq!((proc.kind.as_slice(), proc.within.as_path()), (&b"proc"[..], Path::new("/")));
        let sys = Place::of(Path::new("/proc/sys/vm")).unwrap();
        assert!(sys.is_in(&proc) && !proc.is_in(&sys));
        assert!(!Place::of(Path::new("/sys")).unwrap().is_in(&proc));
        assert_eq!(unescaped(b"/a\\040b\\\\134"), b"/a b\\\\");
    }
}
