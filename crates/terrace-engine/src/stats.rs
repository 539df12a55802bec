//! What `terrace stat` shows.

use crate::engine::Engine;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_shm::PAGE_SIZE;

/// A snapshot. Field names keep the kernel's stems; bytes are bytes, all else are pages or counts since the start.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Stats {
    pub schema: &'static str,
    pub policy: String,
    pub memory: Memory,
    pub fast_door: FastDoor,
    pub main_door: MainDoor,
    pub reclaim: Reclaim,
    /// The compressed tier; none if it is turned off.
    pub compressed: Option<CompressedTier>,
    pub writeback: Writeback,
    pub objects: usize,
    pub generations: Vec<GenerationRow>,
}

#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Memory {
    pub limit_bytes: u64,
    /// What the machine lets it have, where that is less than the limit.
    pub ceiling_bytes: Option<u64>,
    pub used_bytes: u64,
    pub frames_bytes: u64,
    pub frames_max_bytes: u64,
    pub metadata_bytes: u64,
    pub metadata_bytes_per_page: f64,
    pub tables_bytes: u64,
    pub pages: u64,
    pub free_frames: u64,
    pub huge_bytes: u64,
    pub index_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct FastDoor {
    pub clients: usize,
    pub hits: u64,
    pub hit_bytes: u64,
    pub misses: u64,
    pub miss_bytes: u64,
    pub fallbacks: u64,
    pub retries: u64,
    pub donations: u64,
    pub donations_dropped: u64,
    pub donations_taken: u64,
    pub donations_refused: u64,
    pub donations_read: u64,
}

#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct MainDoor {
    pub reads: u64,
    pub read_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    pub passed_on: u64,
    pub writes: u64,
    pub write_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Reclaim {
    pub pgscan: u64,
    pub pgsteal: u64,
    pub workingset_refault: u64,
    pub inserted: u64,
}

/// Counters carry zcache's names where it has them.
#[derive(Debug, Clone, Serialize)]
pub struct CompressedTier {
    /// Memory of the pool, bytes, and how much it may have now.
    pub pool_bytes: u64,
    /// See `pool_bytes`.
    pub pool_limit_bytes: u64,
    /// Memory of its books and codecs, bytes.
    pub books_bytes: u64,
    /// Bytes of compressed pages, with their heads.
    pub live_bytes: u64,
    /// Pages in the pool.
    pub pages: u64,
    /// Bytes of those pages as they are read, for each byte of the pool.
    pub density: f64,
    /// Whether it is bypassed for want of hits.
    pub bypassed: bool,
    /// Reads that compressed pages have answered.
    pub hits: u64,
    /// Of these, by each page that was compressed.
    pub hits_per_compression: f64,
    /// Pages put into the pool.
    pub stored_pages: u64,
    /// Pages that the daemon decompressed under its lock, most of them to bring them back to DRAM.
    pub loaded_pages: u64,
    /// Pages given up to make room.
    pub evicted_pages: u64,
    /// Pages brought back to DRAM (the kernel's stem).
    pub pgpromote: u64,
    /// Pages refused because the result was too long.
    pub reject_compress_poor: u64,
    /// Pages not tried because those of their file before were refused.
    pub reject_by_file: u64,
    /// Pages for which the pool had no room.
    pub alloc_failures: u64,
    /// Pages that were used otherwise while they were compressed.
    pub changed: u64,
    /// Pages that were in the pool already when they came (zcache: replaced; here what is there stays). 0 while one thread compresses: a
    /// page is in DRAM or below, and what is compressed is looked at again before it is stored.
    pub duplicates: u64,
    /// Bytes moved by compaction.
    pub moved_bytes: u64,
    /// Mean processor time to compress a page and put it away, ns.
    pub compress_ns: u64,
    /// What a read of the device is taken to cost, ns.
    pub miss_ns: u64,
}

#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct Writeback {
    pub dirty: u64,
    pub dirty_bytes: u64,
    pub writeback: u64,
    pub unstable: u64,
    pub dirty_limit: u64,
    pub written_back: u64,
    pub errors: u64,
    pub throttled: u64,
    pub failing_errno: i32,
}

#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct GenerationRow {
    pub label: String,
    pub seq: u64,
    pub age_ms: u64,
    pub pages: usize,
}

impl Engine {
    /// A snapshot of the counters and sizes.
    pub fn stats(&self) -> Stats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let now_ms = self.uptime_ms();
        let fast = self.clients.totals();
        let tier_hits = self.tier_hits(&fast);
        let core = self.core.lock();
        let tier_bytes = core.tier.as_ref().map_or(0, |tier| tier.pool.bytes() + tier.books_bytes());
        let (books, tables) = (core.metadata(), self.tables_bytes(&core));
        let metadata = books.total();
        let pages = u64::from(core.frames.in_use());
        let frames_bytes = u64::from(core.frames.populated()) * PAGE_SIZE as u64;
        let (d, c, dirt) = (&self.counts, core.counts, core.dirt.totals);
        Stats {
            schema: "terrace.stat.v1",
            policy: core.policy.name().to_owned(),
            memory: Memory {
                limit_bytes: get(&self.memory),
                ceiling_bytes: Some(get(&self.ceiling)).filter(|&ceiling| ceiling != u64::MAX),
                used_bytes: frames_bytes + metadata + tables + tier_bytes,
                frames_bytes,
                frames_max_bytes: u64::from(self.pool_frames()) * PAGE_SIZE as u64,
                metadata_bytes: metadata,
                metadata_bytes_per_page: if pages > 0 { metadata as f64 / pages as f64 } else { 0.0 },
                tables_bytes: tables,
                pages,
                free_frames: u64::from(core.frames.idle()),
                huge_bytes: (core.huge_chunks.len() * terrace_shm::layout::HUGE) as u64,
                index_bytes: books.index.total() as u64,
            },
            fast_door: FastDoor {
                clients: self.clients.count(),
                hits: fast.hits,
                hit_bytes: fast.hit_bytes,
                misses: fast.misses,
                miss_bytes: fast.miss_bytes,
                fallbacks: fast.fallbacks,
                donations: fast.donations,
                donations_dropped: fast.donations_dropped,
                retries: fast.retries,
                donations_taken: get(&d.donations_taken),
                donations_refused: get(&d.donations_refused),
                donations_read: get(&d.donations_read),
            },
            main_door: MainDoor {
                reads: get(&d.reads),
                read_bytes: get(&d.read_bytes),
                hits: get(&d.hit_pages),
                misses: get(&d.miss_pages),
                passed_on: c.passed_on,
                writes: get(&d.writes),
                write_bytes: get(&d.write_bytes),
            },
            reclaim: Reclaim {
                pgscan: c.pgscan,
                pgsteal: c.pgsteal,
                workingset_refault: c.refaults,
                inserted: c.inserted,
            },
            compressed: core.tier.as_ref().map(|tier| tier.stats(tier_hits)),
            writeback: Writeback {
                dirty: dirt.dirty,
                dirty_bytes: dirt.dirty * PAGE_SIZE as u64,
                writeback: dirt.writeback,
                unstable: dirt.unstable,
                dirty_limit: self.dirty_limit(),
                written_back: get(&d.written_back),
                errors: get(&d.writeback_errors),
                throttled: get(&d.throttled),
                failing_errno: core.dirt.failing_errno(),
            },
            objects: core.objects.len(),
            generations: core
                .policy
                .generations(now_ms)
                .into_iter()
                .map(|g| GenerationRow { label: g.label, seq: g.seq, age_ms: g.age_ms, pages: g.pages })
                .collect(),
        }
    }
}
