//! Owed pages of a target by file. The regions of owed pages are not reclaimed.

use crate::device::OwedFile;
use crate::file::object::ObjectId;
use std::collections::HashMap;

/// Owed pages of one file.
#[derive(Debug, Clone, Copy)]
struct UndestagedFile {
    /// Lap of the oldest region with records of the file.
    since: u64,
    pages: u64,
}

/// Owed pages of a target.
#[derive(Debug, Default)]
pub(crate) struct DestageIndex {
    owing: HashMap<ObjectId, UndestagedFile>,
    /// Owed pages of earlier runs, not written to the source so far.
    pub(crate) left: HashMap<ObjectId, OwedFile>,
    /// Deleted files. They stay owed until the deletion is durable in the source's file system.
    pub(crate) gone: Vec<ObjectId>,
    /// Files durable in the source whose paid record found no room on the target: their older pages there
    /// count until it is written.
    pub(crate) untold: Vec<ObjectId>,
    /// No more owed pages are accepted.
    pub(crate) closed: bool,
    /// The target is unreadable and may have owed pages.
    pub(crate) is_unknown: bool,
}

impl DestageIndex {
    /// Notes owed pages of a file in the filling with this lap.
    pub(crate) fn note(&mut self, object: ObjectId, lap: u64, pages: u64) {
        self.owing.entry(object).or_insert(UndestagedFile { since: lap, pages: 0 }).pages += pages;
    }
    /// Notes that the source has all of the file. `told`: the target has the paid record, durably.
    pub(crate) fn paid(&mut self, object: ObjectId, told: bool) {
        self.owing.remove(&object);
        self.left.remove(&object);
        if !told && !self.untold.contains(&object) {
            self.untold.push(object);
        }
    }
    /// Whether a region of `region_pages` pages has room for the settling of one more file: a permit and a
    /// paid record each.
    pub(crate) fn takes_one_more(&self, region_pages: u32) -> bool {
        (self.owing.len() + self.left.len() + 2) * 2 <= region_pages as usize
    }
    /// Whether the target has owed pages of the file.
    pub(crate) fn has(&self, object: ObjectId) -> bool {
        self.owing.contains_key(&object) || self.left.contains_key(&object) || self.untold.contains(&object)
    }
    /// Whether no page is owed.
    pub(crate) fn is_empty(&self) -> bool {
        self.owing.is_empty() && self.left.is_empty() && self.untold.is_empty()
    }
    /// Whether the region of this lap, or an older one, has owed pages.
    pub(crate) fn blocks(&self, lap: u64) -> bool {
        let since = self.owing.values().map(|owing| owing.since);
        since.chain(self.left.values().map(|left| left.since)).any(|since| since <= lap)
    }
    /// Files with owed pages, the oldest first, without deleted ones.
    pub(crate) fn files(&self) -> Vec<ObjectId> {
        let mut files: Vec<(u64, ObjectId)> = self
            .owing
            .iter()
            .filter(|(object, _)| !self.gone.contains(object))
            .map(|(object, owing)| (owing.since, *object))
            .collect();
        files.sort_unstable();
        files.into_iter().map(|(_, object)| object).collect()
    }
    /// Number of owed pages.
    pub(crate) fn pages(&self) -> u64 {
        self.owing.values().map(|owing| owing.pages).sum::<u64>() + self.pages_left()
    }
    /// Number of owed pages of earlier runs.
    pub(crate) fn pages_left(&self) -> u64 {
        self.left.values().map(|file| file.pages.len() as u64).sum()
    }
}
