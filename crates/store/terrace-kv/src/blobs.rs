//! The server's interface to a store: blobs with a word of metadata, in numbered databases.
//!
//! Implementations: the real store ([`crate::store`]), and a map in memory for tests ([`crate::testing`]).
//! The word has a key's type, expiry time and memcached flags. The server knows nothing of extents and pages.

use std::fmt;

pub use terrace_store::Wanted;

/// Number of a database (SELECT).
pub(crate) type Db = u8;

/// Number of databases.
pub const DATABASES: u8 = 16;

/// The database with the pieces of another database's large collections. Hidden from clients.
pub(crate) fn pieces_of(db: Db) -> Db {
    db + DATABASES
}

/// Why the store refused an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobError {
    /// No room. The earlier content is unchanged.
    Full,
    /// The names of keys take all of the memory they may.
    NoMemory,
    /// The last sync failed, in one line. Changes are refused until a sync succeeds.
    NotDurable(String),
    /// Any other error, in one line.
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

pub(crate) type Result<T> = std::result::Result<T, BlobError>;

/// Metadata of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The user's word.
    pub(crate) word: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Changes with each change of the blob, and never repeats while the store is open.
    pub(crate) version: u64,
}

/// A page of keys of a database.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys, in the store's order.
    pub(crate) keys: Vec<Box<[u8]>>,
    /// Cursor of the next page. 0: this is the last page.
    pub(crate) next: u64,
}

/// A store of blobs. Each call is atomic: a read during a write of its key returns the old content or the
/// new.
pub trait Blobs: Send + Sync + fmt::Debug + 'static {
    /// Reads the content into `out`. Returns the metadata. None: the key does not exist.
    fn get(&self, db: Db, key: &[u8], out: &mut Vec<u8>) -> Result<Option<Stat>>;
    /// Reads at most `len` bytes from `offset` into `out`. Returns whether the key exists.
    fn get_at(&self, db: Db, key: &[u8], offset: u64, len: usize, out: &mut Vec<u8>) -> Result<bool>;
    /// Metadata of a blob. None: the key does not exist.
    fn stat(&self, db: Db, key: &[u8]) -> Option<Stat>;
    /// Puts a whole blob from several parts, creating or replacing it. Returns the replaced word. The blob
    /// may grow up to `room` bytes.
    fn put(&self, db: Db, key: &[u8], word: u64, parts: &[&[u8]], room: u64) -> Result<Option<u64>>;
    /// Puts a blob of at most 14 bytes, even when there is room for removals only. For notes that a removal
    /// depends on.
    fn put_note(&self, db: Db, key: &[u8], note: &[u8]) -> Result<()>;
    /// Writes into an existing blob. It grows if need be, with zeros in a gap.
    fn put_at(&self, db: Db, key: &[u8], offset: u64, content: &[u8]) -> Result<()>;
    /// Appends to an existing blob.
    fn append(&self, db: Db, key: &[u8], content: &[u8]) -> Result<()>;
    /// Changes the word of an existing blob.
    fn set_word(&self, db: Db, key: &[u8], word: u64) -> Result<()>;
    /// Renames a blob, replacing an existing one. Returns whether it existed.
    fn rename(&self, from: (Db, &[u8]), to: (Db, &[u8])) -> Result<bool>;
    /// Like `rename`, with new content and a new word.
    fn rename_as(&self, from: (Db, &[u8]), to: (Db, &[u8]), word: u64, content: &[u8]) -> Result<bool>;
    /// Removes a blob. Returns whether it existed.
    fn remove(&self, db: Db, key: &[u8]) -> Result<bool>;
    /// Number of keys of a database.
    fn len(&self, db: Db) -> u64;
    /// Bytes of the values of a database.
    fn bytes(&self, db: Db) -> u64;
    /// Whether a database has no keys.
    fn is_empty(&self, db: Db) -> bool {
        self.len(db) == 0
    }
    /// Removes all keys of a database.
    fn clear(&self, db: Db) -> Result<()>;
    /// About `count` keys from `from` (0: the first). A key that is present from the first page to the last
    /// is in one of them.
    fn scan(&self, db: Db, from: u64, count: usize) -> Page;
    /// A uniformly random key. None: the database is empty.
    fn any_key(&self, db: Db) -> Option<Box<[u8]>>;
    /// Makes all earlier changes durable.
    fn sync(&self) -> Result<()>;
    /// Ends a batch of changes. They are then as safe as the store's options state, and may be acknowledged.
    fn end_batch(&self) -> Result<()> {
        self.sync()
    }
    /// The error of the last sync, if it failed.
    fn sync_failure(&self) -> Option<String> {
        None
    }
    /// Memory in use and its limit, bytes.
    fn memory(&self) -> (u64, u64);
    /// Releases memory that this thread reserved for reads of large values and for their replies. The values
    /// are counted elsewhere by now, or freed.
    fn release(&self) {}
    /// The hash of a key, for `prefetch`.
    fn hash(&self, _key: &[u8]) -> u64 {
        0
    }
    /// Prefetches what look-ups of these keys will need into the CPU caches, for all of them at once. A hint.
    fn prefetch(&self, _db: Db, _wanted: &[Wanted]) {}
    /// Whether `bytes` more of the server's memory fit into the limit. Counted memory has already shrunk the
    /// cache by then.
    fn has_room(&self, bytes: usize) -> bool;
}
