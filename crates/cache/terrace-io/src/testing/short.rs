//! Short reads and writes, as the kernel may produce them. This layer is below the other implementations, so
//! that tests cover their code for resuming calls.

use crate::{IoVec, total};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_shm::PAGE_SIZE;
use terrace_testkit::rng::mix;

/// Rate of short calls, shared by clones.
#[derive(Debug, Clone, Default)]
pub struct ShortCalls(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    seed: u64,
    calls: AtomicU64,
    per_mille: AtomicU32,
}

impl ShortCalls {
    /// `per_mille` of the calls are short; `seed` determines which.
    pub fn new(seed: u64, per_mille: u32) -> ShortCalls {
        ShortCalls(Some(Arc::new(Inner { seed, calls: AtomicU64::new(0), per_mille: per_mille.into() })))
    }
    /// Changes the rate.
    pub fn set(&self, per_mille: u32) {
        if let Some(inner) = &self.0 {
            inner.per_mille.store(per_mille, Ordering::Relaxed);
        }
    }
    /// Calls so far; 0 for the default, which does not count.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> u64 {
        self.0.as_ref().map_or(0, |inner| inner.calls.load(Ordering::Relaxed))
    }
    /// The part of a call that is to be done: all of it, or some whole pages.
    pub(crate) fn cut<'a>(&self, bufs: &'a [IoVec]) -> Cow<'a, [IoVec]> {
        let Some(inner) = &self.0 else { return Cow::Borrowed(bufs) };
        // The decision depends on the number of the call, not on the thread.
        let call = inner.calls.fetch_add(1, Ordering::Relaxed);
        let x = mix(inner.seed.wrapping_add(call.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let pages = (total(bufs) - 1) / PAGE_SIZE;
        if x % 1000 >= inner.per_mille.load(Ordering::Relaxed).into() || pages == 0 {
            return Cow::Borrowed(bufs);
        }
        Cow::Owned(first(bufs, (1 + (x >> 32) as usize % pages) * PAGE_SIZE))
    }
}

/// The first `n` bytes of a list of buffers.
fn first(bufs: &[IoVec], mut n: usize) -> Vec<IoVec> {
    let mut kept = Vec::with_capacity(bufs.len());
    for b in bufs {
        if n == 0 {
            break;
        }
        let len = b.len.min(n);
        kept.push(IoVec { ptr: b.ptr, len });
        n -= len;
    }
    kept
}
