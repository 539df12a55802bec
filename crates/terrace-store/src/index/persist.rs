//! The files of a bucket with the trait `persist`: where they are, and which are behind their blobs.

use super::memory::IndexMemory;
use crate::allocated::allocated;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use terrace_sync::{Mutex, MutexGuard};

/// Keys that are remembered; with more, all files of the bucket are compared.
const KEYS_MAX: usize = 1 << 16;

/// What is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Behind {
    /// The files of these keys: their blobs have changed, or are gone.
    Keys(HashSet<Box<[u8]>>),
    /// Nobody knows which: each file is compared with its blob.
    Unknown,
}

/// The directory of a bucket and its files.
#[derive(Debug)]
pub(crate) struct Persist {
    dir: PathBuf,
    behind: Mutex<Behind>,
    /// Held while files are written.
    turn: Mutex<()>,
}

fn key_bytes(key: &[u8]) -> u64 {
    // The set's own entry, at its fullest after it has grown.
    allocated(key.len()) + 3 * size_of::<Box<[u8]>>() as u64
}

impl Persist {
    pub(crate) fn new(dir: PathBuf) -> Persist {
        Persist { dir, behind: Mutex::new(Behind::Unknown), turn: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The right to write files.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// The blob is about to change. Said before its record is logged.
    pub(crate) fn note(&self, key: &[u8], memory: &IndexMemory) {
        let mut behind = self.behind.lock();
        let Behind::Keys(keys) = &mut *behind else { return };
        if keys.contains(key) {
            return;
        }
        if keys.len() >= KEYS_MAX || memory.ask(key_bytes(key)).is_err() {
            drop(behind);
            self.note_unknown(memory);
            return;
        }
        memory.add(key_bytes(key));
        keys.insert(key.into());
    }

    /// Any blob may have changed.
    pub(crate) fn note_unknown(&self, memory: &IndexMemory) {
        let _ = self.replace(Behind::Unknown, memory);
    }

    /// What is to be written; nothing from now on.
    pub(crate) fn take(&self, memory: &IndexMemory) -> Behind {
        self.replace(Behind::Keys(HashSet::new()), memory)
    }

    fn replace(&self, new: Behind, memory: &IndexMemory) -> Behind {
        let old = std::mem::replace(&mut *self.behind.lock(), new);
        if let Behind::Keys(keys) = &old {
            memory.sub(keys.iter().map(|key| key_bytes(key)).sum());
        }
        old
    }

    /// Whether all files are as their blobs are, and none is being written: those that are under way count as written.
    pub(crate) fn is_settled(&self) -> bool {
        let turn = self.turn.try_lock();
        turn.is_some() && self.is_current()
    }

    /// Whether all files are as their blobs are, for the holder of the turn.
    pub(crate) fn is_current(&self) -> bool {
        matches!(&*self.behind.lock(), Behind::Keys(keys) if keys.is_empty())
    }
}
