//! When it ends: by a signal, in order; or when nobody answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long to wait for keys and answers.
pub const TICK: Duration = Duration::from_millis(50);
/// Questions without an answer, one after the other, after which the mount counts as gone: its daemon may be restarting.
pub const SILENCE_MAX: u32 = 2;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on a signal leaves in order: the terminal is given back.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Whether one came.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
