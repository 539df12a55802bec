//! Active expiry: removes expired keys without a request for them.

use std::sync::atomic::Ordering;

use super::space::{Keyspace, Walk};
use crate::blobs::DATABASES;

/// Maximum number of keys taken from the list at a time.
const DUE_MAX: usize = 256;
/// Keys of one scan step.
const WALK_STEP: usize = 512;

impl Keyspace {
    /// Removes expired keys. To be called about ten times a second. Returns the number of removed keys.
    pub(crate) fn expire(&self) -> u64 {
        if !self.expires_actively.load(Ordering::Relaxed) {
            return 0;
        }
        let before = self.counters.expired.load(Ordering::Relaxed);
        loop {
            let due = self.deadlines.take_due(self.now(), DUE_MAX);
            for (_, db, key) in &due {
                let _ = self.lock_keys(*db, [&**key]).stat(*db, key);
            }
            if due.len() < DUE_MAX {
                break;
            }
        }
        self.walk_on();
        self.counters.expired.load(Ordering::Relaxed) - before
    }

    /// One step of the scan that lists keys with an expiry time. The scan runs once after a start, and again
    /// when the list was full.
    fn walk_on(&self) {
        let mut walk = self.walk.lock();
        if walk.is_over && !self.deadlines.take_incomplete() {
            return;
        }
        let page = self.blobs.scan(walk.db, walk.from, WALK_STEP);
        for key in &page.keys {
            let mut locked = self.lock_keys(walk.db, [&**key]);
            if let Some((word, _)) = locked.stat(walk.db, key) {
                self.deadlines.change(walk.db, key, (None, word.expires), || self.blobs.has_room(0));
            }
        }
        let db = if page.next == 0 { (walk.db + 1) % DATABASES } else { walk.db };
        *walk = Walk { db, from: page.next, is_over: page.next == 0 && db == 0 };
    }
}
