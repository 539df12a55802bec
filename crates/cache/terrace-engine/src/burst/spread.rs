//! Division of the new pages of a burst between target and source, which write them at the same time.
//!
//! As in the placement `min-io-time`, both devices finish together, but without an estimate of their shares.
//! The target takes pages from the front of the list and the source from its end, until they meet. The source
//! leaves a piece to the target if the target would finish all remaining pages sooner
//! ([`Speeds`](crate::context::commit_speeds::Speeds)).
//!
//! The commit for the file's next base version makes the source's pages durable (`burst/base_version.rs`). So
//! the source takes pages only of files without a valid base version, usually growing ones. Their fsync needs
//! a commit anyway. **The source takes no page with an older version on the target**
//! (`DirtyPages::superseded`). A start would write that version over the newer one.

use crate::config::SourceShare;
use crate::context::Context;
use crate::context::commit_speeds::TRIAL;
use crate::file::object::Object;
use crate::path::writeback::{self, InFlightPage, Route};
use crate::tier::append::{CONTENT_MAX, Content};
use crate::tier::intent;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_sync::Mutex;
use terrace_tier::DeviceIo;
use terrace_tier::format::Record;

/// Pages that the source takes at a time. They are adjacent: a log is faster for scattered pages.
const PIECE: usize = 256;

struct UntakenPages {
    /// Pages with older versions on the target come first.
    pages: Vec<u64>,
    untaken: Mutex<Range<usize>>,
    /// Number of these pages, which only the target takes.
    superseded: usize,
    ended: AtomicBool,
}

impl UntakenPages {
    fn of(o: &Object, pages: Vec<u64>) -> UntakenPages {
        let dirty = o.dirty.lock();
        let (mut first, fresh): (Vec<u64>, Vec<u64>) =
            pages.into_iter().partition(|page| dirty.superseded.contains(page));
        let superseded = first.len();
        first.extend(fresh);
        UntakenPages {
            untaken: Mutex::new(0..first.len()),
            pages: first,
            superseded,
            ended: AtomicBool::new(false),
        }
    }
    fn front(&self, most: usize) -> Option<&[u64]> {
        let mut untaken = self.untaken.lock();
        let from = untaken.start;
        untaken.start = (from + most).min(untaken.end);
        Some(&self.pages[from..untaken.start]).filter(|pages| !pages.is_empty())
    }
    /// The last `piece` pages, if they are adjacent and `takes` accepts, given the number left.
    fn back(&self, piece: usize, takes: impl FnOnce(usize) -> bool) -> Option<&[u64]> {
        let mut untaken = self.untaken.lock();
        let from =
            untaken.end.checked_sub(piece).filter(|from| *from >= untaken.start.max(self.superseded))?;
        let pages = &self.pages[from..untaken.end];
        let adjacent = pages.first().zip(pages.last()).is_some_and(|(a, b)| b - a + 1 == piece as u64);
        if !adjacent || self.ended.load(Ordering::Relaxed) || !takes(untaken.len()) {
            return None;
        }
        untaken.end = from;
        Some(pages)
    }
}

/// Writes dirty pages of a file with undestaged pages. Each page is then durable on the target after a flush,
/// or in the source after a commit. False: the target has not taken its part. Pages that neither device took
/// stay dirty. The caller holds the file's writeback lock. `is_due`: the file's next fsync needs a commit of
/// the source. `since`: when the oldest page became dirty.
pub(crate) fn spread(
    cx: &Context,
    o: &Object,
    device: &DeviceIo,
    pages: Vec<u64>,
    since: u64,
    is_due: bool,
) -> bool {
    let left = &UntakenPages::of(o, pages);
    let is_known = cx.speeds.is_known(cx.clock.now_ns());
    let (piece, once) = match cx.config.source_share {
        SourceShare::Half => ((left.pages.len() - left.superseded) / 2, true),
        _ if is_known => (PIECE, false),
        _ => (TRIAL, true),
    };
    let takes = |left: usize| once || cx.speeds.is_in_time(piece, left);
    let first = if is_due && takes_share(cx, o) { left.back(piece, takes) } else { None };
    let Some(first) = first else { return to_target(cx, o, device, left, since) };
    std::thread::scope(|scope| {
        let source = || {
            let further = || if once { None } else { left.back(piece, takes) };
            to_source(cx, o, first, further);
        };
        // If no thread can be started, these pages stay dirty.
        let source = std::thread::Builder::new().name("share".into()).spawn_scoped(scope, source);
        let taken = to_target(cx, o, device, left, since);
        left.ended.store(true, Ordering::Relaxed);
        if let Ok(source) = source {
            source.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        taken
    })
}

/// Whether the source may take pages. Without direct I/O the kernel's page cache would make it seem fast.
fn takes_share(cx: &Context, o: &Object) -> bool {
    let is_direct = || o.source().writer().is_ok_and(|writer| writer.direct());
    let is_wanted = match cx.config.source_share {
        SourceShare::Off => false,
        SourceShare::Half => true,
        SourceShare::Measured => is_direct(),
    };
    is_wanted && o.failing().is_none()
}

/// Appends pages to the target, with `others` before each batch. False: some pages are not written.
pub(crate) fn append_all(
    cx: &Context,
    o: &Object,
    device: &DeviceIo,
    pages: &[u64],
    others: &[Record],
    since: u64,
) -> bool {
    pages.chunks(CONTENT_MAX).all(|pages| append(cx, o, device, pages, others, since))
}

/// Appends one batch; the pages stay dirty.
fn append(cx: &Context, o: &Object, device: &DeviceIo, pages: &[u64], others: &[Record], since: u64) -> bool {
    let in_flight = writeback::take_still_dirty(cx, o, pages);
    let content = |in_flight: &InFlightPage| {
        // A frame under writeback keeps its place. A write to it meanwhile makes the page dirty again.
        Content { object: o.id(), page: in_flight.page, from: cx.handles.segment.frame(in_flight.frame) }
    };
    let content: Vec<Content> = in_flight.iter().map(content).collect();
    let mut done = 0;
    while done < content.len() {
        let Some(taken) = intent::append_undestaged(cx, device, &content[done..], others) else { break };
        done += taken;
    }
    let mut state = cx.state.lock();
    for (i, in_flight) in in_flight.iter().enumerate() {
        state.end_target_write(o, in_flight.page, in_flight.frame, i < done, since);
    }
    drop(state);
    cx.dirty_done.notify_all();
    done == content.len()
}

fn to_target(cx: &Context, o: &Object, device: &DeviceIo, left: &UntakenPages, since: u64) -> bool {
    while let Some(pages) = left.front(CONTENT_MAX) {
        let begin = cx.clock.now_ns();
        if !append(cx, o, device, pages, &[], since) {
            return false;
        }
        cx.speeds.note_target(pages.len(), cx.clock.now_ns().saturating_sub(begin));
    }
    true
}

/// Writes a piece to the source, and then the `further` ones.
fn to_source<'a>(cx: &Context, o: &Object, first: &'a [u64], further: impl Fn() -> Option<&'a [u64]>) {
    let mut next = Some(first);
    while let Some(pages) = next {
        let change = intent::change(cx, o);
        let begin = cx.clock.now_ns();
        let written = writeback::write_back_pages(cx, o, pages, Route::Direct);
        let now = cx.clock.now_ns();
        drop(change);
        match written {
            Ok(()) => cx.speeds.note_source(pages.len(), now.saturating_sub(begin), now),
            Err(_) => cx.speeds.note_failure(now),
        }
        next = written.ok().and_then(|()| further());
    }
    writeback::restore_times(cx, o);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(superseded: usize) -> UntakenPages {
        UntakenPages {
            pages: (0..10).collect(),
            untaken: Mutex::new(0..10),
            superseded,
            ended: AtomicBool::new(false),
        }
    }

    #[test]
    fn ways_meet_and_take_each_page_once() {
        let left = left(0);
        let mut taken: Vec<u64> = Vec::new();
        while let Some(pages) = left.back(2, |untaken| untaken > 4) {
            taken.extend(pages);
            taken.extend(left.front(1).unwrap());
        }
        assert_eq!(taken, [8, 9, 0, 6, 7, 1]);
        assert_eq!(left.front(9), Some(&[2, 3, 4, 5][..]));
        assert_eq!((left.front(9), left.back(1, |_| true)), (None, None));
    }

    #[test]
    fn source_takes_nothing_that_the_target_has_older() {
        let left = left(7);
        assert_eq!(left.back(4, |_| true), None);
        assert_eq!(left.back(3, |_| true), Some(&[7, 8, 9][..]));
        assert_eq!(left.back(1, |_| true), None);
        assert_eq!(left.front(10).map(<[u64]>::len), Some(7));
    }

    #[test]
    fn source_takes_only_pages_that_lie_side_by_side() {
        let mut left = left(0);
        left.pages[8] = 20;
        left.pages[9] = 21;
        assert_eq!((left.back(3, |_| true), left.back(2, |_| true)), (None, Some(&[20, 21][..])));
    }

    #[test]
    fn source_takes_none_once_the_target_has_ended() {
        let left = left(0);
        left.ended.store(true, Ordering::Relaxed);
        assert_eq!(left.back(1, |_| true), None);
    }
}
