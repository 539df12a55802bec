//! What memcached's `stats` counts of its commands.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Keys asked for.
    CmdGet,
    /// Requests to store something.
    CmdSet,
    /// Requests to remove all.
    CmdFlush,
    /// Keys to expire at another time.
    CmdTouch,
    /// Keys asked for that were there.
    GetHits,
    /// And that were not.
    GetMisses,
    /// Deletions of keys that were there.
    DeleteHits,
    /// And that were not.
    DeleteMisses,
    /// Increments of keys that were there.
    IncrHits,
    /// And that were not.
    IncrMisses,
    /// Decrements of keys that were there.
    DecrHits,
    /// And that were not.
    DecrMisses,
    /// `cas` that stored.
    CasHits,
    /// `cas` of keys that were not there.
    CasMisses,
    /// `cas` of keys that had changed.
    CasBadval,
    /// Keys to expire at another time that were there.
    TouchHits,
    /// And that were not.
    TouchMisses,
}

/// As `stats` names them, in the order of [`Event`].
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
pub struct Events([AtomicU64; NAMES.len()]);

impl Events {
    /// One more.
    pub fn count(&self, event: Event) {
        self.add(event, 1);
    }
    /// So many more.
    pub fn add(&self, event: Event, count: u64) {
        self.0[event as usize].fetch_add(count, Ordering::Relaxed);
    }
    /// How many.
    pub fn get(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
    /// None any more.
    pub fn reset(&self) {
        self.0.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
    /// Each with its name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0.iter().map(|counter| counter.load(Ordering::Relaxed)))
    }
}
