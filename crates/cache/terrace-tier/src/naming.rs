//! A file's name over restarts is its inode number, or its path where inode numbers do not last.
//!
//! Local file systems keep inode numbers, and stamp each change by the kernel's clock. FUSE, network file
//! systems and others may assign new numbers at each mount. Their times come from the server.

use rustix::fs::{Statx, fstatfs};
use std::cell::Cell;
use std::os::fd::AsFd;

/// File system types (statfs(2)) with lasting inode numbers and a kernel stamp for each change.
const LASTING: [u32; 9] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // zfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs
];

/// Names of files on a tier, by their file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Inode numbers.
    Numbers,
    /// Paths.
    Paths,
}

thread_local! {
    /// Device, mount and result of the last file, because statfs(2) of a server is slow.
    static LAST: Cell<Option<((u64, u64), Naming)>> = const { Cell::new(None) };
}

impl Naming {
    /// Naming on the file system of an open file. `st` has its device and its mount.
    pub fn of(fd: impl AsFd, st: &Statx) -> Naming {
        let device = u64::from(st.stx_dev_major) << 32 | u64::from(st.stx_dev_minor);
        let place = (device, st.stx_mnt_id);
        if let Some((of, naming)) = LAST.get()
            && of == place
        {
            return naming;
        }
        let kind = fstatfs(fd).map(|statfs| statfs.f_type as u32);
        let naming = Naming::of_type(kind.unwrap_or(0));
        LAST.set(Some((place, naming)));
        naming
    }

    /// Naming on a type of file systems (statfs(2)).
    pub(crate) fn of_type(kind: u32) -> Naming {
        if LASTING.contains(&kind) { Naming::Numbers } else { Naming::Paths }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_file_systems_have_paths_alone() {
        assert_eq!(Naming::of_type(0x6573_5546), Naming::Paths, "FUSE");
        assert_eq!(Naming::of_type(0), Naming::Paths);
        assert_eq!(Naming::of_type(0xef53), Naming::Numbers);
    }
}
