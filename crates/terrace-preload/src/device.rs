//! The tier on a device, as this process reads it: its table and its target, asked for once.

use crate::{connection, helper, sys};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_shm::DeviceTable;

/// Not asked yet; being asked; there is one; there is none.
const UNKNOWN: u32 = 0;
const ASKING: u32 = 1;
const THERE: u32 = 2;
const NONE: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
static TARGET: helper::Slot = helper::Slot::new();
static TABLE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));

/// Room for the table.
struct Place(UnsafeCell<MaybeUninit<DeviceTable>>);

// SAFETY: written by the thread that set ASKING, before THERE is published, and never after.
unsafe impl Sync for Place {}

/// A target that can be read now.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    pub fd: c_int,
    pub table: &'static DeviceTable,
}

/// The device, if there is one.
pub fn device() -> Option<Device> {
    let state = match STATE.load(Ordering::Acquire) {
        UNKNOWN => ask(),
        state => state,
    };
    if state != THERE {
        return None;
    }
    // SAFETY: THERE was read with Acquire, so the table is written, and it is never changed or unmapped.
    let table = unsafe { (*TABLE.0.get()).assume_init_ref() };
    Some(Device { fd: TARGET.get()?, table })
}

/// Asks the daemon; the state then. Other threads read by the mount path meanwhile.
#[cold]
fn ask() -> u32 {
    if STATE.compare_exchange(UNKNOWN, ASKING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return ASKING;
    }
    let state = match connection::device() {
        None => UNKNOWN,
        Some(None) => NONE,
        Some(Some(fds)) if keep(fds) => THERE,
        Some(Some(_)) => NONE,
    };
    STATE.store(state, Ordering::Release);
    state
}

/// Maps the table, and keeps the target open.
fn keep([table, target]: [c_int; 2]) -> bool {
    // SAFETY: received descriptors, open until they are closed here or kept.
    let mapped = DeviceTable::attach(unsafe { BorrowedFd::borrow_raw(table) });
    sys::close(table);
    let (Ok(mapped), Some(fd)) = (mapped, helper::raise(target)) else { return false };
    // SAFETY: this thread set ASKING: no other writes, and none reads before THERE.
    unsafe { (*TABLE.0.get()).write(mapped) };
    TARGET.set(fd)
}
