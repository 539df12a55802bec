//! The server's interface to a store: blobs with a word of metadata, in numbered databases.
//!
//! The store is one implementation ([`crate::store`]), a map in memory another, for tests ([`crate::testing`]). The server keeps a key's type
//! and its time of expiry in the word, and knows nothing of extents, logs or pages.

use std::fmt;

pub use terrace_store::Wanted;

/// Number of a database (SELECT).
pub type Db = u8;

/// Databases of a server.
pub const DATABASES: u8 = 16;

/// The database of a database's pieces of large collections. Clients do not see it.
pub fn pieces_of(db: Db) -> Db {
    db + DATABASES
}

/// Why the store did not do it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobError {
    /// There is no room; what was there before is unchanged.
    Full,
    /// The names of keys take all of the memory that they may.
    NoMemory,
    /// The last sync has failed, in one line: no change is taken until one succeeds.
    NotDurable(String),
    /// Anything else, in one line.
    Failed(String),
}

impl fmt::Display for BlobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlobError::Full => f.write_str("the store is full"),
            BlobError::NoMemory => f.write_str("memory is full"),
            BlobError::NotDurable(why) | BlobError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for BlobError {}

/// Result of the store.
pub type Result<T> = std::result::Result<T, BlobError>;

/// Metadata of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The user's word.
    pub word: u64,
    /// Bytes.
    pub size: u64,
    /// Changes with each change of the blob, and is never the same again while the store is open.
    pub version: u64,
}

/// Some keys of a database, and where the next ones begin.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys, in the store's order.
    pub keys: Vec<Box<[u8]>>,
    /// The cursor of the next page; 0: there are no more.
    pub next: u64,
}

/// A store of blobs. Each call is atomic: a read beside a write of the same key has the old content or the new one.
pub trait Blobs: Send + Sync + fmt::Debug + 'static {
    /// Replaces `out` by the content; its metadata, or none: there is no such key.
    fn get(&self, db: Db, key: &[u8], out: &mut Vec<u8>) -> Result<Option<Stat>>;
    /// Replaces `out` by at most `len` bytes from `offset` on; whether there is such a key.
    fn get_at(&self, db: Db, key: &[u8], offset: u64, len: usize, out: &mut Vec<u8>) -> Result<bool>;
    /// Metadata.
    fn stat(&self, db: Db, key: &[u8]) -> Option<Stat>;
    /// Replaces the whole blob, or makes it, by bytes that come in parts; the word that it had. Up to `room` bytes it is expected to grow.
    fn put(&self, db: Db, key: &[u8], word: u64, parts: &[&[u8]], room: u64) -> Result<Option<u64>>;
    /// Puts a blob of at most 14 bytes, also where there is room for removals alone: a note without which something else cannot be removed.
    fn put_note(&self, db: Db, key: &[u8], note: &[u8]) -> Result<()>;
    /// Writes into a blob that is there; behind its end it grows, with zeros between.
    fn put_at(&self, db: Db, key: &[u8], offset: u64, content: &[u8]) -> Result<()>;
    /// Adds to the end of a blob that is there.
    fn append(&self, db: Db, key: &[u8], content: &[u8]) -> Result<()>;
    /// Changes the word of a blob that is there.
    fn set_word(&self, db: Db, key: &[u8], word: u64) -> Result<()>;
    /// Gives the blob another name, in place of one that is there; whether there was such a blob.
    fn rename(&self, from: (Db, &[u8]), to: (Db, &[u8])) -> Result<bool>;
    /// Likewise, with other content and another word.
    fn rename_as(&self, from: (Db, &[u8]), to: (Db, &[u8]), word: u64, content: &[u8]) -> Result<bool>;
    /// Removes the blob; whether there was one.
    fn remove(&self, db: Db, key: &[u8]) -> Result<bool>;
    /// Keys of a database.
    fn len(&self, db: Db) -> u64;
    /// Bytes of the values of a database.
    fn bytes(&self, db: Db) -> u64;
    /// Whether a database has no keys.
    fn is_empty(&self, db: Db) -> bool {
        self.len(db) == 0
    }
    /// Removes all keys of a database.
    fn clear(&self, db: Db) -> Result<()>;
    /// About `count` keys from `from` on (0: the first). A key that is there from the first page to the last is in one of them.
    fn scan(&self, db: Db, from: u64, count: usize) -> Page;
    /// A key, each of them as likely; none: there are none.
    fn any_key(&self, db: Db) -> Option<Box<[u8]>>;
    /// Makes all that was done before durable.
    fn sync(&self) -> Result<()>;
    /// Ends a batch of changes: they survive what the store's options say, and may be answered.
    fn end_batch(&self) -> Result<()> {
        self.sync()
    }
    /// The error of the last sync, if it has failed.
    fn sync_failure(&self) -> Option<String> {
        None
    }
    /// Memory in use and its limit, bytes.
    fn memory(&self) -> (u64, u64);
    /// What this thread has read is counted by now, or gone: memory that reads of large values have counted ahead, for themselves and for their replies, is
    /// given back.
    fn release(&self) {}
    /// The hash of a key, for `prefetch`.
    fn hash(&self, _key: &[u8]) -> u64 {
        0
    }
    /// Has the processor fetch what look-ups of these keys need, which are about to come: for all of them at a time. A hint.
    fn prefetch(&self, _db: Db, _wanted: &[Wanted]) {}
    /// Whether `bytes` more of the server's memory fit into the limit. What the server has counted by then has made the cache smaller.
    fn has_room(&self, bytes: usize) -> bool;
}
