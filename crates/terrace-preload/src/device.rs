//! The targets of the tiers on devices, as this process reads them: their tables and descriptors, asked for once.

use crate::{connection, helper, sys};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::{DeviceSlot, DeviceTable};

/// Not asked yet; being asked; asked.
const UNKNOWN: u32 = 0;
const ASKING: u32 = 1;
const KNOWN: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
static TARGETS: [Place; TARGETS_MAX] = [const { Place::new() }; TARGETS_MAX];

/// Room for a target.
struct Place {
    fd: helper::Slot,
    /// 1: there is a table.
    mapped: AtomicU32,
    table: UnsafeCell<MaybeUninit<DeviceTable>>,
}

// SAFETY: the table is written by the thread that set ASKING, before `mapped` is published, and never after.
unsafe impl Sync for Place {}

/// A target that can be read now.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    /// Its number, by which its reads are counted.
    pub number: usize,
    pub fd: c_int,
    pub table: &'static DeviceTable,
}

/// The target that has a slot, if it can be read.
pub fn of(slot: DeviceSlot) -> Option<Device> {
    if STATE.load(Ordering::Acquire) == UNKNOWN {
        ask();
    }
    let mut tables = TARGETS.iter().enumerate().filter_map(|(number, place)| Some((number, place.table()?)));
    let (number, table) = tables.find(|(_, table)| table.index(slot).is_some())?;
    Some(Device { number, fd: TARGETS[number].fd.get()?, table })
}

/// Asks the daemon for all of them. Other threads read by the mount path meanwhile.
#[cold]
fn ask() {
    if STATE.compare_exchange(UNKNOWN, ASKING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let is_known = ask_each();
    STATE.store(if is_known { KNOWN } else { UNKNOWN }, Ordering::Release);
}

/// False: not all of them could be asked for.
fn ask_each() -> bool {
    for (number, place) in TARGETS.iter().enumerate().filter(|(_, place)| place.table().is_none()) {
        match connection::device(number as u32) {
            None => return false,
            // The daemon alone reads it.
            Some(Err(libc::EOPNOTSUPP)) => {}
            Some(Err(_)) => return true,
            Some(Ok(fds)) => place.keep(fds),
        }
    }
    true
}

impl Place {
    const fn new() -> Place {
        let table = UnsafeCell::new(MaybeUninit::uninit());
        Place { fd: helper::Slot::new(), mapped: AtomicU32::new(0), table }
    }

    fn table(&'static self) -> Option<&'static DeviceTable> {
        let is_there = self.mapped.load(Ordering::Acquire) == 1;
        // SAFETY: read with Acquire, so the table is written; and it is never changed or unmapped.
        is_there.then(|| unsafe { (*self.table.get()).assume_init_ref() })
    }

    /// Maps the table, and keeps the target open. One that cannot be kept is read by the mount path.
    fn keep(&self, [table, target]: [c_int; 2]) {
        // SAFETY: received descriptors, open until they are closed here or kept.
        let mapped = DeviceTable::attach(unsafe { BorrowedFd::borrow_raw(table) });
        sys::close(table);
        let (Ok(mapped), Some(fd)) = (mapped, helper::raise(target)) else { return };
        if self.fd.set(fd) {
            // SAFETY: this thread set ASKING: no other writes, and none reads before `mapped` is set.
            unsafe { (*self.table.get()).write(mapped) };
            self.mapped.store(1, Ordering::Release);
        }
    }
}
