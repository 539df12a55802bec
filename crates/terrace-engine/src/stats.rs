//! The data of `terrace stat`.

use serde::Serialize;

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
    /// Memory that the machine can give, if that is less than the limit.
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
    /// Pages that the daemon decompressed to bring them back to DRAM.
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
    /// Stores of pages that were in the pool already (zcache replaced them; here the present content stays).
    /// 0 while one thread compresses: a page is in DRAM or below, and its entry is checked again before it is
    /// stored.
    pub duplicates: u64,
    /// Bytes moved by compaction.
    pub moved_bytes: u64,
    /// Mean processor time to compress a page and put it away, ns.
    pub compress_ns: u64,
    /// Assumed cost of a device read, ns.
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
