//! A collection opened for one command: read from its blob or from the memory of decoded ones, changed, written.
//!
//! Up to [`SMALL`] bytes it is written whole, compact, and not kept in memory: to decode it costs less than to keep it. A larger one is a log
//! on the store and a table in memory: a change of one element of a million writes one record. Up to [`LOG_MAX`] bytes the log is one blob, written anew
//! when most of it is superseded; above it stands in pieces, of which one at a time is cleaned ([`super::chain`]).

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_store::Walks;

use super::chain::Chain;
use super::record::{Damaged, Record, records};
use super::superseded::Superseded;
use super::word::{Form, Kind, Word};
use crate::blobs::Db;

/// Up to so many bytes a collection is compact. Below 4 KiB the store writes a new extent anyway.
pub const SMALL: usize = 3 * 1024;
/// Up to so many bytes a log is one blob: to write it anew takes some 50 us.
pub const LOG_MAX: usize = 256 << 10;
/// Below so many bytes a log in pieces becomes one blob again.
const PIECES_MIN: usize = LOG_MAX / 4;

/// Hashes and sorted sets.
pub trait Collection: Default + Send + 'static {
    /// Its type.
    const KIND: Kind;
    /// Its records.
    type Record<'a>: Record<'a>;
    /// From its records.
    ///
    /// # Errors
    /// They are none.
    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut collection = Self::default();
        collection.add(bytes, 0).map(|()| collection)
    }
    /// Does what records say that begin at `place`.
    ///
    /// # Errors
    /// They are none.
    fn add(&mut self, bytes: &[u8], place: u64) -> Result<(), Damaged> {
        let mut at = place;
        for record in records(bytes) {
            let (record, length) = record?;
            self.apply(record, at);
            at += length as u64;
        }
        Ok(())
    }
    /// Does what one record says, which stands at `place`.
    fn apply(&mut self, record: Self::Record<'_>, place: u64);
    /// Walks records: the bytes of each, and the name of the element that it sets.
    ///
    /// # Errors
    /// They are none.
    fn walk(bytes: &[u8], mut visit: impl FnMut(usize, Option<&[u8]>)) -> Result<(), Damaged> {
        records::<Self::Record<'_>>(bytes)
            .try_for_each(|record| record.map(|(record, length)| visit(length, record.sets())))
    }
    /// Place of the record that has set an element.
    fn place(&self, name: &[u8]) -> Option<u64>;
    /// The records that count no more.
    fn superseded(&mut self) -> &mut Superseded;
    /// What is kept of walks through its elements.
    fn walks(&mut self) -> &mut Walks;
    /// Gives back the memory that it can do without.
    fn shed(&mut self) {
        self.walks().clear();
    }
    /// Another record is the one; the caller says what becomes of the one before.
    fn set_place(&mut self, name: &[u8], place: u64);
    /// The log of changes begins at this place.
    fn set_log_place(&mut self, place: u64);
    /// Its records, each element once.
    fn encode(&self) -> Vec<u8>;
    /// Elements.
    fn len(&self) -> usize;
    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes of its records.
    fn encoded_bytes(&self) -> usize;
    /// Memory that it takes, about.
    fn memory_bytes(&self) -> usize;
}

/// The key of a collection that is kept decoded.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub(super) db: Db,
    pub(super) key: Box<[u8]>,
}

impl Name {
    /// Of this key.
    pub fn new(db: Db, key: &[u8]) -> Name {
        Name { db, key: key.into() }
    }
}

/// A collection that is kept decoded.
#[derive(Debug)]
pub struct Cached {
    /// Its content.
    pub content: Box<dyn Any + Send>,
    /// Its pieces.
    pub chain: Option<Chain>,
    /// Memory that it takes, bytes.
    pub memory_bytes: usize,
}

/// Memory of a decoded collection that a command works on. It stays counted meanwhile: the cache must not grow into it and give it back with each command.
#[derive(Debug)]
pub(super) struct Counted {
    pub all: Arc<AtomicUsize>,
    pub bytes: usize,
    /// Those of its content.
    pub content_bytes: usize,
    /// Its name, for when it is kept again.
    pub name: Option<Name>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A collection that a command works on.
#[derive(Debug)]
pub struct Open<C> {
    /// Its content: that of a decoded one as it was kept.
    pub content: Box<C>,
    /// Records of the changes.
    pub log: Vec<u8>,
    /// The word of its blob; none: there is no blob yet.
    pub(super) word: Option<Word>,
    /// Bytes of its blob.
    pub(super) stored: u64,
    /// Its pieces.
    pub(super) chain: Option<Chain>,
    /// It was decoded already.
    pub(super) counted: Option<Counted>,
}

/// How a changed collection is written.
#[derive(Debug, PartialEq, Eq)]
pub enum Write {
    /// It is empty: the key is removed.
    Remove,
    /// Whole.
    Whole(Form),
    /// The records of the changes, at the end of the log or of its pieces.
    Append,
}

impl<C: Collection> Open<C> {
    /// A new, empty one.
    pub(super) fn new() -> Open<C> {
        Open { content: Box::default(), log: Vec::new(), word: None, stored: 0, chain: None, counted: None }
    }

    /// The write that is due; none: nothing has changed.
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
