//! The engine: one instance of the cache, shared by all its threads.

use crate::clock::Clock;
use crate::config::{EngineConfig, MEMORY_MIN, RING_SLOTS_MAX};
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::file::source::SourceFile;
use crate::io::Io;
use crate::observe::lru::MinTtl;
use crate::observe::mrc::Estimate;
use crate::observe::trace::Tracing;
use crate::path::writeback::SourceRoot;
use crate::preload_server::Clients;
use crate::segment::SegmentHandles;
use crate::state::Core;
use crate::state::compressed::Compressed;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Through which door a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A mount open behind the kernel's page cache: terrace is the second level.
    MainCached,
    /// A mount open that bypasses the kernel's page cache (fast-door clients).
    MainDirect,
    /// The library.
    Library,
}

/// Counters of the main door. Relaxed: they are read for people.
#[derive(Debug, Default)]
pub(crate) struct DoorCounts {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub hit_pages: AtomicU64,
    pub miss_pages: AtomicU64,
    pub writes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub written_back: AtomicU64,
    pub writeback_errors: AtomicU64,
    pub donations_taken: AtomicU64,
    pub donations_refused: AtomicU64,
    pub donations_read: AtomicU64,
    pub throttled: AtomicU64,
    /// Reads of compressed pages; those of clients are counted in their rings.
    pub tier_hits: AtomicU64,
}

/// One instance of the cache.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) memory: AtomicU64,
    pub(crate) handles: Arc<SegmentHandles>,
    pub(crate) core: Mutex<Core>,
    /// A fault has ended.
    pub(crate) fault_done: Condvar,
    /// Dirty pages have become fewer, or writeback has failed.
    pub(crate) dirty_done: Condvar,
    pub(crate) reclaim_bell: Bell,
    pub(crate) writeback_bell: Bell,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) clock: Arc<dyn Clock>,
    /// What the clock said at the start (ns).
    started_ns: u64,
    pub(crate) counts: DoorCounts,
    pub(crate) clients: Clients,
    pub(crate) stopping: AtomicBool,
    pub(crate) source_root: OnceLock<SourceRoot>,
    pub(crate) chunks: AtomicU64,
    pub(crate) extra: OnceLock<Extra>,
    pub(crate) tracing: Tracing,
    pub(crate) sample_bell: Bell,
    pub(crate) estimate: Mutex<Estimate>,
    /// Memory of the sample, bytes.
    pub(crate) sample_bytes: AtomicU64,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

/// Memory that others keep for the user.
pub(crate) struct Extra(Box<dyn Fn() -> u64 + Send + Sync>);

impl Extra {
    pub(crate) fn bytes(&self) -> u64 {
        (self.0)()
    }
}

impl std::fmt::Debug for Extra {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extra({})", self.bytes())
    }
}

/// A condition that one thread sleeps on and others ring.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    cond: Condvar,
}

impl Bell {
    /// Wakes the sleeper; costs a load if it was rung already.
    pub(crate) fn ring(&self) {
        let mut rung = self.rung.lock();
        if !*rung {
            *rung = true;
            self.cond.notify_one();
        }
    }
    /// Sleeps until rung or until `timeout` has passed.
    pub(crate) fn wait(&self, timeout: std::time::Duration) {
        let mut rung = self.rung.lock();
        if !*rung {
            self.cond.wait_for(&mut rung, timeout);
        }
        *rung = false;
    }
}

impl Engine {
    /// Starts an engine over the memory files of `handles`, new ones or those that a dead engine has left. Over the latter
    /// the namespace must call [`Engine::reattach_object`] for each object and [`Engine::recover_pages`] before [`Engine::serve`].
    ///
    /// # Errors
    /// Unknown policy, memory under the minimum, too many ring slots.
    pub fn start(
        config: EngineConfig,
        handles: Arc<SegmentHandles>,
        clock: Arc<dyn Clock>,
        io: Arc<dyn Io>,
    ) -> io::Result<Arc<Engine>> {
        let invalid = |m: String| io::Error::new(io::ErrorKind::InvalidInput, m);
        if config.memory_bytes < MEMORY_MIN {
            return Err(invalid(format!(
                "memory of {} bytes is under the minimum of {MEMORY_MIN}",
                config.memory_bytes
            )));
        }
        if !(1..=RING_SLOTS_MAX).contains(&config.ring_slots) {
            return Err(invalid(format!("{} ring slots: not 1 to {RING_SLOTS_MAX}", config.ring_slots)));
        }
        let frames_max = handles.segment.geometry().frames_max as usize;
        let policy = terrace_policy::build(&config.policy, frames_max, frames_max).ok_or_else(|| {
            invalid(format!("no policy {:?}; there are: {}", config.policy, terrace_policy::NAMES.join(", ")))
        })?;
        let estimate = Estimate::new(&config.policy, 1, clock.now_ns());
        let min_ttl = MinTtl::new(config.min_ttl, clock.clone());
        // A predecessor may have been told another limit than the configuration's.
        let limit = &handles.segment.header().limit_bytes;
        let _ = limit.compare_exchange(0, config.memory_bytes, Ordering::Relaxed, Ordering::Relaxed);
        let mut core = Core::new(handles.clone(), policy, min_ttl);
        let has_ghost = terrace_policy::has_ghost(&config.policy);
        core.tier = Compressed::new(config.compressed, has_ghost, &handles)?;
        let engine = Arc::new(Engine {
            memory: AtomicU64::new(limit.load(Ordering::Relaxed)),
            core: Mutex::new(core),
            fault_done: Condvar::new(),
            dirty_done: Condvar::new(),
            reclaim_bell: Bell::default(),
            writeback_bell: Bell::default(),
            clients: Clients::new(config.clients_max, config.ring_slots),
            config,
            handles,
            io,
            started_ns: clock.now_ns(),
            clock,
            counts: DoorCounts::default(),
            stopping: AtomicBool::new(false),
            source_root: OnceLock::new(),
            chunks: AtomicU64::new(0),
            extra: OnceLock::new(),
            tracing: Tracing::default(),
            sample_bell: Bell::default(),
            estimate: Mutex::new(estimate),
            sample_bytes: AtomicU64::new(0),
            threads: Mutex::new(Vec::new()),
        });
        // A predecessor may have died over a recording.
        engine.handles.segment.header().tracing.store(0, Ordering::Release);
        engine.adjust_pool();
        engine.begin_estimate();
        Ok(engine)
    }

    /// Starts the background threads: reclaim, writeback, sample. From now on fast-door clients may donate.
    ///
    /// # Errors
    /// No more threads.
    pub fn serve(self: &Arc<Engine>) -> io::Result<()> {
        let mut threads = self.threads.lock();
        for (name, body) in [
            ("reclaim", Engine::reclaim_loop as fn(&Engine)),
            ("writeback", Engine::writeback_loop),
            ("sample", Engine::sample_loop),
        ] {
            let engine = self.clone();
            threads.push(std::thread::Builder::new().name(name.into()).spawn(move || body(&engine))?);
        }
        self.handles.segment.header().serving.store(1, Ordering::Release);
        // A predecessor may have left something to be written.
        self.writeback_bell.ring();
        Ok(())
    }

    /// Writes everything back and ends the background threads.
    ///
    /// # Errors
    /// The first writeback that failed; its pages are lost with the segment.
    pub fn shutdown(&self) -> io::Result<()> {
        self.handles.segment.header().serving.store(0, Ordering::Release);
        let flushed = self.flush_all(true);
        self.halt();
        flushed
    }

    /// Ends the background threads and writes nothing back: what is dirty stays so in the segment, for the next engine
    /// over it.
    pub fn halt(&self) {
        self.stopping.store(true, Ordering::Release);
        self.reclaim_bell.ring();
        self.writeback_bell.ring();
        self.sample_bell.ring();
        for t in self.threads.lock().drain(..) {
            let _ = t.join();
        }
    }

    /// The policy's time: since this engine began, for that is when the policy's oldest pages came.
    pub(crate) fn uptime_ms(&self) -> u64 {
        self.clock.now_ns().saturating_sub(self.started_ns) / 1_000_000
    }

    /// True once it is told to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
    /// The memory files.
    pub fn handles(&self) -> &Arc<SegmentHandles> {
        &self.handles
    }
    /// Says how to learn what memory others keep for the user (namespace tables, bytes); it counts against the limit.
    /// Asked often, and under the core lock.
    pub fn count_also(&self, bytes: impl Fn() -> u64 + Send + Sync + 'static) {
        let _ = self.extra.set(Extra(Box::new(bytes)));
    }
    /// st_dev of the mount, for clients.
    pub fn set_mount_dev(&self, dev: u64) {
        self.handles.segment.header().mount_dev.store(dev, Ordering::Release);
    }

    /// The object `id`, published now if it was not. `path_fd` is an O_PATH descriptor of the file that outlives the
    /// object; `size` is the file's.
    ///
    /// # Errors
    /// ENFILE if the object table has no room near the object's hash.
    pub fn object(&self, id: ObjectId, path_fd: RawFd, size: u64) -> io::Result<ObjectRef> {
        let mut core = self.core.lock();
        if let Some(o) = core.objects.get(&id) {
            return Ok(o.clone());
        }
        let seg = self.handles.segment.clone();
        core.add_object(id, size, |slot| Object::new(id, slot, seg, SourceFile::new(path_fd)))
            .ok_or_else(|| rustix::io::Errno::NFILE.into())
    }
    /// The object `id`, if it is published.
    pub fn lookup_object(&self, id: ObjectId) -> Option<ObjectRef> {
        self.core.lock().objects.get(&id).cloned()
    }
    /// The kernel has forgotten the inode: writes its dirty pages back and drops everything of it. If the writeback
    /// fails the object stays, and writeback goes on trying.
    ///
    /// # Errors
    /// The failed writeback.
    pub fn forget_object(&self, id: ObjectId) -> io::Result<()> {
        let Some(o) = self.lookup_object(id) else { return Ok(()) };
        let _content = o.content.write();
        let _writeback = o.writeback.lock();
        if o.gone.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !o.doomed.load(Ordering::Relaxed) {
            self.write_back_locked(&o, 0..u64::MAX, false)?;
            self.sync_foreign_locked(&o)?;
            self.stabilize_locked(&o, true)?;
        }
        let mut core = self.core.lock();
        core.remove_object(&o);
        o.gone.store(true, Ordering::Relaxed);
        Ok(())
    }
    /// The last name and the last handle are gone: nobody will read it again, so dirty pages are dropped unwritten.
    pub fn discard_object(&self, id: ObjectId) {
        let Some(o) = self.lookup_object(id) else { return };
        o.doomed.store(true, Ordering::Relaxed);
        let _content = o.content.write();
        let _writeback = o.writeback.lock();
        if !o.gone.load(Ordering::Relaxed) {
            self.core.lock().drop_pages(&o, 0, u64::MAX);
        }
    }
    /// All objects.
    pub(crate) fn objects(&self) -> Vec<ObjectRef> {
        self.core.lock().objects.values().cloned().collect()
    }
}
