//! Adjusts the compressed tier's share of memory to the tier's benefit.

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

const REBALANCE_EVERY: Duration = Duration::from_millis(50);

/// Time of the last rebalancing, and state of the reclaim thread for it.
#[derive(Debug)]
pub(crate) struct BalanceClock {
    at_ns: u64,
    headroom: CpuHeadroom,
    workers: IoWorkers,
    /// Read once, because it takes several files of /proc and the control group.
    pub(crate) processors: usize,
}

impl BalanceClock {
    pub(crate) fn new() -> BalanceClock {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        BalanceClock { at_ns: 0, headroom: CpuHeadroom::default(), workers: IoWorkers::default(), processors }
    }
}

/// Samples the machine's idle processor time at intervals. Called by the reclaim thread, also when idle.
pub(crate) fn note_headroom(cx: &Context, clock: &mut BalanceClock) {
    let own = cx.state.lock().compressed.as_ref().map(|compressed| compressed.counts.compress_ns);
    // Only a compressed tier needs it.
    let Some(own) = own else { return };
    let Some(free) = clock.headroom.sample(cx.clock.now_ns(), own) else { return };
    let workers_ns = match free.idle < IDLE_ENOUGH {
        true => clock.workers.look(),
        false => {
            // The whole latency of a read counts, and includes the workers' time.
            clock.workers.forget();
            Some(0)
        }
    };
    if let Some(compressed) = &mut cx.state.lock().compressed {
        compressed.workers_ns = workers_ns.unwrap_or(compressed.workers_ns);
        (compressed.balancer.idle, compressed.balancer.cpu_share) = (free.idle, free.cpu_share);
    }
}

/// Judges the last window, and moves the boundary if needed. Returns the number of chunks.
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
    let stopped = compressing && !compressed.balancer.compresses();
    let TierBalancer { costs, idle, cpu_share, .. } = compressed.balancer;
    drop(state);
    if stopped {
        tracing::info!(
            "the compressed tier costs more than it saves, and is suspended: {costs:?}, idle share {idle:.2}, CPU share {cpu_share:.2}"
        );
    }
    moved
}

/// Adjusts memory after the boundary has moved by `moved` chunks. Compresses pages that leave DRAM for it, as
/// under pressure.
pub(crate) fn follow(cx: &Context, moved: i64, compressor: &mut Compressor) {
    let want = u32::try_from(moved).unwrap_or(0) * CHUNK_FRAMES as u32;
    // Other threads may take the freed frames.
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
