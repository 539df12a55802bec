//! Aborting a connection: the kernel fails whatever waits for its server, and whatever is asked later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// The kernel's directory of connections, if it is mounted there.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// For tests: abort is refused.
const NO_ABORT: &str = "TERRACE_TEST_NO_ABORT";

/// The file of one connection that aborts it.
///
/// It stays bound to its connection: when that is gone, and its number is another's, nothing happens.
#[derive(Debug)]
pub struct Abort(OwnedFd);

impl Abort {
    /// The connection of the mount of this device. The file belongs to the mounter; where the kernel's
    /// directory is not mounted, only root can reach it.
    pub fn of(dev: (u32, u32)) -> io::Result<Abort> {
        if std::env::var_os(NO_ABORT).is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let name = name_of(dev);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let shown = Path::new(CONNECTIONS).join(&name);
        let opened = rustix::fs::openat(CWD, shown, flags, Mode::empty());
        Ok(Abort(opened.or_else(|_| rustix::fs::openat(connections()?, &name, flags, Mode::empty()))?))
    }

    /// Aborts the connection, if it is still there.
    pub fn abort(&self) -> io::Result<()> {
        Ok(rustix::io::write(&self.0, b"1").map(drop)?)
    }
}

impl AsFd for Abort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Below the directory of connections. The kernel prints a device as it has it: 20 bits of minor number below the major one.
fn name_of((major, minor): (u32, u32)) -> String {
    format!("{}/abort", u64::from(major) << 20 | u64::from(minor))
}

/// The kernel's directory of connections, mounted nowhere.
fn connections() -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_has_the_kernels_name_for_its_device() {
        assert_eq!(name_of((0, 41)), "41/abort");
        assert_eq!(name_of((0, 300)), "300/abort", "not as makedev(3) spreads it");
        assert_eq!(name_of((1, 2)), "1048578/abort");
    }
}
