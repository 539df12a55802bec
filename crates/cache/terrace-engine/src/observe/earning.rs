//! Benefit of the cache: hits, misses, refaults, and the cost of a miss. The choice of its size needs them.

use crate::context::Context;
use crate::observe::mrc::Sampling;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds of the measured cost of a miss, ns: the counters of clients are untrusted.
const MISS_NS: std::ops::RangeInclusive<u64> = 10_000..=20_000_000;

/// Activity of the cache, since the daemon started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Earning {
    /// Pages found.
    pub hits: u64,
    /// Pages not found.
    pub misses: u64,
    /// Misses of pages that were cached before.
    pub refaults: u64,
    /// Estimated share of accesses that would become misses with one chunk of frames (2 MiB) less.
    pub chunk_saves: f64,
    /// Cost of a miss, ns: the mean time of a client's read of the source, or the configured value.
    pub miss_ns: u64,
}

pub(crate) fn earning(cx: &Context, sampling: &Sampling) -> Earning {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let clients = cx.read_totals();
    let (refaults, frames) = {
        let state = cx.state.lock();
        (state.counts.refaults, state.frames.populated())
    };
    let measured = clients.read_ns.checked_div(clients.reads);
    let miss_ns = measured.unwrap_or(cx.config.compressed.miss_ns);
    Earning {
        hits: get(&cx.counters.hit_pages).wrapping_add(clients.hits),
        misses: get(&cx.counters.miss_pages).wrapping_add(clients.misses),
        refaults,
        chunk_saves: sampling.chunk_saves(frames as usize),
        miss_ns: miss_ns.clamp(*MISS_NS.start(), *MISS_NS.end()),
    }
}
