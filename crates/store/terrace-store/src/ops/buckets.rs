//! Creation, removal and renaming of buckets, and their traits `persist` and `scratch`.

use super::commit;
use super::{check, file_name, persist, remove};
use crate::error::{Error, Result};
use crate::index::{BucketState, Named, Persist, find_name};
use crate::log::Room;
use crate::options::SyncPolicy;
use crate::record::{KEY_MAX, Record, TRAIT_PERSIST, TRAIT_SCRATCH};
use crate::state::StoreState;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use terrace_sync::RwLockWriteGuard;

fn check_name(name: &str) -> Result<()> {
    check("a bucket's name", name.len() as u64, KEY_MAX as u64)
}

/// Returns the bucket of this name. It is created if missing.
///
/// # Errors
/// The store is full or closed; the name is too long.
pub(crate) fn get_or_create(state: &StoreState, name: &str) -> Result<Arc<BucketState>> {
    state.check_open()?;
    if let Some(bucket) = state.names.get(name) {
        return Ok(bucket);
    }
    state.check_change(false)?;
    check_name(name)?;
    let (bucket, number) = {
        let (mut shard, hash) = state.names.lock(name);
        if let Some(bucket) = find_name(&shard, hash, name) {
            return Ok(bucket.clone());
        }
        let mut ahead = state.names.ask(&shard, name, &state.memory)?;
        let id = state.names.take_id();
        let number = state.append(&Record::Bucket { bucket: id, name: name.as_bytes() }, Room::Takes)?;
        let bucket = Arc::new(BucketState::new(id, name));
        state.counts.bucket(1, name.len());
        ahead.keep(state.names.insert(&mut shard, bucket.clone(), name));
        (bucket, number)
    };
    commit::finish(state, &bucket, number)?;
    Ok(bucket)
}

/// Removes a bucket with its blobs. Returns false if it does not exist.
///
/// # Errors
/// Failing I/O of the log.
pub(crate) fn remove_bucket(state: &StoreState, name: &str) -> Result<bool> {
    state.check_change(true)?;
    let (shard, hash) = state.names.lock(name);
    let Some(bucket) = find_name(&shard, hash, name) else { return Ok(false) };
    if bucket.persist().is_none() {
        return remove_locked(state, (shard, hash), name);
    }
    let bucket = bucket.clone();
    drop(shard);
    if let Err(e) = persist::write_out(state, &bucket) {
        tracing::warn!("{e}; the bucket is removed all the same, and its last changes are not in its files");
    }
    // The turn keeps the files from being written until the bucket is gone.
    let _turn = bucket.persist().map(Persist::turn);
    remove_locked(state, state.names.lock(name), name)
}

fn remove_locked(
    state: &StoreState,
    (mut shard, hash): (RwLockWriteGuard<'_, Named>, u64),
    name: &str,
) -> Result<bool> {
    let removed = state.names.remove((&mut shard, hash), name, &state.memory, |bucket| {
        remove::clear(state, bucket, true)?;
        if bucket.persist().is_some() {
            state.persisting.lock().retain(|other| other.id != bucket.id);
        }
        state.counts.bucket(-1, name.len());
        Ok(())
    })?;
    // The bucket's memory is freed after the lock is released.
    drop(shard);
    Ok(removed.is_some())
}

/// Renames a bucket. Returns false if it does not exist.
///
/// # Errors
/// A bucket of the new name exists; the log is full or fails.
pub(crate) fn rename_bucket(state: &StoreState, from: &str, to: &str) -> Result<bool> {
    state.check_change(false)?;
    check_name(to)?;
    let (mut source, mut target) = state.names.lock_two(from, to);
    let place = |name: &str| state.hashes.of(name.as_bytes());
    let Some(bucket) = find_name(&source, place(from), from).cloned() else { return Ok(false) };
    if from == to {
        return Ok(true);
    }
    if find_name(target.as_deref().unwrap_or(&source), place(to), to).is_some() {
        return Err(Error::Exists { name: to.into() });
    }
    let mut ahead = state.names.ask(target.as_deref().unwrap_or(&source), to, &state.memory)?;
    let record = Record::Bucket { bucket: bucket.id, name: to.as_bytes() };
    let number = state.append(&record, Room::Takes)?;
    state.names.remove((&mut source, place(from)), from, &state.memory, |_| Ok(()))?;
    state.counts.bucket(-1, from.len());
    state.counts.bucket(1, to.len());
    let shard = target.as_deref_mut().unwrap_or(&mut source);
    ahead.keep(state.names.insert(shard, bucket.clone(), to));
    drop((source, target));
    commit::finish(state, &bucket, number).map(|()| true)
}

/// From now on writes all blobs of a bucket also to files of a directory, which is created if missing.
///
/// # Errors
/// The directory has files, belongs to another bucket, or cannot be created; the bucket is scratch, or
/// persists in another directory; a key cannot be a file name; the log is full or fails.
pub(crate) fn make_persistent(state: &StoreState, bucket: &Arc<BucketState>, dir: &Path) -> Result<()> {
    state.check_change(false)?;
    let invalid = |what: String| Err(Error::Invalid { what });
    let dir = std::path::absolute(dir).map_err(|e| Error::io(dir, "find", e))?;
    if persists_in(bucket, &dir)? {
        return Ok(());
    }
    std::fs::create_dir_all(&dir).map_err(|e| Error::io(&dir, "make", e))?;
    let mut listed = std::fs::read_dir(&dir).map_err(|e| Error::io(&dir, "list", e))?;
    let has_files = listed.next().is_some();
    // Locked only now: each sync takes this lock, and must not wait for a directory that hangs.
    let mut persisting = state.persisting.lock();
    if persists_in(bucket, &dir)? {
        return Ok(());
    }
    let is_taken = persisting.iter().any(|other| other.persist().is_some_and(|other| other.dir() == dir));
    if is_taken || has_files {
        return invalid(format!(
            "{}: the directory is not empty, or another bucket's; name an empty directory",
            dir.display()
        ));
    }
    let number = {
        let tables = bucket.write_all();
        commit::Place { bucket, key: &[], hash: 0 }.check_bucket()?;
        if bucket.is_scratch() {
            return invalid(format!("bucket {:?}: the bucket is scratch, and cannot persist", bucket.name()));
        }
        tables.iter().flat_map(|table| table.iter()).try_for_each(|entry| file_name::check(&entry.key))?;
        let text = dir.as_os_str().as_bytes();
        let record = Record::Trait { bucket: bucket.id, kind: TRAIT_PERSIST, text };
        let number = state.append(&record, Room::Takes)?;
        bucket.set_persist(Persist::new(dir));
        number
    };
    persisting.push(bucket.clone());
    drop(persisting);
    commit::finish_bucket(state, number)?;
    if state.sync == SyncPolicy::Always { persist::write_out(state, bucket) } else { Ok(()) }
}

/// Whether the bucket persists in this directory.
///
/// # Errors
/// The bucket persists in another directory.
fn persists_in(bucket: &BucketState, dir: &Path) -> Result<bool> {
    match bucket.persist() {
        Some(persist) if persist.dir() != dir => {
            let other = persist.dir().display();
            let what = format!("bucket {:?}: the bucket persists in {other} already", bucket.name());
            Err(Error::Invalid { what })
        }
        persist => Ok(persist.is_some()),
    }
}

/// Makes an empty bucket scratch: its blobs end with the store. No change if it is scratch already.
///
/// # Errors
/// The bucket has blobs, or was removed; the log is full or fails.
pub(crate) fn make_scratch(state: &StoreState, bucket: &BucketState) -> Result<()> {
    state.check_change(false)?;
    let number = {
        let tables = bucket.write_all();
        commit::Place { bucket, key: &[], hash: 0 }.check_bucket()?;
        if bucket.is_scratch() {
            return Ok(());
        }
        if bucket.persist().is_some() {
            let what = format!("bucket {:?}: the bucket persists, and cannot become scratch", bucket.name());
            return Err(Error::Invalid { what });
        }
        if tables.iter().any(|table| !table.is_empty()) {
            let what = format!(
                "bucket {:?}: the bucket has blobs; clear it before it becomes scratch",
                bucket.name()
            );
            return Err(Error::Invalid { what });
        }
        let record = Record::Trait { bucket: bucket.id, kind: TRAIT_SCRATCH, text: &[] };
        let number = state.append(&record, Room::Takes)?;
        bucket.set_scratch();
        number
    };
    commit::finish_bucket(state, number)
}
