//! The files of a persistent bucket: written, compared, removed.

use super::super::file_name;
use super::super::get::{read_bytes, stat, steady};
use crate::durable;
use crate::error::{Error, Result};
use crate::index::{BucketState, Persist, Stat};
use crate::record::Blob;
use crate::state::StoreState;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of a file while it is written. No key has this file name.
const NEW: &str = ".terrace-new";
/// Bytes of one copy step.
const PIECE: usize = 256 << 10;
/// Keys of one scan step.
const KEYS: usize = 1000;

/// Writes the files of these keys, and removes those of removed blobs.
///
/// # Errors
/// A write in the directory, or a sync of the store, failed.
pub(super) fn write_changed(
    state: &StoreState,
    bucket: &BucketState,
    persist: &Persist,
    keys: &HashSet<Box<[u8]>>,
) -> Result<()> {
    let mut gone = Vec::new();
    for key in keys {
        if !write_file(state, bucket, persist, key)? {
            gone.push(key);
        }
    }
    remove_files(state, persist, &gone)?;
    sync_dir(persist)
}

fn sync_dir(persist: &Persist) -> Result<()> {
    let synced = File::open(persist.dir()).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io(persist.dir(), "sync", e))
}

fn path_of(persist: &Persist, key: &[u8]) -> PathBuf {
    persist.dir().join(OsStr::from_bytes(&file_name::encode(key)))
}

/// Writes the file of a blob. Returns false if the blob is gone: its file must be removed. Does not sync the
/// directory.
fn write_file(state: &StoreState, bucket: &BucketState, persist: &Persist, key: &[u8]) -> Result<bool> {
    if stat(state, bucket, key).is_none() {
        return Ok(false);
    }
    let path = path_of(persist, key);
    let new = persist.dir().join(NEW);
    let error = |path: &Path, action| {
        let path = path.to_owned();
        move |e| Error::io(&path, action, e)
    };
    remove(&new).map_err(error(&new, "remove"))?;
    let file = File::create_new(&new).map_err(error(&new, "create"))?;
    let copied = steady(state, bucket, key, |blob| copy(state, blob, &file, &new))?;
    let Some(((), Stat { version, .. })) = copied else {
        return remove(&new).map_err(error(&new, "remove")).map(|()| false);
    };
    file.sync_data().map_err(error(&new, "sync"))?;
    durable::sync_upto(state, version.0)?;
    std::fs::rename(&new, &path).map_err(error(&path, "replace")).map(|()| true)
}

/// Removes the files of removed blobs. A blob put in between is noted again, and the next turn writes its
/// file.
fn remove_files(state: &StoreState, persist: &Persist, keys: &[impl AsRef<[u8]>]) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    // One sync for all: the removals are durable before the files go.
    durable::sync(state)?;
    keys.iter().try_for_each(|key| {
        let path = path_of(persist, key.as_ref());
        remove(&path).map_err(|e| Error::io(&path, "remove", e))
    })
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Copies a blob into a file, replacing its content.
fn copy(state: &StoreState, blob: &Blob, file: &File, path: &Path) -> Result<()> {
    let mut buffer = vec![0; PIECE.min(blob.size as usize)];
    let mut at = 0;
    while at < blob.size {
        let piece = &mut buffer[..(blob.size - at).min(PIECE as u64) as usize];
        read_bytes(state, blob, at, piece)?;
        file.write_all_at(piece, at).map_err(|e| Error::io(path, "write", e))?;
        at += piece.len() as u64;
    }
    file.set_len(blob.size).map_err(|e| Error::io(path, "cut", e))
}

/// Writes each file that differs from its blob, and removes files without one. Files that are named by no key
/// stay.
///
/// # Errors
/// As [`write_changed`].
pub(super) fn write_different(state: &StoreState, bucket: &BucketState, persist: &Persist) -> Result<()> {
    let mut cursor = 0;
    loop {
        let (keys, next) = bucket.scan(&state.scan_cache, &state.hashes, &state.memory, cursor, KEYS);
        for key in &keys {
            if !is_same(state, bucket, key, &path_of(persist, key))? {
                // If the blob is gone by now, `remove_strangers` removes its file.
                write_file(state, bucket, persist, key)?;
            }
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    remove_strangers(state, bucket, persist)?;
    sync_dir(persist)
}

/// Removes the files of keys that have no blob.
fn remove_strangers(state: &StoreState, bucket: &BucketState, persist: &Persist) -> Result<()> {
    let error = |e| Error::io(persist.dir(), "list", e);
    let mut gone = Vec::new();
    for entry in std::fs::read_dir(persist.dir()).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        if let Some(key) = file_name::decode(name.as_bytes())
            && stat(state, bucket, &key).is_none()
        {
            gone.push(key);
        }
        if gone.len() >= KEYS {
            remove_files(state, persist, &gone)?;
            gone.clear();
        }
    }
    remove_files(state, persist, &gone)
}

/// Whether the file's content equals the blob's.
fn is_same(state: &StoreState, bucket: &BucketState, key: &[u8], path: &Path) -> Result<bool> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(|e| Error::io(path, "open", e))?,
    };
    let size = file.metadata().map_err(|e| Error::io(path, "stat", e))?.len();
    let compared = steady(state, bucket, key, |blob| {
        let (mut ours, mut theirs) = (vec![0; PIECE], vec![0; PIECE]);
        let (mut at, mut is_same) = (0, size == blob.size);
        while is_same && at < blob.size {
            let n = (blob.size - at).min(PIECE as u64) as usize;
            read_bytes(state, blob, at, &mut ours[..n])?;
            // A file that was shortened in between differs.
            is_same = file.read_exact_at(&mut theirs[..n], at).is_ok() && ours[..n] == theirs[..n];
            at += n as u64;
        }
        Ok(is_same)
    })?;
    Ok(compared.is_some_and(|(is_same, _)| is_same))
}
