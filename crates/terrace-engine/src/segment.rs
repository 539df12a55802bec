//! The memory files of an instance: made by the supervisor, inherited by each terraced that it starts.

use crate::config::{DeviceConfig, EngineConfig};
use crate::device::DATA_AT;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use terrace_shm::layout::FRAMES_MAX;
use terrace_shm::map::{memfd, read_only_twin};
use terrace_shm::{DeviceTable, Geometry, Mapping, PAGE_SIZE, Segment, TouchTable};

/// Room for durable tables of the engine's user (sparse), bytes.
const USER_BYTES: usize = 512 << 20;

const _: () = assert!(FRAMES_MAX as usize <= terrace_policy::SLOTS_MAX);

/// Memory files and their mappings. Made before the first terraced is cloned, so that all inherit the mappings.
#[derive(Debug)]
pub struct SegmentHandles {
    /// The segment, writable.
    pub segment: Arc<Segment>,
    /// Its memory file.
    pub segment_fd: OwnedFd,
    /// The same, read-only: for clients.
    pub segment_ro: OwnedFd,
    /// Touch table.
    pub touches: Arc<TouchTable>,
    /// Its memory file, for clients.
    pub touch_fd: OwnedFd,
    /// The table for readers of each target, and its read-only memory file for clients.
    pub devices: Vec<(Arc<DeviceTable>, OwnedFd)>,
    durable: Arc<Mapping>,
    /// Kept so that the region shows up under its name in /proc.
    pub durable_fd: OwnedFd,
}

/// Frame flags that outlive terraced.
pub mod flag {
    /// The frame holds content that the source does not have yet.
    pub const DIRTY: u8 = 1;
    /// The frame is on its way to the source.
    pub const WRITEBACK: u8 = 2;
    /// The kernel's page cache has taken it; whether the device has is not known.
    pub const UNSTABLE: u8 = 4;
    /// Any of those: the source may still need the frame, so it stays.
    pub const HELD: u8 = DIRTY | WRITEBACK | UNSTABLE;
    /// The page came back, or was read again after it came: it is worth compressing.
    pub const REUSED: u8 = 8;
    /// The page is being compressed: it is nothing to be evicted meanwhile.
    pub const LEAVING: u8 = 16;
    /// The page was used since it came, if only once, and its touch count shows it no longer.
    pub const USED: u8 = 32;
}

impl SegmentHandles {
    /// Makes the memory files of a new instance.
    ///
    /// # Errors
    /// Out of memory or of address space.
    pub fn create(config: &EngineConfig) -> io::Result<SegmentHandles> {
        let max = config.memory_max_bytes.unwrap_or_else(machine_memory).max(config.memory_bytes);
        let slots = config.devices_bytes() / PAGE_SIZE as u64;
        let geometry = Geometry::for_frames(u32::try_from(max / PAGE_SIZE as u64).unwrap_or(FRAMES_MAX))
            .with_slots(u32::try_from(slots).unwrap_or(u32::MAX));
        let segment_fd = memfd("terrace-segment", geometry.segment_bytes())?;
        let segment = Arc::new(Segment::create(&segment_fd, geometry)?);
        let segment_ro = read_only_twin(segment_fd.as_fd())?;
        let touch_fd = memfd("terrace-touch", geometry.touch_bytes())?;
        let touches = Arc::new(TouchTable::attach(&touch_fd, &geometry)?);
        let durable_bytes = geometry.frame_table_bytes() + USER_BYTES;
        let durable_fd = memfd("terrace-durable", durable_bytes)?;
        let durable = Arc::new(Mapping::new(durable_fd.as_fd(), durable_bytes, true, PAGE_SIZE)?);
        let devices = config.devices.iter().map(device_table).collect::<io::Result<_>>()?;
        Ok(SegmentHandles {
            segment,
            segment_fd,
            segment_ro,
            touches,
            touch_fd,
            devices,
            durable,
            durable_fd,
        })
    }
    /// Flags of a frame, see [`flag`].
    pub(crate) fn frame_flags(&self, frame: u32) -> &AtomicU8 {
        assert!(frame < self.segment.geometry().frames_max);
        // SAFETY: in bounds of the first part of the region; accessed as atomics only.
        unsafe { AtomicU8::from_ptr(self.durable.as_ptr().add(frame as usize)) }
    }
    /// The part of the durable region that is the user's, for tables that outlive terraced as the frames' flags do: start and bytes. Zero when new.
    pub fn user_region(&self) -> (NonNull<u8>, usize) {
        let at = self.segment.geometry().frame_table_bytes();
        // SAFETY: within the mapping.
        let p = unsafe { self.durable.as_ptr().add(at) };
        (NonNull::new(p).expect("mapping is not null"), USER_BYTES)
    }
}

/// The table of a target, and its memory file for clients.
fn device_table(config: &DeviceConfig) -> io::Result<(Arc<DeviceTable>, OwnedFd)> {
    let pages = (config.region_bytes / PAGE_SIZE as u64) as u32;
    let fd = memfd("terrace-device", DeviceTable::bytes(config.regions, pages))?;
    let table = DeviceTable::create(&fd, config.first_region, config.regions, pages)?;
    for region in 0..config.regions {
        table.set_region(region, DATA_AT + u64::from(region) * config.region_bytes);
    }
    Ok((Arc::new(table), read_only_twin(fd.as_fd())?))
}

/// Memory of the machine, bytes.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit.max(1))
}
