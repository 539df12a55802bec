//! The targets of the tiers on devices, as this process reads them: their tables and descriptors. They are asked for when the first is needed, and again
//! whenever one was added, resized or removed ([`Header::targets`](terrace_shm::layout::Header)).
//!
//! A table stays mapped, for another thread may be looking at it. What such a thread reads of a target that is gone counts for nothing: the entry that
//! named the slot was withdrawn before.

use crate::{connection, helper, sys};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::{DeviceSlot, DeviceTable, Segment};

/// Tables that a process maps in its life. Targets that come after so many changes are read by the mount path.
const PLACES_MAX: usize = 64;

static PLACES: [Place; PLACES_MAX] = [const { Place::new() }; PLACES_MAX];
/// Places that were used.
static MADE: AtomicU32 = AtomicU32::new(0);
/// The place of each target, plus 1; 0: there is none.
static CURRENT: [AtomicU32; TARGETS_MAX] = [const { AtomicU32::new(0) }; TARGETS_MAX];
/// The number of the change that `CURRENT` was asked for after, plus 1; 0: not asked yet.
static KNOWN: AtomicU64 = AtomicU64::new(0);
/// 1: a thread is asking.
static ASKING: AtomicU32 = AtomicU32::new(0);

/// Room for a target.
struct Place {
    fd: helper::Slot,
    /// Which memory file the table is.
    inode: AtomicU64,
    table: UnsafeCell<MaybeUninit<DeviceTable>>,
}

// SAFETY: the table is written by the thread that set ASKING, before `CURRENT` names the place, and never after.
unsafe impl Sync for Place {}

/// A target that can be read now.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    /// Its number, by which its reads are counted.
    pub number: usize,
    pub fd: c_int,
    pub table: &'static DeviceTable,
}

/// The target that has a slot, if it can be read. The caller has seen the slot in an entry: the change that brought its target is seen, too.
pub fn of(segment: &Segment, slot: DeviceSlot) -> Option<Device> {
    let change = u64::from(segment.header().targets.load(Ordering::Acquire)) + 1;
    if KNOWN.load(Ordering::Acquire) != change && !ask(change) {
        return None;
    }
    let mut places = CURRENT.iter().enumerate().filter_map(|(number, at)| Some((number, place(at)?)));
    let (number, place) = places.find(|(_, place)| place.table().index(slot).is_some())?;
    Some(Device { number, fd: place.fd.get()?, table: place.table() })
}

/// Gives targets back that were removed, at an occasion that comes before the next read of one.
pub fn look(segment: &Segment) {
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

/// Asks the daemon for all of them. Other threads read by the mount path meanwhile. False: not all of them could be asked for.
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
        // There is none, or the daemon alone reads it.
        Err(_) => current.store(0, Ordering::Release),
    }
    // Not before the next is named: a thread that comes now finds another.
    if let Some(before) =
        before.filter(|before| !place(current).is_some_and(|now| now.fd.is_same(&before.fd)))
    {
        before.fd.discard();
    }
    true
}

/// Maps the table, and keeps the target open. One that cannot be kept is read by the mount path.
fn keep([table, target]: [c_int; 2], inode: u64, before: Option<&'static Place>) -> Option<u32> {
    // SAFETY: received descriptors, open until they are closed here or kept.
    let mapped = DeviceTable::attach(unsafe { BorrowedFd::borrow_raw(table) });
    sys::close(table);
    let at = MADE.load(Ordering::Relaxed);
    let (Ok(mapped), Some(place)) = (mapped, PLACES.get(at as usize)) else {
        sys::close(target);
        return None;
    };
    // The same target with another size: other threads may be reading by the descriptor that is known, so that one stays.
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
    // SAFETY: this thread set ASKING: no other writes, and none reads before `CURRENT` names the place.
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

    /// Of a place that `CURRENT` names, or has named.
    fn table(&'static self) -> &'static DeviceTable {
        // SAFETY: the name was read with Acquire, so the table is written; and it is never changed or unmapped.
        unsafe { (*self.table.get()).assume_init_ref() }
    }
}
