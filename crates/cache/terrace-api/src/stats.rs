//! Statistics of an instance: the data of `terrace stat --json`, each counter with its unit.
//!
//! Counters begin at 0 when terraced starts or is restarted. Names keep the kernel's stems (pgscan, pgsteal,
//! workingset_refault). A counter that an older daemon does not have is read as 0, so that a newer command
//! works with it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::instance::Kind;
use crate::mrc::Mrc;
use crate::tiers::TierRow;

/// Name and version of the format. JSON with another value is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.stat.v2")]
    V2,
}

/// The output of `terrace stat --json` for one instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatReport {
    /// Counters and sizes of its cache.
    #[serde(flatten)]
    pub cache: Stats,
    /// The instance.
    pub instance: Instance,
    /// Keys and clients of `terrace serve kv`; none for a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KeyValue>,
    /// Estimates for other sizes of memory; only with `--mrc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mrc: Option<Mrc>,
}

/// The instance that statistics belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// The directory that is cached.
    #[serde(with = "crate::path")]
    pub src: PathBuf,
    /// Directory where the source is served.
    #[serde(with = "crate::path")]
    pub mnt: PathBuf,
    /// A mount for all programs, the private mount of one command, or a server of keys.
    pub kind: Kind,
    /// Process id of the supervisor.
    pub pid: i32,
    /// Process id of the daemon.
    pub terraced: i32,
    /// Restarts of the daemon.
    pub restarts: u32,
    /// Death of the previous daemon; none: this is the first.
    #[serde(default)]
    pub last_death: Option<String>,
    /// Address of metrics over HTTP; absent: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Version of the serving terrace.
    pub version: String,
    /// Is the supervisor alive? Without it, a crash of the daemon ends the mount.
    pub supervisor_lives: bool,
}

/// Counters and sizes of the cache at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The format.
    pub schema: Schema,
    /// Name of the eviction policy.
    pub policy: String,
    /// Memory.
    pub memory: Memory,
    /// Reads on the preload path, without a system call.
    pub preload: PreloadPath,
    /// Pages fetched ahead by the prefetch workers.
    #[serde(default)]
    pub prefetch: Prefetch,
    /// Requests through the mount.
    pub fuse: MountPath,
    /// Files served by leases, where there is no mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<Leases>,
    /// Files served while programs announce their writes, without a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<Announced>,
    /// Eviction.
    pub reclaim: Reclaim,
    /// The compressed tier; none: it is turned off.
    pub compressed: Option<CompressedTier>,
    /// All tiers, from DRAM down; none from an older daemon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierRow>,
    /// Dirty pages and their way to the source.
    pub writeback: Writeback,
    /// Files with cached content or state.
    pub objects: usize,
    /// The policy's queues and generations.
    pub generations: Vec<GenerationRow>,
}

/// Files served without a mount, while no program has them open for writing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leases {
    /// Without a mount: files with a lease, which clients read from memory.
    pub held: u64,
    /// Files that a program has, or had a moment ago, open for writing: the kernel alone serves them.
    pub written: u64,
    /// Leases given back because a program opened the file for writing.
    pub broken: u64,
    /// Times that the kernel gave no lease on a file: another user's, mostly.
    pub refused: u64,
}

/// Files served without a mount, while programs of the run write them and announce each write.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Announced {
    /// Files that clients read from memory.
    pub served: u64,
    /// Files that the kernel serves: a program has changed one without an announcement, or may do so.
    pub left: u64,
    /// Changes without an announcement so far.
    pub unannounced: u64,
    /// Opens for writing so far by programs that announce no writes. Only root sees them.
    pub strangers: u64,
}

/// A server of keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    /// Keys of all databases.
    pub keys: u64,
    /// Clients that are connected now.
    pub clients: usize,
    /// Commands, including refused ones.
    pub commands: u64,
    /// Commands that were refused.
    pub errors: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not find their key.
    pub misses: u64,
    /// Keys that expired.
    pub expired: u64,
    /// Bytes from clients.
    pub input_bytes: u64,
    /// Bytes to clients.
    pub output_bytes: u64,
    /// Memory of requests and replies under way, bytes; a part of `memory.tables_bytes`.
    pub buffers_bytes: u64,
    /// Memory of decoded large hashes and sorted sets, and of the list of expiring keys, bytes; a part of
    /// `memory.tables_bytes`.
    pub decoded_bytes: u64,
    /// Error of the last sync, if it failed; with `--sync 1s`, writes are refused until a sync succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_failure: Option<String>,
}

/// Memory of the cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Limit on all memory (`--memory`, `terrace resize`), bytes; with `auto`, memory of the machine.
    pub limit_bytes: u64,
    /// Memory that the cache may have now, bytes; none: no less than the limit.
    pub ceiling_bytes: Option<u64>,
    /// Reason of the present size; none from an older daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizing: Option<Sizing>,
    /// Memory in use: frames, metadata, tables and compressed tier, bytes.
    pub used_bytes: u64,
    /// Memory of frames, free ones included, bytes.
    pub frames_bytes: u64,
    /// Limit on `frames_bytes`, bytes. It is exceeded while the pool shrinks.
    pub frames_max_bytes: u64,
    /// Index, and tables of policy and state about frames, bytes.
    pub metadata_bytes: u64,
    /// `metadata_bytes` per resident page, bytes; 0 without pages.
    pub metadata_bytes_per_page: f64,
    /// Tables of files, inodes, handles, clients, a recording and the sample, bytes.
    pub tables_bytes: u64,
    /// Resident pages, without compressed ones.
    pub pages: u64,
    /// Frames with memory but without a page.
    pub free_frames: u64,
    /// Part of `frames_bytes` that is in huge pages, bytes.
    pub huge_bytes: u64,
    /// Part of `metadata_bytes` that the index takes, bytes.
    pub index_bytes: u64,
}

/// How the size of the cache is chosen, and its present bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sizing {
    /// `auto` or `fixed`.
    pub mode: Mode,
    /// Memory that the cache may have now, bytes.
    pub target_bytes: u64,
    /// The bound on its size: `limit` (no more is permitted), `room` (programs or the reserve have the
    /// rest), `weighed` (more would cost programs more than it would save), `gave_way` (programs had lost
    /// more than it saved), `kill` (the kernel has killed terraced for lack of memory).
    pub bound: Bound,
    /// The file of the limit with the least room; none if no such limit bounds the size.
    #[serde(default, with = "crate::path::optional")]
    pub bound_by: Option<PathBuf>,
    /// Memory kept free for sudden allocations of programs, bytes.
    pub reserve_bytes: u64,
    /// Memory given back to programs so far, bytes.
    pub yielded_bytes: u64,
    /// Waiting time that the last 2 MiB of the cache save, ns a second.
    pub chunk_saves_ns: u64,
    /// Waiting time that 2 MiB more would save programs at their limit, ns a second; 0: they are not at a
    /// limit, or lose little.
    pub chunk_costs_ns: u64,
}

/// How the size is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By the user, as a limit.
    #[default]
    Fixed,
    /// By terrace.
    Auto,
}

/// The bound on the size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Programs or the reserve have the rest.
    Room,
    /// Programs would lose more than it would save.
    Weighed,
    /// Programs had lost more than the cache saved.
    GaveWay,
    /// A recent kill by the kernel.
    Kill,
    /// The limit itself. Unknown bounds are read as this one.
    #[default]
    #[serde(other)]
    Limit,
}

/// Reads on the preload path. Clients count them without a lock: some counts are lost under load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PreloadPath {
    /// Connected processes.
    pub clients: usize,
    /// Pages served from the cache, compressed pages included.
    pub hits: u64,
    /// Bytes served from the cache.
    pub hit_bytes: u64,
    /// Pages that clients read from the source themselves.
    pub misses: u64,
    /// Bytes of those reads.
    pub miss_bytes: u64,
    /// Reads passed to the mount path.
    pub fallbacks: u64,
    /// Optimistic copies that were repeated because the page changed meanwhile.
    pub retries: u64,
    /// Pages that clients offered to the cache after a miss.
    pub fills: u64,
    /// Pages not offered, because no slot of the ring was free.
    pub fills_dropped: u64,
    /// Offered pages that were inserted.
    pub fills_taken: u64,
    /// Offered pages that were refused: the page had changed, or the client may not write the file.
    pub fills_refused: u64,
    /// Offered pages that the daemon read from the source again instead.
    pub fills_read: u64,
}

/// Pages fetched before a program needed them, without read-ahead after misses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prefetch {
    /// Pages fetched by hints, strides and a schedule.
    pub fetched: u64,
    /// Clean pages dropped because a program announced that it no longer needs them.
    pub dropped: u64,
    /// Requests that found the queue full.
    pub refused: u64,
    /// The schedule in use (`terrace run --prefetch`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
}

/// A recorded schedule, and its results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    /// `following`; `done`: all pages were fetched, and used or left behind; `useless`: less than half of the
    /// fetched pages were used, and the prefetch has stopped.
    pub state: ScheduleState,
    /// Pages fetched by it.
    pub fetched: u64,
    /// Fetched pages that a program used.
    pub used: u64,
    /// Fetched pages that the program did not use.
    pub unused: u64,
    /// Files of the schedule that are deleted, or have changed since the recording.
    pub files_left_out: u64,
}

/// State of a schedule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleState {
    /// In use.
    #[default]
    Following,
    /// Completed.
    Done,
    /// Stopped: too few of the fetched pages were used.
    Useless,
}

/// Requests through the mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountPath {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Pages of those reads served from the cache.
    pub hits: u64,
    /// Pages of those reads that came from the source.
    pub misses: u64,
    /// Part of the misses that was not admitted: pages read for the first time.
    pub not_admitted: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Eviction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reclaim {
    /// Pages scanned for eviction.
    pub pgscan: u64,
    /// Pages evicted.
    pub pgsteal: u64,
    /// Faults on pages that were evicted or not admitted before.
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
    /// Memory of its metadata and codecs, bytes.
    pub metadata_bytes: u64,
    /// Compressed pages, including their headers, bytes.
    pub live_bytes: u64,
    /// Pages in the pool.
    pub pages: u64,
    /// Uncompressed bytes for each byte of the pool.
    pub density: f64,
    /// Is the tier bypassed for lack of hits?
    pub bypassed: bool,
    /// Page reads served from compressed pages.
    pub hits: u64,
    /// `hits` per compressed page.
    pub hits_per_compression: f64,
    /// Pages put into the pool.
    pub stored_pages: u64,
    /// Pages that the daemon decompressed and promoted to DRAM.
    pub loaded_pages: u64,
    /// Pages evicted to make room.
    pub evicted: u64,
    /// Pages promoted to DRAM (the kernel's stem).
    pub pgpromote_success: u64,
    /// Pages refused because the compressed page was too long.
    pub reject_compress_poor: u64,
    /// Pages not tried because earlier pages of their file were refused.
    pub reject_by_file: u64,
    /// Pages refused because the pool had no room.
    pub reject_alloc_fail: u64,
    /// Pages that changed during the compression.
    pub store_raced: u64,
    /// Stores of pages that were already in the pool (zcache replaced them; here the present content stays).
    /// 0 while one thread compresses: a page is in DRAM or below, and its entry is checked again before it is
    /// stored.
    pub duplicate_entry: u64,
    /// Bytes moved by compaction.
    pub moved_bytes: u64,
    /// Mean processor time to compress and store a page, ns.
    pub compress_ns: u64,
    /// Assumed cost of a device read, ns.
    pub miss_ns: u64,
}

/// Dirty pages and their way to the source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Writeback {
    /// Dirty pages.
    pub dirty: u64,
    /// Dirty pages, bytes.
    pub dirty_bytes: u64,
    /// Of these, bytes that are durable on a tier.
    pub owed_bytes: u64,
    /// Bytes of earlier runs that only tiers have, kept because their files have changed since.
    pub conflict_bytes: u64,
    /// Pages under writeback.
    pub writeback: u64,
    /// Pages written to the kernel's page cache, perhaps not yet on the device.
    pub unstable: u64,
    /// Dirty pages above which writers wait.
    pub dirty_limit: u64,
    /// Pages written back.
    pub written_back: u64,
    /// Writes to the source that failed.
    pub errors: u64,
    /// Times that a writer had to wait.
    pub throttled: u64,
    /// errno of a writeback that keeps failing; 0: none.
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
    /// Age of the generation, ms; for a queue, of the policy.
    pub age_ms: u64,
    /// Pages in it.
    pub pages: usize,
}
