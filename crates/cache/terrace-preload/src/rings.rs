//! The rings of this process. One comes with each connection, and replaces a ring that has no user.
//!
//! | user | lifetime that it needs |
//! |---|---|
//! | a hit, which only counts | the memory at its address: a late count goes to the next ring |
//! | a miss, which fills slots; a traced read | the ring: a [`PinnedRing`] keeps it in place |
//!
//! A ring stays if a user never leaves it: a cancelled thread, a jump out of a handler, a count inherited by
//! fork. Each ring loses at most one place of the table. Without free places there are no more fills.

use crate::sys;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_shm::protocol::place;
use terrace_shm::ring::Ring;

/// Rings that a process and its ancestors can lose.
const PLACES_MAX: usize = 64;

/// Content of a place.
mod kind {
    pub(super) const EMPTY: u32 = 0;
    /// A ring of this process; in a forked child a hole.
    pub(super) const RING: u32 = 1;
    /// Anonymous memory in place of a ring.
    pub(super) const COVERED: u32 = 2;
    /// Unknown; perhaps the program's mapping.
    pub(super) const LOST: u32 = 3;
}

struct Place {
    users: AtomicU32,
    kind: AtomicU32,
    ring: UnsafeCell<MaybeUninit<Ring>>,
}

// SAFETY: the ring is written once, before its place is opened and published, and read-only after.
unsafe impl Sync for Place {}

/// Outside the page that fork wipes: after a fork in a signal handler, interrupted frames still use places.
static PLACES: [Place; PLACES_MAX] = [const {
    Place {
        users: AtomicU32::new(0),
        kind: AtomicU32::new(kind::EMPTY),
        ring: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; PLACES_MAX];

/// A ring that stays in place until this is dropped.
pub(crate) struct PinnedRing(&'static Place);

impl Deref for PinnedRing {
    type Target = Ring;
    fn deref(&self) -> &Ring {
        self.0.ring()
    }
}

impl Drop for PinnedRing {
    fn drop(&mut self) {
        place::leave(&self.0.users);
    }
}

/// Ring number `i`, for counts. It may be replaced at any time.
pub(crate) fn at(i: usize) -> &'static Ring {
    PLACES[i].ring()
}

/// Ring number `i`, for its slots. None: it is being replaced.
pub(crate) fn hold(i: usize) -> Option<PinnedRing> {
    place::enter(&PLACES[i].users).then(|| PinnedRing(&PLACES[i]))
}

/// Maps a ring at a place without users and returns its number. The caller holds the connection's lock.
pub(crate) fn take(fd: BorrowedFd<'_>, slots: usize) -> Option<usize> {
    let (i, place) = PLACES.iter().enumerate().find(|(_, p)| p.close_if_suits(slots))?;
    let mapped = place.map(fd, slots);
    place::open(&place.users);
    mapped.then_some(i)
}

/// In the child of a fork: puts anonymous memory in place of its parent's rings. After a fork in a signal
/// handler, interrupted frames run on in the child and still write to their slots.
pub(crate) fn leave_parent() {
    for p in PLACES.iter().filter(|p| p.kind.load(Ordering::Relaxed) == kind::RING) {
        p.cover(kind::LOST);
    }
}

impl Place {
    /// For a published place.
    fn ring(&self) -> &Ring {
        // SAFETY: a ring is written before its place is published, and stays.
        unsafe { (*self.ring.get()).assume_init_ref() }
    }

    fn suits(&self, slots: usize) -> bool {
        match self.kind.load(Ordering::Relaxed) {
            kind::EMPTY => true,
            kind::LOST => false,
            _ => self.ring().slots() == slots,
        }
    }

    /// Closes the place if it has no user and suits a ring of `slots` slots. Returns whether it is closed.
    fn close_if_suits(&self, slots: usize) -> bool {
        if !place::close(&self.users) {
            return false;
        }
        let suits = self.suits(slots);
        if !suits {
            place::open(&self.users);
        }
        suits
    }

    /// For a closed place.
    fn map(&self, fd: BorrowedFd<'_>, slots: usize) -> bool {
        if self.kind.load(Ordering::Relaxed) == kind::EMPTY {
            let Ok(ring) = Ring::attach(fd, slots) else { return false };
            // SAFETY: the place is closed and was never published.
            unsafe { (*self.ring.get()).write(ring) };
        // SAFETY: the place is closed, so no slot or lane is in use.
        } else if unsafe { self.ring().replace(fd) }.is_err() {
            // The old ring may be unmapped.
            self.cover(kind::RING);
            return false;
        }
        self.kind.store(kind::RING, Ordering::Relaxed);
        let memory = self.ring().memory();
        // SAFETY: the ring's own mapping. A child must not write to it.
        unsafe { sys::madvise(memory.as_ptr().cast(), memory.len(), libc::MADV_DONTFORK) };
        true
    }

    /// Fills the hole of a ring with memory. If the range is in use, the place becomes `otherwise`.
    fn cover(&self, otherwise: u32) {
        let memory = self.ring().memory();
        let covered = sys::cover(memory.as_ptr() as usize, memory.len());
        self.kind.store(if covered { kind::COVERED } else { otherwise }, Ordering::Relaxed);
    }
}
