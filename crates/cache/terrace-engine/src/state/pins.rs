//! Pinned pages: eviction takes them last.

use crate::clock::Clock;
use crate::table::{Map, trim};
use std::sync::Arc;

/// Pins hold at most 1/`SHARE` of the pool.
const SHARE: usize = 2;

/// Frames of pinned pages, with the ends of the pins. A page that leaves DRAM is no longer pinned.
#[derive(Debug)]
pub(crate) struct Pins {
    until_ns: Map<u32, u64>,
    /// Lower bound of the ends.
    first_end_ns: u64,
    /// Pinned pages may be evicted, because no other page is left.
    give_way: bool,
    clock: Arc<dyn Clock>,
}

impl Pins {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Pins {
        Pins { until_ns: Map::default(), first_end_ns: u64::MAX, give_way: false, clock }
    }

    /// Pins the page in a frame, in a pool of `pool` frames. False: too many pages are pinned.
    pub(super) fn add(&mut self, frame: u32, until_ns: u64, pool: u32) -> bool {
        let known = self.until_ns.contains_key(&frame);
        if !known && self.until_ns.len() >= pool as usize / SHARE {
            return false;
        }
        let until = self.until_ns.entry(frame).or_default();
        *until = until_ns.max(*until);
        self.first_end_ns = self.first_end_ns.min(*until);
        true
    }

    #[inline]
    pub(super) fn remove(&mut self, frame: u32) {
        if !self.until_ns.is_empty() {
            self.until_ns.remove(&frame);
        }
    }

    /// Drops expired pins. Called before an eviction.
    pub(super) fn look(&mut self) {
        if !self.until_ns.is_empty() && self.clock.now_ns() >= self.first_end_ns {
            let now_ns = self.clock.now_ns();
            self.until_ns.retain(|_, until| *until > now_ns);
            self.first_end_ns = self.until_ns.values().copied().min().unwrap_or(u64::MAX);
            trim(&mut self.until_ns);
        }
    }

    #[inline]
    pub(super) fn is_pinned(&self, frame: u32) -> bool {
        !self.until_ns.is_empty() && !self.give_way && self.until_ns.contains_key(&frame)
    }

    /// Allows the eviction of pinned pages, or not.
    pub(super) fn set_give_way(&mut self, give_way: bool) {
        self.give_way = give_way;
    }

    pub(crate) fn len(&self) -> usize {
        self.until_ns.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.until_ns.capacity() * (size_of::<(u32, u64)>() + 1)
    }
}
