//! The engine: assembles one instance of the cache from its parts. No part depends on it.

use crate::burst::fsync;
use crate::burst::replay::{self, Decision, FileLookup, Replayed, UndestagedPages};
mod control;

use crate::clock::Clock;
use crate::config::{EngineConfig, MEMORY_MIN, NumaConfig, RING_SLOTS_MAX};
use crate::context::Context;
use crate::file::errseq::ErrorCursor;
use crate::file::identity::Known;
use crate::file::object::{ObjectId, ObjectRef};
use crate::file::serve::Serve;
use crate::file::source::{PathFd, SourceFile};
use crate::file::source_root::SourceRoot;
use crate::nodes::Nodes;
use crate::numa::Service;
use crate::numa::topology::Topology;
use crate::observe::mrc::Sampling;
use crate::observe::trace::Recording;
use crate::path::recover::{self, Recovered};
use crate::path::{decompress, objects, prefetch, resize, sync, write};
use crate::path::{fault::AccessPath, read};
use crate::preload_server::{self, Clients};
use crate::readahead::marker;
use crate::readahead::schedule::{self, ScheduledFiles};
use crate::reclaim;
use crate::rings::Rings;
use crate::segment::SegmentHandles;
use crate::service::flusher::{self};
use crate::service::{device_loop, live};
use crate::state::State;
use crate::state::compressed::Compressed;
use crate::tier::park;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use terrace_api::numa::NumaMode;
use terrace_api::schedule::Schedule;
use terrace_api::tiers::DeviceCounts;
use terrace_io::Io;
use terrace_policy::follow::Follower;
use terrace_shm::layout::FLAG_SLOW;
use terrace_sync::Mutex;
use terrace_tier::DeviceConfig;
use terrace_tier::DeviceIo;
use terrace_tier::Devices;
use terrace_tier::TargetTable;

/// Nodes on which frames are placed: all nodes of the machine if threads are moved, else one.
fn nodes_for_frames(config: &NumaConfig) -> Nodes {
    if config.mode != NumaMode::Auto {
        return Nodes::default();
    }
    let topology = Topology::read(&config.sys);
    Nodes::new(topology.nodes.iter().map(|node| (node.number, &node.cpus[..])))
}

/// One instance of the cache.
#[derive(Debug)]
pub struct Engine {
    pub(crate) cx: Arc<Context>,
    pub(crate) clients: Arc<Clients>,
    rings: Arc<Rings>,
    pub(crate) sampling: Arc<Sampling>,
    pub(crate) recording: Arc<Recording>,
    numa: Arc<Service>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    target_threads: Mutex<HashMap<usize, JoinHandle<()>>>,
}

/// Start and stop of an instance.
impl Engine {
    /// Starts an engine over the memory files of `handles`, new ones or those of a dead engine. After a dead
    /// one, call [`Engine::reattach_object`] for each object and [`Engine::recover_pages`] before
    /// [`Engine::serve`].
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
                "memory of {} bytes is under the minimum of {MEMORY_MIN} bytes; give more",
                config.memory_bytes
            )));
        }
        if !(1..=RING_SLOTS_MAX).contains(&config.ring_slots) {
            return Err(invalid(format!(
                "ring_slots = {} is out of bounds; write 1 to {RING_SLOTS_MAX}",
                config.ring_slots
            )));
        }
        let frames_max = handles.segment.geometry().frames_max as usize;
        let policy = terrace_policy::build(&config.policy, frames_max, frames_max).ok_or_else(|| {
            invalid(format!(
                "policy = {:?} is unknown; choose one of {}",
                config.policy,
                terrace_policy::NAMES.join(", ")
            ))
        })?;
        // A predecessor's limit may differ from the configuration's.
        let limit = resize::inherited_limit(&config, &handles);
        let has_ghost = terrace_policy::has_ghost(&config.policy);
        let compressed = Compressed::new(config.compressed, has_ghost, &handles)?;
        let devices = live::open(&config, &handles, &io)?;
        let targets = live::targets(&config, &devices, frames_max)?;
        let nodes = Arc::new(nodes_for_frames(&config.numa));
        let mut state =
            State::new(handles.clone(), policy, config.min_ttl, clock.clone(), compressed, targets);
        state.place_on(nodes);
        // A predecessor's targets may have changed.
        handles.segment.header().targets.fetch_add(1, Ordering::AcqRel);
        // A predecessor may have died during a recording.
        handles.segment.header().tracing.store(0, Ordering::Release);
        let cx = Arc::new(Context::new(
            config,
            limit,
            handles,
            state,
            (clock, io),
            Devices::new(devices),
            fsync::HOOK,
        ));
        Ok(Arc::new(Engine::over(cx)))
    }

    fn over(cx: Arc<Context>) -> Engine {
        let rings = Arc::new(Rings::default());
        let writes = cx.handles.writes.as_ref().map(|files| files.writes.clone());
        let (clients_max, slots) = (cx.config.clients_max, cx.config.ring_slots);
        let clients = Arc::new(Clients::new(clients_max, slots, rings.clone(), writes));
        let recording = Arc::new(Recording::default());
        let (of_clients, of_recording, reads) = (clients.clone(), recording.clone(), rings.clone());
        cx.count_memory(move || of_clients.bytes());
        cx.count_memory(move || of_recording.bytes());
        let of_schedule = cx.followed.bytes.clone();
        cx.count_memory(move || of_schedule.load(Ordering::Relaxed));
        if cx.config.compressed.codec.is_some() {
            cx.count_memory(decompress::decoder_bytes);
        }
        cx.set_read_totals(move || reads.read_totals());
        resize::adjust_pool(&cx);
        let sampling = Arc::new(Sampling::new(cx.clone()));
        let numa = Service::new(cx.clone(), rings.clone(), recording.clone(), clients.clone());
        let numa = Arc::new(numa);
        Engine {
            cx,
            clients,
            rings,
            sampling,
            recording,
            numa,
            threads: Mutex::default(),
            target_threads: Mutex::default(),
        }
    }

    /// Starts the background threads: reclaim, targets, writeback, sample, prefetch workers, NUMA. From now on
    /// clients may send page fills.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve(&self) -> io::Result<()> {
        let mut threads = self.threads.lock();
        let mut start = |name: &str, body: Box<dyn FnOnce() + Send>| -> io::Result<()> {
            threads.push(std::thread::Builder::new().name(name.into()).spawn(body)?);
            Ok(())
        };
        let (cx, writeback, sampling) = (self.cx.clone(), self.cx.clone(), self.sampling.clone());
        start("reclaim", Box::new(move || reclaim::reclaim_loop(&cx)))?;
        for device in self.cx.devices.all() {
            self.start_target(device)?;
        }
        start("writeback", Box::new(move || flusher::writeback_loop(&writeback)))?;
        start("sample", Box::new(move || sampling.sample_loop()))?;
        if self.cx.config.prefetch_workers > 0 {
            self.cx.jobs.open();
            let cx = self.cx.clone();
            start("ahead", Box::new(move || marker::mark_loop(&cx)))?;
        }
        for n in 0..self.cx.config.prefetch_workers {
            let cx = self.cx.clone();
            start(&format!("prefetch-{n}"), Box::new(move || prefetch::work_loop(&cx)))?;
        }
        if self.numa.is_needed() {
            let numa = self.numa.clone();
            start("numa", Box::new(move || numa.serve()))?;
        }
        self.handles().segment.header().serving.store(1, Ordering::Release);
        // A predecessor may have left dirty pages.
        self.cx.writeback_wakeup.signal();
        Ok(())
    }

    /// Starts to prefetch by a schedule, once. No effect without prefetch workers, or if memory has no room
    /// for the schedule.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn follow(&self, schedule: &Schedule, files: Box<dyn ScheduledFiles>) -> io::Result<()> {
        let pieces = schedule::pieces(schedule, self.memory_bytes());
        let bytes = &self.cx.followed.bytes;
        bytes.store(Follower::bytes(pieces.len() as u64), Ordering::Relaxed);
        if self.cx.config.prefetch_workers == 0 || !self.make_room(0) {
            bytes.store(0, Ordering::Relaxed);
            return Ok(());
        }
        let cx = self.cx.clone();
        let body = move || schedule::follow(&cx, pieces, files);
        self.threads.lock().push(std::thread::Builder::new().name("follow".into()).spawn(body)?);
        Ok(())
    }

    /// Serves the preload library on a listening SOCK_SEQPACKET socket until the engine stops.
    ///
    /// # Errors
    /// No eventfd, no thread, a listener that fails.
    pub fn serve_preload(&self, listener: &OwnedFd) -> io::Result<()> {
        preload_server::serve(&self.cx, &self.clients, listener)
    }

    /// Writes everything back and ends the background threads.
    ///
    /// # Errors
    /// The first writeback that failed; its pages are lost with the segment.
    pub fn shutdown(&self) -> io::Result<()> {
        self.handles().segment.header().serving.store(0, Ordering::Release);
        let flushed = self.flush_all(true);
        device_loop::close(&self.cx);
        self.halt();
        flushed
    }

    /// Ends the background threads without writeback: dirty pages stay in the segment.
    pub fn halt(&self) {
        self.cx.stopping.store(true, Ordering::Release);
        self.cx.reclaim_wakeup.signal();
        self.cx.writeback_wakeup.signal();
        self.cx.wake_devices();
        self.cx.jobs.close();
        self.cx.marks.close();
        self.cx.followed.set_active(false);
        self.sampling.wakeup.signal();
        self.numa.wakeup.signal();
        let of_targets = std::mem::take(&mut *self.target_threads.lock());
        for t in self.threads.lock().drain(..).chain(of_targets.into_values()) {
            let _ = t.join();
        }
    }
    /// Records the identities of the files with pages on targets, outside the interval of 30 s.
    #[cfg(any(test, feature = "testing"))]
    pub fn record_identities(&self) {
        self.cx.devices.all().iter().for_each(|device| device_loop::record_identities(&self.cx, device));
    }
    /// True once a stop was requested.
    pub fn is_stopping(&self) -> bool {
        self.cx.is_stopping()
    }
    /// The memory files.
    pub fn handles(&self) -> &Arc<SegmentHandles> {
        &self.cx.handles
    }
    /// Counts further memory (bytes) against the limit. `bytes` runs often, and under the state lock.
    pub fn count_also(&self, bytes: impl Fn() -> u64 + Send + Sync + 'static) {
        self.cx.count_memory(bytes);
    }
    /// Makes room for memory that its users have counted ([`Engine::count_also`]): the pool gives back frames
    /// at once. False: too little is left for pages, or for `spare` more bytes. The caller then frees the
    /// memory.
    pub fn make_room(&self, spare: u64) -> bool {
        resize::make_room(&self.cx, spare)
    }
    /// Memory in force: the limit, or the ceiling if that is lower; bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.cx.budget()
    }
    /// st_dev of the mount, for clients.
    pub fn set_mount_dev(&self, dev: u64) {
        self.handles().segment.header().mount_dev.store(dev, Ordering::Release);
    }
    /// Sets the directory that the mount serves.
    ///
    /// # Errors
    /// The directory cannot be opened for reading: then each file is synced by itself.
    pub fn set_source_root(&self, root: BorrowedFd<'_>) -> io::Result<()> {
        let _ = self.cx.source_root.set(SourceRoot::open(root)?);
        Ok(())
    }
    /// True if an announced write of the file is under way, or its pages are not withdrawn yet.
    pub fn is_written(&self, o: &ObjectRef) -> bool {
        self.clients.writers.as_ref().is_some_and(|writers| writers.is_written(o.id()))
    }
    /// True if programs announce their writes.
    pub fn announces_writes(&self) -> bool {
        self.clients.writers.is_some()
    }
    /// True if the library of a process announces an open for writing that waits now.
    pub fn announces_open(&self, pid: i32) -> bool {
        self.clients.writers.as_ref().is_some_and(|writers| writers.announces_open(pid))
    }
    /// The processes that announce the writes of all their descriptors.
    pub fn announcing_processes(&self) -> Vec<i32> {
        self.clients.writers.as_ref().map_or_else(Vec::new, |writers| writers.processes())
    }
    /// Sets the callback that serves files without a mount. It must not keep the engine alive.
    pub fn set_server(&self, server: Arc<dyn Serve>) {
        let _ = self.cx.server.set(server);
    }
}

/// Targets of the device tiers.
impl Engine {
    /// True if a device tier exists.
    pub fn has_targets(&self) -> bool {
        self.cx.has_devices()
    }
    fn start_target(&self, device: Arc<DeviceIo>) -> io::Result<()> {
        let (cx, number) = (self.cx.clone(), device.number());
        let thread = std::thread::Builder::new().name(format!("device-{number}"));
        let thread = thread.spawn(move || device_loop::device_loop(&cx, &device))?;
        self.target_threads.lock().insert(number, thread);
        Ok(())
    }
    /// Adds a target, and returns its table. `levels`: tiers of all targets afterwards, by number.
    ///
    /// # Errors
    /// The device's; a thread cannot be started.
    pub fn add_target(
        &self,
        config: DeviceConfig,
        table: Arc<TargetTable>,
        levels: &[(usize, u8)],
    ) -> io::Result<()> {
        self.start_target(live::add(&self.cx, config, table, levels)?)
    }
    /// Empties and removes a target. Its valuable pages move to other targets of the tiers `levels`, while
    /// reads go on. The caller may then close its file. Returns the target's final counters.
    ///
    /// # Errors
    /// There is no such target; the engine stops.
    pub fn remove_target(&self, number: usize, levels: &[(usize, u8)]) -> io::Result<DeviceCounts> {
        let counts = live::empty(&self.cx, number)?;
        if let Some(device) = self.cx.devices.get(number) {
            device.end();
        }
        let thread = self.target_threads.lock().remove(&number);
        thread.map(JoinHandle::join);
        live::remove(&self.cx, number, levels);
        Ok(counts)
    }
    /// Resizes a target to the number of regions in `config`, and returns its new table. A growing file must
    /// have its space before the call; a shrunken one may be truncated afterwards.
    ///
    /// # Errors
    /// The device's: the target is read-only then.
    pub fn resize_target(&self, config: &DeviceConfig) -> io::Result<Arc<TargetTable>> {
        live::resize(&self.cx, config)
    }
}

impl Engine {
    /// The object `id`, published now if it was not. `path_fd` is an O_PATH descriptor of the file; `size` is
    /// the file's.
    ///
    /// # Errors
    /// ENFILE if the object table has no room near the object's hash.
    pub fn object(&self, id: ObjectId, path_fd: impl Into<PathFd>, size: u64) -> io::Result<ObjectRef> {
        objects::object(&self.cx, id, path_fd.into(), size, 0)
    }
    /// As [`Engine::object`], published with its readers sent to the source ([`crate::Object::set_slow`]).
    pub fn slow_object(&self, id: ObjectId, path_fd: impl Into<PathFd>, size: u64) -> io::Result<ObjectRef> {
        objects::object(&self.cx, id, path_fd.into(), size, FLAG_SLOW)
    }
    /// Notes an open of the file: a recent change may have settled, so that the file gets a lasting identity.
    pub fn note_open(&self, o: &ObjectRef) {
        park::retry_identity(&self.cx, o);
    }
    /// The object `id`, if it is published.
    pub fn lookup_object(&self, id: ObjectId) -> Option<ObjectRef> {
        self.cx.lookup_object(id)
    }
    /// True if pages or shadows of the object are known.
    pub fn remembers(&self, o: &ObjectRef) -> bool {
        !self.cx.state.lock().pages.index.is_empty(o.slot_index())
    }
    /// Drops an object after writeback of its dirty pages: the kernel has forgotten its inode. After a failed
    /// writeback the object stays, for another attempt.
    ///
    /// # Errors
    /// The failed writeback.
    pub fn forget_object(&self, id: ObjectId) -> io::Result<()> {
        objects::forget_object(&self.cx, id)
    }
    /// Drops an object without names and handles: no program can read it again, so dirty pages go unwritten.
    pub fn discard_object(&self, id: ObjectId) {
        objects::discard_object(&self.cx, id);
    }
    /// Objects after a failed writeback.
    pub fn failing_objects(&self) -> Vec<ObjectId> {
        let failing = |o: &ObjectRef| o.failing().map(|_| o.id());
        self.cx.unwritten_objects().iter().filter_map(failing).collect()
    }
    /// Takes over the object `id` if a dead daemon had published it.
    pub fn reattach_object(&self, id: ObjectId, path_fd: impl Into<PathFd>) -> Option<ObjectRef> {
        recover::reattach_object(&self.cx, id, path_fd.into())
    }
    /// Undestaged pages left by earlier runs, once all are known. Called after [`Engine::serve`], before
    /// files are served.
    ///
    /// # Errors
    /// A target cannot be read.
    pub fn undestaged(&self) -> io::Result<Vec<UndestagedPages>> {
        replay::undestaged(&self.cx)
    }
    /// Writes a file's undestaged pages to the source if the file is as the run left it, or acts by
    /// `decision`.
    ///
    /// # Errors
    /// The source's: the pages are kept.
    pub fn replay(&self, file: ObjectId, at: FileLookup, decision: Decision) -> io::Result<Replayed> {
        replay::replay(&self.cx, file, at, decision)
    }
    /// Takes over all pages of the reattached objects. Empties the slots of all others.
    pub fn recover_pages(&self) -> Recovered {
        recover::recover_pages(&self.cx)
    }
}

impl Engine {
    /// Reads at `offset` into `buf`; short only at the end of the file.
    pub fn read(&self, o: &ObjectRef, offset: u64, buf: &mut [u8], access: AccessPath) -> io::Result<usize> {
        read::read(&self.cx, o, offset, buf, access)
    }
    /// Writes `data` at `offset`: into frames, dirty, visible at once on every path. The size of the source
    /// grows at once. Waits while too many pages are dirty.
    ///
    /// # Errors
    /// EFBIG, ENOSPC and the like if the source cannot grow; a failing writeback's errno if dirty pages have
    /// no more room.
    pub fn write(&self, o: &ObjectRef, offset: u64, data: &[u8]) -> io::Result<usize> {
        write::write(&self.cx, o, offset, data)
    }
    /// Sets the size of the file, in cache and source.
    ///
    /// # Errors
    /// The source's error; nothing has changed then.
    pub fn truncate(&self, o: &ObjectRef, size: u64) -> io::Result<()> {
        write::truncate(&self.cx, o, size)
    }
    /// Runs `f` on the source without interference of the cache. Writes back dirty pages of `range` before,
    /// drops its cached pages after, and reads the size again.
    ///
    /// # Errors
    /// A failed writeback, or the error of `f`.
    pub fn with_source<T>(
        &self,
        o: &ObjectRef,
        range: Range<u64>,
        f: impl FnOnce(&SourceFile) -> io::Result<T>,
    ) -> io::Result<T> {
        write::with_source(&self.cx, o, range, f)
    }
    /// Drops the cached content of a file that other programs have changed, and reads its size again. The
    /// file has no unwritten pages.
    ///
    /// # Errors
    /// The file cannot be examined.
    pub fn reload(&self, o: &ObjectRef) -> io::Result<()> {
        write::reload(&self.cx, o)
    }
    /// [`Engine::reload`] of a file with announced writes, unless it has the identity that its pages belong to.
    ///
    /// # Errors
    /// As [`Engine::reload`].
    pub fn reload_if_changed(&self, o: &ObjectRef) -> io::Result<()> {
        write::reload_if_changed(&self.cx, o)?;
        if !self.renew_identity(o, || true) {
            o.set_known(&Known::default());
        }
        Ok(())
    }
    /// Gives a file its present identity for the tiers. False: not yet. `is_coherent`: as far as the caller knows,
    /// all changes so far were announced.
    pub fn renew_identity(&self, o: &ObjectRef, is_coherent: impl FnOnce() -> bool) -> bool {
        park::renew_identity(&self.cx, o, || !self.is_written(o) && is_coherent())
    }
    /// Makes written data visible to readers of the source (at close, SEEK_HOLE, ...), mostly through the
    /// kernel's page cache. fsync makes data durable.
    ///
    /// # Errors
    /// The first failure; the pages stay dirty.
    pub fn flush(&self, o: &ObjectRef, range: Range<u64>) -> io::Result<()> {
        sync::flush(&self.cx, o, range)
    }
    /// Makes all data written so far durable, and reports writebacks that failed since `seen`.
    ///
    /// # Errors
    /// A failure that this handle has not reported yet.
    pub fn fsync(&self, o: &ObjectRef, data_only: bool, seen: &ErrorCursor) -> io::Result<()> {
        fsync::fsync(&self.cx, o, data_only, seen)
    }
    /// Announces terrace's change of the file's metadata in the source. A start after a power cut then takes
    /// it for no conflict.
    pub fn change_metadata(&self, o: &ObjectRef) {
        fsync::change_metadata(&self.cx, o);
    }
    /// Writes all dirty pages back; with `sync`, makes all data and names of the source stable.
    ///
    /// # Errors
    /// The first failure, after all attempts. Files without a name do not count: only programs with a
    /// descriptor can read them, from the cache.
    pub fn flush_all(&self, sync: bool) -> io::Result<()> {
        fsync::flush_all(&self.cx, sync)
    }
    /// True if the thread belongs to a registered client: its opens bypass the kernel's page cache.
    pub fn is_client(&self, tid: u32) -> bool {
        self.clients.is_client(tid)
    }
    /// True for the thread that serves clients: its close of a client's descriptor is none by a program.
    pub fn is_server_thread(&self, tid: u32) -> bool {
        self.clients.is_server_thread(tid)
    }
}
