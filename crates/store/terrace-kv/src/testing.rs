//! A blob store in memory, for tests. It has the guarantees of the real store, can be full, and can fail.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::DefaultHashBuilder;
use std::hash::BuildHasher;
use terrace_sync::Mutex;

use crate::blobs::{BlobError, Blobs, Db, Page, Result, Stat};

#[derive(Debug, Clone, Default)]
struct Content {
    word: u64,
    bytes: Vec<u8>,
    version: u64,
}

impl Content {
    fn stat(&self) -> Stat {
        Stat { word: self.word, size: self.bytes.len() as u64, version: self.version }
    }
}

/// The blob store in memory.
#[derive(Debug, Default)]
pub struct MemoryBlobs {
    blobs: Mutex<BTreeMap<Db, BTreeMap<Vec<u8>, Content>>>,
    hasher: DefaultHashBuilder,
    /// Writes are refused for lack of room.
    pub(crate) is_full: AtomicBool,
    /// Syncs fail.
    pub sync_fails: AtomicBool,
    /// Changes are refused since the last sync failed.
    pub(crate) refuses_changes: AtomicBool,
    /// Number of syncs.
    pub syncs: AtomicU64,
    pub(crate) changes: AtomicU64,
    /// Bytes of content written.
    pub(crate) written: AtomicU64,
    /// After so many changes all further ones fail, as if the process were killed. 0: never.
    pub(crate) changes_max: AtomicU64,
    versions: AtomicU64,
}

impl MemoryBlobs {
    fn new_content(&self, word: u64, bytes: Vec<u8>) -> Content {
        Content { word, bytes, version: self.versions.fetch_add(1, Ordering::Relaxed) + 1 }
    }
    fn read<T>(&self, db: Db, key: &[u8], read: impl FnOnce(&Content) -> T) -> Option<T> {
        self.blobs.lock().get(&db)?.get(key).map(read)
    }
    /// The store as the next process finds it.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn after_crash(&self) -> MemoryBlobs {
        MemoryBlobs { blobs: Mutex::new(self.blobs.lock().clone()), ..MemoryBlobs::default() }
    }
    fn count(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    /// Checks before each change.
    fn begin(&self, takes_room: bool) -> Result<()> {
        if takes_room && self.is_full.load(Ordering::Relaxed) {
            return Err(BlobError::Full);
        }
        if let Some(why) = self.sync_failure() {
            return Err(BlobError::NotDurable(why));
        }
        let (max, made) = (self.changes_max.load(Ordering::Relaxed), self.changes.load(Ordering::Relaxed));
        if max > 0 && made >= max {
            return Err(BlobError::Failed("killed".to_owned()));
        }
        self.changes.store(made + 1, Ordering::Relaxed);
        Ok(())
    }
    fn change<T>(&self, db: Db, key: &[u8], change: impl FnOnce(&mut Content) -> T) -> Result<T> {
        self.begin(true)?;
        let mut blobs = self.blobs.lock();
        let blob = blobs.get_mut(&db).and_then(|blobs| blobs.get_mut(key));
        let version = self.versions.fetch_add(1, Ordering::Relaxed) + 1;
        let change = |content: &mut Content| {
            content.version = version;
            change(content)
        };
        blob.map(change).ok_or_else(|| BlobError::Failed("no such blob".to_owned()))
    }
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key) | 1
    }
}

impl Blobs for MemoryBlobs {
    fn get(&self, db: Db, key: &[u8], out: &mut Vec<u8>) -> Result<Option<Stat>> {
        out.clear();
        Ok(self.read(db, key, |content| {
            out.extend_from_slice(&content.bytes);
            content.stat()
        }))
    }
    fn get_at(&self, db: Db, key: &[u8], offset: u64, len: usize, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let read = self.read(db, key, |content| {
            let rest = content.bytes.get(offset as usize..).unwrap_or_default();
            out.extend_from_slice(&rest[..rest.len().min(len)]);
        });
        Ok(read.is_some())
    }
    fn stat(&self, db: Db, key: &[u8]) -> Option<Stat> {
        self.read(db, key, Content::stat)
    }
    fn put(&self, db: Db, key: &[u8], word: u64, parts: &[&[u8]], _room: u64) -> Result<Option<u64>> {
        self.begin(true)?;
        self.count(parts.iter().map(|part| part.len()).sum());
        let content = self.new_content(word, parts.concat());
        let before = self.blobs.lock().entry(db).or_default().insert(key.to_vec(), content);
        Ok(before.map(|before| before.word))
    }
    fn put_note(&self, db: Db, key: &[u8], note: &[u8]) -> Result<()> {
        assert!(note.len() <= 14, "a note is short");
        self.begin(false)?;
        let content = self.new_content(0, note.to_vec());
        self.blobs.lock().entry(db).or_default().insert(key.to_vec(), content);
        Ok(())
    }
    fn put_at(&self, db: Db, key: &[u8], offset: u64, new: &[u8]) -> Result<()> {
        self.change(db, key, |content| {
            let (begin, end) = (offset as usize, offset as usize + new.len());
            content.bytes.resize(content.bytes.len().max(end), 0);
            content.bytes[begin..end].copy_from_slice(new);
        })
    }
    fn append(&self, db: Db, key: &[u8], new: &[u8]) -> Result<()> {
        self.count(new.len());
        self.change(db, key, |content| content.bytes.extend_from_slice(new))
    }
    fn set_word(&self, db: Db, key: &[u8], new: u64) -> Result<()> {
        self.change(db, key, |content| content.word = new)
    }
    fn rename(&self, from: (Db, &[u8]), to: (Db, &[u8])) -> Result<bool> {
        self.begin(true)?;
        let mut blobs = self.blobs.lock();
        let Some(mut moved) = blobs.get_mut(&from.0).and_then(|blobs| blobs.remove(from.1)) else {
            return Ok(false);
        };
        moved.version = self.versions.fetch_add(1, Ordering::Relaxed) + 1;
        blobs.entry(to.0).or_default().insert(to.1.to_vec(), moved);
        Ok(true)
    }
    fn rename_as(&self, from: (Db, &[u8]), to: (Db, &[u8]), word: u64, content: &[u8]) -> Result<bool> {
        self.begin(true)?;
        self.count(content.len());
        let content = self.new_content(word, content.to_vec());
        let mut blobs = self.blobs.lock();
        if blobs.get_mut(&from.0).and_then(|blobs| blobs.remove(from.1)).is_none() {
            return Ok(false);
        }
        blobs.entry(to.0).or_default().insert(to.1.to_vec(), content);
        Ok(true)
    }
    fn remove(&self, db: Db, key: &[u8]) -> Result<bool> {
        self.begin(false)?;
        Ok(self.blobs.lock().get_mut(&db).and_then(|blobs| blobs.remove(key)).is_some())
    }
    fn len(&self, db: Db) -> u64 {
        self.blobs.lock().get(&db).map_or(0, |blobs| blobs.len() as u64)
    }
    fn bytes(&self, db: Db) -> u64 {
        let bytes =
            |blobs: &BTreeMap<Vec<u8>, Content>| blobs.values().map(|blob| blob.bytes.len() as u64).sum();
        self.blobs.lock().get(&db).map_or(0, bytes)
    }
    fn clear(&self, db: Db) -> Result<()> {
        self.begin(false)?;
        self.blobs.lock().remove(&db);
        Ok(())
    }
    fn scan(&self, db: Db, from: u64, count: usize) -> Page {
        let blobs = self.blobs.lock();
        let keys = blobs.get(&db).into_iter().flat_map(BTreeMap::keys);
        let mut keys: Vec<_> =
            keys.map(|key| (self.hash(key), key)).filter(|(hash, _)| *hash >= from).collect();
        keys.sort_unstable();
        let next = keys.get(count).map_or(0, |(hash, _)| *hash);
        let page = keys.into_iter().filter(|(hash, _)| next == 0 || *hash < next);
        Page { keys: page.map(|(_, key)| key.as_slice().into()).collect(), next }
    }
    fn any_key(&self, db: Db) -> Option<Box<[u8]>> {
        let blobs = self.blobs.lock();
        let keys = blobs.get(&db).filter(|blobs| !blobs.is_empty())?;
        keys.keys().nth(fastrand::usize(..keys.len())).map(|key| key.as_slice().into())
    }
    fn sync(&self) -> Result<()> {
        if self.sync_fails.load(Ordering::Relaxed) {
            return Err(BlobError::Failed("the disk is broken".to_owned()));
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn sync_failure(&self) -> Option<String> {
        self.refuses_changes.load(Ordering::Relaxed).then(|| "the disk is broken".to_owned())
    }
    fn memory(&self) -> (u64, u64) {
        (0, 1 << 30)
    }
    fn has_room(&self, _bytes: usize) -> bool {
        true
    }
}
