//! Mounts of terrace below the source are not entered. A mount inside its own source, or two mounts inside
//! each other's sources, would deadlock. The daemon lists the names of such mount points; lookups of other
//! names cost nothing.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, makedev};
use terrace_sync::RwLock;

/// The mounts of terrace that this process sees.
#[derive(Debug, Default)]
pub struct Crossings(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// File names of the mount points.
    names: HashSet<OsString>,
    devices: HashSet<u64>,
}

impl Crossings {
    /// Replaces the list: names of mount points without their directories, and devices.
    pub fn set(&self, mounts: impl Iterator<Item = (OsString, u64)>) {
        let (names, devices) = mounts.unzip();
        *self.0.write() = Known { names, devices };
    }

    /// Whether `name` is a mount point of terrace. The check sends no request to that mount.
    pub(crate) fn leads(&self, dir: BorrowedFd<'_>, name: &OsStr) -> bool {
        let known = self.0.read();
        // The kernel's cached attributes suffice: only the device of an entry under this name matters.
        let device = || {
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
            let stat = rustix::fs::statx(dir, name, flags, StatxFlags::empty()).ok()?;
            Some(makedev(stat.stx_dev_major, stat.stx_dev_minor))
        };
        known.names.contains(name) && device().is_some_and(|device| known.devices.contains(&device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_name_counts_with_its_device_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("m")).unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        let device = rustix::fs::fstat(&open).unwrap().st_dev;
        let crossings = Crossings::default();
        let leads = |name: &str| crossings.leads(open.as_fd(), name.as_ref());
        assert!(!leads("m"));
        crossings.set([("m".into(), device), ("n".into(), device)].into_iter());
        assert_eq!([leads("m"), leads("n"), leads("o")], [true, false, false]);
        crossings.set([("m".into(), device + 1)].into_iter());
        assert!(!leads("m"));
    }
}
