//! Announced writes that last: the library does not see the single writes, so a record of the whole file stays
//! in flight. Meanwhile the kernel serves the file.
//!
//! | writes | last until |
//! |---|---|
//! | of a stream; to standard output | the descriptor is closed |
//! | by a shared mapping; of a ring or of asynchronous I/O; after the preload path has closed | the process ends |
//!
//! A forked child does the same writes, and begins records of its own. A file without a record is given up for
//! the rest of the run.

use crate::guarded::{self, Kind, Ticket};
use crate::local::local;
use crate::{connection, directory, quiet, table};
use std::ffi::c_int;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use terrace_shm::writes::{ClientPage, Record, Span};

/// Maximum number of lasting writes of a process.
const ENTRIES_MAX: usize = 64;

/// In place of a descriptor: the end of the process.
const EXIT: c_int = -1;

mod state {
    pub(super) const FREE: u32 = 0;
    /// A thread fills or empties the entry.
    pub(super) const BUSY: u32 = 1;
    pub(super) const HELD: u32 = 2;
}

#[derive(Debug)]
struct Entry {
    state: AtomicU32,
    /// The write lasts until this descriptor is closed.
    fd: AtomicI32,
    object: AtomicU64,
    /// Null: counted without a record.
    record: AtomicPtr<Record>,
    page: AtomicPtr<ClientPage>,
}

static ENTRIES: [Entry; ENTRIES_MAX] = [const {
    Entry {
        state: AtomicU32::new(state::FREE),
        fd: AtomicI32::new(EXIT),
        object: AtomicU64::new(0),
        record: AtomicPtr::new(null_mut()),
        page: AtomicPtr::new(null_mut()),
    }
}; ENTRIES_MAX];

/// Whether an entry was ever used.
static USED: AtomicBool = AtomicBool::new(false);

/// End of a lasting write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Close,
    Exit,
}

impl Entry {
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
    fn is_of(&self, key: c_int, object: u64) -> bool {
        self.state.load(Ordering::Acquire) == state::HELD
            && self.fd.load(Ordering::Relaxed) == key
            && self.object.load(Ordering::Relaxed) == object
    }
    fn set(&self, kind: Kind) {
        let (page, record) = match kind {
            Kind::None => (None, null_mut()),
            Kind::Bare(page) => (page, null_mut()),
            Kind::Record(page, record) => (Some(page), from_ref(record).cast_mut()),
        };
        let page = page.map_or(null_mut(), |page| from_ref(page).cast_mut());
        self.page.store(page, Ordering::Relaxed);
        self.record.store(record, Ordering::Relaxed);
    }
    fn kind(&self) -> Kind {
        // SAFETY: null, or a page and a record of the mapping, which stays.
        let (page, record) = unsafe {
            (self.page.load(Ordering::Relaxed).as_ref(), self.record.load(Ordering::Relaxed).as_ref())
        };
        page.zip(record).map_or(Kind::Bare(page), |(page, record)| Kind::Record(page, record))
    }
}

fn held() -> impl Iterator<Item = &'static Entry> {
    ENTRIES.iter().filter(|e| e.state.load(Ordering::Acquire) == state::HELD)
}

/// Begins a lasting write of a descriptor's file, unless one lasts as long.
pub(crate) fn hold(fd: c_int, object: u64, until: Until) {
    let key = if until == Until::Close { fd } else { EXIT };
    if ENTRIES.iter().any(|e| e.is_of(key, object) || e.is_of(EXIT, object)) {
        return;
    }
    USED.store(true, Ordering::Relaxed);
    let Some(e) = ENTRIES.iter().find(|e| e.change(state::FREE, state::BUSY)) else {
        if !connection::give_up(fd) {
            // It stays under way until the process ends.
            guarded::announce(Span::all(object));
        }
        return;
    };
    let ticket = guarded::announce(Span::all(object));
    let is_recorded = matches!(ticket.kind, Kind::Record(..));
    // A count without a record that stays would delay all repairs.
    if !is_recorded && (connection::give_up(fd) || !ticket.is_announced()) {
        guarded::end(ticket, 0);
        return e.state.store(state::FREE, Ordering::Release);
    }
    e.fd.store(key, Ordering::Relaxed);
    e.object.store(object, Ordering::Relaxed);
    e.set(ticket.kind);
    e.state.store(state::HELD, Ordering::Release);
}

/// The file of a write that lasts until `fd` is closed.
pub(crate) fn object(fd: c_int) -> Option<u64> {
    if fd < 0 || !USED.load(Ordering::Relaxed) {
        return None;
    }
    let e = held().find(|e| e.fd.load(Ordering::Relaxed) == fd)?;
    Some(e.object.load(Ordering::Relaxed))
}

/// Takes a write that lasts until `fd` is closed. [`guarded::end`] ends it.
pub(crate) fn take(fd: c_int) -> Option<Ticket> {
    if fd < 0 || !USED.load(Ordering::Relaxed) {
        return None;
    }
    let e = held().find(|e| e.fd.load(Ordering::Relaxed) == fd && e.change(state::HELD, state::BUSY))?;
    let ticket = Ticket::of(e.kind());
    e.state.store(state::FREE, Ordering::Release);
    Some(ticket)
}

/// Called when a descriptor is closed: its lasting writes end.
pub(crate) fn close(fd: c_int) {
    while let Some(ticket) = take(fd) {
        guarded::end(ticket, 0);
    }
}

/// Likewise for all descriptors in `[first, last]`.
pub(crate) fn close_range(first: u32, last: u32) {
    if USED.load(Ordering::Relaxed) {
        let fds = held().map(|e| e.fd.load(Ordering::Relaxed));
        fds.filter(|&fd| fd >= 0 && (first..=last).contains(&(fd as u32))).for_each(close);
    }
}

/// The library will not see the writes of any descriptor from here on. They may come after its close.
#[cold]
pub(crate) fn hold_all_writers() {
    if !directory::announces_writes() || local().vforked() {
        return;
    }
    table::writers().for_each(|(fd, writer)| hold(fd, writer.object, Until::Exit));
    for e in held().filter(|e| e.change(state::HELD, state::BUSY)) {
        e.fd.store(EXIT, Ordering::Relaxed);
        e.state.store(state::HELD, Ordering::Release);
    }
}

/// In the child of a fork. The counts without a record come first: the parent's records end with the parent,
/// which may be before the child is registered.
pub(crate) fn forked() {
    let is_needed = USED.load(Ordering::Relaxed) && !quiet::is_silent();
    let Some(writes) = connection::writes().filter(|_| is_needed) else { return };
    let span = |e: &Entry| Span::all(e.object.load(Ordering::Relaxed));
    for e in held() {
        writes.begin(None, span(e));
        e.set(Kind::Bare(None));
    }
    if held().next().is_none() || !connection::register_writer() {
        return;
    }
    for (e, page) in held().filter_map(|e| Some((e, connection::writes_page()?))) {
        let record = writes.begin(Some(page), span(e));
        e.set(record.map_or(Kind::Bare(Some(page)), |record| Kind::Record(page, record)));
        writes.finish_bare(None);
    }
}
