//! Rings of client processes: counters, and the lanes for trace records.
//!
//! The server of the preload library adds and removes them; statistics and recordings read them.

use std::sync::Arc;
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::ring::Ring;
use terrace_sync::{Mutex, RwLock};

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReadTotals {
    /// Pages found in the cache.
    pub(crate) hits: u64,
    /// Hits of compressed pages among them.
    pub(crate) compressed_hits: u64,
    /// Pages read from the source, number of reads, and their total time.
    pub(crate) misses: u64,
    pub(crate) reads: u64,
    pub(crate) read_ns: u64,
    /// Pages read from each target, and total time.
    pub(crate) device_hits: [u64; TARGETS_MAX],
    pub(crate) device_read_ns: [u64; TARGETS_MAX],
}

/// Maximum number of rings kept for their lanes after their clients ended.
const LEAVING_MAX: usize = 256;

/// Sums of the counters of clients: see [`terrace_shm::ring::Counters`].
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) hits: u64,
    pub(crate) hit_bytes: u64,
    pub(crate) misses: u64,
    pub(crate) miss_bytes: u64,
    pub(crate) fallbacks: u64,
    pub(crate) fills: u64,
    pub(crate) fills_dropped: u64,
    pub(crate) retries: u64,
    pub(crate) tier_hits: u64,
    pub(crate) reads: u64,
    pub(crate) read_ns: u64,
    pub(crate) device_hits: [u64; TARGETS_MAX],
    pub(crate) device_read_ns: [u64; TARGETS_MAX],
}

impl Totals {
    fn of(r: &Ring) -> Totals {
        let (device_hits, device_read_ns) = r.sums_of_targets();
        Totals {
            hits: r.sum(|c| &c.hits),
            hit_bytes: r.sum(|c| &c.hit_bytes),
            misses: r.sum(|c| &c.misses),
            miss_bytes: r.sum(|c| &c.miss_bytes),
            fallbacks: r.sum(|c| &c.fallbacks),
            fills: r.sum(|c| &c.fills),
            fills_dropped: r.sum(|c| &c.fills_dropped),
            retries: r.sum(|c| &c.retries),
            tier_hits: r.sum(|c| &c.tier_hits),
            reads: r.sum(|c| &c.reads),
            read_ns: r.sum(|c| &c.read_ns),
            device_hits,
            device_read_ns,
        }
    }
    /// Adds counters. Clients may write any value: sums wrap.
    fn plus(self, more: Totals) -> Totals {
        let each = |a: [u64; TARGETS_MAX], b: [u64; TARGETS_MAX]| {
            std::array::from_fn(|target| a[target].wrapping_add(b[target]))
        };
        Totals {
            hits: self.hits.wrapping_add(more.hits),
            hit_bytes: self.hit_bytes.wrapping_add(more.hit_bytes),
            misses: self.misses.wrapping_add(more.misses),
            miss_bytes: self.miss_bytes.wrapping_add(more.miss_bytes),
            fallbacks: self.fallbacks.wrapping_add(more.fallbacks),
            fills: self.fills.wrapping_add(more.fills),
            fills_dropped: self.fills_dropped.wrapping_add(more.fills_dropped),
            retries: self.retries.wrapping_add(more.retries),
            tier_hits: self.tier_hits.wrapping_add(more.tier_hits),
            reads: self.reads.wrapping_add(more.reads),
            read_ns: self.read_ns.wrapping_add(more.read_ns),
            device_hits: each(self.device_hits, more.device_hits),
            device_read_ns: each(self.device_read_ns, more.device_read_ns),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Rings {
    live: RwLock<Vec<Arc<Ring>>>,
    gone: Mutex<Totals>,
    /// Rings of ended clients with unread records in their lanes. None: no recording reads them.
    leaving: Mutex<Option<Vec<Arc<Ring>>>>,
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
    /// Removes an ended client's ring, but keeps its lanes during a recording.
    pub(crate) fn remove(&self, ring: &Arc<Ring>) {
        let mut live = self.live.write();
        live.retain(|r| !Arc::ptr_eq(r, ring));
        let mut gone = self.gone.lock();
        *gone = gone.plus(Totals::of(ring));
        if let Some(leaving) = self.leaving.lock().as_mut().filter(|leaving| leaving.len() < LEAVING_MAX) {
            leaving.push(ring.clone());
        }
    }
    /// Starts a recording, which keeps ended clients' rings for [`Rings::take_leaving`].
    pub(crate) fn keep_leaving(&self) {
        *self.leaving.lock() = Some(Vec::new());
    }
    pub(crate) fn drop_leaving(&self) {
        *self.leaving.lock() = None;
    }
    /// The rings of clients that have ended since the last call.
    pub(crate) fn take_leaving(&self) -> Vec<Arc<Ring>> {
        self.leaving.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }
    /// Sums of the counters of all clients, including those that have ended.
    pub(crate) fn totals(&self) -> Totals {
        self.live.read().iter().map(|ring| Totals::of(ring)).fold(*self.gone.lock(), Totals::plus)
    }
    pub(crate) fn read_totals(&self) -> ReadTotals {
        let t = self.totals();
        ReadTotals {
            hits: t.hits,
            compressed_hits: t.tier_hits,
            misses: t.misses,
            reads: t.reads,
            read_ns: t.read_ns,
            device_hits: t.device_hits,
            device_read_ns: t.device_read_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_shm::map::memfd;

    #[test]
    fn lanes_of_an_ended_client_are_kept_while_somebody_records() {
        let rings = Rings::default();
        let ended = || {
            let fd = memfd("ring", Ring::file_bytes(1)).unwrap();
            let ring = Arc::new(Ring::attach(&fd, 1).unwrap());
            rings.add(ring.clone());
            rings.remove(&ring);
            Arc::downgrade(&ring)
        };
        assert!(ended().upgrade().is_none(), "no recording reads it");
        rings.keep_leaving();
        let kept = ended();
        assert!(kept.upgrade().is_some_and(|kept| Arc::ptr_eq(&kept, &rings.take_leaving()[0])));
        let unread = ended();
        // Whatever the order of the client's end and the recording's end: no ring is left over.
        rings.drop_leaving();
        assert!(unread.upgrade().is_none() && ended().upgrade().is_none());
        assert!(rings.take_leaving().is_empty());
    }
}
