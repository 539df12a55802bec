//! Decompression of pages of the compressed tier in the daemon, with a zstd decoder for each thread.

use crate::segment::SegmentHandles;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_shm::codec::{Page, Unpack};
use terrace_shm::compress::Unzstd;

/// Memory of the decoders of all threads.
static BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static UNZSTD: RefCell<Option<Counted>> = const { RefCell::new(None) };
}

/// A thread's decoder, counted while it lives.
struct Counted {
    unzstd: Unzstd,
    bytes: u64,
}

impl Counted {
    fn new() -> Option<Counted> {
        let unzstd = Unzstd::new().ok()?;
        let bytes = unzstd.bytes() as u64;
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        Some(Counted { unzstd, bytes })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(crate) fn decoder_bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

fn make_unzstd(decoder: &mut Option<Counted>) -> Option<&mut Unzstd> {
    if decoder.is_none() {
        *decoder = Counted::new();
    }
    decoder.as_mut().map(|decoder| &mut decoder.unzstd)
}

/// Creates the calling thread's decoder before the first page needs it.
pub(crate) fn prepare_thread() {
    UNZSTD.with_borrow_mut(|unzstd| _ = make_unzstd(unzstd));
}

/// Reads compressed pages for a program, and lists those to be promoted.
#[derive(Debug)]
pub(crate) struct CompressedReader {
    pub(crate) served: u64,
    promote_at: u32,
    /// Pages read often enough lately to be promoted.
    pub(crate) worthy: Vec<u64>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoders_count_while_their_threads_live() {
        const THREADS: usize = 3;
        let own = THREADS as u64 * 90_000;
        // Other tests of this process have decoders, too.
        let (before, mut alive) = (decoder_bytes(), 0);
        let all = std::sync::Barrier::new(THREADS + 1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    prepare_thread();
                    all.wait();
                    all.wait();
                });
            }
            all.wait();
            alive = decoder_bytes();
            all.wait();
        });
        assert!(alive >= own, "{alive} bytes");
        assert!(decoder_bytes() < before + own, "{} bytes", decoder_bytes());
    }
}
