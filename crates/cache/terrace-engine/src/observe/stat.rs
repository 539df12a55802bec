//! Statistics of an engine for `terrace stat`: gathered from counters, state and rings.

use super::tiers;
use crate::context::Context;
use crate::path::{resize, throttle};
use crate::rings::Rings;
use crate::state::targets::Targets;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_api::stats::{
    GenerationRow, Memory, MountPath, Prefetch, PreloadPath, Reclaim, Schema, Stats, Writeback,
};
use terrace_api::tiers::DeviceCounts;
use terrace_shm::PAGE_SIZE;
use terrace_tier::DeviceConfig;

pub(crate) fn stats(cx: &Context, rings: &Rings) -> Stats {
    let mut stats = counted(cx, rings);
    let hits = cx.device_hits(&rings.read_totals());
    let (counts, demoted): (Vec<(DeviceConfig, DeviceCounts)>, u64) = {
        let state = cx.state.lock();
        let all = state.targets.iter().flat_map(|targets| &targets.all);
        let counts = all.map(|device| (device.config.clone(), device.counts(hits[device.config.number])));
        (counts.collect(), state.targets.as_ref().map_or(0, |targets| targets.demoted_to_removed))
    };
    let devices: Vec<tiers::Device<'_>> = counts.iter().map(|(config, counts)| (config, counts)).collect();
    // Hits of removed targets.
    let all_hits = hits.iter().fold(0u64, |sum, hits| sum.wrapping_add(*hits));
    let live_hits = counts.iter().fold(0u64, |sum, (_, counts)| sum.wrapping_add(counts.hits));
    let removed = tiers::Removed { hits: all_hits.wrapping_sub(live_hits), demoted };
    stats.tiers = tiers::rows(&stats, &devices, removed, cx.uptime_ms());
    stats
}

/// All statistics except the rows of the tiers.
fn counted(cx: &Context, rings: &Rings) -> Stats {
    let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
    let now_ms = cx.uptime_ms();
    let fast = rings.totals();
    let tier_hits = cx.compressed_hits(&rings.read_totals());
    let state = cx.state.lock();
    let tier_bytes = state.compressed.as_ref().map_or(0, |tier| tier.pool.bytes() + tier.metadata_bytes())
        + state.device_bytes();
    let (usage, tables) = (state.metadata(), resize::tables_bytes(cx, &state));
    let metadata = usage.total();
    let pages = u64::from(state.frames.in_use());
    let frames_bytes = u64::from(state.frames.populated()) * PAGE_SIZE as u64;
    let (d, c, dirty) = (&cx.counters, state.counts, state.dirty.totals);
    Stats {
        leases: None,
        announced: None,
        schema: Schema::V2,
        policy: state.lru.policy.name().to_owned(),
        memory: Memory {
            limit_bytes: get(&cx.memory),
            ceiling_bytes: Some(get(&cx.ceiling)).filter(|&ceiling| ceiling != u64::MAX),
            sizing: None,
            used_bytes: frames_bytes + metadata + tables + tier_bytes,
            frames_bytes,
            frames_max_bytes: u64::from(cx.pool_frames()) * PAGE_SIZE as u64,
            metadata_bytes: metadata,
            metadata_bytes_per_page: if pages > 0 { metadata as f64 / pages as f64 } else { 0.0 },
            tables_bytes: tables,
            pages,
            free_frames: u64::from(state.frames.idle()),
            huge_bytes: (state.huge_chunks.len() * terrace_shm::layout::HUGE) as u64,
            index_bytes: usage.index.total() as u64,
        },
        preload: PreloadPath {
            clients: rings.count(),
            hits: fast.hits,
            hit_bytes: fast.hit_bytes,
            misses: fast.misses,
            miss_bytes: fast.miss_bytes,
            fallbacks: fast.fallbacks,
            fills: fast.fills,
            fills_dropped: fast.fills_dropped,
            retries: fast.retries,
            fills_taken: get(&d.fills_taken),
            fills_refused: get(&d.fills_refused),
            fills_read: get(&d.fills_read),
        },
        prefetch: Prefetch {
            fetched: get(&d.prefetched),
            dropped: get(&d.dropped),
            refused: cx.jobs.refused(),
            schedule: cx.followed.shown.lock().clone(),
        },
        fuse: MountPath {
            reads: get(&d.reads),
            read_bytes: get(&d.read_bytes),
            hits: get(&d.hit_pages),
            misses: get(&d.miss_pages),
            not_admitted: c.not_admitted,
            writes: get(&d.writes),
            write_bytes: get(&d.write_bytes),
        },
        reclaim: Reclaim {
            pgscan: c.pgscan,
            pgsteal: c.pgsteal,
            workingset_refault: c.refaults,
            inserted: c.inserted,
        },
        compressed: state.compressed.as_ref().map(|tier| tier.stats(tier_hits)),
        tiers: Vec::new(),
        writeback: Writeback {
            dirty: dirty.dirty,
            dirty_bytes: dirty.dirty * PAGE_SIZE as u64,
            owed_bytes: dirty.undestaged * PAGE_SIZE as u64,
            conflict_bytes: state.targets.as_ref().map_or(0, Targets::pages_of_earlier_runs)
                * PAGE_SIZE as u64,
            writeback: dirty.writeback,
            unstable: dirty.unstable,
            dirty_limit: throttle::dirty_limit(cx),
            written_back: get(&d.written_back),
            errors: get(&d.writeback_errors),
            throttled: get(&d.throttled),
            failing_errno: state.dirty.failing_errno(),
        },
        objects: state.objects.len(),
        generations: state
            .lru
            .policy
            .generations(now_ms)
            .into_iter()
            .map(|g| GenerationRow { label: g.label, seq: g.seq, age_ms: g.age_ms, pages: g.pages })
            .collect(),
    }
}
