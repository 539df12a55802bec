//! Writes by rings of liburing, announced from their submission to their completion.
//!
//! A program takes completions without a call. So the library finds them later, at the next submission or wait:
//! those between its last look and the end of the queue. The kernel serves the pages until then. A write that
//! cannot be told from others in flight lasts until the process ends ([`crate::lasting`]).

use crate::guarded::{self, Range, Stored, Ticket};
use crate::lasting::{self, Until};
use crate::liburing::Uring;
use crate::{table, writers};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Maximum number of rings.
const RINGS_MAX: usize = 16;
/// Maximum number of writes in flight.
const WRITES_MAX: usize = 512;
/// Completions copied at once.
const COPIED_MAX: usize = 64;

/// A ring of the program.
#[derive(Debug)]
struct Ring {
    /// Address; 0: free.
    at: AtomicUsize,
    /// End of the announced submissions.
    announced: AtomicU32,
    /// End of the completions that were looked at.
    looked: AtomicU32,
    /// A thread looks at completions.
    is_locked: AtomicBool,
}

static RINGS: [Ring; RINGS_MAX] = [const {
    Ring {
        at: AtomicUsize::new(0),
        announced: AtomicU32::new(0),
        looked: AtomicU32::new(0),
        is_locked: AtomicBool::new(false),
    }
}; RINGS_MAX];

mod state {
    pub(super) const FREE: u32 = 0;
    /// A thread fills or empties the entry.
    pub(super) const BUSY: u32 = 1;
    pub(super) const IN_FLIGHT: u32 = 2;
}

/// A write in flight.
#[derive(Debug)]
struct Write {
    state: AtomicU32,
    ring: AtomicUsize,
    user_data: AtomicU64,
    ticket: Stored,
}

static WRITES: [Write; WRITES_MAX] = [const {
    Write {
        state: AtomicU32::new(state::FREE),
        ring: AtomicUsize::new(0),
        user_data: AtomicU64::new(0),
        ticket: Stored::new(),
    }
}; WRITES_MAX];

/// One more than the highest entry ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

impl Write {
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
    fn is_of(&self, ring: usize, user_data: u64) -> bool {
        self.state.load(Ordering::Acquire) == state::IN_FLIGHT
            && self.ring.load(Ordering::Relaxed) == ring
            && self.user_data.load(Ordering::Relaxed) == user_data
    }
}

fn find(ring: usize, user_data: u64) -> Option<&'static Write> {
    WRITES[..USED.load(Ordering::Acquire)].iter().find(|write| write.is_of(ring, user_data))
}

fn ring_at(ring: &Uring) -> Option<&'static Ring> {
    let at = std::ptr::from_ref(ring) as usize;
    RINGS.iter().find(|known| known.at.load(Ordering::Acquire) == at)
}

/// Enters a new ring. False: its writes cannot be followed.
pub(crate) fn made(ring: &Uring) -> bool {
    ended(ring);
    let at = std::ptr::from_ref(ring) as usize;
    let enter =
        |free: &&Ring| free.at.compare_exchange(0, usize::MAX, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let Some(free) = ring.has_small_completions().then(|| RINGS.iter().find(enter)).flatten() else {
        return false;
    };
    free.announced.store(ring.head, Ordering::Relaxed);
    free.looked.store(ring.completions_end(), Ordering::Relaxed);
    free.at.store(at, Ordering::Release);
    true
}

/// A ring ends. Its writes in flight last until the process ends.
pub(crate) fn ended(ring: &Uring) {
    if let Some(known) = ring_at(ring) {
        collect(ring);
        let at = known.at.swap(0, Ordering::AcqRel);
        abandon(at);
    }
}

/// The completions of a ring's writes are not known any more.
fn abandon(ring: usize) {
    let its = |write: &&Write| write.ring.load(Ordering::Relaxed) == ring;
    WRITES.iter().filter(its).for_each(|write| write.ring.store(0, Ordering::Relaxed));
}

/// A submitted write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Submitted {
    pub(crate) fd: c_int,
    pub(crate) range: Range,
    pub(crate) user_data: u64,
    /// The end of its ring's submissions, if it is the last one.
    pub(crate) end: u32,
    /// A completion shows its end.
    pub(crate) completes: bool,
}

/// Announces a write before its submission, once.
pub(crate) fn announce(ring: &Uring, write: Submitted) {
    let known = ring_at(ring);
    if let Some(known) = known {
        // A wait may leave entries unsubmitted, and they are seen again.
        if known.announced.load(Ordering::Relaxed).wrapping_sub(write.end) as i32 >= 0 {
            return;
        }
        known.announced.store(write.end, Ordering::Relaxed);
    }
    let Some(object) = writers::object(write.fd) else { return };
    let at = std::ptr::from_ref(ring) as usize;
    let is_told_apart = write.completes && known.is_some() && find(at, write.user_data).is_none();
    let free = WRITES.iter().position(|write| is_told_apart && write.change(state::FREE, state::BUSY));
    let (Some(free), Some(writer)) = (free, table::writer(write.fd)) else {
        if let Some(free) = free {
            WRITES[free].state.store(state::FREE, Ordering::Release);
        }
        return lasting::hold(write.fd, object, Until::Exit);
    };
    USED.fetch_max(free + 1, Ordering::AcqRel);
    let entry = &WRITES[free];
    entry.ring.store(at, Ordering::Relaxed);
    entry.user_data.store(write.user_data, Ordering::Relaxed);
    entry.ticket.set(guarded::begin(write.fd, writer, write.range).kind);
    entry.state.store(state::IN_FLIGHT, Ordering::Release);
}

/// Ends the writes that have completed since the last look.
pub(crate) fn collect(ring: &Uring) {
    let Some(known) = ring_at(ring) else { return };
    while known.is_locked.swap(true, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    let mut copied = [0; COPIED_MAX];
    let at = std::ptr::from_ref(ring) as usize;
    loop {
        let looked = known.looked.load(Ordering::Relaxed);
        let end = ring.completions_end();
        let n = (end.wrapping_sub(looked) as usize).min(COPIED_MAX);
        for (i, user_data) in copied[..n].iter_mut().enumerate() {
            *user_data = ring.completion(looked.wrapping_add(i as u32));
        }
        fence(Ordering::Acquire);
        // Beyond it, the kernel has written over completions.
        if ring.completions_end().wrapping_sub(looked) > ring.completions_max() {
            abandon(at);
            known.looked.store(ring.completions_end(), Ordering::Relaxed);
            break;
        }
        for &user_data in &copied[..n] {
            if let Some(write) = find(at, user_data)
                && write.change(state::IN_FLIGHT, state::BUSY)
            {
                guarded::end(Ticket::of(write.ticket.kind()), 0);
                write.state.store(state::FREE, Ordering::Release);
            }
        }
        known.looked.store(looked.wrapping_add(n as u32), Ordering::Relaxed);
        if n < COPIED_MAX {
            break;
        }
    }
    known.is_locked.store(false, Ordering::Release);
}
