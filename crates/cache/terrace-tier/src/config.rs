//! Configuration of a target.

use crate::medium::Medium;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Access to the bytes of a target.
#[derive(Debug, Clone)]
pub enum Access {
    /// A file or block device, opened for direct I/O and locked. It stays open as long as the engine lives.
    /// Clients read it themselves.
    File(RawFd),
    /// Any other medium; only the daemon reads it.
    Medium(Arc<dyn Medium>),
    /// Not open yet: sufficient for creating the memory files.
    Unopened,
}

impl Access {
    /// Whether the target takes writes at the moment.
    pub fn is_ready(&self) -> bool {
        !matches!(self, Access::Medium(medium) if !medium.is_ready())
    }
    /// Whether the target may hold undestaged pages, durably in place of the source.
    pub fn takes_undestaged(&self) -> bool {
        match self {
            Access::File(_) => true,
            Access::Medium(medium) => medium.takes_undestaged(),
            Access::Unopened => false,
        }
    }
    /// Largest memory use, bytes.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Access::Medium(medium) => medium.memory_bytes(),
            _ => 0,
        }
    }
    /// Reason of a temporary failure, if there is one.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Access::Medium(medium) => medium.trouble(),
            _ => None,
        }
    }
}

/// A target of a device tier, after it was opened.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Unique number below [`TARGETS_MAX`](terrace_shm::device_table::TARGETS_MAX).
    pub number: usize,
    /// Name in statistics and messages.
    pub name: String,
    /// The target.
    pub access: Access,
    /// Size of the target, bytes.
    pub bytes: u64,
    /// Size of a region, bytes.
    pub region_bytes: u64,
    /// Regions of the target.
    pub regions: u32,
    /// Index of the first region in the numbering over all targets.
    pub first_region: u32,
    /// Tier; 0 is the fastest.
    pub level: u8,
    /// Identity of the tier. Batches with another identity are left over from an earlier format.
    pub tier_id: [u8; 16],
    /// Write budget, bytes a day; None: as many as pay.
    pub write_budget: Option<u64>,
    /// Endurance warranted by the vendor, bytes (TBW); None: not known.
    pub rated_writes: Option<u64>,
    /// Latency of a 4 KiB read, or of a request to another medium, ns; None: not measured.
    pub read_ns: Option<u64>,
    /// Time per page of large writes, ns; None: not measured.
    pub write_ns: Option<u64>,
    /// For tests on a device as fast as the source: each hit counts as a saved read of a slow source.
    pub always_faster: bool,
}
