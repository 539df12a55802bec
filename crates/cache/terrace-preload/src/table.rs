//! The table of descriptors: a state word, an object and a position for each.
//!
//! ```text
//!  63         62     61     60        59     58     57..56  55..49  48      47..32       31..0
//! | classified|shared|helper|candidate|writer|append| order | jumps | direct| source + 1 | object slot |
//! ```
//! Writes of a writer are announced ([`crate::guarded`]). A writer may also be classified, or a candidate.
//! With a mount, the thread that opens a descriptor classifies it before the program gets the number. A race
//! is possible only for a program that guesses numbers. Without a mount, a read classifies a candidate. The
//! entry is cleared before the descriptor is closed.

use crate::sys::Identity;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Descriptors in the table; higher ones use the mount path.
pub(crate) const FDS_MAX: usize = 1 << 16;

const CLASSIFIED: u64 = 1 << 63;
const SHARED: u64 = 1 << 62;
const HELPER: u64 = 1 << 61;
const CANDIDATE: u64 = 1 << 60;
const WRITER: u64 = 1 << 59;
const APPEND: u64 = 1 << 58;
/// Bits that do not depend on how the descriptor is read.
const WRITES: u64 = WRITER | APPEND;
/// The descriptor is open with O_DIRECT.
const DIRECT: u64 = 1 << 48;
/// Bits that stay as long as the descriptor.
const KEPT: u64 = WRITES | SHARED | DIRECT;
/// A descriptor with one of these has an object.
const KNOWN: u64 = CLASSIFIED | CANDIDATE | WRITER;
const JUMPS_SHIFT: u32 = 49;
const JUMPS_MASK: u64 = 0x7f << JUMPS_SHIFT;
const ORDER_SHIFT: u32 = 56;
const ORDER_MASK: u64 = 3 << ORDER_SHIFT;
const SOURCE_SHIFT: u32 = 32;
const SOURCE_MASK: u64 = 0xffff << SOURCE_SHIFT;

pub(crate) const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
struct Fd {
    word: AtomicU64,
    object: AtomicU64,
    position: AtomicU64,
}

static TABLE: [Fd; FDS_MAX] =
    [const { Fd { word: AtomicU64::new(0), object: AtomicU64::new(0), position: AtomicU64::new(0) } };
        FDS_MAX];

/// Highest descriptor of the program ever entered (-1: none).
static HIGHEST: AtomicI32 = AtomicI32::new(-1);
/// Lowest and highest descriptor of the library, which are far above: a search must not visit the range
/// between.
static HELPERS_FROM: AtomicI32 = AtomicI32::new(c_int::MAX);
static HELPERS_TO: AtomicI32 = AtomicI32::new(-1);

/// The order of a descriptor's reads, as announced by the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Order {
    /// Not announced.
    Unknown = 0,
    Sequential = 1,
    Random = 2,
}

/// A snapshot of a descriptor's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u64);

impl Class {
    /// Object slot in the segment.
    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }
    /// Others may move the position (dup, fork).
    #[inline]
    pub(crate) fn shared(self) -> bool {
        self.0 & SHARED != 0
    }
    /// The order that the program announced.
    #[inline]
    pub(crate) fn order(self) -> Order {
        match (self.0 & ORDER_MASK) >> ORDER_SHIFT {
            1 => Order::Sequential,
            2 => Order::Random,
            _ => Order::Unknown,
        }
    }
    /// The descriptor is open with O_DIRECT.
    #[inline]
    pub(crate) fn is_direct(self) -> bool {
        self.0 & DIRECT != 0
    }
    /// Index into the table of sources, if recorded.
    #[inline]
    pub(crate) fn source(self) -> Option<usize> {
        (((self.0 & SOURCE_MASK) >> SOURCE_SHIFT) as usize).checked_sub(1)
    }
}

/// A descriptor with announced writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer {
    /// Inode of the file.
    pub(crate) object: u64,
    word: u64,
}

impl Writer {
    /// Writes go to the end of the file (O_APPEND).
    pub(crate) fn appends(self) -> bool {
        self.word & APPEND != 0
    }
    /// Others may move the position, or change O_APPEND.
    pub(crate) fn shared(self) -> bool {
        self.word & SHARED != 0
    }
}

#[inline]
fn entry(fd: c_int) -> Option<&'static Fd> {
    TABLE.get(fd as u32 as usize)
}

/// The class of a descriptor that the preload path may serve.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Class> {
    let word = entry(fd)?.word.load(Ordering::Acquire);
    (word & CLASSIFIED != 0).then_some(Class(word))
}

/// Enters a newly opened descriptor with its object and slot.
pub(crate) fn classify(fd: c_int, object: u64, slot: u32) {
    enter(fd, CLASSIFIED | u64::from(slot), object);
}

/// Enters a descriptor that is classified once its reads jump (`leased.rs`). It may be a writer's. `direct`: it is
/// open with O_DIRECT.
pub(crate) fn mark(fd: c_int, object: u64, direct: bool) {
    let kept = entry(fd).map_or(0, |e| e.word.load(Ordering::Relaxed) & (WRITES | SHARED));
    let direct = if direct { DIRECT } else { 0 };
    enter(fd, CANDIDATE | kept | direct, object);
}

/// Enters a writer. `shared`: other processes have its position. False: the table has no place for it.
pub(crate) fn mark_writer(fd: c_int, object: u64, appends: bool, shared: bool) -> bool {
    let bits = if appends { APPEND } else { 0 } | if shared { SHARED } else { 0 };
    enter(fd, WRITER | bits, object);
    has_place(fd)
}

/// The mark of a writer.
#[inline]
pub(crate) fn writer(fd: c_int) -> Option<Writer> {
    let e = entry(fd)?;
    let word = e.word.load(Ordering::Acquire);
    (word & WRITER != 0).then(|| Writer { object: e.object.load(Ordering::Relaxed), word })
}

/// All writers.
pub(crate) fn writers() -> impl Iterator<Item = (c_int, Writer)> {
    entered(0, u32::MAX).filter_map(|fd| Some((fd, writer(fd)?)))
}

/// Records a change of O_APPEND.
pub(crate) fn note_append(fd: c_int, appends: bool) {
    if let Some(e) = entry(fd) {
        let _ = e.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            (word & WRITER != 0).then_some(if appends { word | APPEND } else { word & !APPEND })
        });
    }
}

/// Whether the descriptor is such a candidate.
#[inline]
pub(crate) fn is_candidate(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| e.word.load(Ordering::Relaxed) & CANDIDATE != 0)
}

/// The order of a candidate's reads, as the program announced it.
pub(crate) fn order(fd: c_int) -> Order {
    entry(fd).map_or(Order::Unknown, |e| Class(e.word.load(Ordering::Relaxed)).order())
}

/// Counts a jump of a candidate's reads. Returns the count.
pub(crate) fn note_jump(fd: c_int) -> u64 {
    let Some(e) = entry(fd) else { return 0 };
    let word = e.word.load(Ordering::Relaxed);
    let jumps = (word & JUMPS_MASK) >> JUMPS_SHIFT;
    if word & CANDIDATE != 0 && jumps < JUMPS_MASK >> JUMPS_SHIFT {
        let next = word + (1 << JUMPS_SHIFT);
        let _ = e.word.compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed);
    }
    jumps + 1
}

/// Classifies a candidate, unless the descriptor has changed meanwhile.
pub(crate) fn promote(fd: c_int, slot: u32) {
    let Some(e) = entry(fd) else { return };
    let _ = e.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
        (word & CANDIDATE != 0).then_some(CLASSIFIED | word & (KEPT | ORDER_MASK) | u64::from(slot))
    });
}

/// The file of a classified descriptor is no longer served: the descriptor becomes a candidate again.
pub(crate) fn demote(fd: c_int, class: Class) {
    if let Some(e) = entry(fd) {
        let word = CANDIDATE | class.0 & (KEPT | ORDER_MASK);
        let _ = e.word.compare_exchange(class.0, word, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Resets the count of a candidate's jumps.
pub(crate) fn reconsider(fd: c_int) {
    if let Some(e) = entry(fd) {
        let _ = e.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            (word & CANDIDATE != 0).then_some(word & !JUMPS_MASK)
        });
    }
}

/// Enters a descriptor of the library: its inode takes the place of the object, its device that of the
/// position.
pub(crate) fn hide(fd: c_int, what: Identity) {
    HELPERS_FROM.fetch_min(fd, Ordering::Relaxed);
    HELPERS_TO.fetch_max(fd, Ordering::Relaxed);
    set(fd, HELPER, what.ino, what.dev);
}

fn enter(fd: c_int, word: u64, object: u64) {
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
    set(fd, word, object, UNKNOWN);
}

/// Standard input, output and error are replaced inside libc (daemon, forkpty, system), where hooks do not
/// see it.
pub(crate) fn has_place(fd: c_int) -> bool {
    fd >= 3 && entry(fd).is_some()
}

fn set(fd: c_int, word: u64, object: u64, position: u64) {
    if let Some(e) = entry(fd).filter(|_| has_place(fd)) {
        e.object.store(object, Ordering::Relaxed);
        e.position.store(position, Ordering::Relaxed);
        e.word.store(word, Ordering::Release);
    }
}

/// Called before the descriptor is closed or reused.
#[inline]
pub(crate) fn forget(fd: c_int) {
    if let Some(e) = entry(fd) {
        e.word.store(0, Ordering::Release);
    }
}

/// The descriptor's reads use the kernel from here on. Its writes are announced as before.
pub(crate) fn dismiss(fd: c_int) {
    if let Some(e) = entry(fd) {
        let _ = e.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            Some(if word & WRITER != 0 { word & KEPT } else { 0 })
        });
    }
}

/// Likewise for all descriptors.
pub(crate) fn dismiss_all() {
    entered(0, u32::MAX).filter(|&fd| !is_helper(fd)).for_each(dismiss);
}

/// The descriptor's writes need no announcement from here on.
pub(crate) fn unmark_writer(fd: c_int) {
    if let Some(e) = entry(fd) {
        let _ = e.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            (word & WRITER != 0).then_some(word & !WRITES)
        });
    }
}

/// `new` is now a duplicate of `old`: same object, one position for both.
pub(crate) fn duplicate(old: c_int, new: c_int) {
    if old == new {
        return;
    }
    forget(new);
    if let Some(e) = entry(old).filter(|e| is_known(e)) {
        let word = e.word.fetch_or(SHARED, Ordering::AcqRel) | SHARED;
        if word & KNOWN != 0 {
            enter(new, word, e.object.load(Ordering::Relaxed));
        }
    }
}

/// Whether it is classified, a candidate or a writer.
fn is_known(e: &Fd) -> bool {
    e.word.load(Ordering::Acquire) & KNOWN != 0
}

/// True for numbers of the library's descriptors.
#[inline]
fn is_helper(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| e.word.load(Ordering::Relaxed) & HELPER != 0)
}

/// The file of a library's descriptor at its entry.
pub(crate) fn helper(fd: c_int) -> Option<Identity> {
    let e = entry(fd).filter(|_| is_helper(fd))?;
    Some(Identity { dev: e.position.load(Ordering::Relaxed), ino: e.object.load(Ordering::Relaxed) })
}

/// Numbers of the library's descriptors in `[first, last]`, ascending.
pub(crate) fn helpers(first: u32, last: u32) -> impl Iterator<Item = u32> {
    let end = last.saturating_add(1).min((HELPERS_TO.load(Ordering::Relaxed) + 1) as u32);
    let first = first.max(HELPERS_FROM.load(Ordering::Relaxed) as u32);
    (first..end).filter(|&fd| is_helper(fd as c_int))
}

/// Numbers in `[first, last]` up to the highest descriptor of the program.
fn entered(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = last.saturating_add(1).min((HIGHEST.load(Ordering::Relaxed) + 1) as u32);
    (first..end).map(|fd| fd as c_int)
}

/// Forgets all program descriptors in `[first, last]`.
pub(crate) fn forget_range(first: u32, last: u32) {
    entered(first, last).filter(|&fd| !is_helper(fd)).for_each(forget);
}

/// Called before a fork: two processes will share every position.
pub(crate) fn share_all() {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        if let Some(e) = entry(fd).filter(|e| is_known(e)) {
            e.word.fetch_or(SHARED, Ordering::Relaxed);
        }
    }
}

/// Records the source of a descriptor, unless the descriptor has changed meanwhile.
pub(crate) fn note_source(fd: c_int, class: Class, source: usize) {
    if let Some(e) = entry(fd) {
        let word = (class.0 & !SOURCE_MASK) | ((source as u64 + 1) << SOURCE_SHIFT & SOURCE_MASK);
        let _ = e.word.compare_exchange(class.0, word, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Records the order of a descriptor's reads.
pub(crate) fn note_order(fd: c_int, order: Order) {
    if let Some(e) = entry(fd) {
        let noted = |word: u64| word & !ORDER_MASK | (order as u64) << ORDER_SHIFT;
        let _ = e.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            (word & (CLASSIFIED | CANDIDATE) != 0).then(|| noted(word))
        });
    }
}

/// The object of a classified descriptor, of a candidate or of a writer.
#[inline]
pub(crate) fn object(fd: c_int) -> u64 {
    TABLE[fd as u32 as usize].object.load(Ordering::Relaxed)
}

/// The position after the library's last move of it.
#[inline]
pub(crate) fn position(fd: c_int) -> &'static AtomicU64 {
    // Called for classified descriptors only, which are inside the table.
    &TABLE[fd as u32 as usize].position
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(fd: c_int) -> (bool, bool, Option<(u64, bool, bool)>) {
        let writer = writer(fd).map(|w| (w.object, w.appends(), w.shared()));
        (get(fd).is_some(), is_candidate(fd), writer)
    }

    #[test]
    fn a_writer_may_be_read_in_any_way() {
        const FD: c_int = 1000;
        let writer = Some((7, true, false));
        assert!(mark_writer(FD, 7, true, false));
        assert_eq!(state(FD), (false, false, writer));
        mark(FD, 7, false);
        assert_eq!(state(FD), (false, true, writer));
        note_jump(FD);
        note_order(FD, Order::Random);
        promote(FD, 3);
        assert_eq!(state(FD), (true, false, writer));
        note_source(FD, get(FD).unwrap(), 1);
        assert_eq!((state(FD), get(FD).unwrap().slot()), ((true, false, writer), 3));
        demote(FD, get(FD).unwrap());
        assert_eq!(state(FD), (false, true, writer));
        dismiss(FD);
        assert_eq!(state(FD), (false, false, writer));
        note_append(FD, false);
        assert_eq!(state(FD), (false, false, Some((7, false, false))));
        mark(FD, 7, false);
        unmark_writer(FD);
        assert_eq!(state(FD), (false, true, None));
        forget(FD);
        assert_eq!(state(FD), (false, false, None));
    }

    #[test]
    fn duplicates_of_a_writer_are_writers() {
        const FD: c_int = 1010;
        mark_writer(FD, 7, false, false);
        duplicate(FD, FD + 1);
        let shared = (false, false, Some((7, false, true)));
        assert_eq!((state(FD), state(FD + 1)), (shared, shared));
        dismiss(FD);
        assert_eq!(state(FD), shared);
    }

    #[test]
    fn descriptors_without_a_writer_are_dismissed_whole() {
        const FD: c_int = 1020;
        mark(FD, 7, false);
        dismiss(FD);
        note_append(FD, true);
        assert_eq!(state(FD), (false, false, None));
    }

    #[test]
    fn standard_output_has_no_place() {
        assert!(!mark_writer(1, 7, false, false) && writer(1).is_none());
        assert!(!mark_writer(FDS_MAX as c_int, 7, false, false));
    }
}
