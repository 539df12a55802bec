//! A list of keys in order of expiry time. Active expiry takes expired keys from it, and removes them
//! without a request.
//!
//! The keys' words are authoritative; the list only finds them. The list is bounded. A slow scan finds
//! expired keys beyond it, and those of an earlier server ([`super::Keyspace::expire`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use terrace_sync::Mutex;

use crate::blobs::{DATABASES, Db};

/// Maximum number of listed keys.
const LISTED_MAX: usize = 1 << 20;
/// Memory for more keys is checked each time this many were added.
const ROOM_CHECK_EVERY: usize = 512;
/// Memory of an entry without its key, bytes: node, pointer, allocation.
const ENTRY_BYTES: usize = 64;

/// Expiry time, database and key.
pub(super) type Due = (u64, Db, Box<[u8]>);

#[derive(Debug, Default)]
pub(super) struct Deadlines {
    list: Mutex<BTreeSet<Due>>,
    /// Listed keys of each database. Written under the list's lock, read without.
    lengths: [AtomicUsize; DATABASES as usize],
    bytes: AtomicUsize,
    /// Some keys are not listed.
    incomplete: AtomicBool,
}

impl Deadlines {
    /// Changes a key's expiry time from `old` to `new`.
    pub(super) fn change(
        &self,
        db: Db,
        key: &[u8],
        (old, new): (Option<u64>, Option<u64>),
        has_room: impl Fn() -> bool,
    ) {
        if old == new {
            return;
        }
        let mut list = self.list.lock();
        let entry = |expires: u64| (expires, db, Box::from(key));
        if old.is_some_and(|old| list.remove(&entry(old))) {
            self.count_less(db, key);
        }
        let Some(new) = new else { return };
        let is_full = list.len() >= LISTED_MAX
            || (list.len() % ROOM_CHECK_EVERY == ROOM_CHECK_EVERY - 1 && !has_room());
        if is_full {
            self.incomplete.store(true, Ordering::Relaxed);
        } else if list.insert(entry(new)) {
            self.lengths[usize::from(db)].fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(ENTRY_BYTES + key.len(), Ordering::Relaxed);
        }
    }

    /// Uncounts a key that left the list.
    fn count_less(&self, db: Db, key: &[u8]) {
        self.lengths[usize::from(db)].fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(ENTRY_BYTES + key.len(), Ordering::Relaxed);
    }

    /// Takes up to `max` expired keys.
    pub(super) fn take_due(&self, now: u64, max: usize) -> Vec<Due> {
        let mut list = self.list.lock();
        let mut due = Vec::new();
        while due.len() < max && list.first().is_some_and(|(expires, ..)| *expires <= now) {
            due.extend(list.pop_first());
        }
        due.iter().for_each(|(_, db, key)| self.count_less(*db, key));
        due
    }

    /// Notes that an expired key still exists: the scan must find it again.
    pub(super) fn note_incomplete(&self) {
        self.incomplete.store(true, Ordering::Relaxed);
    }

    /// Whether the list may lack keys with an expiry time. Resets the flag.
    pub(super) fn take_incomplete(&self) -> bool {
        self.incomplete.swap(false, Ordering::Relaxed)
    }

    /// Number of listed keys of a database.
    pub(super) fn len(&self, db: Db) -> usize {
        self.lengths[usize::from(db)].load(Ordering::Relaxed)
    }

    /// Removes the keys of a database.
    pub(super) fn clear(&self, db: Db) {
        self.list.lock().retain(|(_, of, key)| {
            let stays = *of != db;
            if !stays {
                self.count_less(db, key);
            }
            stays
        });
    }

    /// Memory, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn keys_are_due_in_order_of_their_time() {
        let list = Deadlines::default();
        list.change(0, b"late", (None, Some(30)), || true);
        list.change(0, b"soon", (None, Some(10)), || true);
        list.change(1, b"moved", (None, Some(5)), || true);
        list.change(1, b"moved", (Some(5), Some(40)), || true);
        list.change(0, b"kept", (None, Some(1)), || true);
        list.change(0, b"kept", (Some(1), None), || true);
        let keys = |due: Vec<Due>| due.into_iter().map(|(_, _, key)| key).collect::<Vec<_>>();
        assert_eq!(keys(list.take_due(35, 9)), [Box::from(*b"soon") as Box<[u8]>, Box::from(*b"late")]);
        assert_eq!((list.len(0), list.len(1)), (0, 1));
        list.clear(1);
        assert_eq!((list.len(1), list.bytes()), (0, 0));
    }

    #[test]
    fn number_of_keys_is_told_beside_a_change() {
        let list = Deadlines::default();
        list.change(3, b"key", (None, Some(10)), || true);
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let _changes = list.list.lock();
            scope.spawn(|| sender.send(list.len(3)));
            assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(1));
        });
    }

    #[test]
    fn list_without_memory_stays_and_is_incomplete() {
        let list = Deadlines::default();
        (0..2000u64).for_each(|i| list.change(0, &i.to_le_bytes(), (None, Some(i)), || false));
        assert_eq!(list.len(0), ROOM_CHECK_EVERY - 1);
        assert!(list.take_incomplete());
    }
}
