//! A classified descriptor, as a read works on it, and what is counted and recorded of its reads.

use crate::connection;
use crate::local::{Local, local};
use crate::sys::{self, count};
use crate::table::{self, Class};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use terrace_shm::ring::Ring;
use terrace_shm::trace::Span;
use terrace_shm::{ObjectSlot, PAGE_SIZE};

/// An open file, as a read sees it.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    pub fd: c_int,
    pub class: Class,
    /// The object that the descriptor was opened on; the slot may be another's by now, where there is no mount.
    pub object: u64,
    pub slot: &'a ObjectSlot,
    pub world: &'static connection::World,
    pub local: &'a Local,
}

impl File<'static> {
    #[inline]
    pub fn new(fd: c_int, class: Class) -> Option<Self> {
        let local = local();
        if local.vforked() {
            return None;
        }
        let world = connection::world()?;
        Some(File {
            fd,
            class,
            object: table::object(fd),
            slot: world.segment.object(class.slot()),
            world,
            local,
        })
    }
}

impl File<'_> {
    /// Is the slot the object's?
    #[inline]
    pub fn has_slot(&self) -> bool {
        self.slot.id.load(Ordering::Acquire) == self.object
    }
    /// May it be read from memory? Where there is no mount, not after the keeper of the leases has died.
    #[inline]
    pub fn is_served(&self) -> bool {
        self.has_slot() && self.world.has_keeper()
    }
    #[inline]
    pub fn count_hit(&self, offset: u64, n: usize) {
        if n > 0
            && let Some(ring) = connection::ring()
        {
            let c = ring.counters(self.local.stripe());
            count(&c.hits, ((offset as usize % PAGE_SIZE + n).div_ceil(PAGE_SIZE)) as u64);
            count(&c.hit_bytes, n as u64);
            if self.is_traced() {
                self.trace_hit(offset, n);
            }
        }
    }
    /// Somebody records a trace of the mount. The word lies on a line that a look at the index has loaded.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.world.segment.header().tracing.load(Ordering::Relaxed) != 0
    }
    #[cold]
    fn trace_hit(&self, offset: u64, n: usize) {
        if let Some(ring) = connection::hold_ring() {
            self.trace(&ring, offset, n, false);
        }
    }
    /// Leaves word of a read for the recorder.
    #[cold]
    pub fn trace(&self, ring: &Ring, offset: u64, n: usize, miss: bool) {
        let page = offset / PAGE_SIZE as u64;
        let pages = (offset as usize % PAGE_SIZE + n).div_ceil(PAGE_SIZE);
        ring.lane(self.local.stripe()).push(Span {
            object: self.object,
            page,
            pages: u16::try_from(pages).unwrap_or(u16::MAX),
            miss,
            at_ns: sys::now_ns(),
            thread: sys::thread(),
        });
    }
    #[cold]
    pub fn count_fallback(&self) {
        if let Some(ring) = connection::ring() {
            count(&ring.counters(self.local.stripe()).fallbacks, 1);
        }
    }
}
