//! A collection opened for one command: read from its blob or from the memory of decoded ones, changed, written.
//!
//! Up to [`SMALL`] bytes it is written whole, compact, and not kept in memory: to decode it costs less than to keep it. A larger one is a log
//! on the store and a table in memory: a change of one element of a million writes one record.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::record::Damaged;
use super::word::{Form, Kind, Word};

/// Up to so many bytes a collection is compact. Below 4 KiB the store writes a new extent anyway.
pub const SMALL: usize = 3 * 1024;

/// Hashes and sorted sets.
pub trait Collection: Default + Send + 'static {
    /// Its type.
    const KIND: Kind;
    /// From its records.
    ///
    /// # Errors
    /// They are none.
    fn decode(bytes: &[u8]) -> Result<Self, Damaged>;
    /// Hands its records out, compact, in parts: of a large collection no copy is made.
    fn with_parts<T>(&self, use_parts: impl FnOnce(&[&[u8]]) -> T) -> T;
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

/// A collection that is kept decoded.
#[derive(Debug)]
pub struct Cached {
    /// Its content.
    pub content: Box<dyn Any + Send>,
    /// Memory that it takes, bytes.
    pub memory_bytes: usize,
}

/// Memory of a decoded collection that a command works on. It stays counted meanwhile: the cache must not grow into it and give it back with each command.
#[derive(Debug)]
pub(super) struct Counted {
    pub all: Arc<AtomicUsize>,
    pub bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A collection that a command works on.
#[derive(Debug)]
pub struct Open<C> {
    /// Its content.
    pub content: C,
    /// Records of the changes.
    pub log: Vec<u8>,
    /// The word of its blob; none: there is no blob yet.
    pub(super) word: Option<Word>,
    /// Bytes of its blob.
    pub(super) stored: u64,
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
    /// The records of the changes, at the end of the log.
    Append,
}

impl<C: Collection> Open<C> {
    /// A new, empty one.
    pub(super) fn new() -> Open<C> {
        Open { content: C::default(), log: Vec::new(), word: None, stored: 0, counted: None }
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
        open.word = Some(Word { kind: Kind::Hash, form: Form::Log, expires: None });
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
