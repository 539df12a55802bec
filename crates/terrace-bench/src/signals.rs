//! ^C and its like: noted by a handler, asked for by whoever waits.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on ^C, SIGTERM and SIGHUP end the current run in order: children told, mounts and groups gone.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Was a signal caught?
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
