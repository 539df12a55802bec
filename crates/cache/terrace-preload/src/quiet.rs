//! Counts the library's own system calls. Silences the library under filters of system calls (seccomp), which
//! may kill the program.
//!
//! When the program sets a filter, the library starts no more calls. It waits for those of other threads,
//! since a filter may apply to all threads. For a filter from the program's start, `terrace run` has tried
//! all calls under it, or the library stays inactive.

use crate::local::{Local, local};
use crate::sys;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The library makes no more calls, not even announcements.
static SILENT: AtomicBool = AtomicBool::new(false);

const LINES: usize = 16;

/// Threads in such calls. Several lines, so that threads rarely share one.
#[repr(align(64))]
struct Line(AtomicU32);

static INSIDE: [Line; LINES] = [const { Line(AtomicU32::new(0)) }; LINES];

/// Longest wait for another thread's call; a longjmp may have left one open.
const WAIT_MS: u32 = 2000;

/// A thread is in calls of the library until this is dropped.
#[derive(Debug)]
pub(crate) struct Inside(&'static Local);

fn line(local: &Local) -> &'static AtomicU32 {
    &INSIDE[local.stripe() % LINES].0
}

/// Enters. SeqCst: the count is visible before the thread checks whether the library is silent.
#[inline]
pub(crate) fn enter() -> Inside {
    let local = local();
    local.inside.set(local.inside.get().wrapping_add(1));
    line(local).fetch_add(1, Ordering::SeqCst);
    Inside(local)
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        line(self.0).fetch_sub(1, Ordering::Release);
        self.0.inside.set(self.0.inside.get().wrapping_sub(1));
    }
}

#[inline]
pub(crate) fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Silences the library, and waits until other threads have left its calls.
pub(crate) fn be_silent() {
    SILENT.store(true, Ordering::SeqCst);
    let mine = local().inside.get();
    let others = || INSIDE.iter().map(|line| line.0.load(Ordering::SeqCst)).fold(0, u32::wrapping_add) > mine;
    for _ in 0..WAIT_MS {
        if !others() {
            return;
        }
        sys::nap(1);
    }
}

/// In the child of a fork, which lacks its parent's other threads.
pub(crate) fn forked() {
    let local = local();
    for at in &INSIDE {
        at.0.store(0, Ordering::Relaxed);
    }
    line(local).store(local.inside.get(), Ordering::Relaxed);
}

/// True if a filter exists at the start and the library's calls were not tried under it.
pub(crate) fn is_filtered() -> bool {
    const FILTERED: isize = 2;
    // SAFETY: a query.
    let mode = unsafe { sys::raw(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
    mode == FILTERED
        && (sys::variable(c"TERRACE_FILTERS").is_none()
            || sys::variable(c"TERRACE_FILTERS") != filters(&mut [0; 2048]))
}

/// The number of filters in force, from /proc/self/status (Linux 5.9).
fn filters(text: &mut [u8; 2048]) -> Option<&[u8]> {
    let path = c"/proc/self/status".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a path that ends; the kernel writes into the buffer.
    let n = unsafe {
        let fd = sys::raw(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]);
        let fd = c_int::try_from(fd).ok().filter(|&fd| fd >= 0)?;
        let n = sys::raw(libc::SYS_read, [fd as usize, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]);
        sys::close(fd);
        usize::try_from(n).ok()?
    };
    text[..n].split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Seccomp_filters:\t"))
}
