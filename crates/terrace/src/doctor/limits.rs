//! Checks of `terrace doctor`: memory, open files, locked memory and /dev/shm of this process and machine.

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use terrace_api::doctor::{Check, State};
use terrace_system::cgroup::Groups;
use terrace_system::{bytes, number};

use crate::error::reason;
use crate::size::human;

/// Fewer known files are not enough for a tree of source code.
const FILES_FEW: u64 = 65_536;

/// Memory limits of control groups.
pub(super) fn control_groups() -> Check {
    const NAME: &str = "control groups";
    match Groups::own() {
        Ok(groups) if groups == Groups::default() => {
            let cost = "a memory limit of a container is not seen: the kernel may kill the cache";
            let cure = "mount them at /sys/fs/cgroup, or keep --memory well below the container's limit";
            Check::bad(NAME, State::Limited, "the memory controller is not found", cost, cure)
        }
        Ok(groups) => match groups.limit() {
            Ok(Some(limit)) => {
                let found = format!(
                    "limited to {} by {}; the cache keeps below it",
                    human(limit.bytes),
                    limit.file.display()
                );
                Check::good(NAME, found)
            }
            Ok(None) => Check::good(NAME, "no limit on memory"),
            Err(err) => unreadable(&reason(err)),
        },
        Err(err) => unreadable(&reason(err)),
    }
}

fn unreadable(why: &str) -> Check {
    let cost = "a limit on memory is not seen: the kernel may kill the cache";
    let cure = "make /proc and /sys/fs/cgroup readable";
    Check::bad("control groups", State::Limited, why, cost, cure)
}

pub(super) fn memory() -> Check {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match (bytes(&text, "MemTotal"), bytes(&text, "MemAvailable")) {
        (Some(total), Some(available)) => {
            Check::good("memory", format!("{} of {} are available", human(available), human(total)))
        }
        _ => {
            let cost = "shortage of memory is not seen in time";
            Check::bad("memory", State::Limited, "/proc/meminfo cannot be read", cost, "make /proc readable")
        }
    }
}

/// Open files: each file and directory that the kernel knows costs the daemon a descriptor.
pub(super) fn open_files() -> Check {
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let raised = rustix::process::geteuid()
        .is_root()
        .then(|| number(Path::new("/proc/sys/fs/nr_open")).ok().flatten())
        .flatten();
    let most = raised.map_or(hard, |kernel| kernel.max(hard));
    let found = format!("nofile: the daemon may have {most} files open");
    if most >= FILES_FEW {
        return Check::good("open files", found);
    }
    let cost = "fewer files are known at one time: larger trees are looked up repeatedly";
    Check::bad(
        "open files",
        State::Limited,
        found,
        cost,
        "raise `ulimit -Hn`, or LimitNOFILE of the unit, to 1048576",
    )
}

/// Locked memory: kernels before 5.12 count the rings of io_uring.
pub(super) fn locked_memory() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    let limit = limit.map_or("no limit".to_owned(), human);
    Check::good(
        "locked memory",
        format!("memlock: {limit}; terrace locks none (rings count before Linux 5.12 only)"),
    )
}

/// Size of /dev/shm, where some programs expect shared memory.
pub(super) fn shared_memory() -> Check {
    let found = match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) => human(stat.f_blocks * stat.f_frsize),
        Err(err) => reason(err),
    };
    Check::good("/dev/shm", format!("{found}; it does not limit terrace's memory"))
}
