//! Writes by rings of liburing, announced from their submission to their completion.
//!
//! A program takes completions without a call. So the library finds them later, at the next submission or wait:
//! those between its last look and the end of the queue. The kernel serves the pages until then. A completion shows
//! only the user data of its entry. A write lasts until the process ends ([`crate::lasting`]) if another entry in
//! flight has the same user data.

use crate::guarded::{self, Kind, Range, Ticket};
use crate::lasting::{self, Until};
use crate::liburing::{COMPLETION_MORE, Uring};
use crate::{sys, table, writers};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Maximum number of rings in the table.
const RINGS_MAX: usize = 16;
/// Writes in flight by a hash of their user data.
const BUCKETS: usize = 64;
const BUCKET_PLACES: usize = 16;
/// Counts of other entries of a ring.
const OTHERS: usize = 256;
/// Completions copied at once.
const COPIED_MAX: usize = 64;
/// Attempts at the lock without a pause, and pauses of 1 ms.
const SPINS: u32 = 1000;
const NAPS: u32 = 10;

/// A ring of the program.
#[derive(Debug, Clone, Copy)]
struct Ring {
    /// 0: free.
    key: usize,
    /// End of the entries that were looked at.
    submitted: u32,
    /// End of the completions that were looked at.
    completed: u32,
    /// Counts of entries in flight without a place among the writes, by a hash of their user data.
    others: [u8; OTHERS],
}

/// A write in flight.
#[derive(Debug, Clone, Copy)]
struct Write {
    /// Key of the ring; 0: free.
    key: usize,
    user_data: u64,
    object: u64,
    kind: Kind,
}

struct State {
    rings: [Ring; RINGS_MAX],
    writes: [[Write; BUCKET_PLACES]; BUCKETS],
}

struct Shared {
    is_locked: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: only the owner of the lock uses the state.
unsafe impl Sync for Shared {}

/// Whether the program has made a ring.
static USED: AtomicBool = AtomicBool::new(false);

static SHARED: Shared = Shared { is_locked: AtomicBool::new(false), state: UnsafeCell::new(State::new()) };

/// Runs `f` with the state. None: the lock stays taken, perhaps by the function that a signal has interrupted.
fn with<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    for attempt in 0..SPINS + NAPS {
        if !SHARED.is_locked.swap(true, Ordering::Acquire) {
            // SAFETY: the lock is this thread's.
            let result = f(unsafe { &mut *SHARED.state.get() });
            SHARED.is_locked.store(false, Ordering::Release);
            return Some(result);
        }
        if attempt < SPINS { std::hint::spin_loop() } else { sys::nap(1) }
    }
    None
}

fn hash(user_data: u64) -> usize {
    (user_data.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

impl State {
    const fn new() -> State {
        let ring = Ring { key: 0, submitted: 0, completed: 0, others: [0; OTHERS] };
        let write = Write { key: 0, user_data: 0, object: 0, kind: Kind::None };
        State { rings: [ring; RINGS_MAX], writes: [[write; BUCKET_PLACES]; BUCKETS] }
    }
    fn ring(&mut self, key: usize) -> Option<&mut Ring> {
        self.rings.iter_mut().find(|ring| ring.key == key)
    }
    fn bucket(&mut self, user_data: u64) -> &mut [Write; BUCKET_PLACES] {
        &mut self.writes[hash(user_data) % BUCKETS]
    }
    fn write(&mut self, key: usize, user_data: u64) -> Option<&mut Write> {
        self.bucket(user_data).iter_mut().find(|write| write.key == key && write.user_data == user_data)
    }
    fn other(&mut self, key: usize, user_data: u64) -> Option<&mut u8> {
        self.ring(key).map(|ring| &mut ring.others[hash(user_data) % OTHERS])
    }
    /// Enters a write. False: another entry in flight may have its user data, or no place is free.
    fn enter(&mut self, new: Write) -> bool {
        let is_alone = self.write(new.key, new.user_data).is_none()
            && self.other(new.key, new.user_data).is_some_and(|others| *others == 0);
        let free = self.bucket(new.user_data).iter_mut().find(|write| write.key == 0);
        match free.filter(|_| is_alone) {
            Some(free) => *free = new,
            None => return false,
        }
        true
    }
    /// Counts another entry. A write with the same user data lasts until the process ends.
    fn note_other(&mut self, key: usize, user_data: u64) {
        if let Some(write) = self.write(key, user_data) {
            hold(write);
        }
        // A full count stays.
        if let Some(others) = self.other(key, user_data) {
            *others = others.saturating_add(1);
        }
    }
    fn complete(&mut self, key: usize, user_data: u64) {
        if let Some(write) = self.write(key, user_data) {
            write.key = 0;
            guarded::end(Ticket::of(write.kind), 0);
        } else if let Some(others) =
            self.other(key, user_data).filter(|others| (1..u8::MAX).contains(*others))
        {
            *others -= 1;
        }
    }
    /// Lets all writes of a ring last until the process ends: completions are lost, or come later.
    fn abandon(&mut self, key: usize) {
        self.writes.iter_mut().flatten().filter(|write| write.key == key).for_each(hold);
    }
    /// Ends the writes that have completed since the last look.
    fn collect(&mut self, uring: &Uring) {
        let key = uring.key();
        let mut copied = [(0, 0); COPIED_MAX];
        while let Some(ring) = self.ring(key) {
            let (from, end) = (ring.completed, uring.completions_end());
            let n = end.wrapping_sub(from).min(COPIED_MAX as u32);
            let copied = &mut copied[..n as usize];
            for (i, copy) in copied.iter_mut().enumerate() {
                *copy = uring.completion(from.wrapping_add(i as u32));
            }
            fence(Ordering::Acquire);
            let end = uring.completions_end();
            // The kernel may have written over completions.
            let is_late = end.wrapping_sub(from) >= uring.completions_max() && n > 0;
            ring.completed = if is_late { end } else { from.wrapping_add(n) };
            if is_late {
                ring.others = [u8::MAX; OTHERS];
                return self.abandon(key);
            }
            if n == 0 {
                return;
            }
            for &(user_data, _) in copied.iter().filter(|(_, flags)| flags & COMPLETION_MORE == 0) {
                self.complete(key, user_data);
            }
        }
    }
}

/// Lets a write last until the process ends.
fn hold(write: &mut Write) {
    write.key = 0;
    lasting::hold(NO_FD, write.object, Until::Exit);
    guarded::end(Ticket::of(write.kind), 0);
}

/// The descriptor of a write in flight may be another file's by now.
const NO_FD: c_int = -1;

/// Enters a new ring. Writes of a ring without a place last until the process ends.
pub(crate) fn made(uring: &Uring) {
    USED.store(true, Ordering::Relaxed);
    ended(uring);
    with(|state| {
        if let Some(free) = uring.has_small_completions().then(|| state.ring(0)).flatten() {
            let (submitted, completed) = (uring.head, uring.completions_end());
            *free = Ring { key: uring.key(), submitted, completed, others: [0; OTHERS] };
        }
    });
}

/// A ring ends. Its writes in flight last until the process ends.
pub(crate) fn ended(uring: &Uring) {
    with(|state| {
        state.collect(uring);
        state.abandon(uring.key());
        if let Some(ring) = state.ring(uring.key()) {
            ring.key = 0;
        }
    });
}

/// In the child of a fork: the writes are the parent's.
pub(crate) fn forked() {
    if !USED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the child has one thread. A thread of the parent may have had the lock.
    let state = unsafe { &mut *SHARED.state.get() };
    state.rings.iter_mut().for_each(|ring| ring.key = 0);
    state.writes.iter_mut().flatten().for_each(|write| write.key = 0);
    SHARED.is_locked.store(false, Ordering::Release);
}

/// Ends the writes that have completed since the last look.
pub(crate) fn collect(uring: &Uring) {
    with(|state| state.collect(uring));
}

/// [`collect`] before a submission. Returns the number of pending entries that an earlier call has seen: a wait may
/// have left them unsubmitted.
pub(crate) fn submitting(uring: &Uring) -> u32 {
    let seen = with(|state| {
        state.collect(uring);
        let ring = state.ring(uring.key())?;
        let seen = std::mem::replace(&mut ring.submitted, uring.tail).wrapping_sub(uring.head);
        // Beyond the pending entries: the count of another time.
        (seen <= uring.tail.wrapping_sub(uring.head)).then_some(seen)
    });
    seen.flatten().unwrap_or(0)
}

/// Looks at a new entry that changes no file.
pub(crate) fn note_other(uring: &Uring, user_data: u64) {
    let is_noted = with(|state| state.note_other(uring.key(), user_data));
    if is_noted.is_none() {
        writers::hold_all();
    }
}

/// Announces a new entry that writes to a descriptor. `completes`: a completion shows its end.
pub(crate) fn announce(uring: &Uring, fd: c_int, range: Range, user_data: u64, completes: bool) {
    let Some(writer) = table::writer(fd) else {
        note_other(uring, user_data);
        // A number without a place in the table has no mark.
        if let Some(object) = writers::object(fd).filter(|_| !table::has_place(fd)) {
            lasting::hold(fd, object, Until::Exit);
        }
        return;
    };
    let kind = guarded::begin(fd, writer, range).kind;
    let write = Write { key: uring.key(), user_data, object: writer.object, kind };
    let is_announced = !matches!(kind, Kind::None);
    let is_entered = is_announced && completes && with(|state| state.enter(write)) == Some(true);
    if !is_entered {
        note_other(uring, user_data);
        if !matches!(range, Range::At { len: 0, .. }) {
            lasting::hold(fd, writer.object, Until::Exit);
        }
        guarded::end(Ticket::of(kind), 0);
    }
}
