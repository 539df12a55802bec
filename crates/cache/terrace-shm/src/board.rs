//! Boards: counts of the writes of files that are served while programs write them. The protocol is in
//! [`crate::protocol::board`].
//!
//! ```text
//! file of writers     seq: [u64; 512] x boards, then the notes of overflows: u32 x boards
//! file of the daemon  applied: [u64; 512] x boards
//! ```
//! Clients map the first file writable, the second one read-only. Counts have 64 bits: 32 bits of a busy slot
//! can wrap while the daemon is stopped, and the slot would seem settled.
//!
//! A client may write anything to the first file at any time. So each number of a board or slot there is
//! checked or reduced before it is an index, and a value decides over one slot of one board only. A client
//! that sets a count can hide a write from the other clients of the file: these files are for clients that
//! may write the same files.

use crate::layout::PAGE_SIZE;
use crate::mapping::Mapping;
use crate::protocol::board::{self as steps, Guard};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::AsFd;

/// Slots of a board.
pub const SLOTS: usize = 512;
/// Adjacent pages of one slot.
pub const SLOT_PAGES: u64 = 8;

/// One count of each slot.
type Counts = [AtomicU64; SLOTS];

const _: () = assert!(size_of::<Counts>() == PAGE_SIZE && SLOTS.is_power_of_two());
const _: () = assert!(Boards::MAX <= Guard::BOARDS_MAX);

/// The slot of a page.
#[inline]
pub fn slot_of(page: u64) -> usize {
    (page / SLOT_PAGES) as usize % SLOTS
}

/// The distinct slots of a range of pages, at most [`SLOTS`]. Any numbers are valid: the range ends at the
/// largest page.
#[derive(Debug, Clone)]
pub struct Slots {
    next: usize,
    left: usize,
}

impl Slots {
    /// The slots of `pages` pages from page `first` on.
    #[inline]
    pub fn of(first: u64, pages: u64) -> Slots {
        let left = match pages.checked_sub(1) {
            None => 0,
            Some(rest) => first.saturating_add(rest) / SLOT_PAGES - first / SLOT_PAGES + 1,
        };
        Slots { next: slot_of(first), left: left.min(SLOTS as u64) as usize }
    }
    /// All slots, for a write to an unknown range (O_APPEND, a truncate).
    pub fn all() -> Slots {
        Slots { next: 0, left: SLOTS }
    }
}

impl Iterator for Slots {
    type Item = usize;
    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let slot = self.next;
        self.next = (slot + 1) % SLOTS;
        Some(slot)
    }
}

/// All boards of an instance, as mapped by one process.
#[derive(Debug)]
pub struct Boards {
    writers: Mapping,
    daemon: Mapping,
    boards: u32,
}

impl Boards {
    /// Maximum number of boards.
    pub const MAX: u32 = 1 << 16;

    /// Bytes of the file of writers, sparse.
    pub fn writers_bytes(boards: u32) -> usize {
        overflows_at(boards) + (boards as usize * size_of::<AtomicU32>()).next_multiple_of(PAGE_SIZE)
    }
    /// Bytes of the file of the daemon, sparse.
    pub fn daemon_bytes(boards: u32) -> usize {
        boards as usize * size_of::<Counts>()
    }
    /// Daemon: maps both files writable.
    ///
    /// # Errors
    /// As [`Boards::attach`].
    pub fn create(writers: impl AsFd, daemon: impl AsFd) -> io::Result<Boards> {
        Boards::map(writers, daemon, true)
    }
    /// Client: maps the file of writers writable, and that of the daemon read-only. The mappings are whole: a
    /// write must find its board without a call that can fail.
    ///
    /// # Errors
    /// `EINVAL` if the files are not those of 1 to [`Boards::MAX`] boards; out of address space.
    pub fn attach(writers: impl AsFd, daemon: impl AsFd) -> io::Result<Boards> {
        Boards::map(writers, daemon, false)
    }
    fn map(writers: impl AsFd, daemon: impl AsFd, is_daemon: bool) -> io::Result<Boards> {
        let bytes = |fd: &dyn AsFd| Ok::<_, io::Error>(rustix::fs::fstat(fd.as_fd())?.st_size as usize);
        let boards = bytes(&daemon)? / size_of::<Counts>();
        // Without a text, because the client may be inside an allocator.
        let invalid = || io::Error::from(rustix::io::Errno::INVAL);
        let boards =
            u32::try_from(boards).ok().filter(|n| (1..=Boards::MAX).contains(n)).ok_or_else(invalid)?;
        let writers_bytes = Boards::writers_bytes(boards);
        if bytes(&writers)? < writers_bytes {
            return Err(invalid());
        }
        let writers = Mapping::new(writers.as_fd(), writers_bytes, true, PAGE_SIZE)?;
        let daemon = Mapping::new(daemon.as_fd(), Boards::daemon_bytes(boards), is_daemon, PAGE_SIZE)?;
        Ok(Boards { writers, daemon, boards })
    }
    /// Number of boards.
    pub fn count(&self) -> u32 {
        self.boards
    }
    /// Board `n`, for example of a guard or a record. None: there is no such board.
    #[inline]
    pub fn get(&self, n: u32) -> Option<Board<'_>> {
        if n >= self.boards {
            return None;
        }
        // SAFETY: aligned, and inside the mappings: the number of boards gives their lengths. All access to shared
        // bytes is atomic. Clients only load from `applied`.
        unsafe {
            let (writers, daemon) = (self.writers.as_ptr(), self.daemon.as_ptr());
            let overflow = writers.add(overflows_at(self.boards)).cast::<AtomicU32>();
            Some(Board {
                seq: &*writers.cast::<Counts>().add(n as usize),
                applied: &*daemon.cast::<Counts>().add(n as usize),
                overflow: &*overflow.add(n as usize),
            })
        }
    }
}

/// Byte offset of the notes of overflows, in the file of writers.
fn overflows_at(boards: u32) -> usize {
    boards as usize * size_of::<Counts>()
}

/// A board as mapped by one process. Pages are those of the object that the board counts.
#[derive(Debug, Clone, Copy)]
pub struct Board<'a> {
    seq: &'a Counts,
    applied: &'a Counts,
    overflow: &'a AtomicU32,
}

impl Board<'_> {
    /// Writer: counts a write, before the program's own call: see [`steps::begin`].
    #[inline]
    pub fn begin(self, slots: Slots) {
        steps::begin(slots.map(|i| &self.seq[i]));
    }
    /// Writer: notes that the record of a write found its queue full.
    pub fn note_overflow(self) {
        steps::note_overflow(self.overflow);
    }
    /// Reader: true if the page's entry may be used, before it is looked up: see [`steps::is_settled`].
    #[inline]
    pub fn is_settled(self, page: u64) -> bool {
        let i = slot_of(page);
        steps::is_settled(&self.seq[i], &self.applied[i])
    }
    /// First look of a fill: see [`steps::settled_at`].
    #[inline]
    pub fn settled_at(self, page: u64) -> Option<u64> {
        let i = slot_of(page);
        steps::settled_at(&self.seq[i], &self.applied[i])
    }
    /// Second look of a fill, with the object's guard at the first one: see [`steps::is_unbegun`].
    #[inline]
    pub fn is_unbegun(self, page: u64, at: u64, guard: &AtomicU32, seen: Guard) -> bool {
        steps::is_unbegun(guard, seen, &self.seq[slot_of(page)], at)
    }
    /// Daemon: counts a record after the withdrawal of its pages: see [`steps::apply`].
    pub fn apply(self, slots: Slots) {
        slots.for_each(|i| steps::apply(&self.applied[i]));
    }
    /// Daemon: true if a writer found its queue full since [`Board::renew`].
    pub fn has_overflowed(self) -> bool {
        steps::has_overflowed(self.overflow)
    }
    /// Daemon: true if the page's slot lacks a record, after the grace period of a rebase and after all
    /// records are taken. A restarted daemon must not use it: the old one may have counted a record already.
    pub fn has_lost(self, page: u64) -> bool {
        !self.is_settled(page)
    }
    /// Daemon: settles all slots of a board without writers: see [`steps::renew`].
    pub fn renew(self) {
        self.seq.iter().zip(self.applied).for_each(|(seq, applied)| steps::renew(seq, applied));
        self.overflow.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{memfd, read_only_twin};
    use crate::protocol::board::set_guard;
    use std::os::fd::OwnedFd;

    const BOARDS: u32 = 3;

    fn files(boards: u32) -> (OwnedFd, OwnedFd) {
        let file = |bytes| memfd("terrace-test", bytes).unwrap();
        (file(Boards::writers_bytes(boards)), file(Boards::daemon_bytes(boards)))
    }
    fn both_sides() -> (Boards, Boards) {
        let (writers, applied) = files(BOARDS);
        let daemon = Boards::create(&writers, &applied).unwrap();
        let client = Boards::attach(&writers, read_only_twin(applied.as_fd()).unwrap()).unwrap();
        (daemon, client)
    }
    fn slots(first: u64, pages: u64) -> Vec<usize> {
        Slots::of(first, pages).collect()
    }

    #[test]
    fn a_range_has_each_slot_once() {
        assert_eq!(slots(0, 0), []);
        assert_eq!(slots(0, 1), [0]);
        assert_eq!(slots(7, 1), [0]);
        assert_eq!(slots(7, 2), [0, 1]);
        assert_eq!(slots(8, 8), [1]);
        assert_eq!(slots(4095, 2), [511, 0], "the board wraps around");
        for (first, pages) in [(0, 4096), (3, 4096), (5, 4097), (4000, 1 << 40)] {
            let mut found = slots(first, pages);
            assert_eq!(found[0], slot_of(first));
            found.sort_unstable();
            assert_eq!(found, (0..SLOTS).collect::<Vec<_>>(), "{pages} pages from {first}");
        }
        assert_eq!(slots(8, 4089).len(), SLOTS);
        assert_eq!(slots(8, 4088).len(), SLOTS - 1);
        assert_eq!(Slots::all().count(), SLOTS);
    }

    #[test]
    fn a_range_covers_the_slot_of_each_of_its_pages() {
        for first in (0..40).chain(4070..4110).chain(u64::MAX - 40..u64::MAX) {
            for pages in 1..40.min(u64::MAX - first).max(1) {
                let mut expected: Vec<_> = (first..first + pages).map(slot_of).collect();
                expected.dedup();
                assert_eq!(slots(first, pages), expected, "{pages} pages from {first}");
            }
        }
    }

    #[test]
    fn numbers_of_a_hostile_record_stay_in_bounds() {
        let (daemon, _) = both_sides();
        for (first, pages) in [(u64::MAX, u64::MAX), (u64::MAX, 1), (0, u64::MAX), (u64::MAX - 7, 9)] {
            let found = slots(first, pages);
            assert!(!found.is_empty() && found.len() <= SLOTS && found.iter().all(|&i| i < SLOTS));
            daemon.get(0).unwrap().apply(Slots::of(first, pages));
        }
        for n in [BOARDS, BOARDS + 1, u32::MAX] {
            assert!(daemon.get(n).is_none());
        }
    }

    #[test]
    fn any_content_of_the_file_of_writers_is_only_a_count() {
        let (daemon, client) = both_sides();
        let (theirs, ours) = (client.get(1).unwrap(), daemon.get(1).unwrap());
        theirs.seq.iter().for_each(|seq| seq.store(u64::MAX, Ordering::Relaxed));
        theirs.overflow.store(u32::MAX, Ordering::Relaxed);
        assert!(ours.has_lost(0) && ours.has_overflowed());
        ours.renew();
        assert!(theirs.is_settled(0) && !ours.has_overflowed());
        theirs.begin(Slots::all());
        assert!(!theirs.is_settled(0));
        ours.apply(Slots::all());
        assert!((0..4096).all(|page| theirs.is_settled(page)), "the counts wrap around");
    }

    #[test]
    fn a_write_unsettles_its_slots_until_it_is_applied() {
        let (daemon, client) = both_sides();
        let last = BOARDS - 1;
        let (theirs, ours) = (client.get(last).unwrap(), daemon.get(last).unwrap());
        let guard = AtomicU32::new(0);
        set_guard(&guard, Guard::new(0, Some(last)));
        let seen = steps::guard(&guard);
        assert_eq!((seen.board(), seen.flags()), (Some(last), 0));
        let at = theirs.settled_at(4090).unwrap();
        assert!(theirs.is_unbegun(4090, at, &guard, seen));
        theirs.begin(Slots::of(4090, 10));
        assert!(!theirs.is_unbegun(4090, at, &guard, seen) && theirs.settled_at(4090).is_none());
        let unsettled: Vec<u64> = (0..4096).filter(|&page| !theirs.is_settled(page)).collect();
        assert_eq!(unsettled, (0..8).chain(4088..4096).collect::<Vec<_>>());
        for other in (0..last).filter_map(|n| client.get(n)) {
            assert!((0..4096).all(|page| other.is_settled(page)));
        }
        ours.apply(Slots::of(4090, 10));
        assert!((0..4096).all(|page| theirs.is_settled(page) && !ours.has_lost(page)));
        let at = theirs.settled_at(4090).unwrap();
        set_guard(&guard, Guard::new(0, Some(0)));
        assert!(!theirs.is_unbegun(4090, at, &guard, seen), "the object has another board");
    }

    #[test]
    fn an_overflow_belongs_to_one_board() {
        let (daemon, client) = both_sides();
        client.get(1).unwrap().note_overflow();
        assert_eq!([0, 1, 2].map(|n| daemon.get(n).unwrap().has_overflowed()), [false, true, false]);
        daemon.get(1).unwrap().renew();
        assert!(!daemon.get(1).unwrap().has_overflowed());
    }

    #[test]
    fn other_files_are_refused() {
        let (writers, applied) = files(2);
        assert_eq!(Boards::attach(&writers, &applied).unwrap().count(), 2);
        let (fewer, none) = (files(1).0, memfd("terrace-test", 100).unwrap());
        assert!(Boards::attach(&fewer, &applied).is_err(), "fewer boards of writers");
        assert!(Boards::attach(&writers, &none).is_err());
        let (writers, applied) = files(Boards::MAX + 1);
        assert!(Boards::attach(&writers, &applied).is_err(), "too many");
    }
}
