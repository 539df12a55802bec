//! Checks of `terrace doctor`: the kernel features that terrace uses.

use std::io;

use rustix::thread::CapabilitySet;
use terrace_api::doctor::{Check, State};
use terrace_io::UringIo;

use crate::error::reason;
use crate::mounts;
use crate::sys;

/// First version that sends unanswered requests again to a restarted daemon.
const RESENDS: (u32, u32) = (6, 9);
/// First version with FUSE passthrough.
const PASSES_THROUGH: (u32, u32) = (6, 9);
/// First version in which a direct write drops its range from the mount's page cache.
const DROPS_WRITTEN: (u32, u32) = (6, 6);

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Major and minor number of a release such as `6.9.3-generic`.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn is_at_least(least: (u32, u32)) -> bool {
    numbers(&release()).is_some_and(|have| have >= least)
}

/// Does a direct write drop its range from the mount's page cache?
pub(crate) fn drops_written() -> bool {
    is_at_least(DROPS_WRITTEN)
}

pub(crate) fn version() -> Check {
    if is_at_least(RESENDS) {
        return Check::good("kernel", release());
    }
    let cost = "requests under way fail when the daemon crashes, and it is started again";
    Check::bad("kernel", State::Limited, release(), cost, "Linux 6.9 or later")
}

const NO_FUSE: &str = "no directory can be served";

pub(crate) fn fuse() -> Check {
    let err = match mounts::open_fuse() {
        Ok(device)
            if rustix::fs::fstat(&device).is_ok_and(|stat| stat.st_rdev == rustix::fs::makedev(10, 229)) =>
        {
            return Check::good("FUSE", "/dev/fuse opens");
        }
        Ok(_) => {
            let cure = "replace it by FUSE's: mknod -m 666 /dev/fuse c 10 229";
            return Check::bad("FUSE", State::Missing, "/dev/fuse is another device", NO_FUSE, cure);
        }
        Err(err) => err,
    };
    let cure = match err.kind() {
        io::ErrorKind::NotFound => "load it with `modprobe fuse`; for a container: --device /dev/fuse",
        _ => "make /dev/fuse readable and writable for this user (mode 666)",
    };
    let found = format!("/dev/fuse: {}", reason(err));
    Check::bad("FUSE", State::Missing, found, NO_FUSE, cure)
}

/// The right to mount, for `mount` and for `run`.
pub(crate) fn mounting() -> Check {
    const NAME: &str = "right to mount";
    if sys::has_capability(CapabilitySet::SYS_ADMIN) {
        return Check::good(NAME, "this process may mount (CAP_SYS_ADMIN)");
    }
    let (helper, namespaces) = (has_helper(), sys::can_have_user_namespace());
    let userns = "allow user namespaces: sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns";
    match (helper, namespaces) {
        (true, true) => Check::good(NAME, "fusermount3 for `mount`, a user namespace for `run`"),
        (true, false) => {
            let cost = "`terrace run` does not work for this user; `mount` does";
            Check::bad(NAME, State::Limited, "fusermount3, but no user namespace", cost, userns)
        }
        (false, true) => {
            let cost = "`terrace mount` does not work for this user; `run` does";
            Check::bad(
                NAME,
                State::Limited,
                "a user namespace, but no fusermount3",
                cost,
                "install the package fuse3",
            )
        }
        (false, false) => {
            let cost = "no directory can be served";
            let cure = "run as root (for a container: --cap-add SYS_ADMIN), or install the package fuse3";
            Check::bad(
                NAME,
                State::Missing,
                "neither CAP_SYS_ADMIN, nor fusermount3, nor user namespaces",
                cost,
                cure,
            )
        }
    }
}

fn has_helper() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file())
}

/// FUSE passthrough: the kernel itself reads and writes files.
pub(crate) fn passthrough() -> Check {
    const NAME: &str = "passthrough";
    let cost = "writes, io_uring, mappings and static programs under `terrace run` go through the daemon: half of the source's speed";
    match (is_at_least(PASSES_THROUGH), mounts::userns::is_root_outside()) {
        (false, _) => Check::bad(NAME, State::Limited, "not before Linux 6.9", cost, "a newer kernel"),
        (true, false) => Check::bad(NAME, State::Limited, "for root alone", cost, "run as root"),
        (true, true) => Check::good(NAME, "the kernel has it"),
    }
}

/// io_uring: batches of reads and writes.
pub(crate) fn io_uring() -> Check {
    match UringIo::new() {
        Ok(_) => Check::good("io_uring", "rings can be made"),
        Err(err) => {
            let cost =
                "the source is read and written by blocking calls: less throughput of parallel requests";
            let cure = "sysctl kernel.io_uring_disabled=0; for a container: a seccomp profile that allows io_uring_setup";
            Check::bad("io_uring", State::Limited, reason(err), cost, cure)
        }
    }
}

pub(crate) fn huge_pages() -> Check {
    const SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    match sys::try_huge_page() {
        Ok(()) => Check::good("huge pages", "frames get them"),
        Err(err) => {
            let cost = "hits miss the TLB more often, which takes some processor time";
            let cure = format!("echo advise > {SHMEM}; Linux 6.1 or later; memory that is not fragmented");
            Check::bad("huge pages", State::Limited, reason(err), cost, &cure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(numbers("6.9.3-generic"), Some((6, 9)));
        assert_eq!(numbers("6.18.44-fc-v669"), Some((6, 18)));
        assert!(numbers("6.18").unwrap() > (6, 9) && numbers("5.15.0").unwrap() < (6, 9));
        assert_eq!(numbers("x"), None);
    }
}
