//! The index in memory: the names of buckets, and the blobs of each bucket by key.

mod bucket;
mod memory;
mod names;
mod persist;
mod tags;

pub(crate) use bucket::{BucketState, Entry, HeldEntry, Table};
pub(crate) use bucket::{ask_entry, find, find_held, find_mut, hint, insert, take, take_all};
pub(crate) use memory::{Ahead, IndexMemory};
pub(crate) use names::{Named, Names, find as find_name};
pub(crate) use persist::{Behind, Persist};
pub(crate) use tags::{Tags, bytes_of as tag_bytes};

use foldhash::quality::FixedState;
use std::hash::{BuildHasher, Hasher};

use crate::record::Blob;

/// The condition for a change of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Always true.
    Any,
    /// The blob does not exist.
    Absent,
    /// The blob exists.
    Present,
    /// The blob exists and still has this version.
    Version(Version),
}

impl Expect {
    pub(crate) fn holds(self, entry: Option<&Entry>) -> bool {
        match (self, entry) {
            (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => true,
            (Expect::Version(version), Some(entry)) => version.0 == entry.number,
            (Expect::Absent, Some(_)) | (Expect::Present | Expect::Version(_), None) => false,
        }
    }
}

/// Changes with each change of a blob. Valid only until the store is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version(pub(crate) u64);

impl Version {
    /// The number, for languages without such a type.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The metadata of a blob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// The user's word.
    pub meta: u64,
    /// For [`Expect::Version`].
    pub version: Version,
    /// How much it is worth to keep the blob in memory, 0 to 1.
    pub score: f32,
}

impl From<&Entry> for Stat {
    fn from(entry: &Entry) -> Stat {
        let Blob { size, meta, .. } = entry.blob;
        Stat { size, meta, version: Version(entry.number), score: f32::from(entry.blob.score()) / 255.0 }
    }
}

/// Hash function of keys and names. It is fixed for the life of a store, and differs between stores.
#[derive(Debug, Clone)]
pub(crate) struct Hashes(FixedState);

impl Hashes {
    pub(crate) fn new(seed: u64) -> Hashes {
        Hashes(FixedState::with_seed(seed))
    }

    pub(crate) fn of(&self, bytes: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(bytes);
        hasher.finish()
    }
}
