//! Readahead windows, chosen at misses and by hints. The pages are fetched along with a miss, or by the
//! workers ([`prefetch`](crate::path::prefetch)).

use crate::context::Context;
use crate::context::prefetch_queue::Job;
use crate::context::read_marks::Mark;
use crate::file::object::{Object, ObjectRef};
use terrace_policy::prefetch::{Limits, Span};
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Spans per job: several workers share a stride, because io_uring serializes a batch on FUSE.
const SPANS_A_JOB: usize = 4;
/// Smallest window with a mark: readers with a short history have smaller ones.
const MARKED_MIN: u64 = 32;

/// Readahead after a miss of `[first, first + pages)`. Returns the number of pages behind it to read along
/// with it. Other spans go to the workers.
pub(crate) fn after_miss(cx: &Context, o: &ObjectRef, first: u64, pages: u64) -> u64 {
    let mut state = None;
    let is_used = |page| state.get_or_insert_with(|| cx.state.lock()).is_page_used(o, page);
    let spans = o.prefetcher.lock().miss(first, pages, limits(cx, o), is_used);
    drop(state);
    match spans[..] {
        [] => 0,
        [Span { first: next, pages: more }] if next == first + pages => {
            if more >= MARKED_MIN && cx.config.prefetch_workers > 0 {
                let before = Span { first: next, pages: 0 };
                let since_ns = cx.clock.now_ns();
                cx.marks.put(Mark { object: o.clone(), page: next, next: next + more, before, since_ns });
            }
            more
        }
        _ => {
            for part in spans.chunks(SPANS_A_JOB) {
                cx.jobs.push(Job::Fetch(o.clone(), part.to_vec()));
            }
            0
        }
    }
}

/// A sequential reader has reached its mark. Returns the window from its expected miss, `next`, on.
pub(crate) fn reached(cx: &Context, o: &Object, next: u64) -> Option<Span> {
    o.prefetcher.lock().reached(next, limits(cx, o))
}

/// Hint: the span will be read. Returns at once.
pub(crate) fn will_need(cx: &Context, o: &ObjectRef, span: Span) {
    cx.jobs.push(Job::Fetch(o.clone(), vec![span]));
}

/// Hint: the span is no longer needed. Returns at once.
pub(crate) fn wont_need(cx: &Context, o: &ObjectRef, span: Span) {
    cx.jobs.push(Job::Drop(o.clone(), span));
}

/// Hint: pages from `page` on will be read in order.
pub(crate) fn sequential(cx: &Context, o: &Object, page: u64) {
    o.prefetcher.lock().expect(page, limits(cx, o).window_max);
}

fn limits(cx: &Context, o: &Object) -> Limits {
    Limits {
        window_max: (cx.config.readahead_max_bytes / PAGE_SIZE) as u64,
        file_pages: o.size().div_ceil(PAGE),
    }
}
