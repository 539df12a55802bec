//! Threads that say so before they wait.
//!
//! Whoever answers requests on few threads wants to know when one of them is about to wait for a device, for writeback or for another
//! thread: another may go on meanwhile. A thread asks for it once, for itself. A wait that is not announced costs its user time, no more.

use std::cell::Cell;

/// How long a wait is as a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wait {
    /// As a read from a local SSD: some ten times what waking another thread costs.
    Brief,
    /// Longer, or nobody knows.
    Long,
}

thread_local! {
    static BEFORE: Cell<Option<fn(Wait)>> = const { Cell::new(None) };
}

/// From now on `act` is called on this thread whenever it is about to wait in here. It must not wait itself, nor call the engine.
pub fn before_waiting(act: fn(Wait)) {
    BEFORE.set(Some(act));
}

/// This thread is about to wait.
pub fn about_to_wait(wait: Wait) {
    if let Some(act) = BEFORE.get() {
        act(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static WAITS: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn a_thread_is_told_of_its_own_waits_alone() {
        about_to_wait(Wait::Long);
        before_waiting(|_| WAITS.set(WAITS.get() + 1));
        about_to_wait(Wait::Brief);
        std::thread::spawn(|| about_to_wait(Wait::Long)).join().unwrap();
        assert_eq!(WAITS.get(), 1);
    }
}
