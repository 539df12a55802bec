//! Page table: the index, the page of each frame (the reverse map), and the frames' flags.

use crate::file::object::{Object, ObjectId};
use crate::segment::SegmentHandles;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use terrace_shm::index::{Index, Place};
/// The version of a page before a read of the source; see [`PageTable::is_unaltered`].
pub(crate) use terrace_shm::protocol::PageVersion;
use terrace_shm::protocol::{NO_LEAF, publish, replace, same_version, stamp, withdraw};
use terrace_shm::{Below, DeviceSlot, Entry, State as EntryState};

/// The key of a page for policies and samples: constant over restarts, and practically unique.
pub(crate) fn key_of(object: ObjectId, page: u64) -> u64 {
    object.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32) ^ page
}

/// A page that has no frame and is not compressed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotInMemory {
    pub(crate) before: PageVersion,
    /// Shadow of an absent page; 0: none.
    pub(crate) shadow: u32,
    /// Slot on a device, which is faster than the source.
    pub(crate) on_device: Option<DeviceSlot>,
}

#[derive(Debug)]
pub(crate) struct PageTable {
    handles: Arc<SegmentHandles>,
    pub(crate) index: Index,
    /// Place + 1 of the page in each frame; 0 = none.
    rmap: Vec<u32>,
}

impl PageTable {
    pub(crate) fn new(handles: Arc<SegmentHandles>) -> PageTable {
        let frames_max = handles.segment.geometry().frames_max as usize;
        PageTable { index: Index::new(handles.segment.clone()), rmap: vec![0; frames_max], handles }
    }

    /// Flags of a frame: see [`crate::segment::flag`].
    pub(crate) fn flags(&self, frame: u32) -> &AtomicU8 {
        self.handles.frame_flags(frame)
    }
    pub(crate) fn place_of(&self, frame: u32) -> Option<Place> {
        self.rmap[frame as usize].checked_sub(1).map(Place)
    }
    pub(crate) fn set_rmap(&mut self, place: Place, frame: u32) {
        self.rmap[frame as usize] = place.0 + 1;
    }
    pub(crate) fn clear_rmap(&mut self, frame: u32) {
        self.rmap[frame as usize] = 0;
    }
    /// After a restart: maps a frame to the page that names it. False: the frame belongs to another page.
    pub(crate) fn adopt_rmap(&mut self, place: Place, frame: u32) -> bool {
        if self.rmap[frame as usize] != 0 {
            return false;
        }
        self.set_rmap(place, frame);
        true
    }
    pub(crate) fn frames_max(&self) -> usize {
        self.rmap.len()
    }
    pub(crate) fn frame_of(&self, o: &Object, page: u64) -> Option<u32> {
        self.index.get(self.index.find(o.slot_index(), page)?).frame()
    }
    pub(crate) fn key_in(&self, frame: u32) -> Option<u64> {
        let (slot, page) = self.index.owner_of(self.place_of(frame)?);
        Some(key_of(self.handles.segment.object(slot).id.load(Ordering::Relaxed), page))
    }

    pub(crate) fn publish_present(&self, place: Place, frame: u32) {
        let clock = self.index.tick();
        publish(self.index.entry(place), Entry::present(frame, clock));
    }
    /// Makes the entry of a page that leaves memory name its slot on a device.
    pub(crate) fn publish_on_device(&self, place: Place, slot: DeviceSlot) {
        let clock = self.index.tick();
        replace(self.index.entry(place), Entry::device(slot, clock));
    }
    /// Makes the entry of a page in memory or below absent.
    pub(crate) fn make_absent(&mut self, place: Place, shadow: u32) {
        let clock = self.index.tick();
        withdraw(self.index.entry(place), Entry::absent(shadow, clock));
        self.index.count_present(place, -1);
    }

    /// Notes a change of the object's content, after the withdrawal of entries: see [`stamp`].
    pub(crate) fn note_change(&self, o: &Object) -> u64 {
        stamp(&self.handles.segment.header().clock, &o.slot().write_clock)
    }
    /// The state of a page that is not in memory. None: it is in memory.
    pub(crate) fn snapshot(&self, o: &Object, page: u64) -> Option<NotInMemory> {
        let clock = self.handles.segment.header().clock.load(Ordering::Relaxed);
        let Some(place) = self.index.find(o.slot_index(), page) else {
            let before = PageVersion { identity: NO_LEAF, clock };
            return Some(NotInMemory { before, shadow: 0, on_device: None });
        };
        let e = self.index.get(place);
        let before = PageVersion { identity: e.identity(), clock };
        match (e.state(), e.below()) {
            (EntryState::Absent, _) => Some(NotInMemory { before, shadow: e.shadow(), on_device: None }),
            (_, Some(Below::Device(slot))) => Some(NotInMemory { before, shadow: 0, on_device: Some(slot) }),
            _ => None,
        }
    }
    /// Whether the page is not in memory, and its content in the source has not changed since `before`. The
    /// object must be a known one.
    pub(crate) fn is_unaltered(&self, o: &Object, page: u64, before: PageVersion) -> bool {
        self.snapshot(o, page)
            .is_some_and(|now| same_version(before, now.before.identity, &o.slot().write_clock))
    }
}
