//! The mount's readahead window, set to that of the source's device.
//!
//! FUSE mounts begin with 128 KiB on any device, and INIT can only lower that. A request through the mount
//! costs more than one to the device, so a sequential reader would mostly wait. The window becomes the
//! source's, at least `WINDOW_KIB_MIN`, where sysfs permits it (as root). A larger window would harm:
//! a fault in a mapping reads as much around it.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, major, minor};

/// Smallest window, KiB: sequential reads of 1 MiB then keep up with the source's.
const WINDOW_KIB_MIN: u64 = 512;

/// Sets the window of the mount with device number `mount_dev` by that of the file system of `source`.
pub(super) fn follow_source(mount_dev: u64, source: BorrowedFd<'_>) -> io::Result<()> {
    let source = rustix::fs::statat(source, "", AtFlags::EMPTY_PATH)?;
    let wanted = window_kib(source.st_dev).unwrap_or(0).max(WINDOW_KIB_MIN);
    fs::write(window_files(mount_dev).swap_remove(0), wanted.to_string())
}

fn window_kib(dev: u64) -> Option<u64> {
    window_files(dev).into_iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// Files in sysfs that may hold a device's window: by its own number, as a disk, as a partition's disk.
fn window_files(dev: u64) -> Vec<PathBuf> {
    let dev = format!("{}:{}", major(dev), minor(dev));
    ["/sys/class/bdi/{}", "/sys/dev/block/{}/bdi", "/sys/dev/block/{}/../bdi"]
        .into_iter()
        .map(|dir| PathBuf::from(dir.replace("{}", &dev)).join("read_ahead_kb"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mounts_own_file_comes_first() {
        let files = window_files(rustix::fs::makedev(254, 1));
        assert_eq!(files[0], PathBuf::from("/sys/class/bdi/254:1/read_ahead_kb"));
    }
}
