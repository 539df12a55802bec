//! Undestaged pages of a target by file. Regions with undestaged pages are not reclaimed.

use crate::file::object::ObjectId;
use std::collections::HashMap;
use terrace_tier::UndestagedFile;

/// Undestaged pages of one file, written by this run.
#[derive(Debug, Clone, Copy)]
struct FileCount {
    /// Lap of the oldest region with records of the file.
    since: u64,
    pages: u64,
}

#[derive(Debug, Default)]
pub(crate) struct DestageIndex {
    files: HashMap<ObjectId, FileCount>,
    /// Undestaged pages of earlier runs.
    pub earlier: HashMap<ObjectId, UndestagedFile>,
    /// Deleted files. They stay undestaged until the deletion is durable in the source's file system.
    pub deleted: Vec<ObjectId>,
    /// Files durable in the source, without a destage-complete record for lack of room on the target. Their
    /// pages there count as undestaged until the record is written.
    pub unrecorded: Vec<ObjectId>,
    /// The target takes no more undestaged pages.
    pub(crate) closed: bool,
    /// The target is unreadable and may have undestaged pages.
    pub(crate) is_unknown: bool,
}

impl DestageIndex {
    /// Notes undestaged pages of a file in the filling with this lap.
    pub(crate) fn note(&mut self, object: ObjectId, lap: u64, pages: u64) {
        self.files.entry(object).or_insert(FileCount { since: lap, pages: 0 }).pages += pages;
    }
    /// Notes that all pages of the file are destaged. `recorded`: the target's record of that is durable.
    pub(crate) fn complete(&mut self, object: ObjectId, recorded: bool) {
        self.files.remove(&object);
        self.earlier.remove(&object);
        if !recorded && !self.unrecorded.contains(&object) {
            self.unrecorded.push(object);
        }
    }
    /// Whether a region of `region_pages` pages can destage one more file: each file needs two records there.
    pub(crate) fn takes_one_more(&self, region_pages: u32) -> bool {
        (self.files.len() + self.earlier.len() + 2) * 2 <= region_pages as usize
    }
    pub(crate) fn has(&self, object: ObjectId) -> bool {
        self.files.contains_key(&object)
            || self.earlier.contains_key(&object)
            || self.unrecorded.contains(&object)
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.earlier.is_empty() && self.unrecorded.is_empty()
    }
    /// Whether the region of this lap, or an older one, has undestaged pages.
    pub(crate) fn blocks(&self, lap: u64) -> bool {
        let since = self.files.values().map(|file| file.since);
        since.chain(self.earlier.values().map(|file| file.since)).any(|since| since <= lap)
    }
    /// Files with undestaged pages, the oldest first, without deleted ones.
    pub(crate) fn files(&self) -> Vec<ObjectId> {
        let mut files: Vec<(u64, ObjectId)> = self
            .files
            .iter()
            .filter(|(object, _)| !self.deleted.contains(object))
            .map(|(object, file)| (file.since, *object))
            .collect();
        files.sort_unstable();
        files.into_iter().map(|(_, object)| object).collect()
    }
    pub(crate) fn pages(&self) -> u64 {
        self.files.values().map(|file| file.pages).sum::<u64>() + self.pages_of_earlier_runs()
    }
    pub(crate) fn pages_of_earlier_runs(&self) -> u64 {
        self.earlier.values().map(|file| file.pages.len() as u64).sum()
    }
}
