//! `terrace-store` as the server's blob store. Bucket `db0` is database 0, and so on; `db0:pieces` has the
//! pieces of its large collections. Programs that use the library see the same blobs.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_store::{Bucket, Error, Expect, Store};

use crate::blobs::{BlobError, Blobs, DATABASES, Db, Page, Result, Stat, Wanted};

/// A store as the server's blob store.
#[derive(Debug)]
pub struct StoreBlobs {
    store: Store,
    databases: Vec<Bucket>,
    /// Reserved memory, bytes.
    claimed: Arc<AtomicU64>,
}

thread_local! {
    /// The part reserved by this thread.
    static CLAIMED: Cell<u64> = const { Cell::new(0) };
}

impl StoreBlobs {
    /// Uses a store. Missing buckets are created.
    pub fn new(store: Store) -> terrace_store::Result<StoreBlobs> {
        let names =
            ["", ":pieces"].into_iter().flat_map(|of| (0..DATABASES).map(move |db| format!("db{db}{of}")));
        let databases = names.map(|name| store.bucket(&name));
        let databases = databases.collect::<terrace_store::Result<Vec<_>>>()?;
        let claimed = Arc::new(AtomicU64::new(0));
        let counted = claimed.clone();
        store.count_memory(move || counted.load(Ordering::Relaxed));
        Ok(StoreBlobs { store, databases, claimed })
    }

    /// Reserves memory for a large value and its reply, until [`Blobs::release`]. So each concurrent reader
    /// sees the reservations of the others.
    ///
    /// # Errors
    /// The memory does not fit.
    fn claim(&self, bytes: usize) -> Result<()> {
        if bytes as u64 <= SMALL {
            return Ok(());
        }
        let wanted = 2 * bytes as u64;
        self.claimed.fetch_add(wanted, Ordering::Relaxed);
        if self.store.has_room(0) {
            CLAIMED.set(CLAIMED.get() + wanted);
            return Ok(());
        }
        self.claimed.fetch_sub(wanted, Ordering::Relaxed);
        Err(BlobError::NoMemory)
    }

    fn database(&self, db: Db) -> &Bucket {
        &self.databases[usize::from(db)]
    }
}

/// Values up to this size are read without a memory check, bytes.
const SMALL: u64 = 64 << 10;

fn failed(err: Error) -> BlobError {
    if err.is_full() {
        return BlobError::Full;
    }
    match err {
        Error::NoMemory { .. } => BlobError::NoMemory,
        err @ Error::NotDurable { .. } => BlobError::NotDurable(err.to_string()),
        err => BlobError::Failed(err.to_string()),
    }
}

fn stat_of(stat: terrace_store::Stat) -> Stat {
    Stat { word: stat.meta, size: stat.size, version: stat.version.number() }
}

/// The result of a call for a blob that must exist.
fn of_present(done: terrace_store::Result<bool>) -> Result<()> {
    match done.map_err(failed)? {
        true => Ok(()),
        false => Err(BlobError::Failed("the blob is gone".to_owned())),
    }
}

impl Blobs for StoreBlobs {
    fn get(&self, db: Db, key: &[u8], out: &mut Vec<u8>) -> Result<Option<Stat>> {
        let mut found = self.database(db).get_upto(key, SMALL, out).map_err(failed)?;
        if let Some(large) = found.filter(|stat| stat.size > SMALL) {
            self.claim(large.size as usize)?;
            found = self.database(db).get_into(key, out).map_err(failed)?;
        }
        Ok(found.map(stat_of))
    }
    fn get_at(&self, db: Db, key: &[u8], offset: u64, len: usize, out: &mut Vec<u8>) -> Result<bool> {
        self.claim(len)?;
        out.clear();
        out.resize(len, 0);
        let read = self.database(db).get_at(key, offset, out).map_err(failed)?;
        out.truncate(read.unwrap_or(0));
        Ok(read.is_some())
    }
    fn stat(&self, db: Db, key: &[u8]) -> Option<Stat> {
        self.database(db).stat(key).map(stat_of)
    }
    fn put(&self, db: Db, key: &[u8], word: u64, parts: &[&[u8]], room: u64) -> Result<Option<u64>> {
        self.database(db).put_with_room(key, parts, word, room).map_err(failed)
    }
    fn put_note(&self, db: Db, key: &[u8], note: &[u8]) -> Result<()> {
        self.database(db).put_note(key, note).map_err(failed)
    }
    fn put_at(&self, db: Db, key: &[u8], offset: u64, content: &[u8]) -> Result<()> {
        self.database(db).put_at(key, offset, content).map_err(failed).map(drop)
    }
    fn append(&self, db: Db, key: &[u8], content: &[u8]) -> Result<()> {
        self.database(db).append(key, content).map_err(failed).map(drop)
    }
    fn set_word(&self, db: Db, key: &[u8], word: u64) -> Result<()> {
        of_present(self.database(db).set_meta(key, word, Expect::Any))
    }
    fn rename(&self, from: (Db, &[u8]), to: (Db, &[u8])) -> Result<bool> {
        self.database(from.0).rename_into(from.1, self.database(to.0), to.1).map_err(failed)
    }
    fn rename_as(&self, from: (Db, &[u8]), to: (Db, &[u8]), word: u64, content: &[u8]) -> Result<bool> {
        let target = self.database(to.0);
        self.database(from.0).rename_as(from.1, target, to.1, content, word).map_err(failed)
    }
    fn remove(&self, db: Db, key: &[u8]) -> Result<bool> {
        self.database(db).remove(key).map_err(failed)
    }
    fn len(&self, db: Db) -> u64 {
        self.database(db).len()
    }
    fn bytes(&self, db: Db) -> u64 {
        self.database(db).bytes()
    }
    fn clear(&self, db: Db) -> Result<()> {
        self.database(db).clear().map_err(failed)
    }
    fn scan(&self, db: Db, from: u64, count: usize) -> Page {
        let (keys, next) = self.database(db).scan(from, count);
        Page { keys, next }
    }
    fn any_key(&self, db: Db) -> Option<Box<[u8]>> {
        self.database(db).any_key(|below| fastrand::usize(..below))
    }
    fn sync(&self) -> Result<()> {
        self.store.sync().map_err(failed)
    }
    fn end_batch(&self) -> Result<()> {
        self.store.end_batch().map_err(failed)
    }
    fn sync_failure(&self) -> Option<String> {
        self.store.sync_failure()
    }
    fn memory(&self) -> (u64, u64) {
        let memory = self.store.stats().memory;
        (memory.used_bytes, memory.limit_bytes)
    }
    fn release(&self) {
        let claimed = CLAIMED.take();
        if claimed > 0 {
            self.claimed.fetch_sub(claimed, Ordering::Relaxed);
        }
    }
    fn hash(&self, key: &[u8]) -> u64 {
        self.databases[0].hash(key)
    }
    fn prefetch(&self, db: Db, wanted: &[Wanted]) {
        self.database(db).prefetch(wanted);
    }
    fn has_room(&self, bytes: usize) -> bool {
        self.store.has_room(bytes as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use terrace_store::StoreOptions;

    #[test]
    fn large_values_read_at_a_time_keep_the_limit_together() {
        const VALUE: usize = 3 << 20;
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { memory_bytes: 32 << 20, ..StoreOptions::default() };
        let blobs = StoreBlobs::new(Store::open(dir.path(), &options).unwrap()).unwrap();
        blobs.put(0, b"k", 0, &[&vec![7; VALUE]], 0).unwrap();
        let (all_have, all_seen) = (Barrier::new(8), Barrier::new(8));
        let read = || {
            let mut out = Vec::new();
            let got = blobs.get(0, b"k", &mut out);
            all_have.wait();
            let memory = blobs.store.stats().memory;
            assert!(memory.used_bytes <= memory.limit_bytes, "{memory:?}");
            all_seen.wait();
            let is_read = out.len() == VALUE && got.is_ok();
            assert!(is_read || got == Err(BlobError::NoMemory), "{got:?}");
            blobs.release();
            is_read
        };
        let given = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
            readers.into_iter().map(|reader| usize::from(reader.join().unwrap())).sum::<usize>()
        });
        assert!((1..=4).contains(&given), "{given} of 8 had room for a value and its reply");
        assert_eq!(blobs.claimed.load(Ordering::Relaxed), 0);
        assert!(blobs.get(0, b"k", &mut Vec::new()).is_ok());
    }
}
