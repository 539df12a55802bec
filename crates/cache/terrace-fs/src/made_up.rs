//! Files with a size that is not the length of their content: the kernel or a server generates the content at
//! each read.
//!
//! Their content is not cached: programs bypass the kernel's page cache, and this daemon reads the source to
//! its end.

use std::os::fd::BorrowedFd;

use rustix::fs::{Stat, fstatfs};

/// FUSE's magic number (statfs(2)).
const FUSE: u64 = 0x6573_5546;
/// proc, sysfs, debugfs, tracefs, securityfs, cgroup, cgroup2.
const BY_KERNEL: [u64; 7] =
    [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x0027_e0eb, 0x6367_7270];
/// The size of such a file: 0, or a page in sysfs.
const SIZES: [i64; 2] = [0, 4096];

fn kind_of(file: BorrowedFd<'_>) -> u64 {
    fstatfs(file).map_or(0, |fs| fs.f_type as u64)
}

/// Whether a FUSE server provides this file.
pub(crate) fn is_of_server(file: BorrowedFd<'_>) -> bool {
    kind_of(file) == FUSE
}

/// The size of a file with this status, if it may not be the length of the content.
pub(crate) fn size(file: BorrowedFd<'_>, stat: &Stat) -> Option<i64> {
    let is_made_up = |kind| BY_KERNEL.contains(&kind) || kind == FUSE && stat.st_size == 0;
    (SIZES.contains(&stat.st_size) && is_made_up(kind_of(file))).then_some(stat.st_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn sizes_of_the_kernels_files_say_nothing() {
        let size_of = |path: &str| {
            let file = std::fs::File::open(path).unwrap();
            size(file.as_fd(), &rustix::fs::fstat(&file).unwrap())
        };
        assert_eq!(size_of("/proc/self/status"), Some(0));
        assert_eq!(size_of("/sys/kernel/mm/transparent_hugepage/enabled"), Some(4096));
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(size_of(empty.path().to_str().unwrap()), None);
    }
}
