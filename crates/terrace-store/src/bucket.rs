//! A bucket as programs see it.

use crate::error::Result;
use crate::index::{BucketState, Expect, Stat};
use crate::ops::prefetch::{self, Wanted};
use crate::ops::{buckets, get, part, put, remove, rename, tag};
use crate::owner::{Anchor, Anchors};
use std::path::Path;
use std::sync::Arc;

/// A bucket of an open store. Clones are the same bucket. After the bucket was removed, reads find nothing and changes are errors.
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

    /// Its name.
    pub fn name(&self) -> String {
        self.state.name()
    }
    /// Blobs.
    pub fn len(&self) -> u64 {
        self.state.len()
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes of its blobs.
    pub fn bytes(&self) -> u64 {
        self.state.bytes()
    }

    /// Makes an empty bucket scratch: its blobs are neither logged nor synced, and gone when the store is opened again. They still leave memory for
    /// the heap's file where memory is short.
    ///
    /// # Errors
    /// It has blobs, or was removed; the store is full.
    pub fn make_scratch(&self) -> Result<()> {
        buckets::make_scratch(&self.owner.state, &self.state)
    }
    /// Has each blob written to a file of `dir`, too, from now on: the directory holds the blobs as they were at the last sync, one file each. It is made if
    /// there is none, must be empty, and is the bucket's: files of removed blobs go. `/`, `%` and others that a name cannot have become `%` and two digits.
    /// It stays as it is when the bucket is removed.
    ///
    /// # Errors
    /// A directory that has files or cannot be made; a scratch bucket, or one that persists elsewhere; a key too long for a file's name; as [`Bucket::put`].
    pub fn persist(&self, dir: impl AsRef<Path>) -> Result<()> {
        buckets::make_persistent(&self.owner.state, &self.state, dir.as_ref())
    }
    /// The directory of its files, if it persists.
    pub fn persist_dir(&self) -> Option<&Path> {
        self.state.persist().map(|persist| persist.dir())
    }
    /// Whether it is scratch.
    pub fn is_scratch(&self) -> bool {
        self.state.is_scratch()
    }

    /// Puts a blob, in the place of the one before. The user's word becomes 0.
    ///
    /// # Errors
    /// The store is full; the bucket was removed; a key over 64 KiB; failing I/O. The blob before stands then.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_if(key, &[value], 0, Expect::Any).map(drop)
    }

    /// Puts a blob that comes in parts, with a word of the user's, if `expect` holds; false: it does not.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn put_if(&self, key: &[u8], parts: &[&[u8]], meta: u64, expect: Expect) -> Result<bool> {
        let put = put::put(&self.owner.state, &self.state, key, parts, meta, expect, 0);
        Ok(put?.is_some())
    }

    /// As [`Bucket::put_if`] in any case, for a blob that is to grow: up to `room` bytes appends do not copy it. The user's word of the blob before.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn put_with_room(&self, key: &[u8], parts: &[&[u8]], meta: u64, room: u64) -> Result<Option<u64>> {
        let put = put::put(&self.owner.state, &self.state, key, parts, meta, Expect::Any, room);
        Ok(put?.flatten())
    }

    /// Puts a blob of at most 14 bytes, also where the disk is so full that only removals are taken: a note without which something else cannot be removed.
    ///
    /// # Errors
    /// As [`Bucket::put`]; more bytes.
    pub fn put_note(&self, key: &[u8], note: &[u8]) -> Result<()> {
        put::put_note(&self.owner.state, &self.state, key, note)
    }

    /// Writes into a blob at `offset`; it is made if there is none, and a gap reads as zeros. Its size then.
    ///
    /// # Errors
    /// As [`Bucket::put`]; after failing I/O, of a blob over 64 KiB a part may have changed.
    pub fn put_at(&self, key: &[u8], offset: u64, data: &[u8]) -> Result<u64> {
        part::write(&self.owner.state, &self.state, key, part::At::Offset(offset), data)
    }

    /// Writes at the end of a blob; it is made if there is none. Its size then.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn append(&self, key: &[u8], data: &[u8]) -> Result<u64> {
        part::write(&self.owner.state, &self.state, key, part::At::End, data)
    }

    /// Sets the size of a blob: what is behind is gone, what is new reads as zeros. False: there is none.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn truncate(&self, key: &[u8], size: u64) -> Result<bool> {
        part::truncate(&self.owner.state, &self.state, key, size)
    }

    /// A blob's bytes.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        Ok(self.get_into(key, &mut out)?.map(|_| out))
    }

    /// A blob's bytes in `out`, whose former content is gone and whose room is used again.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.get_upto(key, u64::MAX, out)
    }

    /// As [`Bucket::get_into`], of a blob of at most `max` bytes; of a larger one, nothing but what is known of it.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get_upto(&self, key: &[u8], max: u64, out: &mut Vec<u8>) -> Result<Option<Stat>> {
        get::get(&self.owner.state, &self.state, key, max, out)
    }

    /// Bytes of a blob from `offset` on; how many, fewer than `buf` has room for at its end only. None: there is no blob.
    ///
    /// # Errors
    /// Failing I/O.
    pub fn get_at(&self, key: &[u8], offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        Ok(self.get_part(key, offset, buf)?.map(|(n, _)| n))
    }

    /// As [`Bucket::get_at`], with what is known of the blob at that moment.
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
    /// Has the processor fetch what look-ups of these blobs need, for all of them at a time: they are about to come. A hint; it waits for nobody.
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
    /// Whether there is such a blob.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.stat(key).is_some()
    }
    /// A blob's bytes, counted.
    pub fn size(&self, key: &[u8]) -> Option<u64> {
        self.stat(key).map(|stat| stat.size)
    }

    /// Changes the user's word of a blob, if `expect` holds; false: it does not, or there is no blob.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn set_meta(&self, key: &[u8], meta: u64, expect: Expect) -> Result<bool> {
        put::describe(&self.owner.state, &self.state, key, expect, |blob| blob.meta = meta)
    }

    /// Sets how much a blob is worth to keep in memory, 0 to 1 (a new one has 0.5); false: there is none.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn set_score(&self, key: &[u8], score: f32) -> Result<bool> {
        let score = (score.clamp(0.0, 1.0) * 255.0).round() as u8;
        put::describe(&self.owner.state, &self.state, key, Expect::Any, |blob| blob.set_score(score))
    }

    /// Gives a blob a tag; false: it has it, or there is no such blob. Tags go with a renamed blob, and end with a removed one.
    ///
    /// # Errors
    /// As [`Bucket::put`]; a tag over 64 KiB.
    pub fn tag(&self, key: &[u8], tag: &str) -> Result<bool> {
        tag::set(&self.owner.state, &self.state, Some(key), tag, true)
    }
    /// Takes a tag from a blob; false: it does not have it.
    ///
    /// # Errors
    /// As [`Bucket::tag`].
    pub fn untag(&self, key: &[u8], tag: &str) -> Result<bool> {
        tag::set(&self.owner.state, &self.state, Some(key), tag, false)
    }
    /// Tags of a blob, sorted. Looks at each tag of the store.
    pub fn tags(&self, key: &[u8]) -> Vec<String> {
        if self.owner.state.process.is_forked() {
            return Vec::new();
        }
        self.owner.state.tags.of(&(self.state.id, Some(key.into())))
    }
    /// Gives the bucket itself a tag, or takes it (`on` false); false: nothing changes.
    ///
    /// # Errors
    /// As [`Bucket::tag`].
    pub fn tag_whole(&self, tag: &str, on: bool) -> Result<bool> {
        tag::set(&self.owner.state, &self.state, None, tag, on)
    }

    /// Removes a blob; false: there is none.
    ///
    /// # Errors
    /// The bucket was removed; failing I/O of the log.
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.remove_if(key, Expect::Any)
    }

    /// Removes a blob if `expect` holds; false: it does not, or there is none.
    ///
    /// # Errors
    /// As [`Bucket::remove`].
    pub fn remove_if(&self, key: &[u8], expect: Expect) -> Result<bool> {
        remove::remove(&self.owner.state, &self.state, key, expect)
    }

    /// Renames a blob, in the place of the one that had the new key; false: there is none.
    ///
    /// # Errors
    /// As [`Bucket::put`].
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<bool> {
        self.rename_into(from, self, to)
    }

    /// As [`Bucket::rename`], into another bucket of the same store.
    ///
    /// # Errors
    /// As [`Bucket::put`]; a bucket of another store; one of the two is scratch.
    pub fn rename_into(&self, from: &[u8], bucket: &Bucket, to: &[u8]) -> Result<bool> {
        self.rename_if(from, bucket, to, Expect::Any)
    }

    /// As [`Bucket::rename_into`], if `expect` holds of the new key; false: it does not, or there is no such blob.
    ///
    /// # Errors
    /// As [`Bucket::rename_into`].
    pub fn rename_if(&self, from: &[u8], bucket: &Bucket, to: &[u8], expect: Expect) -> Result<bool> {
        self.check_store(bucket)?;
        rename::rename(&self.owner.state, (&self.state, from), (&bucket.state, to), expect)
    }

    /// As [`Bucket::rename_into`], of a blob that gets other bytes and another word of the user's in the same step.
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
        let what = "a blob cannot be renamed into another store; get it and put it".into();
        Err(crate::error::Error::Invalid { what })
    }

    /// Removes all blobs.
    ///
    /// # Errors
    /// As [`Bucket::remove`].
    pub fn clear(&self) -> Result<()> {
        remove::clear(&self.owner.state, &self.state, false).map(drop)
    }

    /// Keys in an order that does not change while the store exists: at least `count` from the cursor `from` on (0: the start), while there are as
    /// many, and the next cursor (0: the end). A key that is there all the while comes at least once.
    pub fn scan(&self, from: u64, count: usize) -> (Vec<Box<[u8]>>, u64) {
        if self.owner.state.process.is_forked() {
            return (Vec::new(), 0);
        }
        let state = &self.owner.state;
        self.state.scan(&state.walks, &state.hashes, &state.memory, from, count)
    }

    /// A key, each of them as likely; none: there are no blobs. `random` draws a number below the one given.
    pub fn any_key(&self, random: impl FnMut(usize) -> usize) -> Option<Box<[u8]>> {
        if self.owner.state.process.is_forked() {
            return None;
        }
        self.state.any_key(random)
    }

    /// Keys that begin with `prefix`, sorted. Looks at each blob of the bucket.
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
