//! Aborting a FUSE connection: the kernel then fails all waiting and later requests.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// The kernel's directory of FUSE connections, where it is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// For tests: the abort file is refused.
const NO_ABORT: &str = "TERRACE_TEST_NO_ABORT";

/// The kernel's file that aborts one connection.
///
/// It stays bound to its connection: after a reuse of the connection's number, a write has no effect.
#[derive(Debug)]
pub(crate) struct Abort(OwnedFd);

impl Abort {
    /// The connection of the mount of device `dev`. The file belongs to the mounter. If the kernel's
    /// directory is not mounted, only root can open the file.
    pub(crate) fn of(dev: (u32, u32)) -> io::Result<Abort> {
        if std::env::var_os(NO_ABORT).is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let name = name_of(dev);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let shown = Path::new(CONNECTIONS).join(&name);
        let opened = rustix::fs::openat(CWD, shown, flags, Mode::empty());
        Ok(Abort(opened.or_else(|_| rustix::fs::openat(connections()?, &name, flags, Mode::empty()))?))
    }

    /// Aborts the connection, if it still exists.
    pub(crate) fn abort(&self) -> io::Result<()> {
        Ok(rustix::io::write(&self.0, b"1").map(drop)?)
    }
}

impl AsFd for Abort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Path below the directory of connections. The kernel prints its own form of a device: 20 bits of minor
/// number below the major number.
fn name_of((major, minor): (u32, u32)) -> String {
    format!("{}/abort", u64::from(major) << 20 | u64::from(minor))
}

/// The kernel's directory of connections, without mounting it anywhere.
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
