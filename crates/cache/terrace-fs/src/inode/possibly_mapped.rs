//! Queue of inodes of closed files that mappings may still write (passthrough). A thread checks them again
//! after a pause.

use std::collections::HashSet;
use std::time::Duration;

use terrace_sync::{Condvar, Mutex};

/// Node ids, each once.
#[derive(Debug, Default)]
pub(crate) struct PossiblyMapped {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    nodeids: HashSet<u64>,
    ended: bool,
}

impl PossiblyMapped {
    pub(crate) fn push(&self, nodeid: u64) {
        self.waiting.lock().nodeids.insert(nodeid);
        self.changed.notify_all();
    }

    /// Takes all out, `pause` after the first came in. `None` at the end.
    pub(crate) fn wait(&self, pause: Duration) -> Option<Vec<u64>> {
        let mut waiting = self.waiting.lock();
        self.changed.wait_while(&mut waiting, |waiting| waiting.nodeids.is_empty() && !waiting.ended);
        self.changed.wait_while_for(&mut waiting, |waiting| !waiting.ended, pause);
        if waiting.ended { None } else { Some(waiting.nodeids.drain().collect()) }
    }

    /// Ends the thread that waits.
    pub(crate) fn end(&self) {
        self.waiting.lock().ended = true;
        self.changed.notify_all();
    }
}
