//! The choice of `terrace run` between leases and a mount, and the environment of the preload library for
//! leases.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, fstatfs};
use rustix::thread::CapabilitySet;
use terrace_opens::guard::Listener;

use crate::cli;
use crate::config::{Config, Durable, Passthrough};
use crate::error::{Failure, Result};
use crate::mountpoint::Place;
use crate::mounts::userns;
use crate::supervisor::By;
use crate::sys;

/// Set by tests: files are also served while programs write them. Not for users yet, see "Guarded files" in
/// docs/design/announced.md.
const GUARD: &str = "TERRACE_TEST_GUARD";

/// Local file systems in which every change of content changes the file's times (statfs(2)): ext2 to ext4,
/// XFS, Btrfs, F2FS. Not tmpfs, where a store to a mapping changes no time.
const LOCAL: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Chooses leases, unless an option needs a mount: all accesses through terrace, or fsync answered by a tier. Sets
/// whether programs announce their writes. Leases alone serve no file that a program has open for writing.
///
/// # Errors
/// `--exclusive` with a setting that needs a mount, or on a file system that hides changes from file times.
pub(super) fn choose(args: &cli::Run, config: &mut Config, place: &Place) -> Result<By> {
    let wants_mount = args.mount
        || args.no_preload
        || config.dirty.durable == Durable::Tier
        || config.fuse.passthrough != Passthrough::Run;
    if args.exclusive {
        let refuse = |why: &str, cure: &str| Err(Failure::new("--exclusive", why, cure));
        if wants_mount {
            return refuse(
                "--mount, --no-preload, --passthrough and `durable = \"tier\"` need a mount",
                "leave --exclusive out, or these settings",
            );
        }
        if !is_local(place.src_fd.as_fd()) {
            return refuse(
                "the file system may hide changes from file times; ext2 to ext4, XFS, Btrfs and F2FS do not",
                "move the files there, or leave --exclusive out",
            );
        }
        config.exclusive = true;
        return Ok(By::Leases);
    }
    if wants_mount || !gives_leases(place.src_fd.as_fd()) {
        return Ok(By::Mount);
    }
    config.guarded = std::env::var_os(GUARD).is_some() && sees_opens();
    Ok(By::Leases)
}

/// Does the kernel show this user the opens of other programs (fanotify)?
pub(crate) fn sees_opens() -> bool {
    userns::is_root_outside() && Listener::new().is_ok()
}

fn is_local(dir: impl AsFd) -> bool {
    fstatfs(dir).is_ok_and(|fs| LOCAL.contains(&(fs.f_type as u64)))
}

/// Does the kernel give this user leases on the files of a directory? Leases on other users' files need a
/// capability (fcntl(2)); in another user's directory, most files are that user's.
pub(crate) fn gives_leases(dir: impl AsFd) -> bool {
    let is_local = is_local(&dir);
    let is_ours = fstat(&dir).is_ok_and(|st| st.st_uid == rustix::process::geteuid().as_raw());
    is_local && (is_ours || may_lease_any()) && are_enabled()
}

/// Has this process the capability for leases on all users' files? It counts only in the initial user
/// namespace (fs/locks.c calls `capable`).
fn may_lease_any() -> bool {
    sys::has_capability(CapabilitySet::LEASE) && userns::is_root_outside()
}

fn are_enabled() -> bool {
    std::fs::read_to_string("/proc/sys/fs/leases-enable").is_ok_and(|value| value.trim() == "1")
}

/// Variables of the library without a mount: the served directory and whether its programs announce their
/// writes, and the excepted directories in it, one a line. With a mount the value is
/// empty, which overrides that of an enclosing run.
pub(super) fn environment(
    by: By,
    config: &Config,
    dir: &Path,
    excepted: &[PathBuf],
) -> Vec<(&'static str, OsString)> {
    let told = match by {
        By::Mount => Vec::new(),
        By::Leases => {
            let lines = std::iter::once(dir).chain(excepted.iter().map(PathBuf::as_path));
            lines.map(|path| path.as_os_str().as_encoded_bytes()).collect::<Vec<_>>().join(&b'\n')
        }
    };
    let announces = match (config.exclusive, config.guarded) {
        (true, _) => "exclusive",
        (false, true) => "guarded",
        (false, false) => "",
    };
    vec![("TERRACE_LEASED", OsString::from_vec(told)), ("TERRACE_WRITES", announces.into())]
}
