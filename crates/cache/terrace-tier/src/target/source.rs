//! Identity of a tier's source directory that survives a reboot.

use super::place::Place;
use crate::naming::Naming;
use crate::superblock::Source;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statfs, statvfs, statx};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The identity of a directory. Local file systems have an identity and lasting inode numbers. (Device
/// numbers change with the order of discovery, or at each mount.) For other file systems it uses server and
/// directory from the mount table.
///
/// # Errors
/// The directory cannot be examined.
pub fn source_of(dir: &Path) -> io::Result<Source> {
    let flags = StatxFlags::INO | StatxFlags::BTIME;
    let of = statx(CWD, dir, AtFlags::empty(), flags)?;
    let remote = match Naming::of_type(statfs(dir)?.f_type as u32) {
        Naming::Numbers => None,
        Naming::Paths => Place::of(dir),
    };
    let hash = match remote {
        Some(place) => {
            let Place { mount, within } = &place;
            let server = mount.escaped_source.as_bytes();
            hash(&[mount.fstype.as_bytes(), server, within.as_os_str().as_bytes()].join(&b'\0'))
        }
        None => hash(&numbers(dir, &of)?),
    };
    Ok(Source { hash, path: dir.to_string_lossy().into_owned() })
}

/// The file system's own identity if it has one, with the inode's number and birth time.
fn numbers(dir: &Path, of: &Statx) -> io::Result<Vec<u8>> {
    let born = (of.stx_mask & StatxFlags::BTIME.bits() != 0)
        .then_some((of.stx_btime.tv_sec as u64, u64::from(of.stx_btime.tv_nsec)));
    let file_system = match (statvfs(dir)?.f_fsid, born) {
        (0, None) => std::fs::metadata(dir)?.dev(),
        (id, _) => id,
    };
    let (seconds, nanoseconds) = born.unwrap_or_default();
    let words = [file_system, of.stx_ino, seconds, nanoseconds];
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let next = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_that_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let hash = |name: &str| source_of(&dir.path().join(name)).unwrap().hash;
        std::fs::create_dir(dir.path().join("src")).unwrap();
        let was = hash("src");
        assert_eq!(hash("src"), was);
        std::fs::create_dir(dir.path().join("other")).unwrap();
        assert_ne!(hash("other"), was);
        assert_eq!(super::hash(&[]), 0xcbf2_9ce4_8422_2325);
        assert_ne!(super::hash(&[1, 0]), super::hash(&[0, 1]));
    }

    #[test]
    fn directory_of_a_server_is_named_by_the_mount_table() {
        let hash = |dir: &str| source_of(Path::new(dir)).unwrap().hash;
        assert_eq!(hash("/proc/sys"), hash("/proc/sys"));
        assert!(hash("/proc") != hash("/proc/sys") && hash("/proc") != hash("/sys"));
    }
}
