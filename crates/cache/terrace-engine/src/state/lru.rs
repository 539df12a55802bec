//! The eviction policy, and its inputs: touches, keys, `min_ttl`.

use crate::clock::Clock;
use crate::segment::SegmentHandles;
use crate::segment::flag::{REUSED, USED};
use crate::state::sampler::Watch;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_policy::{AccessCounts, Evict, Generation, InsertReason, Shadow, Slot};

#[derive(Debug)]
pub(crate) struct Lru {
    pub(crate) policy: Box<dyn Evict>,
    pub(crate) min_ttl: MinTtl,
    /// The policy keeps counts by key.
    pub(crate) wants_keys: bool,
    watch: Arc<Watch>,
    handles: Arc<SegmentHandles>,
}

impl Lru {
    pub(crate) fn new(
        policy: Box<dyn Evict>,
        min_ttl: MinTtl,
        watch: Arc<Watch>,
        handles: Arc<SegmentHandles>,
    ) -> Lru {
        Lru { wants_keys: policy.wants_keys(), policy, min_ttl, watch, handles }
    }
    pub(crate) fn touches(&self) -> TouchView {
        TouchView { watch: self.watch.clone(), handles: self.handles.clone() }
    }
    /// Whether no page may be evicted now.
    pub(crate) fn min_ttl_holds(&mut self) -> bool {
        self.min_ttl.holds(&*self.policy)
    }
    /// Passes the key of a frame's page to a policy that counts by key, just before the page is listed.
    pub(crate) fn note_key(&mut self, frame: u32, key: u64) {
        if self.wants_keys {
            self.policy.key(frame, key);
        }
    }
    /// Lists the page `key` in a frame, untouched. Returns whether it was a recent refault.
    pub(crate) fn insert(
        &mut self,
        frame: u32,
        key: u64,
        shadow: Option<Shadow>,
        reason: InsertReason,
    ) -> bool {
        let mut touches = self.touches();
        self.note_key(frame, key);
        self.policy.insert(frame, shadow, reason, &mut touches)
    }
}

/// The touch table for the policy, with the counts taken by the sample. Marks pages that the policy finds
/// touched as reused, except for touches too soon after the first.
pub(crate) struct TouchView {
    watch: Arc<Watch>,
    handles: Arc<SegmentHandles>,
}

impl TouchView {
    /// Whether the frame was touched since the policy last examined it. Does not mark the page as reused.
    pub(crate) fn is_touched(&self, frame: u32) -> bool {
        self.watch.peek(frame) != 0
    }
}

impl AccessCounts for TouchView {
    fn peek(&self, slot: Slot) -> u8 {
        let count = self.watch.peek(slot);
        if count != 0 {
            self.handles.frame_flags(slot).fetch_or(REUSED, Ordering::Relaxed);
        }
        count
    }
    fn set(&mut self, slot: Slot, count: u8) {
        if count == 0 && self.is_touched(slot) {
            self.handles.frame_flags(slot).fetch_or(USED, Ordering::Relaxed);
        }
        self.watch.set(slot, count);
    }
}

/// Minimum age of the oldest generation for evictions.
#[derive(Debug)]
pub(crate) struct MinTtl {
    pub(crate) ttl: Duration,
    clock: Arc<dyn Clock>,
    started_ns: u64,
    pub(crate) refused: u64,
}

impl MinTtl {
    pub(crate) fn new(ttl: Duration, clock: Arc<dyn Clock>) -> MinTtl {
        MinTtl { ttl, started_ns: clock.now_ns(), clock, refused: 0 }
    }
    /// Whether no page may be evicted now.
    pub(crate) fn holds(&mut self, policy: &dyn Evict) -> bool {
        if self.ttl.is_zero() {
            return false;
        }
        let now_ms = self.clock.now_ns().saturating_sub(self.started_ns) / 1_000_000;
        let rows = policy.generations(now_ms);
        // The oldest generation first; pages in no generation have no age.
        let oldest = rows.iter().rev().find(|g| is_generation(g) && g.pages > 0);
        let holds = oldest.is_some_and(|g| u128::from(g.age_ms) < self.ttl.as_millis());
        self.refused += u64::from(holds);
        holds
    }
}

/// False for queues, which are listed among the generations with number 0.
pub(crate) fn is_generation(row: &Generation) -> bool {
    row.label.strip_prefix("gen ").is_some_and(|seq| seq.parse() == Ok(row.seq))
}
