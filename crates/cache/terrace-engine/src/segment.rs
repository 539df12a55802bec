//! Memory files of an instance: created by the supervisor, and inherited by each terraced.

use crate::config::EngineConfig;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use terrace_shm::layout::FRAMES_MAX;
use terrace_shm::map::{memfd, read_only_twin};
use terrace_shm::writes::{CLIENTS_BYTES, DAEMON_BYTES, Writes};
use terrace_shm::{Geometry, Mapping, PAGE_SIZE, Segment, TouchTable};
use terrace_sync::Mutex;
use terrace_tier::TargetTable;

/// Space for durable tables beside the engine's (sparse), bytes.
const USER_BYTES: usize = 512 << 20;

const _: () = assert!(FRAMES_MAX as usize <= terrace_policy::SLOTS_MAX);

/// Memory files and their mappings. The supervisor creates them: each terraced inherits the mappings.
#[derive(Debug)]
pub struct SegmentHandles {
    /// The segment, writable.
    pub segment: Arc<Segment>,
    pub(crate) segment_fd: OwnedFd,
    /// The memory file opened read-only, for clients.
    pub(crate) segment_ro: OwnedFd,
    pub(crate) touches: Arc<TouchTable>,
    /// Its memory file, for clients.
    pub(crate) touch_fd: OwnedFd,
    /// Tables of the targets that an engine starts with, in their order.
    tables: Mutex<Vec<Arc<TargetTable>>>,
    durable: Arc<Mapping>,
    /// Counts and records of announced writes; none if files with writers are not served.
    pub(crate) writes: Option<WriteFiles>,
    /// Kept open so that the region appears under its name in /proc.
    pub(crate) durable_fd: OwnedFd,
}

/// The two files of announced writes.
#[derive(Debug)]
pub(crate) struct WriteFiles {
    pub(crate) writes: Arc<Writes>,
    /// Of the clients.
    clients: OwnedFd,
    /// Of the daemon, opened read-only.
    daemon_ro: OwnedFd,
}

impl WriteFiles {
    fn create() -> io::Result<WriteFiles> {
        let clients = memfd("terrace-writers", CLIENTS_BYTES)?;
        let daemon = memfd("terrace-applied", DAEMON_BYTES)?;
        let daemon_ro = read_only_twin(daemon.as_fd())?;
        Ok(WriteFiles { writes: Arc::new(Writes::create(&clients, &daemon)?), clients, daemon_ro })
    }
    pub(crate) fn for_clients(&self) -> [BorrowedFd<'_>; 2] {
        [self.clients.as_fd(), self.daemon_ro.as_fd()]
    }
}

/// Frame flags, which survive terraced.
pub(crate) mod flag {
    /// The frame has content that the source lacks.
    pub(crate) const DIRTY: u8 = 1;
    /// The frame is under writeback.
    pub(crate) const WRITEBACK: u8 = 2;
    /// The kernel's page cache has the content; the device may not have it.
    pub(crate) const UNSTABLE: u8 = 4;
    /// Any of these: the source may still need the frame, so it stays.
    pub(crate) const UNSYNCED: u8 = DIRTY | WRITEBACK | UNSTABLE;
    /// The page was refaulted, or read again after its fault: compression pays.
    pub(crate) const REUSED: u8 = 8;
    /// The page is being compressed: no candidate for eviction meanwhile.
    pub(crate) const LEAVING: u8 = 16;
    /// The page was used since its fault, and its touch count no longer shows it.
    pub(crate) const USED: u8 = 32;
    /// A dirty page with content that is durable on a target.
    pub(crate) const UNDESTAGED: u8 = 64;
}

impl SegmentHandles {
    /// Creates the memory files of a new instance.
    ///
    /// # Errors
    /// Out of memory or of address space.
    pub fn create(config: &EngineConfig) -> io::Result<SegmentHandles> {
        let max = config.memory_max_bytes.unwrap_or_else(machine_memory).max(config.memory_bytes);
        let slots = config.devices_bytes() / PAGE_SIZE as u64;
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let of = |bytes: u64| {
            Geometry::for_frames(u32::try_from(bytes / PAGE_SIZE as u64).unwrap_or(FRAMES_MAX))
                .with_slots(slots)
        };
        let geometry = below_limits(max, config.memory_bytes, of);
        let segment_fd = memfd("terrace-segment", geometry.segment_bytes())?;
        let segment = Arc::new(Segment::create(&segment_fd, geometry)?);
        let segment_ro = read_only_twin(segment_fd.as_fd())?;
        let touch_fd = memfd("terrace-touch", geometry.touch_bytes())?;
        let touches = Arc::new(TouchTable::create(&touch_fd, &geometry)?);
        let durable_bytes = geometry.frame_table_bytes() + USER_BYTES;
        let durable_fd = memfd("terrace-durable", durable_bytes)?;
        let durable = Arc::new(Mapping::new(durable_fd.as_fd(), durable_bytes, true, PAGE_SIZE)?);
        let table = |config| TargetTable::create(config).map(Arc::new);
        let tables = config.devices.iter().map(table).collect::<io::Result<_>>()?;
        Ok(SegmentHandles {
            segment,
            segment_fd,
            segment_ro,
            touches,
            touch_fd,
            tables: Mutex::new(tables),
            durable,
            writes: if config.announced_writes { Some(WriteFiles::create()?) } else { None },
            durable_fd,
        })
    }
    /// Tables of the targets that an engine starts with, in the order of its configuration.
    pub fn tables(&self) -> Vec<Arc<TargetTable>> {
        self.tables.lock().clone()
    }
    /// Replaces the tables after targets have come and gone, and returns the old ones.
    pub fn set_tables(&self, tables: Vec<Arc<TargetTable>>) -> Vec<Arc<TargetTable>> {
        std::mem::replace(&mut *self.tables.lock(), tables)
    }
    pub(crate) fn frame_flags(&self, frame: u32) -> &AtomicU8 {
        assert!(frame < self.segment.geometry().frames_max);
        // SAFETY: in bounds of the first part of the region; accessed as atomics only.
        unsafe { AtomicU8::from_ptr(self.durable.as_ptr().add(frame as usize)) }
    }
    /// The rest of the durable region: start and bytes. Tables there survive terraced, as the frames' flags
    /// do. Zero when new.
    pub fn user_region(&self) -> (NonNull<u8>, usize) {
        let at = self.segment.geometry().frame_table_bytes();
        // SAFETY: within the mapping.
        let p = unsafe { self.durable.as_ptr().add(at) };
        (NonNull::new(p).expect("mapping is not null"), USER_BYTES)
    }
}

/// The geometry for as much memory as this process's limits allow, up to `max`, and at least for `min`.
fn below_limits(max: u64, min: u64, of: impl Fn(u64) -> Geometry) -> Geometry {
    let limit = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
    // Half of address space and private memory is for other uses. A frame has less metadata than this.
    const METADATA_BYTES: u64 = 128;
    let segment_max = limit(Resource::Fsize).min(limit(Resource::As) / 2);
    let frames_max = limit(Resource::Data) / 2 / METADATA_BYTES;
    let fits =
        |g: &Geometry| g.segment_bytes() as u64 <= segment_max && u64::from(g.frames_max) <= frames_max;
    let mut bytes = max;
    loop {
        let geometry = of(bytes);
        if fits(&geometry) || bytes <= min {
            return geometry;
        }
        bytes = (bytes / 2).max(min);
    }
}

/// Bytes.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit.max(1))
}
