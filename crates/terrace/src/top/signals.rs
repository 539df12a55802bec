//! How `terrace top` ends: on a signal, or when the daemon does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time to wait for keys and answers.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Consecutive failed requests after which the mount counts as gone. One failure may be a restart of the
/// daemon.
pub(super) const SILENCE_MAX: u32 = 2;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Catches signals, so that the terminal is restored before the end.
pub(super) fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

pub(super) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
