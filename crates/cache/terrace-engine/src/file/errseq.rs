//! Failed writebacks of one object, as the kernel's errseq: each open handle reports each failure once.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_sync::Mutex;

#[derive(Debug)]
struct Errors {
    count: u64,
    last: i32,
    seen: bool,
}

#[derive(Debug)]
pub(crate) struct ErrorSequence(Mutex<Errors>);

/// Failures reported so far through one open file.
#[derive(Debug)]
pub struct ErrorCursor(AtomicU64);

impl ErrorSequence {
    pub(crate) fn new() -> ErrorSequence {
        ErrorSequence(Mutex::new(Errors { count: 0, last: 0, seen: true }))
    }
    /// The cursor of a new handle. It reports failures that no handle has reported yet.
    pub(crate) fn cursor(&self) -> ErrorCursor {
        let e = self.0.lock();
        ErrorCursor(AtomicU64::new(if e.seen { e.count } else { e.count - 1 }))
    }
    pub(crate) fn note(&self, error: &io::Error) {
        let mut e = self.0.lock();
        e.count += 1;
        e.last = error.raw_os_error().unwrap_or(libc::EIO);
        e.seen = false;
    }
    /// Reports a failure that this handle has not reported yet.
    pub(crate) fn take(&self, cursor: &ErrorCursor) -> io::Result<()> {
        let mut e = self.0.lock();
        if cursor.0.swap(e.count, Ordering::Relaxed) == e.count {
            return Ok(());
        }
        e.seen = true;
        Err(io::Error::from_raw_os_error(e.last))
    }
}
