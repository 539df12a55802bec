//! The ring of one client process: counters, and slots through which it donates pages that it read itself.
//!
//! ```text
//! page 0   counters: STRIPES x 128 bytes
//! page 1   descriptors: 64 bytes x slots (at most 64)
//! page 2.. one content page a slot
//! ```
//! The client may write anything here at any time. The daemon therefore reads each descriptor field once, checks it,
//! and copies content before it looks at it.

use crate::layout::PAGE_SIZE;
use crate::map::Mapping;
pub use crate::protocol::NO_LEAF;
use crate::sync::{AtomicU64, Ordering};
use std::io;
use std::os::fd::AsFd;

/// Counter stripes: threads of a client spread over them, so that plain increments seldom collide.
pub const STRIPES: usize = 16;
/// Slots of a ring at the most.
pub const SLOTS_MAX: usize = 64;

/// What a client counts. Increments are plain load + store: an update may be lost when two threads share a stripe.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Counters {
    /// Pages copied out of frames.
    pub hits: AtomicU64,
    /// Bytes so delivered.
    pub hit_bytes: AtomicU64,
    /// Pages read from the source by the client.
    pub misses: AtomicU64,
    /// Bytes so delivered.
    pub miss_bytes: AtomicU64,
    /// Reads that went through the main door.
    pub fallbacks: AtomicU64,
    /// Pages put into the ring.
    pub donations: AtomicU64,
    /// Donations given up because no slot was free.
    pub donations_dropped: AtomicU64,
    /// Optimistic copies that had to be repeated.
    pub retries: AtomicU64,
}

/// One donation.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Donation {
    /// See [`crate::protocol::slot`].
    pub state: AtomicU64,
    /// Object id.
    pub object: AtomicU64,
    /// Page index in the object.
    pub page: AtomicU64,
    /// What the client found in the index before it read: `Entry::identity`, or NO_LEAF.
    pub seen: AtomicU64,
    /// Event clock before that look.
    pub clock: AtomicU64,
    /// Bytes valid in the content page; 0 = key only, the daemon reads the page itself.
    pub len: AtomicU64,
    _pad: [u64; 2],
}

const _: () = assert!(size_of::<Counters>() == 128 && STRIPES * 128 <= PAGE_SIZE);
const _: () = assert!(size_of::<Donation>() == 64 && SLOTS_MAX * 64 <= PAGE_SIZE);

/// A mapped ring.
#[derive(Debug)]
pub struct Ring {
    map: Mapping,
    slots: usize,
}

impl Ring {
    /// Bytes of a ring of `slots` slots.
    pub fn bytes(slots: usize) -> usize {
        (2 + slots) * PAGE_SIZE
    }
    /// Maps a ring of `slots` slots.
    pub fn attach(fd: impl AsFd, slots: usize) -> io::Result<Ring> {
        if slots == 0
            || slots > SLOTS_MAX
            || (rustix::fs::fstat(fd.as_fd())?.st_size as usize) < Ring::bytes(slots)
        {
            // No text: a client may be inside an allocator here.
            return Err(rustix::io::Errno::INVAL.into());
        }
        Ok(Ring { map: Mapping::new(fd.as_fd(), Ring::bytes(slots), true, PAGE_SIZE)?, slots })
    }
    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots
    }
    /// The counters of stripe `i % STRIPES`.
    #[inline]
    pub fn counters(&self, i: usize) -> &Counters {
        // SAFETY: within page 0; all atomics.
        unsafe { &*self.map.as_ptr().cast::<Counters>().add(i % STRIPES) }
    }
    /// Descriptor `i`.
    #[inline]
    pub fn donation(&self, i: usize) -> &Donation {
        assert!(i < self.slots);
        // SAFETY: within page 1; all atomics.
        unsafe { &*self.map.as_ptr().add(PAGE_SIZE).cast::<Donation>().add(i) }
    }
    /// Content page of slot `i`.
    #[inline]
    pub fn content(&self, i: usize) -> *mut u8 {
        assert!(i < self.slots);
        // SAFETY: in bounds.
        unsafe { self.map.as_ptr().add((2 + i) * PAGE_SIZE) }
    }
    /// Sum of a counter over all stripes.
    pub fn sum(&self, f: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        (0..STRIPES).map(|i| f(self.counters(i)).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}
