//! Mounting without root privileges. The setuid helper fusermount3 opens /dev/fuse, mounts, and sends the
//! descriptor back over the socket in `_FUSE_COMMFD`.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

const HELPER: &str = "fusermount3";

/// Mounts at `mnt` with these options. Returns the descriptor of /dev/fuse, or the helper's message.
pub(crate) fn mount(src: &Path, mnt: &Path, options: &[&str]) -> Result<OwnedFd, String> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| e.to_string())?;
    // Only the helper's end survives the exec.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|e| e.to_string())?;
    let mut words = b"subtype=terrace".to_vec();
    options.iter().for_each(|option| words.extend_from_slice(format!(",{option}").as_bytes()));
    words.extend_from_slice(b",fsname=");
    for &byte in src.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b',') {
            words.push(b'\\');
        }
        words.push(byte);
    }
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(OsStr::from_bytes(&words))
        .arg("--")
        .arg(mnt)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|err| format!("{HELPER}: {err}"))?;
    drop(theirs);
    let received = receive(ours.as_fd());
    let output = child.wait_with_output().map_err(|err| err.to_string())?;
    match received {
        Ok(Some(fd)) if output.status.success() => Ok(fd),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Receives one descriptor; none if the helper closed the socket without sending.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut data = [io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fd)
}

/// Unmounts a mount of this user. A mount in use is only detached if `lazy`; it ends when the last open file
/// is closed.
pub(crate) fn unmount(mnt: &Path, lazy: bool) -> io::Result<()> {
    let mut helper = Command::new(HELPER);
    helper.arg("-u");
    if lazy {
        helper.arg("-z");
    }
    let output = helper.arg("--").arg(mnt).stdin(Stdio::null()).output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    match () {
        () if output.status.success() => Ok(()),
        () if words.contains("busy") => Err(rustix::io::Errno::BUSY.into()),
        () => Err(io::Error::other(words.trim().to_owned())),
    }
}
