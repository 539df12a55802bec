//! The compressed tier's share of memory follows its benefit.

use crate::context::Context;
use crate::path::resize;
use crate::reclaim::cpu_headroom::CpuHeadroom;
use crate::reclaim::evict;
use crate::reclaim::io_workers::IoWorkers;
use std::num::NonZero;
use std::time::Duration;
use terrace_policy::balancer::{IDLE_ENOUGH, TierBalancer};
use terrace_shm::compress::Compressor;
use terrace_shm::layout::CHUNK_FRAMES;

/// How often the boundary is looked at.
const REBALANCE_EVERY: Duration = Duration::from_millis(50);

/// When the reclaim thread last rebalanced, and its other state for that.
#[derive(Debug)]
pub(crate) struct BalanceClock {
    at_ns: u64,
    headroom: CpuHeadroom,
    workers: IoWorkers,
    /// Asked once: the answer takes several files of /proc and the control group.
    pub processors: usize,
}

impl BalanceClock {
    pub(crate) fn new() -> BalanceClock {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        BalanceClock { at_ns: 0, headroom: CpuHeadroom::default(), workers: IoWorkers::default(), processors }
    }
}

/// Looks how idle the machine is, now and then. By reclaim's thread, also while it has nothing to do.
pub(crate) fn note_headroom(cx: &Context, clock: &mut BalanceClock) {
    let own = cx.state.lock().compressed.as_ref().map(|compressed| compressed.counts.compress_ns);
    // Without a tier nobody asks.
    let Some(own) = own else { return };
    let Some(free) = clock.headroom.sample(cx.clock.now_ns(), own) else { return };
    let workers_ns = match free.idle < IDLE_ENOUGH {
        true => clock.workers.look(),
        false => {
            // The whole wait for a read counts, and their work is a part of it.
            clock.workers.forget();
            Some(0)
        }
    };
    if let Some(compressed) = &mut cx.state.lock().compressed {
        compressed.workers_ns = workers_ns.unwrap_or(compressed.workers_ns);
        (compressed.balancer.idle, compressed.balancer.cpu_share) = (free.idle, free.cpu_share);
    }
}

/// Judges the last window, and moves the boundary if need be. Returns the number of chunks.
pub(crate) fn rebalance(cx: &Context, clock: &mut BalanceClock) -> i64 {
    let now = cx.clock.now_ns();
    let past = now.saturating_sub(clock.at_ns);
    if past < REBALANCE_EVERY.as_nanos() as u64 {
        return 0;
    }
    clock.at_ns = now;
    note_headroom(cx, clock);
    let clients = cx.read_totals();
    let hits = cx.compressed_hits(&clients);
    let read = [clients.misses, clients.reads, clients.read_ns];
    let mut state = cx.state.lock();
    let Some(compressed) = &mut state.compressed else { return 0 };
    let compressing = compressed.balancer.compresses();
    let moved = compressed.rebalance(hits, read, past, clock.processors);
    let rests = compressing && !compressed.balancer.compresses();
    let TierBalancer { costs, idle, cpu_share, .. } = compressed.balancer;
    drop(state);
    if rests {
        tracing::info!(
            "the compressed tier does not pay, and rests: {costs:?}, {idle:.2} idle, {cpu_share:.2} of the processors given"
        );
    }
    moved
}

/// Adjusts memory after the boundary has moved by so many chunks. Pages that leave DRAM for it are
/// compressed, as under pressure.
pub(crate) fn follow(cx: &Context, moved: i64, compressor: &mut Compressor) {
    let want = u32::try_from(moved).unwrap_or(0) * CHUNK_FRAMES as u32;
    // Other threads may take frames that become free.
    let mut tries = 2 * want as usize / evict::BATCH;
    let mut waiting = evict::Waiting::new();
    while tries > 0
        && cx.state.lock().frames.free_count() < want
        && evict::evict_batch(cx, Some(compressor), &mut waiting) > 0
    {
        tries -= 1;
    }
    evict::write_waiting(cx, &mut waiting);
    resize::adjust_pool(cx);
}
