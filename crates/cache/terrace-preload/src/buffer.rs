//! Checks that a read's buffer is writable. The kernel answers EFAULT for an unwritable buffer; a copy by the
//! library would end in SIGSEGV.
//!
//! Each page of memory that the program reads into is checked once, with MADV_POPULATE_WRITE. The call
//! prepares the page for the following write, and fails where the write would fault. Programs reuse buffers:
//! the result is kept for the thread's last range, and for pages in a small table. One bad address still
//! causes a signal: a page that passed the check and was unmapped later (docs/SEMANTICS.md).

use crate::local::Local;
use crate::quiet;
use crate::sys::{self, Ret};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use terrace_shm::PAGE_SIZE;

/// Pages remembered (a power of two).
const PAGES_MAX: usize = 1 << 14;

static PAGES: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(0) }; PAGES_MAX];
/// The kernel cannot check (before 5.14): every buffer counts as writable.
static CANNOT_TELL: AtomicBool = AtomicBool::new(false);

fn place(page: usize) -> &'static AtomicUsize {
    // Buffers of a pool are adjacent. Those of different threads lie at the same offsets of arenas. The hash
    // mixes both.
    &PAGES[(page ^ (page >> 14) ^ (page >> 24)) % PAGES_MAX]
}

/// True if `[start, start + n)`, which does not wrap, can be written; n > 0.
#[inline]
pub(crate) fn is_writable(local: &Local, start: *const u8, n: usize) -> bool {
    let (start, end) = (start as usize, start as usize + n);
    local.good_from.get() <= start && end <= local.good_to.get() || look_up(local, start, end)
}

#[cold]
fn look_up(local: &Local, start: usize, end: usize) -> bool {
    let _inside = quiet::enter();
    let pages = start / PAGE_SIZE..end.div_ceil(PAGE_SIZE);
    if pages.start == 0
        || quiet::is_silent()
        || !(pages.clone().all(is_known) || probe(&pages, libc::MADV_POPULATE_WRITE))
    {
        return false;
    }
    // The program may unmap single pages, so only the requested range is kept, not a union.
    local.good_from.set(pages.start * PAGE_SIZE);
    local.good_to.set(pages.end * PAGE_SIZE);
    pages.for_each(remember);
    true
}

/// True if `[start, start + n)`, which does not wrap, can be read; n > 0. For small structures of the
/// program, which mostly lie on its stack, in a page known to be writable.
pub(crate) fn is_readable(start: *const u8, n: usize) -> bool {
    let pages = start as usize / PAGE_SIZE..(start as usize + n).div_ceil(PAGE_SIZE);
    pages.start > 0
        && (pages.clone().all(is_known)
            || if populate(&pages, libc::MADV_POPULATE_WRITE) == 0 {
                pages.for_each(remember);
                true
            } else {
                probe(&pages, libc::MADV_POPULATE_READ)
            })
}

/// An empty entry of the table looks like page 0.
fn is_known(page: usize) -> bool {
    place(page).load(Ordering::Relaxed) == page
}

fn remember(page: usize) {
    place(page).store(page, Ordering::Relaxed);
}

fn populate(pages: &std::ops::Range<usize>, how: c_int) -> Ret {
    let (at, len) = (pages.start * PAGE_SIZE, pages.len() * PAGE_SIZE);
    // SAFETY: populating changes no content and no protection.
    unsafe { sys::raw(libc::SYS_madvise, [at, len, how as usize, 0, 0, 0]) }
}

fn probe(pages: &std::ops::Range<usize>, how: c_int) -> bool {
    if CANNOT_TELL.load(Ordering::Relaxed) {
        return true;
    }
    let ret = populate(pages, how);
    if ret == 0 {
        return true;
    }
    // EINVAL comes from old kernels, and for device memory. A page of this thread's stack, which is writable,
    // distinguishes the two.
    if ret == -(libc::EINVAL as isize) {
        let mine = std::ptr::from_ref(pages) as usize / PAGE_SIZE;
        let ret = populate(&(mine..mine + 1), how);
        CANNOT_TELL.store(ret != 0, Ordering::Relaxed);
        return ret != 0;
    }
    false
}
