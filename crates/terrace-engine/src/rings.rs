//! The rings of client processes: their counters, and the lanes in which they note accesses.
//!
//! The server of the preload library adds and removes them; statistics and recordings read them.

use crate::context::ReadTotals;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use terrace_shm::ring::Ring;

/// Maximum number of rings kept for their lanes after their clients ended.
const LEAVING_MAX: usize = 256;

/// Sums of the counters of clients: see [`terrace_shm::ring::Counters`].
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub hits: u64,
    pub hit_bytes: u64,
    pub misses: u64,
    pub miss_bytes: u64,
    pub fallbacks: u64,
    pub donations: u64,
    pub donations_dropped: u64,
    pub retries: u64,
    pub tier_hits: u64,
    pub reads: u64,
    pub read_ns: u64,
}

impl Totals {
    fn of(r: &Ring) -> Totals {
        Totals {
            hits: r.sum(|c| &c.hits),
            hit_bytes: r.sum(|c| &c.hit_bytes),
            misses: r.sum(|c| &c.misses),
            miss_bytes: r.sum(|c| &c.miss_bytes),
            fallbacks: r.sum(|c| &c.fallbacks),
            donations: r.sum(|c| &c.donations),
            donations_dropped: r.sum(|c| &c.donations_dropped),
            retries: r.sum(|c| &c.retries),
            tier_hits: r.sum(|c| &c.tier_hits),
            reads: r.sum(|c| &c.reads),
            read_ns: r.sum(|c| &c.read_ns),
        }
    }
    /// Clients count, and may count nonsense: sums wrap.
    fn plus(self, more: Totals) -> Totals {
        Totals {
            hits: self.hits.wrapping_add(more.hits),
            hit_bytes: self.hit_bytes.wrapping_add(more.hit_bytes),
            misses: self.misses.wrapping_add(more.misses),
            miss_bytes: self.miss_bytes.wrapping_add(more.miss_bytes),
            fallbacks: self.fallbacks.wrapping_add(more.fallbacks),
            donations: self.donations.wrapping_add(more.donations),
            donations_dropped: self.donations_dropped.wrapping_add(more.donations_dropped),
            retries: self.retries.wrapping_add(more.retries),
            tier_hits: self.tier_hits.wrapping_add(more.tier_hits),
            reads: self.reads.wrapping_add(more.reads),
            read_ns: self.read_ns.wrapping_add(more.read_ns),
        }
    }
}

/// The rings of all clients.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    live: RwLock<Vec<Arc<Ring>>>,
    /// Counters of clients that are gone.
    gone: Mutex<Totals>,
    /// Rings of clients that have ended, with unread records in their lanes.
    leaving: Mutex<Vec<Arc<Ring>>>,
}

impl Rings {
    pub(crate) fn count(&self) -> usize {
        self.live.read().len()
    }
    pub(crate) fn all(&self) -> Vec<Arc<Ring>> {
        self.live.read().clone()
    }
    pub(crate) fn add(&self, ring: Arc<Ring>) {
        self.live.write().push(ring);
    }
    /// A client has ended. `keep_lanes`: its lanes still have to be read.
    pub(crate) fn remove(&self, ring: &Arc<Ring>, keep_lanes: bool) {
        let mut live = self.live.write();
        live.retain(|r| !Arc::ptr_eq(r, ring));
        let mut gone = self.gone.lock();
        *gone = gone.plus(Totals::of(ring));
        let mut leaving = self.leaving.lock();
        if keep_lanes && leaving.len() < LEAVING_MAX {
            leaving.push(ring.clone());
        }
    }
    /// The rings of clients that have ended since the last call.
    pub(crate) fn take_leaving(&self) -> Vec<Arc<Ring>> {
        std::mem::take(&mut *self.leaving.lock())
    }
    /// Sums of the counters of all clients, including those that have ended.
    pub(crate) fn totals(&self) -> Totals {
        self.live.read().iter().map(|ring| Totals::of(ring)).fold(*self.gone.lock(), Totals::plus)
    }
    /// The sums that concern reads.
    pub(crate) fn read_totals(&self) -> ReadTotals {
        let Totals { hits, tier_hits, misses, reads, read_ns, .. } = self.totals();
        ReadTotals { hits, compressed_hits: tier_hits, misses, reads, read_ns }
    }
}
