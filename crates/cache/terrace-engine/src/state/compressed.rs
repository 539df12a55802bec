//! The compressed tier: evicted pages stay in memory, compressed. A read decompresses the page instead of
//! reading a device.
//!
//! Life of a page in it:
//! 1. The policy evicts it. The tier has room, or the page was used more than once (`flag::REUSED`). On a
//!    busy machine the tier fills slowly.
//! 2. `reclaim/compress.rs` (reclaim thread, no lock) -> [`State::finish_store`](super::State::finish_store):
//!    the entry names the pool's object, and the frame is free.
//! 3. Readers decode it into their own buffers (`terrace-shm/src/zread.rs`); it stays compressed.
//! 4. After enough recent reads ([`PROMOTE_AT`]): [`State::begin_promotion`](super::State::begin_promotion).
//!    Unread pages are dropped, oldest first, by
//!    [`State::shrink_compressed`](super::State::shrink_compressed).
//!
//! Only clean pages are compressed, so that a crash loses no data: the next daemon starts with an empty pool.
//! The tier's share of memory follows its benefit (`terrace-policy/src/balancer.rs`).

use crate::config::{Admit, CompressedConfig};
use crate::file::object::Object;
use crate::segment::SegmentHandles;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_api::stats::CompressedTier;
use terrace_policy::Shadow;
use terrace_policy::balancer::{Costs, TierBalancer, Window};
use terrace_shm::codec::{Coded, Encoding};
use terrace_shm::compress::Refusal;
use terrace_shm::index::{Index, Place};
use terrace_shm::layout::HUGE;
use terrace_shm::protocol::replace;
use terrace_shm::zobject::Handle;
use terrace_shm::zpool::ZPool;
use terrace_shm::{Below, Entry, PAGE_SIZE};

/// Cost of compressing a page with LZ4, ns, until measured.
const COMPRESS_NS: u64 = 8_000;
/// Cost of decompressing a page, ns, until measured; then of a hit's lookup, copy and check.
const DECOMPRESS_NS: u64 = 3_500;
const HIT_NS: u64 = 1_500;
/// Processor time of a miss beyond that of a hit, ns. Per device read: submission, completion, and two thread
/// switches. Per page: filling, listing, and the eviction of another page. With nearly all misses, fio took
/// 24 us for a read of one page, 30 for four, 62 for sixteen.
const READ_WORK_NS: u64 = 14_500;
const PAGE_WORK_NS: u64 = 2_500;
/// Minimum number of device reads for a measured cost.
const READS_MIN: u64 = 64;
/// Share of busy processors for filling the tier: programs would notice more before it pays.
const FILLING_BUSY: f64 = 0.02;
/// Upper bound of the time that counts for this share.
const FILLING_PAST_MAX: Duration = Duration::from_millis(500);
/// Bytes moved by compaction under one lock.
const COMPACT_BYTES: usize = 256 << 10;
/// Unused zspages that keep their memory, bytes.
const IDLE_BYTES: u64 = 1 << 20;
/// Failures in `Backoff` that a success cancels, for any codec and for LZ4, which costs half of zstd.
const REFUSALS_OUTWEIGHED: u16 = u16::MAX;
const LZ4_OUTWEIGHS: u16 = 4;
/// Shadow that records only a previous stay in memory, for the tier and not for the policy. Pages that leave
/// the tier get it: they were away longer than any page in DRAM. (With the policy's shadow, all pages of a
/// loop came back as recent ones, and circulated.) Without shadows of the policy every evicted page gets it,
/// so that the tier sees refaults. A policy makes this value once in 2^31 evictions.
pub(crate) const WAS_HERE: u32 = u32::MAX;
/// As [`WAS_HERE`], for a page read often on a device before the reclaim of its region. The page is worth a
/// write when it leaves DRAM again.
pub(crate) const WAS_READ: u32 = u32::MAX - 1;
/// Number of recent reads that promotes a compressed page. A promotion costs a decompression, and the
/// compression of another page.
const PROMOTE_AT: u32 = 8;

/// Counters of events that the pool does not count.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct TierCounts {
    /// Refused pages: too long a result, or other pages of the file had one.
    pub(crate) reject_compress_poor: u64,
    pub(crate) reject_by_file: u64,
    pub(crate) promoted: u64,
    /// Pages that changed, or changed their state, during the compression.
    pub(crate) store_raced: u64,
    /// Pages that were already in the pool.
    pub(crate) duplicate_entry: u64,
    /// Compressed pages admitted only because there was room.
    pub(crate) filling: u64,
    /// Compressed pages, with any result, and the processor time for them, including storing, ns.
    pub(crate) compressed: u64,
    pub(crate) compress_ns: u64,
}

/// The compressed pages, and the benefit of the tier.
#[derive(Debug)]
pub(crate) struct Compressed {
    pub(crate) pool: ZPool,
    pub(crate) balancer: TierBalancer,
    pub(crate) counts: TierCounts,
    admit: Admit,
    /// The policy keeps shadows itself.
    has_ghost: bool,
    pub(crate) compressor_bytes: usize,
    /// Pages that may be admitted only because there is room, until the next judgement of the tier.
    fill_budget: u64,
    /// Processor time of the kernel's workers per page of a device, ns; 0 while processors are idle
    /// ([`IoWorkers`](crate::reclaim::io_workers)).
    pub(crate) workers_ns: u64,
    refaults: u64,
    /// Counters at its begin: pages stored, refused, not tried, promoted; reads; pages admitted for room.
    began: [u64; 6],
    /// Reads answered at the last aging of touches.
    aged_at: u64,
    /// Reads of the source by the daemon with mostly refaults: pages, reads, ns.
    source_read: [u64; 3],
    /// These reads and those of clients at the last computation of the cost.
    read_at: [u64; 3],
}

/// A page to be compressed. It stays resident until the result is stored.
#[derive(Debug)]
pub(crate) struct CompressCandidate {
    pub(crate) place: Place,
    pub(crate) frame: u32,
    pub(crate) entry: Entry,
    pub(crate) shadow: Option<Shadow>,
    /// Admitted only because there is room.
    pub(crate) filling: bool,
    pub(crate) beyond_lz4: bool,
}

impl Compressed {
    /// An empty tier; None if it is disabled.
    ///
    /// # Errors
    /// Out of memory; a predecessor's pool cannot be freed.
    pub(crate) fn new(
        config: CompressedConfig,
        has_ghost: bool,
        handles: &SegmentHandles,
    ) -> io::Result<Option<Compressed>> {
        let pool = ZPool::new(handles.segment.clone(), handles.touches.clone())?;
        if config.codec.is_none() || config.max_percent == 0 {
            return Ok(None);
        }
        let (read, work) = (config.miss_ns, READ_WORK_NS + PAGE_WORK_NS);
        let costs = Costs { read, work, compress: COMPRESS_NS, decompress: DECOMPRESS_NS };
        handles.segment.header().promote_at.store(PROMOTE_AT, Ordering::Relaxed);
        Ok(Some(Compressed {
            pool,
            balancer: TierBalancer::new(costs),
            counts: TierCounts::default(),
            admit: config.admit,
            has_ghost,
            compressor_bytes: 0,
            fill_budget: u64::MAX,
            workers_ns: 0,
            refaults: 0,
            began: [0; 6],
            aged_at: 0,
            source_read: [0; 3],
            read_at: [0; 3],
        }))
    }

    /// Intended memory, bytes.
    pub(crate) fn target(&self) -> u64 {
        u64::from(self.balancer.chunks()) * HUGE as u64
    }
    /// Memory of the pool's metadata and of the compressor, bytes.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.pool.metadata_bytes() + self.compressor_bytes as u64
    }
    /// Whether more pages fit without an eviction.
    pub(crate) fn has_room(&self) -> bool {
        !self.fills(self.pool.limit())
    }
    /// Whether the pool fills `bytes` bytes.
    fn fills(&self, bytes: u64) -> bool {
        self.pool.bytes() - self.pool.idle_bytes() >= bytes / 16 * 15
    }

    /// Sets the number of pages that may fill the tier in the next interval. The last one had `past` ns on
    /// `processors` processors.
    fn set_fill_budget(&mut self, past: u64, processors: usize) {
        let ns = past as f64 * processors as f64 * FILLING_BUSY;
        let slowly = self.balancer.is_busy() && !self.balancer.is_least();
        self.fill_budget = if slowly { ns as u64 / self.balancer.costs.compress.max(1) } else { u64::MAX };
    }
    /// Whether the tier has not filled its memory since the last step, and may not fill it now.
    fn is_fill_limited(&self) -> bool {
        self.fill_budget == 0 && !self.fills(u64::from(self.balancer.chunks_before()) * HUGE as u64)
    }

    /// Updates the cost of a miss from reads of the source; `clients`: those of clients. The pages of a read
    /// share its cost.
    fn note_reads(&mut self, clients: [u64; 3]) {
        let now: [u64; 3] = std::array::from_fn(|i| clients[i].wrapping_add(self.source_read[i]));
        let [pages, reads, ns] = std::array::from_fn(|i| now[i].saturating_sub(self.read_at[i]));
        if pages < READS_MIN {
            return;
        }
        self.read_at = now;
        // Counters of clients are untrusted.
        let (reads, ns) = (reads.clamp(1, pages), (ns / pages).clamp(1_000, 1_000_000_000));
        let costs = &mut self.balancer.costs;
        learn::<9>(&mut costs.read, ns);
        // The workers may have had other work, so their share of a read is at most its latency.
        let workers = self.workers_ns.min(ns);
        learn::<9>(&mut costs.work, PAGE_WORK_NS + READ_WORK_NS.saturating_mul(reads) / pages + workers);
    }

    /// Updates the cost of decompression from one page, which took `ns` of processor time. A single sample
    /// has little weight: zstd takes three times as long as LZ4, and the clock counts interrupts, too. With
    /// more weight, one page of 5 ms would make the tier give up its memory. Without compression it would
    /// never measure a lower cost.
    fn note_unpacking(&mut self, ns: u64) {
        let known = &mut self.balancer.costs.decompress;
        learn::<65>(known, (HIT_NS + ns).min(4 * *known));
    }

    pub(crate) fn note_refault(&mut self) {
        self.refaults += 1;
    }
    /// Notes a read by the daemon with mostly refaults. (First reads do not count: no tier saves them, and a
    /// scan would make misses look cheap.)
    pub(crate) fn note_source_read(&mut self, pages: usize, ns: u64) {
        [pages as u64, 1, ns].iter().zip(&mut self.source_read).for_each(|(more, sum)| *sum += more);
    }
    /// Shadow of a page for which the policy makes none.
    pub(crate) fn shadow_without_ghost(&self) -> u32 {
        if self.has_ghost { 0 } else { WAS_HERE }
    }

    /// Decides on a page of `object` that leaves DRAM. None: refused. Otherwise: whether only free room
    /// admits it, and whether to skip LZ4.
    pub(crate) fn admits(&mut self, object: Option<&Object>, reused: bool) -> Option<(bool, bool)> {
        let filling = self.admit == Admit::Reused && !reused;
        if filling && (self.fill_budget == 0 || !self.has_room()) {
            return None;
        }
        if !self.balancer.compresses() {
            self.balancer.passed();
            return None;
        }
        // Also without memory: the balancer needs the number of pages that the tier could serve.
        if object.is_some_and(|o| o.compressing.should_skip()) {
            self.counts.reject_by_file += 1;
            return None;
        }
        let beyond_lz4 = object.is_some_and(|o| o.lz4.should_skip());
        if self.pool.limit() == 0 {
            return None;
        }
        self.fill_budget -= u64::from(filling);
        Some((filling, beyond_lz4))
    }
    /// Notes that a page changed during its compression; `now` is its entry. The present content stays, since
    /// it is not older than the compressed one. A page that returned to its copy on a device is no duplicate.
    pub(crate) fn note_race(&mut self, now: Entry) {
        let is_duplicate = matches!(now.below(), Some(Below::Compressed(_)));
        *(if is_duplicate { &mut self.counts.duplicate_entry } else { &mut self.counts.store_raced }) += 1;
    }
    pub(crate) fn note_result(
        &mut self,
        page: &CompressCandidate,
        object: Option<&Object>,
        coded: &Result<Coded<'_>, Refusal>,
    ) {
        self.counts.filling += u64::from(page.filling);
        self.counts.reject_compress_poor += u64::from(coded.is_err());
        let codec = coded.as_ref().ok().map(|coded| coded.codec);
        let Some(o) = object else { return };
        o.compressing.note(codec.is_some(), REFUSALS_OUTWEIGHED);
        if !page.beyond_lz4 && codec != Some(Encoding::Same) {
            o.lz4.note(codec == Some(Encoding::Lz4), LZ4_OUTWEIGHS);
        }
    }
    /// Notes processor time: of compressing `pages` pages, and of decompressing one of them, ns.
    pub(crate) fn note_work(&mut self, pages: usize, compress_ns: u64, decompress_ns: Option<u64>) {
        if let Some(ns) = decompress_ns {
            self.note_unpacking(ns);
        }
        self.counts.compress_ns += compress_ns;
        self.counts.compressed += pages as u64;
    }

    pub(crate) fn compact(&mut self, index: &Index) {
        self.pool.compact(COMPACT_BYTES, |place, _, new| {
            let clock = index.tick();
            replace(index.entry(place), Entry::compressed(new, clock));
        });
        if let Err(e) = self.pool.trim(IDLE_BYTES) {
            tracing::warn!("memory of the compressed tier cannot be given back to the system: {e}");
        }
    }
    pub(crate) fn note_promotion(&mut self, handle: Handle) {
        self.pool.remove(handle);
        self.counts.promoted += 1;
    }

    /// Moves the balancer by the events of the last `past` ns, on `processors` processors. Returns the number
    /// of chunks moved. `hits` of compressed pages, and `reads` of clients (pages, reads, ns), are counted
    /// since the start.
    pub(crate) fn rebalance(
        &mut self,
        hits: u64,
        clients_read: [u64; 3],
        past: u64,
        processors: usize,
    ) -> i64 {
        self.note_reads(clients_read);
        let fill_limited = self.is_fill_limited();
        let (c, pool) = (self.counts, &self.pool);
        let stored = pool.counts().stored_pages;
        let ends = [stored, c.reject_compress_poor, c.reject_by_file, c.promoted, hits, c.filling];
        let [stored, refused, untried, promoted, tier_hits, filling] =
            std::array::from_fn(|i| ends[i].saturating_sub(self.began[i]));
        let window = Window {
            refaults: self.refaults,
            tier_hits,
            promoted,
            stored,
            refused,
            filling,
            untried,
            tier_pages: pool.stored_pages(),
            tier_frames: pool.slot_bytes() / PAGE_SIZE as u64,
            full: self.fills(self.target()),
            fill_limited,
        };
        self.pool.age(hits.saturating_sub(std::mem::replace(&mut self.aged_at, hits)) as usize);
        let before = self.balancer.chunks();
        if let Some(each) = c.compress_ns.checked_div(c.compressed) {
            self.balancer.costs.compress = each;
        }
        self.set_fill_budget(past.min(FILLING_PAST_MAX.as_nanos() as u64), processors);
        if self.balancer.rebalance(window) {
            (self.refaults, self.began) = (0, ends);
        }
        i64::from(self.balancer.chunks()) - i64::from(before)
    }

    /// Reports inconsistencies between the pool and the entries that name its objects: `named`.
    pub(crate) fn check(&self, named: &[(Place, Handle)], bad: &mut Vec<String>) {
        bad.extend(self.pool.check().err());
        for &(place, handle) in named {
            if !self.pool.is_live(handle) || self.pool.place(handle) != place {
                bad.push(format!("{place:?} names {handle:?}, which is no page of it"));
            }
        }
        if self.pool.stored_pages() != named.len() as u64 {
            bad.push(format!("{} compressed pages, {} named", self.pool.stored_pages(), named.len()));
        }
    }

    /// Statistics for `terrace stat`; `hits` are counted on the paths.
    pub(crate) fn stats(&self, hits: u64) -> CompressedTier {
        let (pool, counts, c) = (&self.pool, self.pool.counts(), self.counts);
        let share = |a: u64, b: u64| if b > 0 { a as f64 / b as f64 } else { 0.0 };
        let compressed = counts.stored_pages + c.reject_compress_poor;
        CompressedTier {
            pool_bytes: pool.bytes(),
            pool_limit_bytes: pool.limit(),
            metadata_bytes: self.metadata_bytes(),
            live_bytes: pool.live_bytes(),
            pages: pool.stored_pages(),
            density: share(pool.stored_pages() * PAGE_SIZE as u64, pool.bytes()),
            bypassed: !self.balancer.compresses(),
            hits,
            hits_per_compression: share(hits, compressed),
            stored_pages: counts.stored_pages,
            loaded_pages: c.promoted,
            evicted: counts.evicted,
            pgpromote_success: c.promoted,
            reject_compress_poor: c.reject_compress_poor,
            reject_by_file: c.reject_by_file,
            reject_alloc_fail: counts.reject_alloc_fail,
            store_raced: c.store_raced,
            duplicate_entry: c.duplicate_entry,
            moved_bytes: counts.moved_bytes,
            compress_ns: c.compress_ns / c.compressed.max(1),
            miss_ns: self.balancer.costs.read,
        }
    }
}

/// A moving mean: the last value, `seen`, is one part in `PARTS` of it.
fn learn<const PARTS: u64>(known: &mut u64, seen: u64) {
    *known += seen / (PARTS - 1);
    *known -= *known / PARTS;
}

#[cfg(test)]
pub(crate) mod tests;
