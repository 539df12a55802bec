//! How the daemon decodes compressed pages: with all codecs.

use crate::segment::SegmentHandles;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use terrace_shm::codec::{Page, Unpack};
use terrace_shm::compress::Unzstd;

thread_local! {
    static UNZSTD: RefCell<Option<Unzstd>> = const { RefCell::new(None) };
}

fn make_unzstd(unzstd: &mut Option<Unzstd>) -> Option<&mut Unzstd> {
    if unzstd.is_none() {
        *unzstd = Unzstd::new().ok();
    }
    unzstd.as_mut()
}

/// Makes the calling thread's decoder, so that no page waits for it.
pub(crate) fn prepare_thread() {
    UNZSTD.with_borrow_mut(|unzstd| _ = make_unzstd(unzstd));
}

/// Reads compressed pages for a program, and lists those that are worth a frame.
#[derive(Debug)]
pub(crate) struct CompressedReader {
    /// Pages read.
    pub served: u64,
    promote_at: u32,
    /// Pages that were read often enough of late to be promoted.
    pub worthy: Vec<u64>,
}

impl CompressedReader {
    pub(crate) fn new(handles: &SegmentHandles) -> CompressedReader {
        let promote_at = handles.segment.header().promote_at.load(Ordering::Relaxed);
        CompressedReader { served: 0, promote_at, worthy: Vec::new() }
    }
}

impl Unpack for CompressedReader {
    fn zstd(&mut self, bytes: &[u8], out: &mut Page) -> bool {
        UNZSTD.with_borrow_mut(|unzstd| make_unzstd(unzstd).is_some_and(|unzstd| unzstd.zstd(bytes, out)))
    }
    fn served(&mut self, page: u64, before: u8) {
        self.served += 1;
        if u32::from(before) + 1 == self.promote_at {
            self.worthy.push(page);
        }
    }
}
