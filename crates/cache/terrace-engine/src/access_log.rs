//! Log of page accesses through the mount, filled while a recording runs and drained by the recorder.

use crate::clock::Clock;
use crate::file::object::{Object, ObjectId};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_shm::PAGE_SIZE;
use terrace_sync::Mutex;

const PAGE: u64 = PAGE_SIZE as u64;
/// Accesses that fit between two drains by the recorder; further ones are counted as lost.
pub(crate) const NOTED_MAX: usize = 8192;

/// Path of an access to a page, and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read through the mount, found in a frame.
    MountHit,
    /// Read through the mount, fetched from the source.
    MountMiss,
    /// Written through the mount.
    Write,
    /// Read by the library out of a frame.
    PreloadHit,
    /// Read by the library from the source.
    PreloadMiss,
}

/// Adjacent pages accessed by one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noted {
    pub(crate) object: ObjectId,
    pub(crate) page: u64,
    pub(crate) pages: u64,
    pub(crate) at_ns: u64,
    pub(crate) kind: Kind,
    /// Thread ID of the program; 0: not known.
    pub(crate) tid: u32,
}

thread_local! {
    /// Thread ID of the program with the request that this thread serves.
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// Sets the thread of the program that this thread serves; 0: not known.
pub fn set_caller(tid: u32) {
    CALLER.set(tid);
}

/// Thread ID of the program that this thread serves; 0: not known.
pub(crate) fn caller() -> u32 {
    CALLER.get()
}

#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    noted: Mutex<Vec<Noted>>,
    lost: AtomicU64,
}

impl AccessLog {
    /// Notes an access. Only called while a recording runs.
    #[cold]
    pub(crate) fn note(&self, clock: &dyn Clock, o: &Object, offset: u64, bytes: usize, kind: Kind) {
        if bytes == 0 {
            return;
        }
        let page = offset / PAGE;
        let pages = (offset + bytes as u64).div_ceil(PAGE) - page;
        let at_ns = clock.now_ns();
        let mut noted = self.noted.lock();
        if noted.len() < NOTED_MAX {
            noted.push(Noted { object: o.id(), page, pages, at_ns, kind, tid: CALLER.get() });
        } else {
            self.lost.fetch_add(pages, Ordering::Relaxed);
        }
    }
    /// Takes the noted accesses, and the number of pages lost for lack of room.
    pub(crate) fn take(&self) -> (Vec<Noted>, u64) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        (std::mem::take(&mut *self.noted.lock()), lost)
    }
}
