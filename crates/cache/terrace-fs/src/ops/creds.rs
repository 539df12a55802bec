//! Creates files with the caller's identity.
//!
//! The kernel has already checked the caller's permissions (mount option `default_permissions`), with groups
//! and capabilities that the daemon lacks. The new inode still needs its owner, group, mode and default ACL.
//! The source sets them, setgid directories and ACLs included, if the thread has the caller's fsuid, fsgid
//! and umask. So each thread unshares its umask and keeps its capabilities over changes of fsuid
//! (SECBIT_NO_SETUID_FIXUP). Without them the source's permission check, which lacks the caller's groups,
//! would refuse.
//!
//! Alternative that failed: create as root and chown after. A kill between both steps would leave the caller
//! a file that belongs to root.

use std::cell::Cell;
use std::path::Path;

use crate::Caller;

const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;

thread_local! {
    static THREAD: Cell<Option<ThreadPrivileges>> = const { Cell::new(None) };
}

/// Abilities of this thread to act for callers.
#[derive(Clone, Copy, Debug)]
struct ThreadPrivileges {
    umask: bool,
    /// May take on other users' ids.
    identity: bool,
}

impl ThreadPrivileges {
    fn of_this_thread() -> Self {
        THREAD.get().unwrap_or_else(|| {
            let privileges = Self::acquire();
            THREAD.set(Some(privileges));
            privileges
        })
    }

    fn acquire() -> Self {
        // SAFETY: these calls change only this thread's file-system context and credentials.
        unsafe {
            let umask = libc::unshare(libc::CLONE_FS) == 0;
            let root = libc::geteuid() == 0;
            let bits = libc::prctl(libc::PR_GET_SECUREBITS, 0, 0, 0, 0);
            if root && bits >= 0 {
                libc::prctl(libc::PR_SET_SECUREBITS, bits as libc::c_ulong | SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
            }
            Self { umask, identity: root }
        }
    }
}

/// Runs `create` with the caller's identity and umask, as far as the thread is able to.
pub(crate) fn as_caller<T>(caller: &Caller, umask: u32, create: impl FnOnce() -> T) -> T {
    let privileges = ThreadPrivileges::of_this_thread();
    let other = privileges.identity && (caller.uid, caller.gid) != (0, 0);
    // SAFETY: umask and the fs ids belong to this thread alone; glibc passes setfsuid and setfsgid straight on.
    // Failure (an id outside the user namespace) leaves the daemon's own id, and the kernel sends no such ids.
    unsafe {
        if privileges.umask {
            libc::umask(umask);
        }
        if other {
            libc::setfsgid(caller.gid);
            libc::setfsuid(caller.uid);
        }
    }
    let _guard = Restore(other);
    create()
}

/// Restores the daemon's own identity, also on unwinding.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: as in `as_caller`.
            unsafe {
                libc::setfsuid(0);
                libc::setfsgid(0);
            }
        }
    }
}

/// Parts of a process's status that decide about set-id bits.
#[derive(Debug, Default)]
pub(crate) struct SetIdPrivileges {
    effective: u64,
    groups: Vec<u32>,
}

const CAP_FSETID: u64 = 1 << 4;

/// The initial user namespace, by the kernel's name. Capabilities in another namespace do not apply to files
/// of this one.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

impl SetIdPrivileges {
    /// The privileges of a caller. A process that has ended or is hidden is judged by its user id.
    pub(crate) fn of(caller: &Caller) -> Self {
        let status = terrace_system::proc::text(caller.tid, "status");
        let mut privileges = match status {
            Ok(text) if is_in_first_user_namespace(caller) => Self::parse(&text),
            Ok(text) => Self { effective: 0, ..Self::parse(&text) },
            Err(_) => Self { effective: if caller.uid == 0 { u64::MAX } else { 0 }, groups: Vec::new() },
        };
        privileges.groups.push(caller.gid);
        privileges
    }

    fn parse(status: &str) -> Self {
        let field = |name| terrace_system::field(status, name).unwrap_or("");
        Self {
            effective: u64::from_str_radix(field("CapEff"), 16).unwrap_or(0),
            groups: field("Groups").split_whitespace().filter_map(|group| group.parse().ok()).collect(),
        }
    }

    /// Whether it may keep set-id bits on files that it changes.
    pub(crate) fn keep_set_id(&self) -> bool {
        self.effective & CAP_FSETID != 0
    }

    /// Whether it is a member of this group.
    pub(crate) fn in_group(&self, gid: u32) -> bool {
        self.groups.contains(&gid)
    }
}

/// Whether the caller is in the initial user namespace. An unreadable namespace counts as another one.
fn is_in_first_user_namespace(caller: &Caller) -> bool {
    std::fs::read_link(format!("/proc/{}/ns/user", caller.tid))
        .is_ok_and(|namespace| namespace == Path::new(FIRST_USER_NAMESPACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_are_read_from_the_status() {
        let privileges = SetIdPrivileges::parse("Name:\tx\nGroups:\t4 24 1000 \nCapEff:\t0000000000000010\n");
        assert!(privileges.keep_set_id());
        assert!(privileges.in_group(24) && !privileges.in_group(5));
        assert!(!SetIdPrivileges::parse("CapEff:\t000001ffffffffef\n").keep_set_id());
    }

    #[test]
    fn files_are_created_as_the_caller() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let caller = Caller { uid: 1234, gid: 4321, tid: 1, unique: 2 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let path = dir.path().join("file");
                // The directory is root's and closed to others: the capabilities are kept.
                as_caller(&caller, 0o027, || std::fs::create_dir(&path)).unwrap();
                let meta = std::fs::metadata(&path).unwrap();
                assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (1234, 4321, 0o750));
                std::fs::write(dir.path().join("own"), b"").unwrap();
                assert_eq!(std::fs::metadata(dir.path().join("own")).unwrap().uid(), 0);
            });
        });
    }
}
