//! The trait `persist`: each blob of a bucket is a file of a directory, too.
//!
//! Files follow at each sync: 1. the store itself is durable; 2. blobs that have changed since are written into a new file each, which is synced and takes
//! the old one's place: a program that reads the directory sees a blob before or after a put; 3. the record *persisted* says that all files are as
//! their blobs are. It is logged while nobody changes the bucket.
//!
//! A file is never ahead of what is durable: after a power cut its blob is at least as new. A start that finds changes of the bucket behind the last
//! such record does not know which files were written, and compares all of them with their blobs.

use super::file_name;
use super::get::{stat, steady};
use crate::durable;
use crate::error::{Error, Result};
use crate::index::{Behind, BucketState, Persist, Stat};
use crate::log::Room;
use crate::record::{Blob, Record, TRAIT_PERSISTED};
use crate::space::UNIT;
use crate::state::StoreState;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file that is being written. No key's file is called so.
const NEW: &str = ".terrace-new";
/// Bytes that are copied at once.
const PIECE: usize = 256 << 10;
/// Keys that are looked up at once.
const KEYS: usize = 1000;

/// Makes everything durable that was done before the call, and brings the files of buckets that have them up to it.
///
/// # Errors
/// A write or sync of the store failed, or of such a file.
pub(crate) fn sync(state: &StoreState) -> Result<()> {
    durable::sync(state)?;
    write_all_out(state)
}

/// [`write_out`] of all buckets that have files.
///
/// # Errors
/// The first.
pub(crate) fn write_all_out(state: &StoreState) -> Result<()> {
    let buckets = state.persisting.lock().clone();
    // One whose directory fails does not hold up the others.
    buckets.iter().map(|bucket| write_out(state, bucket)).fold(Ok(()), Result::and)
}

/// Brings the files of a bucket up to its blobs; nothing, if it has none.
///
/// # Errors
/// A failed write in the directory, or a sync of the store: what was to be written still is.
pub(crate) fn write_out(state: &StoreState, bucket: &BucketState) -> Result<()> {
    let Some(persist) = bucket.persist() else { return Ok(()) };
    let _turn = persist.turn();
    if persist.is_current() || bucket.is_gone() {
        return Ok(());
    }
    let behind = persist.take(&state.memory);
    let written = match &behind {
        Behind::Keys(keys) => write_files(state, bucket, persist, keys),
        Behind::Unknown => compare_files(state, bucket, persist),
    };
    if written.is_err() {
        match behind {
            Behind::Keys(keys) => keys.iter().for_each(|key| persist.note(key, &state.memory)),
            Behind::Unknown => persist.note_unknown(&state.memory),
        }
        return written;
    }
    note_persisted(state, bucket, persist)
}

/// Logs that the files are as the blobs are, if they still are.
fn note_persisted(state: &StoreState, bucket: &BucketState, persist: &Persist) -> Result<()> {
    let _tables = bucket.write_all();
    if persist.is_current() && !bucket.is_gone() {
        let record = Record::Trait { bucket: bucket.id, kind: TRAIT_PERSISTED, text: &[] };
        state.log.append(&record, Room::Gives)?;
    }
    Ok(())
}

fn write_files(
    state: &StoreState,
    bucket: &BucketState,
    persist: &Persist,
    keys: &HashSet<Box<[u8]>>,
) -> Result<()> {
    for key in keys {
        write_file(state, bucket, persist, key)?;
    }
    sync_dir(persist)
}

fn sync_dir(persist: &Persist) -> Result<()> {
    let synced = File::open(persist.dir()).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io(persist.dir(), "sync", e))
}

/// Writes the file of a blob, or removes that of one that is gone. The directory is not synced.
fn write_file(state: &StoreState, bucket: &BucketState, persist: &Persist, key: &[u8]) -> Result<()> {
    let path = persist.dir().join(OsStr::from_bytes(&file_name::encode(key)));
    let new = persist.dir().join(NEW);
    let error = |path: &Path, action| {
        let path = path.to_owned();
        move |e| Error::io(&path, action, e)
    };
    remove(&new).map_err(error(&new, "remove"))?;
    let file = File::create_new(&new).map_err(error(&new, "create"))?;
    let copied = steady(state, bucket, key, |blob| copy(state, blob, &file, &new))?;
    let Some(((), Stat { version, .. })) = copied else {
        // The removal is durable before the file goes.
        durable::sync(state)?;
        return remove(&new).and_then(|()| remove(&path)).map_err(error(&path, "remove"));
    };
    file.sync_data().map_err(error(&new, "sync"))?;
    durable::sync_upto(state, version.0)?;
    std::fs::rename(&new, &path).map_err(error(&path, "replace"))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Copies a blob into a file, whose former content is gone.
fn copy(state: &StoreState, blob: &Blob, file: &File, path: &Path) -> Result<()> {
    let mut buffer = vec![0; PIECE.min(blob.size as usize)];
    let mut at = 0;
    while at < blob.size {
        let piece = &mut buffer[..(blob.size - at).min(PIECE as u64) as usize];
        state.heap.read(blob.start() * UNIT + at, piece)?;
        file.write_all_at(piece, at).map_err(|e| Error::io(path, "write", e))?;
        at += piece.len() as u64;
    }
    file.set_len(blob.size).map_err(|e| Error::io(path, "cut", e))
}

/// Writes each file that differs from its blob, and removes those without one. Files whose names are no key's are left alone.
fn compare_files(state: &StoreState, bucket: &BucketState, persist: &Persist) -> Result<()> {
    let mut cursor = 0;
    loop {
        let (keys, next) = bucket.scan(&state.hashes, cursor, KEYS);
        for key in &keys {
            let path = persist.dir().join(OsStr::from_bytes(&file_name::encode(key)));
            if !is_same(state, bucket, key, &path)? {
                write_file(state, bucket, persist, key)?;
            }
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    let listed = std::fs::read_dir(persist.dir()).map_err(|e| Error::io(persist.dir(), "list", e))?;
    for entry in listed {
        let name = entry.map_err(|e| Error::io(persist.dir(), "list", e))?.file_name();
        if let Some(key) = file_name::decode(name.as_bytes())
            && stat(state, bucket, &key).is_none()
        {
            write_file(state, bucket, persist, &key)?;
        }
    }
    sync_dir(persist)
}

/// Whether the file holds what the blob does.
fn is_same(state: &StoreState, bucket: &BucketState, key: &[u8], path: &Path) -> Result<bool> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(|e| Error::io(path, "open", e))?,
    };
    let size = file.metadata().map_err(|e| Error::io(path, "look at", e))?.len();
    let compared = steady(state, bucket, key, |blob| {
        let (mut ours, mut theirs) = (vec![0; PIECE], vec![0; PIECE]);
        let (mut at, mut is_same) = (0, size == blob.size);
        while is_same && at < blob.size {
            let n = (blob.size - at).min(PIECE as u64) as usize;
            state.heap.read(blob.start() * UNIT + at, &mut ours[..n])?;
            // A file that became shorter meanwhile is not the same.
            is_same = file.read_exact_at(&mut theirs[..n], at).is_ok() && ours[..n] == theirs[..n];
            at += n as u64;
        }
        Ok(is_same)
    })?;
    Ok(compared.is_some_and(|(is_same, _)| is_same))
}
