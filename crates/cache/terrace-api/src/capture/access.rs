//! One page access of a trace, in a form common to all trace formats.

/// One access to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Key of the page in its trace: [`page_key`](super::page_key) in a capture, a hash for a word that is no
    /// number.
    pub key: u64,
    /// Is it a write? False also if the format does not distinguish.
    pub write: bool,
    /// Access path, if the format records it.
    pub via: Option<AccessPath>,
    /// Milliseconds on the trace's own clock; 0 without a clock.
    pub time_ms: u64,
}

impl Access {
    pub(super) fn of(key: u64) -> Access {
        Access { key, write: false, via: None, time_ms: 0 }
    }
}

/// The path by which an access reached terrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessPath {
    /// Through the mount.
    Fuse,
    /// Through the preload library, without a system call.
    Preload,
}
