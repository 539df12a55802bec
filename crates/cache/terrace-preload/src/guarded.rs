//! Announcements of the program's writes to files that are served meanwhile ([`terrace_shm::writes`]).
//!
//! | write | record during the call | record after the call |
//! |---|---|---|
//! | at an offset | its pages | the same |
//! | at the position, or appended | the whole file | its pages, if the position shows them |
//! | of an unknown range | the whole file | the same |
//!
//! The program's call is a cancellation point between [`begin`] and [`end`]. So a ticket has no destructor:
//! after a cancelled call the record stays in flight, and the kernel serves its pages.

use crate::local::local;
use crate::table::{self, Writer};
use crate::{connection, sys};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use terrace_shm::writes::{ClientPage, Record, Span};

/// The bytes that a call may change.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Range {
    At { offset: i64, len: usize },
    Position,
    All,
}

/// What the range of a write at the position depends on, before the call.
#[derive(Debug, Clone, Copy, Default)]
enum Before {
    #[default]
    Unknown,
    Position(u64),
    /// Size of the file, for an appended write.
    Size(u64),
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Kind {
    /// Not announced.
    #[default]
    None,
    /// Counted without a record, in the page of the process if it has one.
    Bare(Option<&'static ClientPage>),
    Record(&'static ClientPage, &'static Record),
}

/// An announced write.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ticket {
    pub(crate) kind: Kind,
    fd: c_int,
    before: Before,
}

impl Ticket {
    pub(crate) fn of(kind: Kind) -> Ticket {
        Ticket { kind, ..Ticket::default() }
    }
    #[inline]
    pub(crate) fn is_announced(&self) -> bool {
        !matches!(self.kind, Kind::None)
    }
}

/// Announces a write, before the program's call.
pub(crate) fn begin(fd: c_int, writer: Writer, range: Range) -> Ticket {
    // Another holder of a shared description may have set O_APPEND.
    let appends = || writer.appends() || writer.shared() && is_appending(fd);
    match range {
        Range::At { len: 0, .. } => Ticket::default(),
        Range::At { offset, len } if !appends() => match u64::try_from(offset) {
            Ok(offset) => announce_by(fd, Span::of(writer.object, offset, len as u64)),
            // The kernel refuses it.
            Err(_) => Ticket::default(),
        },
        Range::Position => {
            let before = if writer.shared() { Before::Unknown } else { before(fd, writer) };
            Ticket { fd, before, ..announce_by(fd, Span::all(writer.object)) }
        }
        // Linux appends a pwrite with O_APPEND.
        Range::At { .. } | Range::All => announce_by(fd, Span::all(writer.object)),
    }
}

fn is_appending(fd: c_int) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_APPEND != 0
}

fn before(fd: c_int, writer: Writer) -> Before {
    let at = match writer.appends() {
        // SAFETY: a path that ends.
        true => unsafe { sys::identity_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) }
            .ok()
            .map(|(.., size)| Before::Size(size)),
        false => u64::try_from(sys::lseek_cur(fd, 0)).ok().map(Before::Position),
    };
    at.unwrap_or_default()
}

/// Announces a write by a marked descriptor. If that fails, the file is given up.
fn announce_by(fd: c_int, span: Span) -> Ticket {
    let ticket = announce(span);
    if !ticket.is_announced() && connection::give_up(fd) && !local().vforked() {
        table::unmark_writer(fd);
    }
    ticket
}

/// Announces a write of this span. Not announced: this process has never been registered, and cannot be.
pub(crate) fn announce(span: Span) -> Ticket {
    let page = match connection::writes_page() {
        // A vfork child must not take records: the page is its parent's.
        _ if local().vforked() => None,
        None => {
            connection::register_writer();
            connection::writes_page()
        }
        page => page,
    };
    let Some(writes) = connection::writes() else { return Ticket::default() };
    let kind = match (page, writes.begin(page, span)) {
        (Some(page), Some(record)) => Kind::Record(page, record),
        (page, _) => Kind::Bare(page),
    };
    Ticket::of(kind)
}

/// Announces writes of other processes. They do not end, so nothing of the file is served from here on.
pub(crate) fn begin_for_good(object: u64) {
    if let Some(writes) = connection::writes() {
        writes.begin(None, Span::all(object));
    }
}

/// Ends an announced write, after the program's call with its result.
pub(crate) fn end(ticket: Ticket, ret: isize) {
    match ticket.kind {
        Kind::None => {}
        // In the child of a fork inside the call, the count is the parent's.
        Kind::Bare(Some(page)) if !is_mine(page) => {}
        Kind::Bare(page) => {
            if let Some(writes) = connection::writes() {
                writes.finish_bare(page);
            }
        }
        // In the child of a fork inside the call, the record is the parent's.
        Kind::Record(page, record) if is_mine(page) => {
            narrow(&ticket, record, ret);
            page.finish(record);
            wake(page);
        }
        Kind::Record(..) => {}
    }
}

fn is_mine(page: &ClientPage) -> bool {
    connection::writes_page().is_some_and(|mine| std::ptr::eq(mine, page))
}

/// Sets the pages in a record that was begun for the whole file.
fn narrow(ticket: &Ticket, record: &Record, ret: isize) {
    let Ok(len @ 1..) = u64::try_from(ret) else { return };
    if matches!(ticket.before, Before::Unknown) {
        return;
    }
    let after = u64::try_from(sys::lseek_cur(ticket.fd, 0)).ok();
    if let Some((offset, len)) = after.and_then(|after| changed(ticket.before, after, len)) {
        record.narrow(offset, len);
    }
}

/// Start and length of the bytes that a write of `len` bytes may have changed, from the position after it.
/// None: any bytes, since others have moved the position meanwhile, or cut the file.
fn changed(before: Before, after: u64, len: u64) -> Option<(u64, u64)> {
    let start = after.checked_sub(len)?;
    match before {
        Before::Unknown => None,
        Before::Position(at) => (at == start).then_some((start, len)),
        // Other appended writes may lie between.
        Before::Size(size) => (size <= start).then(|| (size, after - size)),
    }
}

/// Wakes the daemon if it sleeps and half of the records are in use.
fn wake(page: &ClientPage) {
    let sleeps =
        |world: &connection::Attachment| world.segment.header().drainer_sleeps.load(Ordering::Relaxed) != 0;
    if connection::world().is_some_and(sleeps) && page.is_half_full() {
        connection::ring_bell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_at_the_position_lies_before_the_new_position() {
        let changed = |at, after, len| changed(Before::Position(at), after, len);
        assert_eq!(changed(100, 110, 10), Some((100, 10)));
        assert_eq!(changed(100, 130, 10), None, "another thread has written");
        assert_eq!(changed(100, 10, 10), None, "another thread has set the position");
        assert_eq!(changed(0, 5, 10), None);
    }

    #[test]
    fn an_appended_write_has_the_bytes_from_the_old_end_on() {
        let changed = |size, after, len| changed(Before::Size(size), after, len);
        assert_eq!(changed(100, 110, 10), Some((100, 10)));
        assert_eq!(changed(100, 130, 10), Some((100, 30)), "other appended writes lie between");
        assert_eq!(changed(100, 10, 10), None, "the file was cut");
        assert_eq!(changed(0, 5, 10), None);
    }

    #[test]
    fn an_unknown_position_stands_for_any_bytes() {
        assert_eq!(changed(Before::Unknown, 110, 10), None);
    }
}
