//! A stripe: the keys that share one lock. The lock protects the decoded collections of these keys.

use std::any::Any;

use hashbrown::{DefaultHashBuilder, Equivalent, HashMap};

use super::collection::{Cached, Name};
use crate::blobs::Db;

/// Memory of an entry without its key and content, bytes.
const ENTRY_BYTES: usize = 128;

#[derive(Hash)]
struct NameRef<'a> {
    db: Db,
    key: &'a [u8],
}

impl Equivalent<Name> for NameRef<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        self.db == name.db && *self.key == *name.key
    }
}

#[derive(Debug, Default)]
pub(super) struct Stripe {
    decoded: HashMap<Name, Cached, DefaultHashBuilder>,
}

fn bytes_of(key: &[u8], cached: &Cached) -> usize {
    ENTRY_BYTES + key.len() + cached.memory_bytes
}

impl Stripe {
    pub(super) fn content(&self, db: Db, key: &[u8]) -> Option<&(dyn Any + Send)> {
        self.decoded.get(&NameRef { db, key }).map(|cached| &*cached.content)
    }
    /// Takes out a decoded collection, with its memory in bytes.
    pub(super) fn take(&mut self, db: Db, key: &[u8]) -> Option<(Name, Cached, usize)> {
        let (name, cached) = self.decoded.remove_entry(&NameRef { db, key })?;
        let bytes = bytes_of(&name.key, &cached);
        Some((name, cached, bytes))
    }
    /// Keeps a decoded collection. Returns its memory in bytes.
    pub(super) fn keep(&mut self, name: Name, cached: Cached) -> usize {
        let bytes = bytes_of(&name.key, &cached);
        self.decoded.insert(name, cached);
        bytes
    }
    /// Drops all. Returns their memory in bytes.
    pub(super) fn forget(&mut self) -> usize {
        self.decoded.drain().map(|(name, cached)| bytes_of(&name.key, &cached)).sum()
    }
    /// Drops those of a database. Returns their memory in bytes.
    pub(super) fn forget_database(&mut self, db: Db) -> usize {
        let gone = self.decoded.extract_if(|name, _| name.db == db);
        gone.map(|(name, cached)| bytes_of(&name.key, &cached)).sum()
    }
}
