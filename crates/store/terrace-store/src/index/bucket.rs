//! A bucket's hash table of blobs. A large bucket has many tables, each with its own lock.
//!
//! A table uses the low bits of a hash for the slot, and the high ones as tags. The bits between choose the
//! table. Scans order hashes rotated so that those bits come first: table by table, and within a table by the
//! rest.
//!
//! A table holds pointers. A look-up fetches a slot (9 bytes a blob), then one or two cache lines with
//! description and short key. A table of descriptions is six times as large, and with separate keys it cost
//! one cache line more.

use super::memory::{Ahead, IndexMemory};
use super::persist::Persist;
use super::{Hashes, Version};
use crate::allocated::allocated;
use crate::error::Result;
use crate::record::{Blob, PUT_BYTES};
use crate::scan_cache::{ScanCache, ScanRemainder, fetched};
use crate::space::Extent;
use compact_bytes::CompactBytes;
use hashbrown::HashTable;
use hashbrown::hash_table::OccupiedEntry;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of tables of a large bucket.
const SHARDS: usize = 256;
/// Maximum number of blobs of a small bucket.
const SMALL_MAX: usize = 2048;
/// Rotation of a hash for scans: its bits 40 to 47 come first.
const TURN: u32 = 16;

/// The kept rests of scans take at most this part of the index's memory, or the minimum below.
const WALKS_PART: usize = 64;
const WALKS_BYTES_MIN: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Entry {
    pub key: CompactBytes,
    pub blob: Blob,
    /// Number of the record that describes the blob.
    pub number: u64,
}

/// One cache line, if aligned.
const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    pub(crate) fn extent(&self) -> Extent {
        Extent::of(&self.blob)
    }
    pub(crate) fn version(&self) -> Version {
        Version(self.number)
    }
    /// Size of the blob's record in a log without garbage, bytes.
    pub(crate) fn logged_bytes(&self) -> u64 {
        PUT_BYTES + self.key.len() as u64
    }
}

pub(crate) type Table = HashTable<Box<Entry>>;

/// Memory of an entry outside the table, bytes.
fn entry_bytes(key: &[u8]) -> u64 {
    allocated(size_of::<Entry>()) + spilled_bytes(key)
}

/// Heap memory of a key or name that is too long to be inline, bytes.
pub(super) fn spilled_bytes(text: &[u8]) -> u64 {
    if text.len() > CompactBytes::MAX_INLINE { allocated(text.len()) } else { 0 }
}

/// An entry of a table that the caller has locked for writing.
pub(crate) type HeldEntry<'a> = OccupiedEntry<'a, Box<Entry>>;

/// The index's state of a bucket. The name comes first: it shares a cache line with the reference count,
/// which a look-up changes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BucketState {
    name: RwLock<CompactBytes>,
    pub id: u64,
    /// The bucket was removed. Set while all its tables are locked.
    gone: AtomicBool,
    /// The bucket is scratch: its blobs are not logged.
    scratch: AtomicBool,
    /// The bucket's files, if it persists.
    persist: OnceLock<Box<Persist>>,
    small: RwLock<Table>,
    large: OnceLock<Box<[RwLock<Table>]>>,
    len: AtomicU64,
    bytes: AtomicU64,
}

/// The place of a hash in scan order.
fn order(hash: u64) -> u64 {
    hash.rotate_left(TURN)
}

/// The hash at a place in scan order.
fn hash_at(place: u64) -> u64 {
    place.rotate_right(TURN)
}

fn shard_of(hash: u64) -> usize {
    (order(hash) >> (64 - SHARDS.ilog2())) as usize
}

impl BucketState {
    pub(crate) fn new(id: u64, name: &str) -> BucketState {
        BucketState {
            name: RwLock::new(CompactBytes::new(name.as_bytes())),
            id,
            gone: AtomicBool::new(false),
            scratch: AtomicBool::new(false),
            persist: OnceLock::new(),
            small: RwLock::default(),
            large: OnceLock::new(),
            len: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.name.read()).into_owned()
    }
    pub(crate) fn has_name(&self, name: &str) -> bool {
        **self.name.read() == *name.as_bytes()
    }
    pub(super) fn hash(&self, hashes: &Hashes) -> u64 {
        hashes.of(&self.name.read())
    }
    pub(crate) fn set_name(&self, name: &str) {
        *self.name.write() = CompactBytes::new(name.as_bytes());
    }
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }
    pub(crate) fn is_scratch(&self) -> bool {
        self.scratch.load(Ordering::Relaxed)
    }
    pub(crate) fn set_scratch(&self) {
        self.scratch.store(true, Ordering::Relaxed);
    }
    /// The bucket's files, if it persists.
    pub(crate) fn persist(&self) -> Option<&Persist> {
        self.persist.get().map(Box::as_ref)
    }
    /// Makes the bucket persist, permanently.
    pub(crate) fn set_persist(&self, persist: Persist) {
        let _ = self.persist.set(Box::new(persist));
    }
    /// Notes a change of a blob; without a key, of all blobs. Comes before the change.
    pub(crate) fn note_change(&self, key: Option<&[u8]>, memory: &IndexMemory) {
        match (self.persist(), key) {
            (None, _) => {}
            (Some(persist), Some(key)) => persist.note(key, memory),
            (Some(persist), None) => persist.note_unknown(memory),
        }
    }
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self, hash: u64) -> RwLockReadGuard<'_, Table> {
        if let Some(large) = self.large.get() {
            return large[shard_of(hash)].read();
        }
        let small = self.small.read();
        match self.large.get() {
            None => small,
            Some(large) => {
                drop(small);
                large[shard_of(hash)].read()
            }
        }
    }

    /// Locks the table of a hash for reading, unless it is being changed.
    pub(crate) fn try_read(&self, hash: u64) -> Option<RwLockReadGuard<'_, Table>> {
        match self.large.get() {
            Some(large) => large[shard_of(hash)].try_read(),
            None => self.small.try_read(),
        }
    }

    pub(crate) fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Table> {
        if let Some(large) = self.large.get() {
            return large[shard_of(hash)].write();
        }
        let small = self.small.write();
        match self.large.get() {
            None => small,
            Some(large) => {
                drop(small);
                large[shard_of(hash)].write()
            }
        }
    }

    /// Locks the tables of two hashes for writing. One guard if both are in the same table.
    pub(crate) fn write_two(
        &self,
        a: u64,
        b: u64,
    ) -> (RwLockWriteGuard<'_, Table>, Option<RwLockWriteGuard<'_, Table>>) {
        let (i, j) = (shard_of(a), shard_of(b));
        if self.large.get().is_none() {
            let small = self.small.write();
            if self.large.get().is_none() {
                return (small, None);
            }
        }
        let large = self.large.get().expect("it was there");
        if i == j {
            return (large[i].write(), None);
        }
        if i < j {
            let first = large[i].write();
            return (first, Some(large[j].write()));
        }
        let second = large[j].write();
        (large[i].write(), Some(second))
    }

    pub(crate) fn write_all(&self) -> Vec<RwLockWriteGuard<'_, Table>> {
        let small = self.small.write();
        match self.large.get() {
            None => vec![small],
            Some(large) => large.iter().map(|table| table.write()).collect(),
        }
    }

    pub(crate) fn for_each_table(&self, mut f: impl FnMut(&Table)) {
        let small = self.small.read();
        match self.large.get() {
            None => f(&small),
            Some(large) => {
                drop(small);
                large.iter().for_each(|table| f(&table.read()));
            }
        }
    }

    /// Splits the table if it has grown large.
    pub(crate) fn split_if_large(&self, hashes: &Hashes, memory: &IndexMemory) {
        if self.large.get().is_some() || self.len() <= SMALL_MAX as u64 {
            return;
        }
        let mut small = self.small.write();
        if self.large.get().is_some() {
            return;
        }
        let mut tables: Vec<Table> = (0..SHARDS).map(|_| Table::new()).collect();
        memory.add(SHARDS as u64 * size_of::<RwLock<Table>>() as u64);
        for entry in take_all(&mut small, memory) {
            let hash = hashes.of(&entry.key);
            memory.add(insert(&mut tables[shard_of(hash)], hashes, hash, entry));
        }
        let _ = self.large.set(tables.into_iter().map(RwLock::new).collect());
    }

    /// Adjusts the counts: `len` (1, -1 or 0) blobs more, their bytes change from `old` to `new`.
    pub(crate) fn count(&self, len: i64, old: u64, new: u64) {
        self.len.fetch_add(len as u64, Ordering::Relaxed);
        self.bytes.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
    }

    /// Sets the counts to zero. The caller has locked all tables.
    pub(crate) fn count_none(&self) {
        self.len.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Scans at least `count` keys from the place `from`, if there are as many. Returns them and the next
    /// place (0: the end).
    pub(crate) fn scan(
        &self,
        scan_cache: &Mutex<ScanCache>,
        hashes: &Hashes,
        memory: &IndexMemory,
        mut from: u64,
        count: usize,
    ) -> (Vec<Box<[u8]>>, u64) {
        let (count, mut found) = (count.max(1), Vec::new());
        loop {
            let wanted = count - found.len();
            // Held for the whole step: a new scan must be able to drop keys picked out before it began.
            let mut scan_cache = scan_cache.lock();
            let before = scan_cache.bytes();
            let mut rest = scan_cache.take(self.id, from).unwrap_or_else(|| self.look(hashes, from, wanted));
            // Keys removed since the look are left out.
            let is_there =
                |place, key: &[u8]| find(&self.read(hash_at(place)), hash_at(place), key).is_some();
            let piece = rest.piece(wanted).filter(|(place, key)| is_there(*place, key));
            found.extend(piece.map(|(_, key)| key));
            from = rest.begin();
            scan_cache.keep(self.id, rest, WALKS_BYTES_MIN.max(memory.bytes() as usize / WALKS_PART));
            memory.add(scan_cache.bytes() as u64);
            memory.sub(before as u64);
            if found.len() >= count || from == 0 {
                return (found, from);
            }
        }
    }

    /// Picks out keys from `from` on, of the table that has this place.
    fn look(&self, hashes: &Hashes, from: u64, count: usize) -> ScanRemainder {
        let table = self.read(hash_at(from));
        let last = if self.large.get().is_some() { from | (u64::MAX >> SHARDS.ilog2()) } else { u64::MAX };
        let entries =
            fetched(table.iter(), |entry| (std::ptr::from_ref::<Entry>(entry).cast(), size_of::<Entry>()));
        let keys = entries.map(|entry| (order(hashes.of(&entry.key)), &*entry.key));
        ScanRemainder::look(from..=last, count, table.len(), keys)
    }

    /// A uniformly random key. `random` draws a number below its argument.
    pub(crate) fn any_key(&self, mut random: impl FnMut(usize) -> usize) -> Option<Box<[u8]>> {
        let mut key = None;
        while key.is_none() {
            let len = self.len() as usize;
            if len == 0 {
                break;
            }
            let mut nth = random(len);
            self.for_each_table(|table| match nth.checked_sub(table.len()) {
                Some(rest) => nth = rest,
                None if key.is_none() => key = Some(any_of(table, &mut random)),
                None => {}
            });
        }
        key
    }
}

/// A random key of a non-empty table.
fn any_of(table: &Table, mut random: impl FnMut(usize) -> usize) -> Box<[u8]> {
    loop {
        // A hit comes after few tries: sparse tables shrink.
        if let Some(entry) = table.get_bucket(random(table.num_buckets())) {
            return Box::from(&*entry.key);
        }
    }
}

pub(crate) fn find<'a>(table: &'a Table, hash: u64, key: &[u8]) -> Option<&'a Entry> {
    table.find(hash, |entry| *entry.key == *key).map(Box::as_ref)
}

/// Finds an entry with this hash, or with the same tag bits, without access to its memory.
pub(crate) fn hint(table: &Table, hash: u64) -> Option<&Entry> {
    table.find(hash, |_| true).map(Box::as_ref)
}

/// Finds the entry of a key, to change it.
pub(crate) fn find_mut<'a>(table: &'a mut Table, hash: u64, key: &[u8]) -> Option<&'a mut Entry> {
    table.find_mut(hash, |entry| *entry.key == *key).map(Box::as_mut)
}

/// A table shrinks when it is filled to less than one part in this many.
const SPARSE: usize = 8;

/// Finds the entry of a key, to take it out.
pub(crate) fn find_held<'a>(table: &'a mut Table, hash: u64, key: &[u8]) -> Option<HeldEntry<'a>> {
    table.find_entry(hash, |entry| *entry.key == *key).ok()
}

pub(crate) fn take(held: HeldEntry<'_>, hashes: &Hashes, memory: &IndexMemory) -> Box<Entry> {
    let (entry, vacant) = held.remove();
    let table = vacant.into_table();
    let before = table.allocation_size();
    if table.len() < table.capacity() / SPARSE {
        table.shrink_to(2 * table.len(), |entry| hashes.of(&entry.key));
    }
    memory.sub(entry_bytes(&entry.key) + allocated(before) - allocated(table.allocation_size()));
    entry
}

pub(crate) fn take_all(table: &mut Table, memory: &IndexMemory) -> Table {
    let all = std::mem::take(table);
    let entries: u64 = all.iter().map(|entry| entry_bytes(&entry.key)).sum();
    memory.sub(allocated(all.allocation_size()) + entries);
    all
}

/// Reserves the maximum memory that one more entry in the table takes.
///
/// # Errors
/// As [`IndexMemory::ask`].
pub(crate) fn ask_entry<'a>(table: &Table, key: &[u8], memory: &'a IndexMemory) -> Result<Ahead<'a>> {
    let grown = match table.len() < table.capacity() {
        true => 0,
        false => 2 * (table.allocation_size() + 4 * size_of::<Box<Entry>>() + 32),
    };
    memory.ask(entry_bytes(key) + grown as u64)
}

/// Inserts a new entry. Returns the memory that it takes, for the caller to count.
#[must_use]
pub(crate) fn insert(table: &mut Table, hashes: &Hashes, hash: u64, entry: Box<Entry>) -> u64 {
    let (before, own) = (table.allocation_size(), entry_bytes(&entry.key));
    table.insert_unique(hash, entry, |entry| hashes.of(&entry.key));
    own + allocated(table.allocation_size()) - allocated(before)
}
