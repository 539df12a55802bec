//! Pages that a target has and the source lacks, by file. While a file owes, its regions are not reclaimed.

use crate::device::OwedFile;
use crate::file::object::ObjectId;
use std::collections::HashMap;

/// One file's.
#[derive(Debug, Clone, Copy)]
struct Owing {
    /// The lap of the oldest region with records of it.
    since: u64,
    pages: u64,
}

/// A target's.
#[derive(Debug, Default)]
pub(crate) struct OwedBooks {
    owing: HashMap<ObjectId, Owing>,
    /// What an earlier run has left, and could not be written to the source so far.
    pub left: HashMap<ObjectId, OwedFile>,
    /// Files that are no more. They owe until the source's file system is sure to know that.
    pub gone: Vec<ObjectId>,
    /// Files that the source has, durably, while the target had no room to tell so: older pages of them count until it is told.
    pub untold: Vec<ObjectId>,
    /// No more pages come.
    pub closed: bool,
    /// It could not be read, and may have something that the source lacks.
    pub is_unknown: bool,
}

impl OwedBooks {
    /// Pages of the file come to the filling of this lap.
    pub(crate) fn note(&mut self, object: ObjectId, lap: u64, pages: u64) {
        self.owing.entry(object).or_insert(Owing { since: lap, pages: 0 }).pages += pages;
    }
    /// The source has all of the file; whether the target is `told` durably.
    pub(crate) fn paid(&mut self, object: ObjectId, told: bool) {
        self.owing.remove(&object);
        self.left.remove(&object);
        if !told && !self.untold.contains(&object) {
            self.untold.push(object);
        }
    }
    /// Whether a region of so many pages has room for what settles one file more: a permit and a paid record each.
    pub(crate) fn takes_one_more(&self, region_pages: u32) -> bool {
        (self.owing.len() + self.left.len() + 2) * 2 <= region_pages as usize
    }
    /// Whether there is something of the file.
    pub(crate) fn has(&self, object: ObjectId) -> bool {
        self.owing.contains_key(&object) || self.left.contains_key(&object) || self.untold.contains(&object)
    }
    /// Whether the source has everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.owing.is_empty() && self.left.is_empty() && self.untold.is_empty()
    }
    /// Whether the region of this lap, or an older one, has something that the source lacks.
    pub(crate) fn blocks(&self, lap: u64) -> bool {
        let since = self.owing.values().map(|owing| owing.since);
        since.chain(self.left.values().map(|left| left.since)).any(|since| since <= lap)
    }
    /// The files that owe, those first whose pages are oldest. Without those that are no more.
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
    /// All pages.
    pub(crate) fn pages(&self) -> u64 {
        self.owing.values().map(|owing| owing.pages).sum::<u64>() + self.pages_left()
    }
    /// Those of earlier runs.
    pub(crate) fn pages_left(&self) -> u64 {
        self.left.values().map(|file| file.pages.len() as u64).sum()
    }
}
