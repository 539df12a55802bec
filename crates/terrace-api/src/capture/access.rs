//! Accesses to pages, in the form that all formats share.

/// One access to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Names the page within the trace. Captures: [`page_key`](super::page_key). Text that is no number: a hash of it.
    pub key: u64,
    /// A write; false also where the format does not say.
    pub write: bool,
    /// The way it came, where the format says so.
    pub via: Option<AccessPath>,
    /// Milliseconds on the trace's own clock, 0 where there is none.
    pub time_ms: u64,
}

impl Access {
    pub(super) fn of(key: u64) -> Access {
        Access { key, write: false, via: None, time_ms: 0 }
    }
}

/// The way by which an access came into terrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessPath {
    /// Through the mount.
    Fuse,
    /// Through the preload library, without a system call.
    Preload,
}
