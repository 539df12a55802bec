//! Answers to writes which the kernel's page cache must forget something for first.

use std::ops::Range;
use std::sync::Arc;

use fuser::ReplyWrite;
use terrace_engine::namespace::{Namespace, PageCache};

const PAGE: u64 = 4096;

/// Answers a write of this range of which the kernel's page cache may have older content: `reply` goes out when that is gone.
///
/// Not by a thread that answers requests: dropping waits for reads that are under way. Of the pages that the write covers in part the kernel may hold
/// the lock until it has our answer; they are dropped after it. So a thread for each, which is a rare thing to need: one that
/// waits must not keep others.
pub(super) fn answer<C: PageCache>(
    namespace: &Arc<Namespace<C>>,
    nodeid: u64,
    range: Range<u64>,
    reply: ReplyWrite,
) {
    let namespace = namespace.clone();
    let answer = move || {
        let (first, last) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
        namespace.invalidate_content(nodeid, first..last.max(first));
        reply.written((range.end - range.start) as u32);
        if range.start < first {
            namespace.invalidate_content(nodeid, range.start..range.start + 1);
        }
        if last < range.end {
            namespace.invalidate_content(nodeid, range.end - 1..range.end);
        }
    };
    // Where there are no threads to be had, the reply is dropped with the closure, which answers EIO.
    if let Err(err) = std::thread::Builder::new().name("late-answer".into()).spawn(answer) {
        tracing::error!(
            "a write is answered with an error: no thread to drop what the kernel has cached of it: {err}"
        );
    }
}
