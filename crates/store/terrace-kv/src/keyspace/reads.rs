//! Reads of strings and compact collections without a lock on the key: each read of the store is atomic.

use std::sync::atomic::Ordering;

use super::space::Keyspace;
use super::word::{Form, Kind, Word};
use crate::blobs::Db;
use crate::error::{Outcome, Refusal};

/// The result of reading a compact collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compact {
    /// Records were read.
    Records,
    /// The key does not exist.
    Absent,
    /// The collection is a log, in one blob or in pieces: it must be opened.
    Log,
}

impl Keyspace {
    /// Reads a string without a lock. Returns its word, and a number that changes with each write.
    ///
    /// # Errors
    /// The key has another type; errors of the store.
    pub(crate) fn read_string(&self, db: Db, key: &[u8], out: &mut Vec<u8>) -> Outcome<Option<(Word, u64)>> {
        let found = self.blobs.get(db, key, out)?;
        let word = found.map(|stat| Word::unpack(stat.word));
        match self.live(db, key, word) {
            Some(word) if word.kind == Kind::String => Ok(found.map(|stat| (word, stat.version))),
            Some(_) => Err(Refusal::WrongType),
            None => Ok(None),
        }
    }

    /// Reads the records of a compact collection without a lock.
    ///
    /// # Errors
    /// The key has another type; errors of the store.
    pub(crate) fn read_compact(&self, db: Db, key: &[u8], kind: Kind, out: &mut Vec<u8>) -> Outcome<Compact> {
        let stat = self.blobs.stat(db, key).map(|stat| Word::unpack(stat.word));
        if stat.is_some_and(|word| word.form != Form::Compact) {
            return Ok(Compact::Log);
        }
        let word = self.blobs.get(db, key, out)?.map(|stat| Word::unpack(stat.word));
        match self.live(db, key, word) {
            Some(word) if word.kind != kind => Err(Refusal::WrongType),
            Some(word) if word.form != Form::Compact => Ok(Compact::Log),
            Some(_) => Ok(Compact::Records),
            None => Ok(Compact::Absent),
        }
    }

    /// Word and size of a key, without a lock.
    pub(crate) fn stat(&self, db: Db, key: &[u8]) -> Option<(Word, u64)> {
        let stat = self.blobs.stat(db, key)?;
        self.live(db, key, Some(Word::unpack(stat.word))).map(|word| (word, stat.size))
    }

    /// The result is the word of a live key; an expired key is removed. Counts a hit or a miss.
    fn live(&self, db: Db, key: &[u8], word: Option<Word>) -> Option<Word> {
        // Reads the clock only for keys with an expiry time.
        let expired = word.is_some_and(|word| word.expires.is_some() && word.is_expired(self.now()));
        if expired {
            // Checks again under the lock, and removes the key.
            let _ = self.lock_keys(db, [key]).stat(db, key);
        }
        let live = word.filter(|_| !expired);
        let count = if live.is_some() { &self.counters.hits } else { &self.counters.misses };
        count.fetch_add(1, Ordering::Relaxed);
        live
    }
}
