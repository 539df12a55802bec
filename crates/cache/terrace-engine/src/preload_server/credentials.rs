//! Rights of client processes, and the files that they may fill.
//!
//! Clients' claims are untrusted: the kernel gives credentials, the client's descriptor names the file.

use crate::context::Context;
use crate::file::object::{Object, ObjectId, ObjectRef};
use rustix::io::Errno;
use rustix::process::Pid;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use terrace_sync::Mutex;

/// Permission to send content of an object: the process could write the file when it passed a descriptor. It
/// ends with a change of the process's credentials or the file's rights.
#[derive(Debug)]
struct Grant {
    /// The object itself: its number may be reused for another file.
    object: Weak<Object>,
    rights: Rights,
    file: FileRights,
}

/// Credentials of a process, as /proc shows them: user and group ids, groups, capabilities.
#[derive(Debug, PartialEq, Eq)]
struct Rights(String);

impl Rights {
    /// Opened once: each read gives the present state, never that of a later process with the same ID.
    fn source(pid: Pid) -> io::Result<File> {
        File::open(format!("/proc/{}/status", pid.as_raw_nonzero()))
    }
    fn read(status: &File) -> Option<Rights> {
        let mut text = vec![0; 4096];
        let mut len = 0;
        loop {
            // The kernel returns the whole file as one record: a short read means its end.
            len += status.read_at(&mut text[len..], len as u64).ok()?;
            if len < text.len() {
                break;
            }
            text.resize(2 * len, 0);
        }
        let telling = |l: &&str| ["Uid:", "Gid:", "Groups:", "CapEff:"].iter().any(|k| l.starts_with(k));
        let text = String::from_utf8_lossy(&text[..len]);
        Some(Rights(text.lines().filter(telling).collect::<Vec<_>>().join("\n")))
    }
    /// The user ID for checks of file permissions: the fourth one.
    fn uid(&self) -> Option<u32> {
        self.0.strip_prefix("Uid:")?.split_whitespace().nth(3)?.parse().ok()
    }
}

/// The attributes that decide on write access to a file: mode, owner, group.
type FileRights = (u32, u32, u32);

fn file_rights(o: &Object) -> Result<FileRights, Errno> {
    let st = o.source().stat().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok((st.st_mode, st.st_uid, st.st_gid))
}

/// Objects for which a client may send content at present.
pub(super) type Trusted = HashMap<ObjectId, ObjectRef>;

#[derive(Debug)]
pub(super) struct Credentials {
    /// /proc/PID/status.
    status: File,
    /// Objects with content that the process may send.
    grants: Mutex<HashMap<ObjectId, Grant>>,
}

impl Credentials {
    pub(super) fn of(pid: Pid) -> io::Result<Credentials> {
        Ok(Credentials { status: Rights::source(pid)?, grants: Mutex::default() })
    }

    /// Grants content of a file that the process may write: by its descriptor, or as root or owner by the
    /// mode bits. (Group bits do not count: with an ACL they are its mask.)
    pub(super) fn grant(&self, o: &ObjectRef, writable: bool) -> Result<bool, Errno> {
        let rights = Rights::read(&self.status).ok_or(Errno::SRCH)?;
        let file = file_rights(o)?;
        let (mode, owner, _) = file;
        let by_mode = rights.uid().is_some_and(|uid| uid == 0 || uid == owner && mode & 0o200 != 0);
        if writable || by_mode {
            self.grants.lock().insert(o.id(), Grant { object: Arc::downgrade(o), rights, file });
        }
        Ok(writable || by_mode)
    }

    /// The objects with a valid grant. A right lost since the grant ends it.
    pub(super) fn trusted(
        &self,
        objects: &[ObjectId],
        find: impl Fn(ObjectId) -> Option<ObjectRef>,
    ) -> Trusted {
        let mut trusted = Trusted::new();
        if objects.is_empty() {
            return trusted;
        }
        let now = Rights::read(&self.status);
        let mut grants = self.grants.lock();
        for &id in objects {
            if trusted.contains_key(&id) {
                continue;
            }
            let (Some(grant), Some(o)) = (grants.get(&id), find(id)) else { continue };
            if std::ptr::eq(grant.object.as_ptr(), Arc::as_ptr(&o))
                && now.as_ref() == Some(&grant.rights)
                && file_rights(&o) == Ok(grant.file)
            {
                trusted.insert(id, o);
            } else {
                grants.remove(&id);
            }
        }
        trusted
    }
}

/// The inode of a descriptor on the mount, from the kernel's memory: other file systems may hang.
pub(super) fn shown_inode(cx: &Context, fd: &OwnedFd) -> Result<u64, Errno> {
    use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
    let st = statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    let dev = makedev(st.stx_dev_major, st.stx_dev_minor);
    if dev != cx.handles.segment.header().mount_dev.load(Ordering::Acquire) {
        return Err(Errno::XDEV);
    }
    Ok(st.stx_ino)
}

pub(super) fn shown(cx: &Context, fd: &OwnedFd) -> Result<ObjectRef, Errno> {
    cx.lookup_object(shown_inode(cx, fd)?).ok_or(Errno::NOENT)
}
