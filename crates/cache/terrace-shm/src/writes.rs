//! Announced writes: counts and records of programs' writes to files that are served meanwhile. The protocol
//! is in [`crate::protocol::writes`].
//!
//! ```text
//! file of clients     head (2 pages), seq: [u64; SLOTS], client pages x CLIENTS_MAX
//! file of the daemon  applied: [u64; SLOTS]
//! ```
//! Clients map the first file writable, the second one read-only. Counts have 64 bits: 32 bits of a busy slot
//! can wrap while the daemon is stopped, and the slot would seem settled.
//!
//! A client may write anything to the first file at any time. The daemon checks or reduces each field before
//! use. A client with false counts, records or process IDs can hide writes from the other clients of the
//! instance. The socket of the instance is closed to other users, so only its own user's clients get the file.

use crate::layout::PAGE_SIZE;
use crate::mapping::Mapping;
use crate::protocol::writes::{self as steps, record};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;

/// Number of slots. All files share them by a hash.
pub const SLOTS: usize = 1 << 16;
/// Adjacent pages with one slot (128 KiB).
pub const GROUP_PAGES: u64 = 32;
/// Groups of a write that are counted one by one. A longer write counts in its file's slot.
const GROUPS_MAX: u64 = 64;
/// Maximum number of client pages.
pub const CLIENTS_MAX: usize = 1024;
/// Records of a client page.
pub const RECORDS: usize = 127;

/// One count of each slot.
type Counts = [AtomicU64; SLOTS];

const SEQ_AT: usize = size_of::<Head>();
const CLIENTS_AT: usize = SEQ_AT + size_of::<Counts>();
/// Bytes of the file of clients, sparse.
pub const CLIENTS_BYTES: usize = CLIENTS_AT + CLIENTS_MAX * PAGE_SIZE;
/// Bytes of the file of the daemon.
pub const DAEMON_BYTES: usize = size_of::<Counts>();

/// State of all clients.
#[repr(C, align(4096))]
#[derive(Debug)]
struct Head {
    /// Writers without a page, see [`steps::begin_bare`].
    bare: AtomicU32,
    /// 1: a write without a record has returned.
    repair: AtomicU32,
    /// Process of each client page; 0: the page is free.
    pids: [AtomicU32; CLIENTS_MAX],
}

const _: () = assert!(size_of::<Head>() == 2 * PAGE_SIZE);

/// The write of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Object id: the inode.
    pub object: u64,
    /// First page.
    pub first: u64,
    /// Number of pages; [`Span::ALL`]: any page of the file.
    pub pages: u64,
    /// The write is counted in the file's slot, not in those of its pages.
    pub is_whole: bool,
}

impl Span {
    /// Number of pages of a write to an unknown range (O_APPEND, a truncate).
    pub const ALL: u64 = u64::MAX;

    /// A write of `len` bytes at `offset`.
    #[inline]
    pub fn of(object: u64, offset: u64, len: u64) -> Span {
        let page = PAGE_SIZE as u64;
        let first = offset / page;
        let end = offset.saturating_add(len).div_ceil(page);
        let span = Span { object, first, pages: end.saturating_sub(first), is_whole: false };
        let (from, to) = span.groups();
        Span { is_whole: to - from > GROUPS_MAX, ..span }
    }
    /// Any page of a file.
    #[inline]
    pub fn all(object: u64) -> Span {
        Span { object, first: 0, pages: Span::ALL, is_whole: true }
    }
    /// Groups of the pages: the first one, and the one after the last.
    #[inline]
    fn groups(self) -> (u64, u64) {
        let first = self.first / GROUP_PAGES;
        (first, self.first.saturating_add(self.pages).div_ceil(GROUP_PAGES).max(first))
    }
    /// The slots in which the write is counted.
    #[inline]
    fn slots(self) -> impl Iterator<Item = usize> {
        let (from, to) = if self.is_whole { (WHOLE_FILE, WHOLE_FILE + 1) } else { self.groups() };
        // A hostile record may have any range.
        (from..to.min(from.saturating_add(GROUPS_MAX))).map(move |group| slot(self.object, group))
    }
}

/// Number of the group that stands for the whole file, beyond all groups of pages.
const WHOLE_FILE: u64 = u64::MAX - 1;

/// The slot of a group of a file's pages.
#[inline]
fn slot(object: u64, group: u64) -> usize {
    // Adjacent groups have adjacent slots, which share cache lines.
    let file = object.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (file.wrapping_add(group)) as usize % SLOTS
}

/// The slot of a page of a file.
#[inline]
pub fn slot_of_page(object: u64, page: u64) -> usize {
    slot(object, page / GROUP_PAGES)
}

/// The slot of writes to any page of a file.
#[inline]
pub fn slot_of_file(object: u64) -> usize {
    slot(object, WHOLE_FILE)
}

/// One announced write, of 32 bytes.
#[repr(C)]
#[derive(Debug)]
pub struct Record {
    state: AtomicU32,
    is_whole: AtomicU32,
    object: AtomicU64,
    first: AtomicU64,
    pages: AtomicU64,
}

impl Record {
    /// The write. The daemon reads each field once.
    fn span(&self) -> Span {
        Span {
            object: self.object.load(Ordering::Relaxed),
            first: self.first.load(Ordering::Relaxed),
            pages: self.pages.load(Ordering::Relaxed),
            is_whole: self.is_whole.load(Ordering::Relaxed) != 0,
        }
    }
    fn set(&self, span: Span) {
        self.object.store(span.object, Ordering::Relaxed);
        self.first.store(span.first, Ordering::Relaxed);
        self.pages.store(span.pages, Ordering::Relaxed);
        self.is_whole.store(span.is_whole.into(), Ordering::Relaxed);
    }
    /// Client: sets the range of a whole-file record. The position of its write is known only after the call.
    pub fn narrow(&self, offset: u64, len: u64) {
        self.set(Span { is_whole: true, ..Span::of(self.object.load(Ordering::Relaxed), offset, len) });
    }
}

/// The records of one client process.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct ClientPage {
    /// Record where the client's next search begins: a hint.
    next: AtomicU32,
    /// Incremented after each finished record, so that the daemon need not look at all.
    finished: AtomicU32,
    /// Writers without a record, see [`steps::begin_bare`].
    bare: AtomicU32,
    /// Threads inside an open that the library announces.
    opening: AtomicU32,
    /// 1: the process announces the writes of all its descriptors.
    ready: AtomicU32,
    _pad: [u32; 3],
    records: [Record; RECORDS],
}

impl ClientPage {
    /// Client: claims a free record.
    #[inline]
    fn claim(&self) -> Option<&Record> {
        let from = self.next.load(Ordering::Relaxed) as usize;
        let found =
            (0..RECORDS).map(|i| (from + i) % RECORDS).find(|&i| record::claim(&self.records[i].state))?;
        self.next.store(found as u32 + 1, Ordering::Relaxed);
        Some(&self.records[found])
    }
    /// Client: the program's call has returned.
    #[inline]
    pub fn finish(&self, r: &Record) {
        record::finish(&r.state);
        self.finished.fetch_add(1, Ordering::Release);
    }
    /// Client: a thread begins an open for writing. The daemon tells it from opens that the library does not see.
    pub fn begin_open(&self) {
        self.opening.fetch_add(1, Ordering::SeqCst);
    }
    /// Client: the open has returned.
    pub fn end_open(&self) {
        self.opening.fetch_sub(1, Ordering::SeqCst);
    }
    /// Daemon: true if a thread is inside an announced open.
    pub fn is_opening(&self) -> bool {
        self.opening.load(Ordering::SeqCst) != 0
    }
    /// Client: the process announces the writes of all its descriptors from here on.
    pub fn set_ready(&self) {
        self.ready.store(1, Ordering::SeqCst);
    }
    /// Daemon: true after [`ClientPage::set_ready`].
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst) != 0
    }
    /// Client: true if at least half of the records are in use.
    pub fn is_half_full(&self) -> bool {
        self.records.iter().filter(|r| r.state.load(Ordering::Relaxed) != record::FREE).count() * 2 >= RECORDS
    }
}

const _: () = assert!(size_of::<Record>() == 32 && size_of::<ClientPage>() == PAGE_SIZE);

/// Unsettled slots, as a repair finds them.
#[derive(Debug)]
pub struct Unsettled {
    /// Slots that lack a record, each with the count of begun writes for [`Writes::settle`].
    pub lost: Vec<(usize, u64)>,
    /// True if there are others: writes are under way.
    pub others: bool,
}

/// The announced writes of an instance, as mapped by one process.
#[derive(Debug)]
pub struct Writes {
    clients: Mapping,
    daemon: Mapping,
}

impl Writes {
    /// Daemon: maps both files writable.
    ///
    /// # Errors
    /// As [`Writes::attach`].
    pub fn create(clients: impl AsFd, daemon: impl AsFd) -> io::Result<Writes> {
        Writes::map(clients, daemon, true)
    }
    /// Client: maps the file of clients writable, and that of the daemon read-only.
    ///
    /// # Errors
    /// `EINVAL` if a file is too short; out of address space.
    pub fn attach(clients: impl AsFd, daemon: impl AsFd) -> io::Result<Writes> {
        Writes::map(clients, daemon, false)
    }
    fn map(clients: impl AsFd, daemon: impl AsFd, is_daemon: bool) -> io::Result<Writes> {
        let has = |fd: &dyn AsFd, bytes: usize| {
            Ok::<_, io::Error>(rustix::fs::fstat(fd.as_fd())?.st_size as usize >= bytes)
        };
        if !has(&clients, CLIENTS_BYTES)? || !has(&daemon, DAEMON_BYTES)? {
            // Without a text, because the client may be inside an allocator.
            return Err(rustix::io::Errno::INVAL.into());
        }
        Ok(Writes {
            clients: Mapping::new(clients.as_fd(), CLIENTS_BYTES, true, PAGE_SIZE)?,
            daemon: Mapping::new(daemon.as_fd(), DAEMON_BYTES, is_daemon, PAGE_SIZE)?,
        })
    }
    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: the first page; all atomics.
        unsafe { &*self.clients.as_ptr().cast() }
    }
    #[inline]
    fn seq(&self) -> &Counts {
        // SAFETY: aligned and inside the mapping; all atomics.
        unsafe { &*self.clients.as_ptr().add(SEQ_AT).cast() }
    }
    #[inline]
    fn applied(&self) -> &Counts {
        // SAFETY: as above. Clients only load from it.
        unsafe { &*self.daemon.as_ptr().cast() }
    }
    /// Client page `i`.
    ///
    /// # Panics
    /// If `i` is not below [`CLIENTS_MAX`].
    #[inline]
    pub fn client(&self, i: usize) -> &ClientPage {
        assert!(i < CLIENTS_MAX);
        // SAFETY: aligned and inside the mapping; all atomics.
        unsafe { &*self.clients.as_ptr().add(CLIENTS_AT).cast::<ClientPage>().add(i) }
    }

    /// Writer: announces a write, in a record of the page. None: no record is free, or there is no page. The
    /// write is then counted as one without a record, and [`Writes::finish_bare`] with the same page ends it.
    #[inline]
    pub fn begin<'a>(&self, page: Option<&'a ClientPage>, span: Span) -> Option<&'a Record> {
        let seqs = || span.slots().map(|i| &self.seq()[i]);
        let Some(r) = page.and_then(ClientPage::claim) else {
            steps::begin_bare(self.bare(page), seqs());
            return None;
        };
        r.set(span);
        steps::begin(&r.state, seqs());
        Some(r)
    }
    /// Writer: the call of a write without a record has returned.
    pub fn finish_bare(&self, page: Option<&ClientPage>) {
        steps::finish_bare(self.bare(page));
        // Not before the count: the repair of an earlier flag finds nothing, or a writer in its call.
        self.head().repair.store(1, Ordering::Release);
    }
    fn bare<'a>(&'a self, page: Option<&'a ClientPage>) -> &'a AtomicU32 {
        page.map_or(&self.head().bare, |page| &page.bare)
    }

    /// Reader: true if all pages of `[offset, offset + len)` may be looked up: no write to them is in flight or
    /// not yet applied.
    #[inline]
    pub fn is_settled(&self, object: u64, offset: u64, len: usize) -> bool {
        let is_settled = |i: usize| steps::is_settled(&self.seq()[i], &self.applied()[i]);
        let group = |at: u64| at / PAGE_SIZE as u64 / GROUP_PAGES;
        let last = offset.saturating_add(len.saturating_sub(1) as u64);
        is_settled(slot_of_file(object))
            // More groups than slots have no other slots.
            && (group(offset)..=group(last)).take(SLOTS).all(|group| is_settled(slot(object, group)))
    }

    /// Daemon: true once after a write without a record has returned.
    pub fn take_repair_flag(&self) -> bool {
        self.head().repair.load(Ordering::Relaxed) != 0 && self.head().repair.swap(0, Ordering::Acquire) != 0
    }
    /// Daemon: takes the finished records of a page, and calls `withdraw` for each. `withdraw` withdraws the
    /// entries of the span's pages and stamps the object. `seen`: the page's count of finished records at the last
    /// call; any other value forces a look. Returns the number of records.
    pub fn apply(&self, page: &ClientPage, seen: &mut u32, mut withdraw: impl FnMut(Span)) -> usize {
        let now = page.finished.load(Ordering::Acquire);
        if std::mem::replace(seen, now) == now {
            return 0;
        }
        let mut taken = 0;
        for r in page.records.iter().filter(|r| record::is_finished(&r.state)) {
            let span = r.span();
            record::free(&r.state);
            steps::begin_apply();
            withdraw(span);
            span.slots().for_each(|i| steps::apply(&self.applied()[i]));
            taken += 1;
        }
        taken
    }
    /// Daemon: slots with counts of lost records, for a repair. `lost` is empty while a writer without a record is
    /// inside its call.
    pub fn lost_slots(&self) -> Unsettled {
        let unsettled = |i: usize| Some((i, steps::unsettled(&self.seq()[i], &self.applied()[i])?));
        let mut lost: Vec<_> = (0..SLOTS).filter_map(unsettled).collect();
        if lost.is_empty() || !self.bares().all(steps::has_no_bare) {
            return Unsettled { others: !lost.is_empty(), lost: Vec::new() };
        }
        let records = self.clients().flat_map(|(i, _)| &self.client(i).records);
        let in_flight: HashSet<usize> =
            records.filter(|r| record::is_in_flight(&r.state)).flat_map(|r| r.span().slots()).collect();
        let unsettled = lost.len();
        lost.retain(|(slot, _)| !in_flight.contains(slot));
        steps::begin_apply();
        Unsettled { others: lost.len() < unsettled, lost }
    }
    /// Daemon: settles a lost slot after the withdrawal of all its pages.
    pub fn settle(&self, slot: usize, begun: u64) {
        steps::settle(&self.applied()[slot], begun);
    }
    /// Daemon: true if a writer without a record is inside its call, or was since [`Writes::take_repair_flag`].
    pub fn lacks_records(&self) -> bool {
        self.head().repair.load(Ordering::Acquire) != 0 || !self.bares().all(steps::has_no_bare)
    }
    fn bares(&self) -> impl Iterator<Item = &AtomicU32> {
        self.clients().map(|(i, _)| &self.client(i).bare).chain([&self.head().bare])
    }
    /// Daemon: true if a record of the object is in flight, or finished and not taken.
    pub fn is_written(&self, object: u64) -> bool {
        let mut records = self.clients().flat_map(|(i, _)| &self.client(i).records);
        records.any(|r| record::is_in_flight(&r.state) && r.span().object == object)
    }
    /// Daemon: takes a free client page for a process. None: all are in use.
    pub fn admit(&self, pid: u32) -> Option<usize> {
        let pids = &self.head().pids;
        let i = pids.iter().position(|pid| pid.load(Ordering::Relaxed) == 0)?;
        pids[i].store(pid, Ordering::Relaxed);
        Some(i)
    }
    /// Daemon: frees the page of a dead process, and its records. Slots of writes under way stay unsettled until
    /// a repair.
    pub fn release(&self, i: usize) {
        let page = self.client(i);
        page.records.iter().for_each(|r| record::free(&r.state));
        [&page.bare, &page.opening, &page.ready]
            .into_iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
        self.head().pids[i].store(0, Ordering::Relaxed);
    }
    /// Daemon: the client pages in use, with their processes.
    pub fn clients(&self) -> impl Iterator<Item = (usize, u32)> {
        let pids = self.head().pids.iter().map(|pid| pid.load(Ordering::Relaxed));
        pids.enumerate().filter(|&(_, pid)| pid != 0)
    }
}

#[cfg(test)]
mod tests;
