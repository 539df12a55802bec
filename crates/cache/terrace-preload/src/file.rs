//! A file that the preload path may serve, during one read. Counters and trace records of the read are here,
//! too.

use crate::connection;
use crate::local::{Local, local};
use crate::sys::{self, count};
use crate::table::{self, Class};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use terrace_shm::ring::Ring;
use terrace_shm::trace::Span;
use terrace_shm::{ObjectSlot, PAGE_SIZE};

/// An open file during a read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File<'a> {
    pub(crate) fd: c_int,
    pub(crate) class: Class,
    /// The object of the descriptor. Without a mount, the slot may belong to another object by now.
    pub(crate) object: u64,
    pub(crate) slot: &'a ObjectSlot,
    pub(crate) world: &'static connection::Attachment,
    pub(crate) local: &'a Local,
}

impl File<'static> {
    #[inline]
    pub(crate) fn new(fd: c_int, class: Class) -> Option<Self> {
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
    /// Whether the slot still belongs to the object.
    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        self.slot.id.load(Ordering::Acquire) == self.object
    }
    /// Whether it may be read from memory. Without a mount, the leases must be kept.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        self.has_slot() && self.world.has_lease_holder()
    }
    /// Whether no announced write to these bytes is in flight, or not yet applied.
    #[inline]
    pub(crate) fn is_settled(&self, offset: u64, n: usize) -> bool {
        self.world.writes().is_none_or(|writes| writes.is_settled(self.object, offset, n))
    }
    #[inline]
    pub(crate) fn count_hit(&self, offset: u64, n: usize) {
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
    /// Whether a trace of the mount is recorded. The flag lies on a cache line that the look-up has loaded.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.world.segment.header().tracing.load(Ordering::Relaxed) != 0
    }
    #[cold]
    fn trace_hit(&self, offset: u64, n: usize) {
        if let Some(ring) = connection::hold_ring() {
            self.trace(&ring, offset, n, false);
        }
    }
    #[cold]
    pub(crate) fn trace(&self, ring: &Ring, offset: u64, n: usize, miss: bool) {
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
    pub(crate) fn count_fallback(&self) {
        if let Some(ring) = connection::ring() {
            count(&ring.counters(self.local.stripe()).fallbacks, 1);
        }
    }
}
