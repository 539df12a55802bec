//! The public type [`Bucket`]: reads, changes and scans of its blobs, tags, and the traits `persist` and
//! `scratch`.

use crate::error::Result;
use crate::index::{BucketState, Expect, Stat};
use crate::ops::prefetch::{self, Wanted};
use crate::ops::{buckets, get, part, put, remove, rename, tag};
use crate::owner::{Anchor, Anchors};
use std::path::Path;
use std::sync::Arc;

/// A bucket of an open store. Clones are the same bucket. Once the bucket is removed, reads find nothing and
/// changes are errors.
#[derive(Debug, Clone)]
pub struct Bucket {
    owner: Arc<Anchor>,
    state: Arc<BucketState>,
}

impl Bucket {
    pub(crate) fn new(anchors: &Anchors, state: Arc<BucketState>) -> Bucket {
        Bucket { owner: anchors.of(state.id), state }
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &BucketState {
        &self.state
    }

    /// Name of the bucket.
    pub fn name(&self) -> String {
        self.state.name()
    }
    /// Number of blobs.
    pub fn len(&self) -> u64 {
        self.state.len()
    }
    /// Whether the bucket has no blobs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes of its blobs.
    pub fn bytes(&self) -> u64 {
        self.state.bytes()
    }

    /// Makes an empty bucket scratch: its blobs are neither logged nor synced, and the next open drops them.
    /// Under memory pressure they still move to the heap file.
    ///
    /// # Errors
    /// The bucket has blobs, or was removed; the store is full.
    pub fn make_scratch(&self) -> Result<()> {
        buckets::make_scratch(&self.owner.state, &self.state)
    }
    /// From now on writes each blob also to its own file in `dir`, as of the last sync. The directory is
    /// created if missing, must be empty, and belongs to the bucket: files of removed blobs are removed. `/`,
    /// `%` and other bytes that a file name cannot have become `%` and two hex digits. Removing the bucket
    /// leaves the directory as it is.
    ///
    /// # Errors
    /// The directory has files or cannot be created; the bucket is scratch, or persists in another directory;
    /// a key is too long for a file name; as [`Bucket::put`].
    pub fn persist(&self, dir: impl AsRef<Path>) -> Result<()> {
        buckets::make_persistent(&self.owner.state, &self.state, dir.as_ref())
    }
    /// The directory of the bucket's files, if it persists.
    pub fn persist_dir(&self) -> Option<&Path> {
        self.state.persist().map(|persist| persist.dir())
    }
    /// Whether the bucket is scratch.
    pub fn is_scratch(&self) -> bool {
        self.state.is_scratch()
    }

    /// Puts a blob and replaces an earlier one. The user's word becomes 0.
    ///
    /// # Errors
    /// The store is full; the bucket was removed; a key over 64 KiB; I/O errors. An earlier blob stays.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_if(key, &[value], 0, Expect::Any).map(drop)
    }

    /// Puts a blob from several parts, with a word of the user's, if `expect` holds. Returns false if it does
    /// not.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn put_if(&self, key: &[u8], parts: &[&[u8]], meta: u64, expect: Expect) -> Result<bool> {
        let put = put::put(&self.owner.state, &self.state, key, parts, meta, expect, 0);
        Ok(put?.is_some())
    }

    /// Like [`Bucket::put_if`] with [`Expect::Any`], for a blob that will grow: appends up to `room` bytes do
    /// not copy it. Returns the user's word of the replaced blob.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn put_with_room(&self, key: &[u8], parts: &[&[u8]], meta: u64, room: u64) -> Result<Option<u64>> {
        let put = put::put(&self.owner.state, &self.state, key, parts, meta, Expect::Any, room);
        Ok(put?.flatten())
    }

    /// Puts a blob of at most 14 bytes, even on a disk so full that only removals are accepted. For notes
    /// that a removal depends on.
    ///
    /// # Errors
    /// As [`Bucket::put`]; more bytes.
    pub fn put_note(&self, key: &[u8], note: &[u8]) -> Result<()> {
        put::put_note(&self.owner.state, &self.state, key, note)
    }

    /// Writes into a blob at `offset`. The blob is created if missing, and a gap reads as zeros. Returns the
    /// new size.
    ///
    /// # Errors
    /// As [`Bucket::put`]. An I/O error may leave a blob over 64 KiB partly changed.
    pub fn put_at(&self, key: &[u8], offset: u64, data: &[u8]) -> Result<u64> {
        part::write(&self.owner.state, &self.state, key, part::At::Offset(offset), data)
    }

    /// Appends to a blob, which is created if missing. Returns the new size.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn append(&self, key: &[u8], data: &[u8]) -> Result<u64> {
        part::write(&self.owner.state, &self.state, key, part::At::End, data)
    }

    /// Truncates a blob, or extends it with zeros. Returns false if it does not exist.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn truncate(&self, key: &[u8], size: u64) -> Result<bool> {
        part::truncate(&self.owner.state, &self.state, key, size)
    }

    /// Returns the bytes of a blob.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        Ok(self.get_into(key, &mut out)?.map(|_| out))
    }

    /// Reads a blob into `out`, replacing its content and reusing its capacity.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.get_upto(key, u64::MAX, out)
    }

    /// Like [`Bucket::get_into`], for a blob of at most `max` bytes. Of a larger one it returns the metadata
    /// only, and `out` is empty.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get_upto(&self, key: &[u8], max: u64, out: &mut Vec<u8>) -> Result<Option<Stat>> {
        get::get(&self.owner.state, &self.state, key, max, out)
    }

    /// Reads a blob from `offset` into `buf`. Returns the number of bytes, less than `buf` holds only at the
    /// blob's end. None: there is no blob.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get_at(&self, key: &[u8], offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        Ok(self.get_part(key, offset, buf)?.map(|(n, _)| n))
    }

    /// Like [`Bucket::get_at`], with the metadata of the blob at that moment.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get_part(&self, key: &[u8], offset: u64, buf: &mut [u8]) -> Result<Option<(usize, Stat)>> {
        get::get_at(&self.owner.state, &self.state, key, offset, buf)
    }

    /// The hash of a key, for [`Bucket::prefetch`].
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.owner.state.hashes.of(key)
    }
    /// Prefetches into the CPU caches what look-ups of these blobs will need, for all blobs at once. A hint;
    /// it never blocks.
    pub fn prefetch(&self, wanted: &[Wanted]) {
        prefetch::prefetch(&self.owner.state, &self.state, wanted);
    }

    /// The metadata of a blob.
    pub fn stat(&self, key: &[u8]) -> Option<Stat> {
        if self.owner.state.process.is_forked() {
            return None;
        }
        get::stat(&self.owner.state, &self.state, key)
    }
    /// Whether the blob exists.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.stat(key).is_some()
    }
    /// Size of a blob, bytes.
    pub fn size(&self, key: &[u8]) -> Option<u64> {
        self.stat(key).map(|stat| stat.size)
    }

    /// Changes the user's word of a blob, if `expect` holds. Returns false if it does not, or the blob does
    /// not exist.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn set_meta(&self, key: &[u8], meta: u64, expect: Expect) -> Result<bool> {
        put::describe(&self.owner.state, &self.state, key, expect, |blob| blob.meta = meta)
    }

    /// Sets the worth of keeping the blob in memory, from 0 to 1 (0.5 for a new one). Returns false if it
    /// does not exist.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn set_score(&self, key: &[u8], score: f32) -> Result<bool> {
        let score = (score.clamp(0.0, 1.0) * 255.0).round() as u8;
        put::describe(&self.owner.state, &self.state, key, Expect::Any, |blob| blob.set_score(score))
    }

    /// Tags a blob. Returns false if it has the tag, or does not exist. A renamed blob keeps its tags; a
    /// removed one loses them.
    ///
    /// # Errors
    /// As [`Bucket::put`]; a tag over 64 KiB.
    pub fn tag(&self, key: &[u8], tag: &str) -> Result<bool> {
        tag::set(&self.owner.state, &self.state, Some(key), tag, true)
    }
    /// Removes a tag from a blob. Returns false if it does not have the tag.
    ///
    /// # Errors
    /// As [`Bucket::tag`].
    pub fn untag(&self, key: &[u8], tag: &str) -> Result<bool> {
        tag::set(&self.owner.state, &self.state, Some(key), tag, false)
    }
    /// Tags of a blob, sorted. Scans all tags of the store.
    pub fn tags(&self, key: &[u8]) -> Vec<String> {
        if self.owner.state.process.is_forked() {
            return Vec::new();
        }
        self.owner.state.tags.of(&(self.state.id, Some(key.into())))
    }
    /// Adds a tag to the bucket itself, or removes it (`on` false). Returns false if nothing changes.
    ///
    /// # Errors
    /// As [`Bucket::tag`].
    pub fn tag_whole(&self, tag: &str, on: bool) -> Result<bool> {
        tag::set(&self.owner.state, &self.state, None, tag, on)
    }

    /// Removes a blob. Returns false if it does not exist.
    ///
    /// # Errors
    /// The bucket was removed; I/O errors of the log.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.remove_if(key, Expect::Any)
    }

    /// Removes a blob if `expect` holds. Returns false if it does not, or the blob does not exist.
    ///
    /// # Errors
    /// As [`Bucket::remove`].
    pub fn remove_if(&self, key: &[u8], expect: Expect) -> Result<bool> {
        remove::remove(&self.owner.state, &self.state, key, expect)
    }

    /// Renames a blob, replacing the blob of the new key. Returns false if it does not exist.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<bool> {
        self.rename_into(from, self, to)
    }

    /// Like [`Bucket::rename`], into another bucket of the same store.
    ///
    /// # Errors
    /// As [`Bucket::put`]; a bucket of another store; exactly one of the buckets is scratch.
    pub fn rename_into(&self, from: &[u8], bucket: &Bucket, to: &[u8]) -> Result<bool> {
        self.rename_if(from, bucket, to, Expect::Any)
    }

    /// Like [`Bucket::rename_into`], if `expect` holds for the new key. Returns false if it does not, or the
    /// blob does not exist.
    ///
    /// # Errors
    /// As [`Bucket::rename_into`].
    pub fn rename_if(&self, from: &[u8], bucket: &Bucket, to: &[u8], expect: Expect) -> Result<bool> {
        self.check_store(bucket)?;
        rename::rename(&self.owner.state, (&self.state, from), (&bucket.state, to), expect)
    }

    /// Like [`Bucket::rename_into`], with new bytes and a new user's word in the same step.
    ///
    /// # Errors
    /// As [`Bucket::rename_into`].
    pub fn rename_as(
        &self,
        from: &[u8],
        bucket: &Bucket,
        to: &[u8],
        value: &[u8],
        meta: u64,
    ) -> Result<bool> {
        self.check_store(bucket)?;
        rename::rename_as(&self.owner.state, (&self.state, from), (&bucket.state, to), value, meta)
    }

    fn check_store(&self, bucket: &Bucket) -> Result<()> {
        if self.owner.is_with(&bucket.owner) {
            return Ok(());
        }
        let what = "a blob cannot move into another store; get the blob and put it".into();
        Err(crate::error::Error::Invalid { what })
    }

    /// Removes all blobs.
    ///
    /// # Errors
    /// As [`Bucket::remove`].
    pub fn clear(&self) -> Result<()> {
        remove::clear(&self.owner.state, &self.state, false).map(drop)
    }

    /// Scans keys in an order that is fixed for the life of the store. Returns keys from the cursor `from`
    /// (0: the start) on, and the next cursor (0: the end). There are at least `count` keys, if as many
    /// exist. A key present during the whole scan comes at least once.
    pub fn scan(&self, from: u64, count: usize) -> (Vec<Box<[u8]>>, u64) {
        if self.owner.state.process.is_forked() {
            return (Vec::new(), 0);
        }
        let state = &self.owner.state;
        self.state.scan(&state.scan_cache, &state.hashes, &state.memory, from, count)
    }

    /// A uniformly random key. None: there are no blobs. `random` draws a number below its argument.
    pub fn any_key(&self, random: impl FnMut(usize) -> usize) -> Option<Box<[u8]>> {
        if self.owner.state.process.is_forked() {
            return None;
        }
        self.state.any_key(random)
    }

    /// Keys that begin with `prefix`, sorted. Scans all blobs of the bucket.
    pub fn list(&self, prefix: &[u8]) -> Vec<Box<[u8]>> {
        if self.owner.state.process.is_forked() {
            return Vec::new();
        }
        let mut keys = Vec::new();
        self.state.for_each_table(|table| {
            keys.extend(
                table
                    .iter()
                    .filter(|entry| entry.key.starts_with(prefix))
                    .map(|entry| Box::from(&*entry.key)),
            );
        });
        keys.sort_unstable();
        keys
    }
}
