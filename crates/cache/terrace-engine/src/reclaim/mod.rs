//! Reclaim: frames are freed ahead of need. The policy names victims, the state withdraws their entries.

pub(crate) mod balance;
pub(crate) mod compress;
mod cpu_headroom;
mod evict;
mod io_workers;

use crate::context::Context;
use crate::path::resize;
use crate::state::chunks::Backed;
use balance::BalanceClock;
use evict::Waiting;
pub(crate) use evict::drop_clean;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_shm::compress::Compressor;

/// Maximum number of chunks retried for a huge page in the next round: a machine may have no huge pages.
const RETRIES_MAX: usize = 16;

/// Number of free frames at which reclaim stops.
fn free_high(cx: &Context) -> u32 {
    cx.free_low() * 2
}

/// Body of the reclaim thread: grows the pool up to its limit, evicts ahead of need, and follows the budget.
pub(crate) fn reclaim_loop(cx: &Context) {
    let mut compressor = compress::compressor(cx);
    let mut clock = BalanceClock::new();
    let mut waiting = Waiting::new();
    while !cx.stopping.load(Ordering::Acquire) {
        if !cx.reclaim_wakeup.wait(Duration::from_millis(500)) {
            // No frames are needed: the waiting pages go without further ones.
            evict::write_waiting(cx, &mut waiting);
        }
        cx.state.lock().lru.policy.set_time(cx.uptime_ms());
        resize::adjust_pool(cx);
        balance::note_headroom(cx, &mut clock);
        while reclaim_batch(cx, compressor.as_mut(), &mut waiting) {
            if let Some(compressor) = &mut compressor {
                match balance::rebalance(cx, &mut clock) {
                    0 => {}
                    moved => balance::follow(cx, moved, compressor),
                }
            }
        }
        back_new_chunks(cx);
    }
}

/// Gives huge pages to chunks that came into use without. A chunk with pages under I/O is tried again later.
fn back_new_chunks(cx: &Context) {
    let chunks = std::mem::take(&mut cx.state.lock().unbacked_chunks);
    let mut again = Vec::new();
    for chunk in chunks {
        let backed = resize::back_with_memory(cx, chunk);
        cx.state.lock().note_backed(chunk, backed);
        if backed == Backed::NotYet && again.len() < RETRIES_MAX {
            again.push(chunk);
        }
    }
    let mut state = cx.state.lock();
    let populated = state.frames.populated();
    state.unbacked_chunks.extend(again.into_iter().filter(|&c| c < populated));
}

/// One step towards the high watermark. False: it is reached, or no frame can be freed.
fn reclaim_batch(cx: &Context, compressor: Option<&mut Compressor>, waiting: &mut Waiting) -> bool {
    let grow = {
        let state = cx.state.lock();
        if state.frames.free_count() >= free_high(cx) {
            return false;
        }
        state.frames.can_grow().then(|| (state.frames.populated(), state.frames.node_of_next()))
    };
    let Some((grow, node)) = grow else { return evict::evict_batch(cx, compressor, waiting) > 0 };
    // Backing a chunk with memory is slow: not under the lock.
    cx.nodes.place(&cx.handles, grow, node);
    let backed = resize::back_with_memory(cx, grow);
    let mut state = cx.state.lock();
    if state.frames.populated() == grow && state.frames.can_grow() {
        state.grow_pool(node);
    }
    state.note_backed(grow, backed);
    true
}
