//! The rings of this process. One comes with each connection, and takes the place of one that no thread is at any more.
//!
//! | who uses it | what lasts as long |
//! |---|---|
//! | a hit, which counts itself | the memory at the place's address, from its first ring on: a count that comes late is the next ring's |
//! | a miss, which fills slots; a read that is recorded | the ring: a [`Held`] keeps it where it is |
//!
//! A place that a thread left behind (it was cancelled, it jumped out of a signal handler, a fork has only its number) is never replaced. Each ring loses one at the
//! most; with the last, fills end.

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

/// What is at a place.
mod kind {
    /// There was no ring yet.
    pub const EMPTY: u32 = 0;
    /// A ring of this process; in a fork a hole.
    pub const RING: u32 = 1;
    /// Memory of nobody.
    pub const COVERED: u32 = 2;
    /// Perhaps the program's.
    pub const LOST: u32 = 3;
}

struct Place {
    users: AtomicU32,
    kind: AtomicU32,
    ring: UnsafeCell<MaybeUninit<Ring>>,
}

// SAFETY: the ring is written once, before its place is opened and named, and read-only after.
unsafe impl Sync for Place {}

/// Not in a page that fork wipes: a fork out of a signal handler leaves frames behind that are at one.
static PLACES: [Place; PLACES_MAX] = [const {
    Place {
        users: AtomicU32::new(0),
        kind: AtomicU32::new(kind::EMPTY),
        ring: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; PLACES_MAX];

/// A ring that stays where it is until this is dropped.
pub struct Held(&'static Place);

impl Deref for Held {
    type Target = Ring;
    fn deref(&self) -> &Ring {
        self.0.ring()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        place::leave(&self.0.users);
    }
}

/// Ring number `i`, for counts. Its slots may be those of another connection in the next moment.
pub fn at(i: usize) -> &'static Ring {
    PLACES[i].ring()
}

/// Ring number `i`, for its slots. None: it is being replaced.
pub fn hold(i: usize) -> Option<Held> {
    place::enter(&PLACES[i].users).then(|| Held(&PLACES[i]))
}

/// Maps a ring where no thread is; its number. By the holder of the connection's lock.
pub fn take(fd: BorrowedFd<'_>, slots: usize) -> Option<usize> {
    let (i, place) = PLACES.iter().enumerate().find(|(_, p)| p.close_if_suits(slots))?;
    let mapped = place.map(fd, slots);
    place::open(&place.users);
    mapped.then_some(i)
}

/// In the child of a fork: where its parent's rings were, memory of nobody takes their place. If the fork came from a
/// signal handler, the frames that it interrupted run on in the child as well, and go on filling their slots.
pub fn leave_parent() {
    for p in PLACES.iter().filter(|p| p.kind.load(Ordering::Relaxed) == kind::RING) {
        p.cover(kind::LOST);
    }
}

impl Place {
    /// Of a place that was named.
    fn ring(&self) -> &Ring {
        // SAFETY: a ring is written before its place is named, and stays.
        unsafe { (*self.ring.get()).assume_init_ref() }
    }

    fn suits(&self, slots: usize) -> bool {
        match self.kind.load(Ordering::Relaxed) {
            kind::EMPTY => true,
            kind::LOST => false,
            _ => self.ring().slots() == slots,
        }
    }

    /// True if it is closed now, and can take a ring of so many slots.
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

    /// Of a closed place.
    fn map(&self, fd: BorrowedFd<'_>, slots: usize) -> bool {
        if self.kind.load(Ordering::Relaxed) == kind::EMPTY {
            let Ok(ring) = Ring::attach(fd, slots) else { return false };
            // SAFETY: the place is closed and was never named.
            unsafe { (*self.ring.get()).write(ring) };
        // SAFETY: the place is closed: nobody is at a slot or a lane.
        } else if unsafe { self.ring().replace(fd) }.is_err() {
            // What was there may be gone.
            self.cover(kind::RING);
            return false;
        }
        self.kind.store(kind::RING, Ordering::Relaxed);
        let memory = self.ring().memory();
        // SAFETY: the ring's own mapping. A child must not write there.
        unsafe { sys::madvise(memory.as_ptr().cast(), memory.len(), libc::MADV_DONTFORK) };
        true
    }

    /// Fills the hole where a ring was; if there is none, the place becomes `otherwise`.
    fn cover(&self, otherwise: u32) {
        let memory = self.ring().memory();
        let covered = sys::cover(memory.as_ptr() as usize, memory.len());
        self.kind.store(if covered { kind::COVERED } else { otherwise }, Ordering::Relaxed);
    }
}
