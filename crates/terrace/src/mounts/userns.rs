//! Private mount namespaces: directly for root, inside a user namespace for other users.

use std::io;

use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;

/// Why no namespace can be made, and the cure.
#[derive(Debug)]
pub(crate) struct Refused {
    pub err: io::Error,
    /// The user's next step.
    pub cure: &'static str,
}

/// Is this root outside of user namespaces? Only that user may use FUSE passthrough.
pub(crate) fn is_root_outside() -> bool {
    let maps_all = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    rustix::process::geteuid().is_root() && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(maps_all)
}

/// Moves this process into a mount namespace of its own. No other process sees its mounts, and mounts made
/// outside still appear in it.
///
/// In the user namespace, user and group ids stay the same for the command. Files of all other users appear
/// as owned by "nobody": an unprivileged namespace cannot map more. The right to mount ends with the exec of
/// the command.
pub(crate) fn private_mounts() -> Result<(), Refused> {
    match unshare(UnshareFlags::NEWNS) {
        Err(rustix::io::Errno::PERM) => private_user()?,
        done => done.map_err(|err| refused(err.into()))?,
    }
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", slave).map_err(|err| refused(err.into()))
}

fn private_user() -> Result<(), Refused> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(|err| refused(err.into()))?;
    // The kernel requires this before a group can be mapped without privilege.
    let written = std::fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1\n")))
        .and_then(|()| std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1\n")));
    written.map_err(refused)
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the process has one thread and shares no file-system state with another. No code here relies on
    // descriptors being shared across the call.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

fn refused(err: io::Error) -> Refused {
    Refused {
        err,
        cure: "run as root, or allow unprivileged user namespaces (sysctl user.max_user_namespaces)",
    }
}
