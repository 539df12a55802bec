//! Memory and descriptors of an instance, measured from outside.

use crate::test_mount::TestMount;
use std::fs;
use terrace_testkit::process::{memory_files, private_memory};

/// Maximum private memory of the processes: eight threads, each with a request and an answer of a megabyte
/// and a detour buffer in a huge page of two; stacks, tables and the allocator's overhead.
pub const OWN_KIB_MAX: u64 = (8 * 4 + 8) << 10;

/// Memory of an instance, KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Its memory files, to which the limit applies.
    pub(crate) shared: u64,
    /// Private memory of its processes, including tables of frames and inodes.
    pub own: u64,
}

impl Memory {
    /// Current values.
    #[track_caller]
    pub fn of(mount: &TestMount) -> Memory {
        let files = memory_files(mount.supervisor());
        assert!(files.len() >= 3, "segment, touch table and durable tables are memory files");
        let own = private_memory(mount.supervisor()) + private_memory(mount.terraced());
        Memory { shared: files.values().sum::<u64>() / 1024, own: own / 1024 }
    }

    /// Asserts the limits.
    #[track_caller]
    pub fn within(self, limit_mib: u64) {
        println!(
            "{} KiB in memory files, {} KiB of the processes, limit {limit_mib} MiB",
            self.shared, self.own
        );
        assert!(self.shared <= limit_mib << 10, "{} KiB of {limit_mib} MiB", self.shared);
        assert!(self.own <= OWN_KIB_MAX, "{} KiB of the processes", self.own);
    }
}

/// Number of open descriptors of a process.
pub fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
