//! Flag for ^C, SIGTERM and SIGHUP: a handler sets it, and loops check it.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Installs the handler: loops that check the flag end in order, and clean up.
#[allow(unsafe_code)]
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Whether a signal was caught.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
