//! State of a bucket with the trait `persist`: its directory, and which files lag behind their blobs.

use super::memory::IndexMemory;
use crate::allocated::allocated;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use terrace_sync::{Mutex, MutexGuard};

/// Maximum number of remembered keys. Above it, all files of the bucket are compared.
const KEYS_MAX: usize = 1 << 16;

/// The files that must be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Behind {
    /// The files of these keys: their blobs were changed or removed.
    Keys(HashSet<Box<[u8]>>),
    /// Unknown which: each file is compared with its blob.
    Unknown,
}

/// The directory of a bucket, and the state of its files.
#[derive(Debug)]
pub(crate) struct Persist {
    dir: PathBuf,
    behind: Mutex<Behind>,
    /// Held while files are written.
    turn: Mutex<()>,
}

fn key_bytes(key: &[u8]) -> u64 {
    // The set's entry at its worst, right after the set has grown.
    allocated(key.len()) + 3 * size_of::<Box<[u8]>>() as u64
}

impl Persist {
    pub(crate) fn new(dir: PathBuf) -> Persist {
        Persist { dir, behind: Mutex::new(Behind::Unknown), turn: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes the turn: the right to write files.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Notes a change of a blob. Comes before its record is logged.
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

    /// Notes that any blob may have changed.
    pub(crate) fn note_unknown(&self, memory: &IndexMemory) {
        let _ = self.replace(Behind::Unknown, memory);
    }

    /// Takes the set of files to write, and leaves it empty.
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

    /// Whether all files are up to date and none is being written. (`take` empties the set before the files
    /// are written.)
    pub(crate) fn is_settled(&self) -> bool {
        let turn = self.turn.try_lock();
        turn.is_some() && self.is_current()
    }

    /// Whether all files are up to date. For the holder of the turn.
    pub(crate) fn is_current(&self) -> bool {
        matches!(&*self.behind.lock(), Behind::Keys(keys) if keys.is_empty())
    }
}
