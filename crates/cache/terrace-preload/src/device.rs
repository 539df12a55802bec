//! The targets of the device tiers, as read by this process: their tables and descriptors. This process
//! requests them before its first read of a target, and after changes of targets
//! ([`Header::targets`](terrace_shm::layout::Header)).
//!
//! A table stays mapped, since another thread may be reading it. Content read from a removed target is
//! discarded: the entry that named the slot was withdrawn before.

use crate::{connection, helper, sys};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::{DeviceSlot, DeviceTable, Segment};

/// Tables that a process can map in its life. Targets that come after that many changes are read through the
/// mount path.
const PLACES_MAX: usize = 64;

static PLACES: [Place; PLACES_MAX] = [const { Place::new() }; PLACES_MAX];
/// Places that were used.
static MADE: AtomicU32 = AtomicU32::new(0);
/// The place of each target, plus 1; 0: no such target.
static CURRENT: [AtomicU32; TARGETS_MAX] = [const { AtomicU32::new(0) }; TARGETS_MAX];
/// The number of the change after which `CURRENT` was requested, plus 1; 0: not requested yet.
static KNOWN: AtomicU64 = AtomicU64::new(0);
/// 1: a thread is requesting targets.
static ASKING: AtomicU32 = AtomicU32::new(0);

struct Place {
    fd: helper::Slot,
    /// Inode of the table's memory file.
    inode: AtomicU64,
    table: UnsafeCell<MaybeUninit<DeviceTable>>,
}

// SAFETY: the table is written by the thread that set ASKING, before `CURRENT` names the place, and never after.
unsafe impl Sync for Place {}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Device {
    /// Number of the target, for counters.
    pub(crate) number: usize,
    pub(crate) fd: c_int,
    pub(crate) table: &'static DeviceTable,
}

/// The target of a slot, if it can be read. The caller has read the slot from an entry, so the change that
/// added its target is visible.
pub(crate) fn of(segment: &Segment, slot: DeviceSlot) -> Option<Device> {
    let change = u64::from(segment.header().targets.load(Ordering::Acquire)) + 1;
    if KNOWN.load(Ordering::Acquire) != change && !ask(change) {
        return None;
    }
    let mut places = CURRENT.iter().enumerate().filter_map(|(number, at)| Some((number, place(at)?)));
    let (number, place) = places.find(|(_, place)| place.table().index(slot).is_some())?;
    Some(Device { number, fd: place.fd.get()?, table: place.table() })
}

/// Closes targets that were removed. Called before a read.
pub(crate) fn look(segment: &Segment) {
    let change = u64::from(segment.header().targets.load(Ordering::Relaxed)) + 1;
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 && known != change {
        ask(change);
    }
}

fn place(at: &AtomicU32) -> Option<&'static Place> {
    let at = at.load(Ordering::Acquire).checked_sub(1)?;
    PLACES.get(at as usize)
}

/// Requests all targets. Other threads use the mount path meanwhile. False: a request failed.
#[cold]
fn ask(change: u64) -> bool {
    if ASKING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    let is_known = (0..TARGETS_MAX).all(ask_one);
    if is_known {
        KNOWN.store(change, Ordering::Release);
    }
    ASKING.store(0, Ordering::Release);
    is_known
}

fn ask_one(number: usize) -> bool {
    let Some(answer) = connection::device(number as u32) else { return false };
    let current = &CURRENT[number];
    let before = place(current);
    match answer {
        Ok([table, target]) => {
            let inode = sys::identity(table).map_or(0, |(what, _)| what.ino);
            if before.is_some_and(|place| place.inode.load(Ordering::Relaxed) == inode) {
                [table, target].into_iter().for_each(sys::close);
                return true;
            }
            current.store(keep([table, target], inode, before).map_or(0, |at| at + 1), Ordering::Release);
        }
        // There is no such target, or only the daemon reads it.
        Err(_) => current.store(0, Ordering::Release),
    }
    // Closed after its successor is published: other threads find the new one.
    if let Some(before) =
        before.filter(|before| !place(current).is_some_and(|now| now.fd.is_same(&before.fd)))
    {
        before.fd.discard();
    }
    true
}

/// Maps the table and keeps the target open. A target that cannot be kept is read through the mount path.
fn keep([table, target]: [c_int; 2], inode: u64, before: Option<&'static Place>) -> Option<u32> {
    // SAFETY: received descriptors, open until they are closed here or kept.
    let mapped = DeviceTable::attach(unsafe { BorrowedFd::borrow_raw(table) });
    sys::close(table);
    let at = MADE.load(Ordering::Relaxed);
    let (Ok(mapped), Some(place)) = (mapped, PLACES.get(at as usize)) else {
        sys::close(target);
        return None;
    };
    // The same target with another size: the known descriptor stays, since other threads may read with it.
    let known = before.and_then(|before| before.fd.kept()).filter(|known| is_same_file(known.fd, target));
    let kept = match known {
        Some(known) => {
            sys::close(target);
            known
        }
        None => helper::raise(target)?,
    };
    place.fd.set(kept);
    place.inode.store(inode, Ordering::Relaxed);
    // SAFETY: this thread has set ASKING: no other thread writes, and none reads before `CURRENT` names the
    // place.
    unsafe { (*place.table.get()).write(mapped) };
    MADE.store(at + 1, Ordering::Relaxed);
    Some(at)
}

fn is_same_file(a: c_int, b: c_int) -> bool {
    sys::identity(a).is_some_and(|(what, _)| sys::is_still(b, what))
}

impl Place {
    const fn new() -> Place {
        let table = UnsafeCell::new(MaybeUninit::uninit());
        Place { fd: helper::Slot::new(), inode: AtomicU64::new(0), table }
    }

    /// For a place that `CURRENT` names, or has named.
    fn table(&'static self) -> &'static DeviceTable {
        // SAFETY: the place's number was read with Acquire, so the table is written. The table is never
        // changed or unmapped.
        unsafe { (*self.table.get()).assume_init_ref() }
    }
}
