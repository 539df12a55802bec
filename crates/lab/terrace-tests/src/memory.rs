//! Memory and descriptors of an instance, measured from outside.

use crate::test_mount::TestMount;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// Maximum private memory of the processes: eight threads, each with a request and an answer of a megabyte
/// and a detour buffer in a huge page of two; stacks, tables and the allocator's overhead.
pub const OWN_KIB_MAX: u64 = (8 * 4 + 8) << 10;

/// Memory of an instance, KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Its memory files, to which the limit applies.
    pub shared: u64,
    /// Private memory of its processes, including tables of frames and inodes.
    pub own: u64,
}

impl Memory {
    /// Current values.
    #[track_caller]
    pub fn of(mount: &TestMount) -> Memory {
        let mut seen = BTreeSet::new();
        let mut shared = 0;
        for entry in
            fs::read_dir(format!("/proc/{}/fd", mount.supervisor())).expect("descriptors of the supervisor")
        {
            // Descriptors may be closed meanwhile; those of memory files stay.
            let Ok(entry) = entry else { continue };
            let path = entry.path();
            let is_memory = fs::read_link(&path).is_ok_and(|t| t.to_string_lossy().starts_with("/memfd:"));
            if let (true, Ok(m)) = (is_memory, fs::metadata(&path))
                && seen.insert((m.dev(), m.ino()))
            {
                shared += m.blocks() / 2;
            }
        }
        assert!(seen.len() >= 3, "segment, touch table and durable tables are memory files");
        Memory { shared, own: own(mount.supervisor()) + own(mount.terraced()) }
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

fn own(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps of the instance");
    let line = text.lines().find(|l| l.starts_with("Anonymous:")).expect("a line Anonymous");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Number of open descriptors of a process.
pub fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
