//! The engine's shared context: configuration, clock, I/O, locked state, wake-ups, counters.
//!
//! Services register closures that return their memory ([`Context::count_memory`]) and the clients' read
//! counters ([`Context::set_read_totals`]).

pub(crate) mod commit_speeds;
pub(crate) mod prefetch_queue;
pub(crate) mod read_marks;
pub(crate) mod schedule_events;

use crate::access_log::{AccessLog, Kind};
use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::file::serve::Serve;
use crate::file::source_root::SourceRoot;
use crate::nodes::Nodes;
use crate::rings::ReadTotals;
use crate::segment::SegmentHandles;
use crate::state::State;
use commit_speeds::Speeds;
use prefetch_queue::Jobs;
use read_marks::Marks;
use schedule_events::Followed;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use terrace_io::Io;
use terrace_shm::DeviceSlot;
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::layout::CHUNK_FRAMES;
use terrace_sync::{Condvar, Mutex, RwLock, Wakeup};
use terrace_tier::Devices;

/// Counters of the mount path, writeback, page fills and prefetch. Relaxed: only statistics read them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) hit_pages: AtomicU64,
    pub(crate) miss_pages: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) written_back: AtomicU64,
    pub(crate) writeback_errors: AtomicU64,
    pub(crate) fills_taken: AtomicU64,
    pub(crate) fills_refused: AtomicU64,
    pub(crate) fills_read: AtomicU64,
    pub(crate) throttled: AtomicU64,
    /// Reads of compressed pages through the mount; rings count the clients' reads.
    pub(crate) compressed_hits: AtomicU64,
    /// Pages read from each target through the mount; rings count the clients' reads.
    pub(crate) device_hits: [AtomicU64; TARGETS_MAX],
    /// Pages fetched, and clean pages dropped, by the prefetch workers.
    pub(crate) prefetched: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

/// This closure returns one service's memory in bytes. The engine calls it often, under the state lock.
struct MemoryUser(Box<dyn Fn() -> u64 + Send + Sync>);

impl std::fmt::Debug for MemoryUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryUser({})", (self.0)())
    }
}

type ReadTotalsOf = Box<dyn Fn() -> ReadTotals + Send + Sync>;

/// Calls of the paths into the burst buffer, a layer above them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BurstHook {
    pub(crate) note_write: fn(&Context, &Object),
    /// Destages a file. The caller holds the writeback lock.
    pub destage_locked: fn(&Context, &Object) -> io::Result<()>,
    /// A file is gone.
    pub note_deleted: fn(&Context, &Object),
}

pub(crate) struct Context {
    pub(crate) config: EngineConfig,
    /// The limit on all memory, bytes.
    pub(crate) memory: AtomicU64,
    /// Memory that the machine can give now, bytes; `u64::MAX`: no bound below the limit.
    pub(crate) ceiling: AtomicU64,
    /// Programs wait for memory: the pool frees clean frames, used ones too.
    pub fast_shrink: AtomicBool,
    pub(crate) chunks: AtomicU64,
    /// Maximum memory of all registered users, bytes, which leaves the pool its minimum.
    pub(crate) users_max: AtomicU64,
    pub(crate) handles: Arc<SegmentHandles>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) state: Mutex<State>,
    /// Pages that are dirty, under writeback or unstable.
    pub(crate) unwritten: Arc<AtomicU64>,
    pub(crate) fault_done: Condvar,
    /// Signalled when there are fewer dirty pages, or writeback has failed.
    pub(crate) dirty_done: Condvar,
    pub(crate) reclaim_wakeup: Wakeup,
    pub(crate) writeback_wakeup: Wakeup,
    /// Time at which a target last answered an fsync (ns, engine clock); 0: never.
    pub last_target_fsync_ns: AtomicU64,
    pub(crate) speeds: Speeds,
    pub(crate) burst: BurstHook,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) devices: Devices,
    pub(crate) jobs: Jobs,
    pub(crate) marks: Marks,
    pub(crate) followed: Followed,
    pub(crate) clock: Arc<dyn Clock>,
    /// Time of the start (engine clock), ns.
    started_ns: u64,
    pub(crate) counters: Counters,
    pub(crate) access_log: AccessLog,
    pub(crate) source_root: OnceLock<SourceRoot>,
    /// Without a mount: starts serving a file at a client's request.
    pub(crate) server: OnceLock<Arc<dyn Serve>>,
    pub(crate) stopping: AtomicBool,
    memory_users: RwLock<Vec<MemoryUser>>,
    read_totals: OnceLock<ReadTotalsOf>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("config", &self.config)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn may_have_undestaged(&self) -> bool {
        self.config.durable_in_tier || self.devices.may_have_undestaged()
    }
    pub(crate) fn new(
        config: EngineConfig,
        memory_bytes: u64,
        handles: Arc<SegmentHandles>,
        state: State,
        (clock, io): (Arc<dyn Clock>, Arc<dyn Io>),
        devices: Devices,
        burst: BurstHook,
    ) -> Context {
        Context {
            config,
            memory: AtomicU64::new(memory_bytes),
            ceiling: AtomicU64::new(u64::MAX),
            fast_shrink: AtomicBool::new(false),
            chunks: AtomicU64::new(0),
            users_max: AtomicU64::new(0),
            handles,
            nodes: state.nodes.clone(),
            unwritten: state.dirty.unwritten.clone(),
            state: Mutex::new(state),
            fault_done: Condvar::new(),
            dirty_done: Condvar::new(),
            reclaim_wakeup: Wakeup::default(),
            writeback_wakeup: Wakeup::default(),
            speeds: Speeds::default(),
            burst,
            last_target_fsync_ns: AtomicU64::new(0),
            jobs: Jobs::default(),
            marks: Marks::default(),
            followed: Followed::default(),
            io,
            devices,
            started_ns: clock.now_ns(),
            clock,
            counters: Counters::default(),
            access_log: AccessLog::default(),
            source_root: OnceLock::new(),
            server: OnceLock::new(),
            stopping: AtomicBool::new(false),
            memory_users: RwLock::default(),
            read_totals: OnceLock::new(),
        }
    }

    /// The policy's clock. It starts with the engine: the policy's oldest pages are no older.
    pub(crate) fn uptime_ms(&self) -> u64 {
        self.clock.now_ns().saturating_sub(self.started_ns) / 1_000_000
    }
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// NUMA node of the program's thread, if frames are placed by node.
    pub(crate) fn near_caller(&self) -> Option<usize> {
        self.nodes.of_thread(crate::access_log::caller())
    }

    /// Memory in force: the limit, or the ceiling if that is lower.
    pub(crate) fn budget(&self) -> u64 {
        self.memory.load(Ordering::Relaxed).min(self.ceiling.load(Ordering::Relaxed))
    }

    /// Counts `bytes()` against the memory limit from now on.
    pub(crate) fn count_memory(&self, bytes: impl Fn() -> u64 + Send + Sync + 'static) {
        self.memory_users.write().push(MemoryUser(Box::new(bytes)));
    }
    /// Memory of all registered users, bytes.
    pub(crate) fn counted_memory(&self) -> u64 {
        self.memory_users.read().iter().map(|user| (user.0)()).sum()
    }

    /// Registers the source of the clients' read counters.
    pub(crate) fn set_read_totals(&self, totals: impl Fn() -> ReadTotals + Send + Sync + 'static) {
        let _ = self.read_totals.set(Box::new(totals));
    }
    pub(crate) fn read_totals(&self) -> ReadTotals {
        self.read_totals.get().map_or_else(ReadTotals::default, |totals| totals())
    }
    /// Reads answered by compressed pages, with the clients' totals added.
    pub(crate) fn compressed_hits(&self, clients: &ReadTotals) -> u64 {
        self.counters.compressed_hits.load(Ordering::Relaxed) + clients.compressed_hits
    }

    /// Pages read from each target, with the clients' totals added.
    pub(crate) fn device_hits(&self, clients: &ReadTotals) -> [u64; TARGETS_MAX] {
        let ours = |number: usize| self.counters.device_hits[number].load(Ordering::Relaxed);
        std::array::from_fn(|number| ours(number).wrapping_add(clients.device_hits[number]))
    }
    pub(crate) fn count_device_hit(&self, slot: DeviceSlot) {
        if let Some(number) = self.devices.number_of(slot) {
            self.counters.device_hits[number].fetch_add(1, Ordering::Relaxed);
        }
    }
    pub(crate) fn has_devices(&self) -> bool {
        !self.devices.is_empty()
    }
    pub(crate) fn wake_devices(&self) {
        self.devices.all().iter().for_each(|device| device.wake());
    }

    pub(crate) fn pool_frames(&self) -> u32 {
        (self.chunks.load(Ordering::Relaxed) as u32) * CHUNK_FRAMES as u32
    }
    /// Free frames below which reclaim is woken.
    pub(crate) fn free_low(&self) -> u32 {
        (self.pool_frames() / 512).clamp(32, 4096)
    }
    pub(crate) fn wake_reclaim_if_low(&self, state: &State) {
        if state.frames.free_count() < self.free_low() {
            self.reclaim_wakeup.signal();
        }
    }

    pub(crate) fn lookup_object(&self, id: ObjectId) -> Option<ObjectRef> {
        self.state.lock().objects.get(&id).cloned()
    }
    pub(crate) fn objects(&self) -> Vec<ObjectRef> {
        self.state.lock().objects.values().cloned().collect()
    }
    pub(crate) fn unwritten_objects(&self) -> Vec<ObjectRef> {
        self.state.lock().unwritten_objects()
    }

    /// Notes an access through the mount. Only called while [`Context::is_traced`].
    #[cold]
    pub(crate) fn note_access(&self, o: &Object, offset: u64, bytes: usize, kind: Kind) {
        self.access_log.note(&*self.clock, o, offset, bytes, kind);
    }
    /// True while a recording runs.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.handles.segment.header().tracing.load(Ordering::Relaxed) != 0
    }
}
