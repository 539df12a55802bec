//! Statistics: what `terrace stat --json` shows, each counter with its unit.
//!
//! Counters begin at 0 when terraced starts, and anew when it is restarted. They keep the kernel's stems (pgscan, pgsteal,
//! workingset_refault). What an older daemon does not tell is 0, so that a command of a newer version still reads it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::instance::Kind;
use crate::mrc::Mrc;

/// The format's name and version: what carries another does not parse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.stat.v1")]
    V1,
}

/// What `terrace stat --json` shows of one instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatReport {
    /// What its cache says.
    #[serde(flatten)]
    pub cache: Stats,
    /// Which instance this is.
    pub instance: Instance,
    /// What other sizes of memory would do; there with `--mrc` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mrc: Option<Mrc>,
}

/// Which instance statistics belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// The directory that is cached.
    pub src: PathBuf,
    /// Where it is served.
    pub mnt: PathBuf,
    /// A mount for everybody, or the private one of a command.
    pub kind: Kind,
    /// Process id of the keeper.
    pub pid: i32,
    /// Process id of the daemon.
    pub terraced: i32,
    /// Times that the daemon was restarted.
    pub restarts: u32,
    /// How the daemon's predecessor died; none: there was none.
    #[serde(default)]
    pub last_death: Option<String>,
    /// Version of terrace that serves.
    pub version: String,
    /// Whether the keeper lives: without it, a crash of the daemon ends the mount.
    pub keeper_lives: bool,
}

/// The cache's counters and sizes at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The format.
    pub schema: Schema,
    /// Name of the eviction policy.
    pub policy: String,
    /// Memory.
    pub memory: Memory,
    /// Reads by the preload library, without a system call.
    pub fast_door: FastDoor,
    /// Requests through the mount.
    pub main_door: MainDoor,
    /// Eviction.
    pub reclaim: Reclaim,
    /// The compressed tier; none: it is turned off.
    pub compressed: Option<CompressedTier>,
    /// Dirty pages and their way to the source.
    pub writeback: Writeback,
    /// Files that something is kept of.
    pub objects: usize,
    /// The policy's queues and generations.
    pub generations: Vec<GenerationRow>,
}

/// Memory of the cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Limit on all memory (`--memory`, `terrace resize`), bytes.
    pub limit_bytes: u64,
    /// What the machine lets it have for now, bytes; none: no less than the limit.
    pub ceiling_bytes: Option<u64>,
    /// In use, of the limit: frames, metadata, tables and compressed tier, bytes.
    pub used_bytes: u64,
    /// Frames that have memory, free ones too, bytes.
    pub frames_bytes: u64,
    /// Frames that may have memory, bytes. Less than `frames_bytes` while the pool shrinks.
    pub frames_max_bytes: u64,
    /// Index, and what policy and state keep about frames, bytes.
    pub metadata_bytes: u64,
    /// `metadata_bytes` by resident page, bytes; 0 without pages.
    pub metadata_bytes_per_page: f64,
    /// Tables of files, inodes, handles, clients, a recording and the sample, bytes.
    pub tables_bytes: u64,
    /// Resident pages, compressed ones not among them.
    pub pages: u64,
    /// Frames that have memory and hold no page.
    pub free_frames: u64,
    /// Of `frames_bytes`, those in huge pages, bytes.
    pub huge_bytes: u64,
    /// Of `metadata_bytes`, the index, bytes.
    pub index_bytes: u64,
}

/// Reads by the preload library. Clients count them without a lock: some are lost under load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FastDoor {
    /// Processes that are connected now.
    pub clients: usize,
    /// Pages served from the cache, compressed ones among them.
    pub hits: u64,
    /// Bytes served from the cache.
    pub hit_bytes: u64,
    /// Pages that clients read from the source themselves.
    pub misses: u64,
    /// Bytes that they so read.
    pub miss_bytes: u64,
    /// Reads left to the main door.
    pub fallbacks: u64,
    /// Optimistic copies that were made again, because the page changed meanwhile.
    pub retries: u64,
    /// Pages that clients offered to the cache after a miss.
    pub donations: u64,
    /// Pages not offered, because no slot of the ring was free.
    pub donations_dropped: u64,
    /// Offered pages that were taken as they are.
    pub donations_taken: u64,
    /// Offered pages that were refused: changed meanwhile, or of a client that may not write the file.
    pub donations_refused: u64,
    /// Offered pages that the daemon read from the source again.
    pub donations_read: u64,
}

/// Requests through the mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MainDoor {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Pages of them served from the cache.
    pub hits: u64,
    /// Pages of them read from the source.
    pub misses: u64,
    /// Of the misses, pages that were not kept: read for the first time.
    pub passed_on: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Eviction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reclaim {
    /// Pages looked at for eviction.
    pub pgscan: u64,
    /// Pages evicted.
    pub pgsteal: u64,
    /// Pages that came back after their eviction, or after they were passed on.
    pub workingset_refault: u64,
    /// Pages put into the cache.
    pub inserted: u64,
}

/// The compressed tier. Counters carry zcache's names where it has them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompressedTier {
    /// Memory of the pool, bytes.
    pub pool_bytes: u64,
    /// Memory that the pool may have now, bytes.
    pub pool_limit_bytes: u64,
    /// Memory of its books and codecs, bytes.
    pub books_bytes: u64,
    /// Compressed pages with their heads, bytes.
    pub live_bytes: u64,
    /// Pages in the pool.
    pub pages: u64,
    /// Bytes of those pages as they are read, for each byte of the pool.
    pub density: f64,
    /// Whether it is bypassed for want of hits.
    pub bypassed: bool,
    /// Reads of pages that compressed pages have answered.
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

/// Dirty pages and their way to the source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Writeback {
    /// Dirty pages.
    pub dirty: u64,
    /// The same in bytes.
    pub dirty_bytes: u64,
    /// Pages being written now.
    pub writeback: u64,
    /// Pages written into the kernel's page cache, not yet known to be on the device.
    pub unstable: u64,
    /// Dirty pages above which writers wait.
    pub dirty_limit: u64,
    /// Pages written back.
    pub written_back: u64,
    /// Writes to the source that failed.
    pub errors: u64,
    /// Times that a writer had to wait.
    pub throttled: u64,
    /// errno of a writeback that keeps failing; 0: none does.
    pub failing_errno: i32,
}

/// One queue or generation of the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerationRow {
    /// `probation`, `gen 7`, ...
    pub label: String,
    /// Number of the generation; 0 for a queue.
    pub seq: u64,
    /// Since it was opened, ms; of a queue: since the policy began.
    pub age_ms: u64,
    /// Pages in it.
    pub pages: usize,
}
