//! Mounts of terrace: they are made, changed and unmounted here. The mount table shows them.

pub(crate) mod abort;
mod flags;
pub(crate) mod fusermount;
mod table;
pub(crate) mod userns;
pub(crate) mod utab;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::sys::{self, Side};

pub(crate) use flags::{flag_of, names_of, of_mount};
pub(crate) use table::{FSTYPE, Layer, below, device_at, layer, of_device};
pub(crate) use terrace_system::mounts::{Entry, at, inside, table};

pub(crate) fn open_fuse() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts the session behind `dev` at `mnt`. `mode` is the mode of the root directory. The calling user
/// becomes the owner of the mount.
///
/// With `allow_other` and `permissions` = `default_permissions`, the kernel checks permissions as on the
/// source, for every user.
pub(crate) fn mount(
    dev: impl AsFd,
    src: &Path,
    mnt: &Path,
    mode: u32,
    flags: MountFlags,
    permissions: Option<&str>,
) -> io::Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let options = format!(
        "fd={},rootmode={mode:o},user_id={uid},group_id={gid},allow_other{}{}\0",
        dev.as_fd().as_raw_fd(),
        if permissions.is_some() { "," } else { "" },
        permissions.unwrap_or_default(),
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).expect("one NUL, at the end");
    Ok(rustix::mount::mount(src, mnt, FSTYPE, flags, options)?)
}

/// Changes the flags of a mount that exists.
pub(crate) fn remount(mnt: &Path, flags: MountFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(mnt, flags, c"")?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Only if it is not in use.
    Unused,
    /// Detaches the mount at once; it ends when the last open file is closed.
    Lazy,
}

/// Unmounts; by fusermount3 for users without the privilege.
pub(crate) fn unmount(mnt: &Path, how: How) -> io::Result<()> {
    let flags = match how {
        How::Unused => UnmountFlags::NOFOLLOW,
        How::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(mnt, flags) {
        Err(Errno::PERM) => fusermount::unmount(mnt, how == How::Lazy),
        done => Ok(done?),
    }
}

/// Outcome of a forced unmount that failed.
#[derive(Debug)]
pub(crate) struct NotForced {
    pub err: io::Error,
    /// The connection is aborted nevertheless: the mount has no server.
    pub is_aborted: bool,
}

/// Aborts the connection, so that requests that wait for an answer fail, then unmounts. fusermount3, for
/// users without the privilege, does not abort.
pub(crate) fn unmount_by_force(mnt: &Path, lazy: bool) -> Result<(), NotForced> {
    let mut flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE;
    flags.set(UnmountFlags::DETACH, lazy);
    match rustix::mount::unmount(mnt, flags) {
        Err(Errno::PERM) => {
            fusermount::unmount(mnt, lazy).map_err(|err| NotForced { err, is_aborted: false })
        }
        // The kernel aborts after the check of the privilege, and before that of the use.
        done => done.map_err(|errno| NotForced { err: errno.into(), is_aborted: errno == Errno::BUSY }),
    }
}

/// Unmounts the mount of device `dev` that process `pid` sees at `mnt` in another mount namespace. Fails if
/// it is in use, or covered by another mount.
///
/// A child process does the work: it enters that namespace and does not return. A namespace below another
/// user namespace keeps its copies. The kernel answers EINVAL, or EPERM if the caller may not enter it.
pub(crate) fn unmount_in(pid: i32, mnt: &Path, dev: (u32, u32)) -> io::Result<()> {
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/mnt"))?;
    match sys::fork()? {
        Side::Child => {
            let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
            let done =
                rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).and_then(
                    |()| match layer(mnt, Some(dev)) {
                        Layer::Top => rustix::mount::unmount(mnt, UnmountFlags::NOFOLLOW),
                        // A covering mount was made by the command, and stays.
                        Layer::Below(_) => Err(Errno::BUSY),
                        Layer::Gone => Err(Errno::INVAL),
                    },
                );
            sys::exit_now(done.map_or_else(|errno| errno.raw_os_error(), |()| 0))
        }
        Side::Parent(child) => {
            let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())?;
            match ended.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(()),
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::ErrorKind::Interrupted.into()),
            }
        }
    }
}

/// Unmounts a mount with a dead server.
///
/// Aborts the connection first: a dead server's thread may keep it alive by a request to itself.
pub(crate) fn clear(mnt: &Path) -> io::Result<()> {
    if let Some(entry) = at(mnt) {
        let _ = abort::Abort::of(entry.dev).and_then(|abort| abort.abort());
    }
    match rustix::mount::unmount(mnt, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Err(Errno::PERM) => fusermount::unmount(mnt, true),
        done => Ok(done?),
    }
}

/// Is the server of the mount at `path` gone? Then the kernel answers requests with ENOTCONN. Cached
/// attributes need no request, so STATX_FORCE_SYNC forces one.
pub(crate) fn is_disconnected(path: &Path) -> bool {
    let asked = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL);
    // CONNABORTED: the answer while the connection is being shut down.
    matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED))
}
