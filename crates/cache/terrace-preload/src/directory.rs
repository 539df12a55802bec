//! The directory that is served without a mount (`leased.rs`), as set by `terrace run`.

use crate::sys;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const TEXT_MAX: usize = 16 << 10;

struct Text(UnsafeCell<[u8; TEXT_MAX]>);
// SAFETY: written once, before its length is published.
unsafe impl Sync for Text {}

/// The directory, and subdirectories that are not served: one a line. A copy, since programs may overwrite
/// their environment.
static TEXT: Text = Text(UnsafeCell::new([0; TEXT_MAX]));
static LEN: AtomicUsize = AtomicUsize::new(0);
static ANNOUNCES_WRITES: AtomicBool = AtomicBool::new(false);
static GUARDED: AtomicBool = AtomicBool::new(false);

/// Reads the environment. Called once, from .init_array.
pub(crate) fn configure() {
    let told = sys::variable(c"TERRACE_LEASED").unwrap_or_default();
    // A longer list is not checked. No path begins with `//`, so nothing is served.
    let told = if told.len() > TEXT_MAX { b"//" } else { told };
    // SAFETY: not read before LEN publishes it.
    unsafe { (&mut *TEXT.0.get())[..told.len()].copy_from_slice(told) };
    LEN.store(told.len(), Ordering::Release);
    let writes = sys::variable(c"TERRACE_WRITES").filter(|_| !told.is_empty());
    GUARDED.store(writes == Some(b"guarded"), Ordering::Release);
    ANNOUNCES_WRITES.store(matches!(writes, Some(b"guarded" | b"exclusive")), Ordering::Release);
}

/// Whether the directory's files are served while programs write them: each write is announced.
#[inline]
pub(crate) fn announces_writes() -> bool {
    ANNOUNCES_WRITES.load(Ordering::Relaxed)
}

/// Whether the daemon sees opens of written files: it knows processes that announce nothing.
#[inline]
pub(crate) fn is_guarded() -> bool {
    GUARDED.load(Ordering::Relaxed)
}

/// Whether a directory is served by leases, without a mount.
#[inline]
pub(crate) fn is_leased() -> bool {
    LEN.load(Ordering::Acquire) != 0
}

/// Whether a path lies in the directory, and not in an excluded subdirectory.
pub(crate) fn is_served(path: &[u8]) -> bool {
    // SAFETY: written before LEN was, and never again.
    let text = unsafe { &(&*TEXT.0.get())[..LEN.load(Ordering::Acquire)] };
    let below = |dir: &[u8]| dir == b"/" || path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
    let mut dirs = text.split(|&c| c == b'\n');
    dirs.next().is_some_and(below) && !dirs.any(below)
}
