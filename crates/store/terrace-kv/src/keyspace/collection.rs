//! A collection (hash or sorted set), opened for one command. The command reads the blob or takes the
//! decoded collection, changes it, and writes the change.
//!
//! A collection up to [`SMALL`] bytes is compact. It is written whole and not kept in memory, since decoding
//! costs less. A larger collection is a log in the store and a table in memory: a change writes one record.
//! Up to [`LOG_MAX`] bytes the log is one blob, rewritten when most records are dead. A larger log is in
//! pieces, cleaned one at a time ([`super::segment_list`]).

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_store::ScanCache;

use super::dead_records::DeadRecords;
use super::record::{Damaged, Record, records};
use super::segment_list::SegmentList;
use super::word::{Form, Kind, Word};
use crate::blobs::Db;

/// Maximum size of a compact collection, bytes. Below 4 KiB the store writes a new extent anyway.
pub(crate) const SMALL: usize = 3 * 1024;
/// Maximum size of a log in one blob, bytes. Rewriting it takes about 50 us.
pub(crate) const LOG_MAX: usize = 256 << 10;
/// A log in pieces below this size becomes one blob again, bytes.
const PIECES_MIN: usize = LOG_MAX / 4;

/// A collection: hash or sorted set.
pub trait Collection: Default + Send + 'static {
    /// The type of the value.
    const KIND: Kind;
    /// The type of the records.
    type Record<'a>: Record<'a>;
    /// Decodes records.
    ///
    /// # Errors
    /// The bytes are not valid records.
    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut collection = Self::default();
        collection.add(bytes, 0).map(|()| collection)
    }
    /// Applies records that begin at `place`.
    ///
    /// # Errors
    /// The bytes are not valid records.
    fn add(&mut self, bytes: &[u8], place: u64) -> Result<(), Damaged> {
        let mut at = place;
        for record in records(bytes) {
            let (record, length) = record?;
            self.apply(record, at);
            at += length as u64;
        }
        Ok(())
    }
    /// Applies one record at `place`.
    fn apply(&mut self, record: Self::Record<'_>, place: u64);
    /// Iterates over records: the size of each, and the name of the element that it sets.
    ///
    /// # Errors
    /// The bytes are not valid records.
    fn walk(bytes: &[u8], mut visit: impl FnMut(usize, Option<&[u8]>)) -> Result<(), Damaged> {
        records::<Self::Record<'_>>(bytes)
            .try_for_each(|record| record.map(|(record, length)| visit(length, record.sets())))
    }
    /// Place of the record that set an element.
    fn place(&self, name: &[u8]) -> Option<u64>;
    /// The dead records.
    fn dead_records(&mut self) -> &mut DeadRecords;
    /// The kept rests of scans through the elements.
    fn scan_cache(&mut self) -> &mut ScanCache;
    /// Frees memory that can be rebuilt.
    fn shed(&mut self) {
        self.scan_cache().clear();
    }
    /// Sets the place of an element's record. The caller notes the dead one.
    fn set_place(&mut self, name: &[u8], place: u64);
    /// Sets the place where the log of changes begins.
    fn set_log_place(&mut self, place: u64);
    /// The records of all elements, each element once.
    fn encode(&self) -> Vec<u8>;
    /// Number of elements.
    fn len(&self) -> usize;
    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Size of its records, bytes.
    fn encoded_bytes(&self) -> usize;
    /// Memory, about, bytes.
    fn memory_bytes(&self) -> usize;
}

/// The key of a decoded collection.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(super) db: Db,
    pub(super) key: Box<[u8]>,
}

impl Name {
    pub(crate) fn new(db: Db, key: &[u8]) -> Name {
        Name { db, key: key.into() }
    }
}

/// A decoded collection.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) content: Box<dyn Any + Send>,
    /// Its pieces.
    pub(crate) chain: Option<SegmentList>,
    /// Memory that it takes, bytes.
    pub(crate) memory_bytes: usize,
}

/// Memory of a decoded collection in use by a command. It stays counted: otherwise the cache would grow into
/// it and shrink again with each command.
#[derive(Debug)]
pub(super) struct Counted {
    pub(crate) all: Arc<AtomicUsize>,
    pub(crate) bytes: usize,
    /// Memory of the content, bytes.
    pub(crate) content_bytes: usize,
    /// The collection's name, to keep it again.
    pub(crate) name: Option<Name>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A collection in use by a command.
#[derive(Debug)]
pub struct Open<C> {
    /// The content. A decoded collection is used as it was kept.
    pub(crate) content: Box<C>,
    /// Records of the changes.
    pub(crate) log: Vec<u8>,
    /// The word of its blob. None: no blob exists yet.
    pub(super) word: Option<Word>,
    /// Bytes of its blob.
    pub(super) stored: u64,
    pub(super) chain: Option<SegmentList>,
    /// The collection was decoded already.
    pub(super) counted: Option<Counted>,
}

/// How a changed collection is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The collection is empty: the key is removed.
    Remove,
    /// The whole collection is written.
    Whole(Form),
    /// The records of the changes are appended to the log or its pieces.
    Append,
}

impl<C: Collection> Open<C> {
    pub(super) fn new() -> Open<C> {
        Open { content: Box::default(), log: Vec::new(), word: None, stored: 0, chain: None, counted: None }
    }

    /// The necessary write. None: nothing has changed.
    pub(super) fn write(&self) -> Option<Write> {
        if self.log.is_empty() {
            return None;
        }
        let live = self.content.encoded_bytes();
        let is_log = self.word.is_some_and(|word| word.form == Form::Log);
        Some(match self.content.len() {
            0 => Write::Remove,
            _ if live <= SMALL => Write::Whole(Form::Compact),
            _ if self.chain.is_some() && live >= PIECES_MIN => Write::Append,
            _ if live > LOG_MAX => Write::Whole(Form::Pieces),
            _ if is_log && self.stored as usize + self.log.len() <= 2 * live => Write::Append,
            _ => Write::Whole(Form::Log),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::Hash;
    use super::*;

    #[test]
    fn growing_hash_becomes_a_log_and_is_compacted() {
        let mut open = Open::<Hash>::new();
        open.content.set(b"f", &[1; 100], &mut open.log);
        assert_eq!(open.write(), Some(Write::Whole(Form::Compact)));
        open.content.set(b"g", &[1; SMALL], &mut open.log);
        assert_eq!(open.write(), Some(Write::Whole(Form::Log)));
        open.word = Some(Word { form: Form::Log, ..Word::new(Kind::Hash) });
        open.stored = open.content.encoded_bytes() as u64;
        open.log.clear();
        assert_eq!(open.write(), None);
        open.content.set(b"f", &[2; 100], &mut open.log);
        assert_eq!(open.write(), Some(Write::Append));
        open.stored = 3 * open.content.encoded_bytes() as u64;
        assert_eq!(open.write(), Some(Write::Whole(Form::Log)));
        open.content.delete(b"g", &mut open.log);
        open.content.delete(b"f", &mut open.log);
        assert_eq!(open.write(), Some(Write::Remove));
    }
}
