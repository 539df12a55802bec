//! Counters of memcached's commands by result, such as hits and misses of `get`, for the command `stats`.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    CmdGet,
    CmdSet,
    /// Commands that remove all keys.
    CmdFlush,
    /// Keys with a new expiry time requested.
    CmdTouch,
    GetHits,
    GetMisses,
    /// Deletions of existing keys.
    DeleteHits,
    /// Deletions of missing keys.
    DeleteMisses,
    /// Increments of existing keys.
    IncrHits,
    /// Increments of missing keys.
    IncrMisses,
    /// Decrements of existing keys.
    DecrHits,
    /// Decrements of missing keys.
    DecrMisses,
    /// `cas` that stored.
    CasHits,
    /// `cas` of missing keys.
    CasMisses,
    /// `cas` of changed keys.
    CasBadval,
    /// Touches of existing keys.
    TouchHits,
    /// Touches of missing keys.
    TouchMisses,
}

/// Names in `stats`, in the order of [`Event`].
const NAMES: [&str; Event::TouchMisses as usize + 1] = [
    "cmd_get",
    "cmd_set",
    "cmd_flush",
    "cmd_touch",
    "get_hits",
    "get_misses",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
    "cas_hits",
    "cas_misses",
    "cas_badval",
    "touch_hits",
    "touch_misses",
];

/// Counters since the start, or since `stats reset`.
#[derive(Debug, Default)]
pub(crate) struct Events([AtomicU64; NAMES.len()]);

impl Events {
    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }
    pub(crate) fn add(&self, event: Event, count: u64) {
        self.0[event as usize].fetch_add(count, Ordering::Relaxed);
    }
    pub(crate) fn get(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
    pub(crate) fn reset(&self) {
        self.0.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
    /// All counters with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(|counter| counter.load(Ordering::Relaxed)))
    }
}
