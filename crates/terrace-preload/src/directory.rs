//! Which directory is served without a mount (`leased.rs`), as `terrace run` tells it.

use crate::sys;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

const TEXT_MAX: usize = 16 << 10;

struct Text(UnsafeCell<[u8; TEXT_MAX]>);
// SAFETY: written once, before its length is published.
unsafe impl Sync for Text {}

/// The directory, and those in it that are not served: one a line. A copy, for programs write over their environment.
static TEXT: Text = Text(UnsafeCell::new([0; TEXT_MAX]));
static LEN: AtomicUsize = AtomicUsize::new(0);

/// Reads the environment. Called once, from .init_array.
pub fn configure() {
    let told = sys::variable(c"TERRACE_LEASED").unwrap_or_default();
    // Of more nobody could tell what is not to be served: no path begins so.
    let told = if told.len() > TEXT_MAX { b"//" } else { told };
    // SAFETY: nobody reads it before LEN says so.
    unsafe { (&mut *TEXT.0.get())[..told.len()].copy_from_slice(told) };
    LEN.store(told.len(), Ordering::Release);
}

/// Is it served by leases, without a mount?
#[inline]
pub fn is_leased() -> bool {
    LEN.load(Ordering::Acquire) != 0
}

/// Does a path lie in the directory, and in none that is left out?
pub fn is_served(path: &[u8]) -> bool {
    // SAFETY: written before LEN was, and never again.
    let text = unsafe { &(&*TEXT.0.get())[..LEN.load(Ordering::Acquire)] };
    let below = |dir: &[u8]| dir == b"/" || path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
    let mut dirs = text.split(|&c| c == b'\n');
    dirs.next().is_some_and(below) && !dirs.any(below)
}
