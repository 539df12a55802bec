//! Clients send hints: a program will read a span, no longer needs it, or reads the file in order.

use crate::context::Context;
use crate::preload_server::connection::Connection;
use crate::readahead::window;
use terrace_policy::prefetch::Span;
use terrace_shm::PAGE_SIZE;
use terrace_shm::layout::LAYOUT_VERSION;
use terrace_shm::proto::{self, Hint};

const PAGE: u64 = PAGE_SIZE as u64;

/// Takes a hint. False: the connection ends.
pub(super) fn take(cx: &Context, c: &Connection, hint: &Hint) -> bool {
    if c.client.is_none() || (hint.op, hint.version) != (proto::HINT, LAYOUT_VERSION) {
        return false;
    }
    // The file may be gone: the hint is dropped.
    let Some(o) = cx.lookup_object(hint.object) else { return true };
    let (size, end) = (o.size(), hint.offset.saturating_add(hint.len));
    let (first, last) = match hint.advice {
        // Drops pages fully inside the span, and the file's last page. Fetches partly covered pages, too.
        proto::WONT_NEED => {
            (hint.offset.div_ceil(PAGE), if end >= size { size.div_ceil(PAGE) } else { end / PAGE })
        }
        _ => (hint.offset / PAGE, end.min(size).div_ceil(PAGE)),
    };
    let span = Span { first, pages: last.saturating_sub(first) };
    match hint.advice {
        proto::SEQUENTIAL => window::sequential(cx, &o, first),
        proto::WILL_NEED if span.pages > 0 => window::will_need(cx, &o, span),
        proto::WONT_NEED if span.pages > 0 => window::wont_need(cx, &o, span),
        _ => {}
    }
    true
}
