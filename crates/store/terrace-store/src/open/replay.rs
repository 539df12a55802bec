//! Rebuilds the index from the log. A first pass finds the end and the last mark; a second applies each
//! record.

use super::believe::{self, Scanned};
use super::cut::{ContinuedLog, cut};
use super::damage::is_damaged;
use super::files::Files;
use crate::error::{Error, Result};
use crate::index::{BucketState, Entry, Hashes, IndexMemory, Names, Persist, Tags};
use crate::index::{ask_entry, find_held, find_mut, insert, take, take_all};
use crate::record::{Blob, Record, TAGGED, TRAIT_PERSIST, TRAIT_PERSISTED, TRAIT_SCRATCH};
use crate::records::Records;
use crate::space::Extent;
use crate::state::Counts;
use compact_bytes::CompactBytes;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_io::Io;

/// The result of a replay.
#[derive(Debug)]
pub(super) struct Found {
    pub log: ContinuedLog,
    /// Extents of all blobs.
    pub extents: Vec<Extent>,
    pub tags: Tags,
}

/// State of a replay: buckets by number.
struct Replay<'a> {
    hashes: &'a Hashes,
    memory: &'a IndexMemory,
    counts: &'a Counts,
    tags: Tags,
    buckets: HashMap<u64, Arc<BucketState>>,
}

/// Reads the log to its end.
///
/// # Errors
/// I/O errors; a record is damaged before others that were durable.
pub(super) fn scan(files: &Files) -> Result<Scanned> {
    let error = |e| Error::io(&files.names_path, "read", e);
    let (mut marked, mut last) = (files.header.first - 1, files.header.first - 1);
    let mut records = Records::new(&files.names, &files.header);
    while let Some((number, record)) = records.next().map_err(error)? {
        marked = marked.max(marked_by(number, &record));
        last = number;
    }
    let unread = records.position().at;
    if is_damaged(&files.names, &files.header, unread).map_err(error)? {
        let what = format!("the record at byte {unread} is damaged, and later records were durable");
        return Err(Error::Damaged { path: files.names_path.clone(), what });
    }
    Ok(Scanned { marked, last })
}

/// The last record that a mark covers. 0: the record is no mark.
fn marked_by(number: u64, record: &Record<'_>) -> u64 {
    match *record {
        // A mark that directly follows the marked record covers itself, too.
        Record::Mark { upto } if upto + 1 == number => number,
        Record::Mark { upto } => upto,
        _ => 0,
    }
}

/// Number of the last record that the start trusts. `is_trusted`: the segment has everything that the heap
/// file lacks.
///
/// # Errors
/// Failing I/O.
pub(super) fn believed(files: &Files, io: &dyn Io, (is_trusted, scanned): (bool, Scanned)) -> Result<u64> {
    let error = |e| Error::io(&files.names_path, "check", e);
    if is_trusted { Ok(scanned.last) } else { believe::last(files, io, scanned).map_err(error) }
}

/// Fills the index from the records up to `believed`. Cuts later ones off the log.
///
/// # Errors
/// I/O errors; too little memory for the index.
pub(super) fn replay(
    files: &Files,
    io: &dyn Io,
    (marked, believed): (u64, u64),
    names: &Names,
    hashes: &Hashes,
    (memory, counts): (&IndexMemory, &Counts),
) -> Result<Found> {
    let error = |e| Error::io(&files.names_path, "read", e);
    let mut replay = Replay { hashes, memory, counts, tags: Tags::default(), buckets: HashMap::new() };
    let mut records = Records::new(&files.names, &files.header);
    let mut kept = files.header.first - 1;
    let end = loop {
        let end = records.position();
        match records.next().map_err(error)? {
            Some((number, record)) if number <= believed => {
                kept = kept.max(marked_by(number, &record));
                replay.apply(number, &record)?;
            }
            _ => break end,
        }
    };
    let log = cut(files, io, end, (kept, marked))?;
    let (extents, tags) = replay.finish(names);
    Ok(Found { log, extents, tags })
}

impl Replay<'_> {
    fn apply(&mut self, number: u64, record: &Record<'_>) -> Result<()> {
        match *record {
            Record::Bucket { bucket, name } => self.name(bucket, name),
            Record::BucketGone { bucket } => {
                self.clear(bucket, true);
                if let Some(bucket) = self.buckets.remove(&bucket) {
                    self.counts.bucket(-1, bucket.name().len());
                }
            }
            Record::BucketClear { bucket } => self.clear(bucket, false),
            Record::Put { bucket, blob, key } => self.put(bucket, number, blob, key)?,
            Record::Remove { bucket, key } => self.remove(bucket, key),
            Record::Move { from_bucket, from, bucket, blob, key } => {
                self.remove(bucket, key);
                let (old, new) = ((from_bucket, Some(from.into())), (bucket, Some(key.into())));
                self.tags.pass_on(&old, Some(&new), self.memory);
                self.remove(from_bucket, from);
                self.put(bucket, number, blob, key)?;
            }
            Record::Trait { bucket, kind, text } => self.set_trait(bucket, kind, text),
            Record::Tag { bucket, whole, on, tag, key } => self.tag(bucket, whole, on, tag, key),
            Record::Mark { .. } => {}
        }
        Ok(())
    }

    fn name(&mut self, id: u64, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        self.counts.bucket(1, name.len());
        match self.buckets.get(&id) {
            Some(bucket) => {
                self.counts.bucket(-1, bucket.name().len());
                bucket.set_name(&name);
            }
            None => drop(self.buckets.insert(id, Arc::new(BucketState::new(id, &name)))),
        }
    }

    fn set_trait(&mut self, id: u64, kind: u8, text: &[u8]) {
        let Some(bucket) = self.buckets.get(&id) else { return };
        match kind {
            TRAIT_SCRATCH => bucket.set_scratch(),
            TRAIT_PERSIST => bucket.set_persist(Persist::new(PathBuf::from(OsStr::from_bytes(text)))),
            TRAIT_PERSISTED => drop(bucket.persist().map(|persist| persist.take(self.memory))),
            _ => {}
        }
    }

    fn put(&mut self, id: u64, number: u64, blob: Blob, key: &[u8]) -> Result<()> {
        let Some(bucket) = self.buckets.get(&id) else { return Ok(()) };
        bucket.note_change(None, self.memory);
        let hash = self.hashes.of(key);
        {
            let mut table = bucket.write(hash);
            match find_mut(&mut table, hash, key) {
                Some(entry) => {
                    let is_tagged = entry.blob.has(TAGGED);
                    bucket.count(0, entry.blob.size, blob.size);
                    self.counts.size(entry.blob.size, blob.size);
                    (entry.blob, entry.number) = (blob, number);
                    entry.blob.set(TAGGED, is_tagged || blob.has(TAGGED));
                }
                None => {
                    let entry = Box::new(Entry { key: CompactBytes::new(key), blob, number });
                    bucket.count(1, 0, blob.size);
                    let mut ahead = ask_entry(&table, key, self.memory)?;
                    self.counts.blob(1, entry.logged_bytes());
                    self.counts.size(0, blob.size);
                    ahead.keep(insert(&mut table, self.hashes, hash, entry));
                }
            }
        }
        bucket.split_if_large(self.hashes, self.memory);
        Ok(())
    }

    fn remove(&mut self, id: u64, key: &[u8]) {
        let Some(bucket) = self.buckets.get(&id) else { return };
        bucket.note_change(None, self.memory);
        let hash = self.hashes.of(key);
        if let Some(held) = find_held(&mut bucket.write(hash), hash, key) {
            let entry = take(held, self.hashes, self.memory);
            if entry.blob.has(TAGGED) {
                self.tags.pass_on(&(id, Some(key.into())), None, self.memory);
            }
            self.forget(bucket, &entry);
        }
    }

    fn tag(&mut self, id: u64, whole: bool, on: bool, tag: &[u8], key: &[u8]) {
        let Some(bucket) = self.buckets.get(&id) else { return };
        let hash = self.hashes.of(key);
        if !whole {
            let mut table = bucket.write(hash);
            let Some(entry) = find_mut(&mut table, hash, key) else { return };
            entry.blob.set(TAGGED, true);
        }
        self.tags.set(&String::from_utf8_lossy(tag), (id, (!whole).then(|| key.into())), on, self.memory);
    }

    fn clear(&mut self, id: u64, gone: bool) {
        self.tags.clear(id, gone, self.memory);
        let Some(bucket) = self.buckets.get(&id) else { return };
        bucket.note_change(None, self.memory);
        for table in &mut bucket.write_all() {
            take_all(table, self.memory).into_iter().for_each(|entry| self.forget(bucket, &entry));
        }
    }

    fn forget(&self, bucket: &BucketState, entry: &Entry) {
        bucket.count(-1, entry.blob.size, 0);
        self.counts.size(entry.blob.size, 0);
        self.counts.blob(-1, entry.logged_bytes());
    }

    /// Enters the buckets under their names. Returns the extents of all blobs, and the tags.
    fn finish(self, names: &Names) -> (Vec<Extent>, Tags) {
        let mut extents = Vec::new();
        for (id, bucket) in self.buckets {
            names.note_id(id);
            bucket.for_each_table(|table| extents.extend(table.iter().map(|entry| entry.extent())));
            let name = bucket.name();
            self.memory.add(names.insert(&mut names.lock(&name).0, bucket, &name));
        }
        (extents, self.tags)
    }
}
