//! Undestaged pages on a device, as its records name them. They are durable on the device, and the source
//! lacks them. A program may have got the answer of their fsync.
//!
//! ```text
//!   BaseVersion, Undestaged ...   fsync: the source durably has this identity; a replay writes these pages over it
//!   WriteIntent                   until this time the run may change the source
//!   DestageComplete               the source has all of the pages durably
//! ```
//! An undestaged page ends only with a destage-complete record or a newer undestaged version. A tombstone
//! does not end it: the new content may exist in memory alone. A later clean page does not: the source may
//! not have it durably.
//!
//! A hole is a part of the log with damaged keys. It may have contained destage-complete records, so
//! undestaged pages before it are *doubtful*. A start reports and keeps doubtful pages, and never writes them
//! to the source. A hole may also hide undestaged pages ([`Undestaged::hidden`]).

use super::{Batch, Link, Record};
use std::collections::{BTreeMap, HashMap};
use terrace_shm::DeviceSlot;

/// Pages of one file that the source lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndestagedFile {
    /// Identity of the file over which the pages are to be written.
    pub base_version: Option<u64>,
    /// The run may have changed the source.
    pub intents: Option<WriteIntents>,
    /// Page index, slot and checksum of the content.
    pub pages: BTreeMap<u64, (DeviceSlot, u32)>,
    /// Lap of the oldest region with records of the file.
    pub since: u64,
    /// Their destage-complete record may have been lost.
    pub doubtful: bool,
}

/// Write intents of one file, all of its last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteIntents {
    /// End of the first intent, ns since 1970.
    pub first: u64,
    /// End of the last intent.
    pub until: u64,
    /// Holder ([`crate::format::holder`]).
    pub holder: u32,
}

/// All undestaged pages on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undestaged {
    /// Files with undestaged pages by number.
    pub files: HashMap<u64, UndestagedFile>,
    /// Undestaged pages with damaged content. Perhaps no fsync of them was answered.
    pub damaged: u64,
    /// Damaged keys may have named more undestaged pages.
    pub hidden: bool,
}

impl Undestaged {
    /// Adds a region's batches, in log order. `damaged`: content pages that do not match their keys.
    pub(super) fn add(&mut self, link: &Link, batches: &[Batch], damaged: &[u32]) {
        for batch in batches {
            batch.others().iter().for_each(|record| self.note(record, link.filling.lap));
            for (at, record) in batch.pages_of_content() {
                let Record::Undestaged { object, page, crc } = *record else { continue };
                if damaged.binary_search(&at).is_ok() {
                    // An earlier durable version still counts.
                    self.damaged += 1;
                    continue;
                }
                let file = self.file(object, link.filling.lap);
                file.pages.insert(page, (DeviceSlot::new(link.region, at), crc));
            }
        }
    }

    fn note(&mut self, record: &Record, lap: u64) {
        match *record {
            Record::BaseVersion { object, digest } => self.file(object, lap).base_version = Some(digest),
            // A file without undestaged pages needs no write intent.
            Record::WriteIntent { object, until, holder } => {
                if let Some(file) = self.files.get_mut(&object) {
                    let first = file.intents.map_or(until, |intents| intents.first.min(until));
                    file.intents = Some(WriteIntents { first, until, holder });
                }
            }
            Record::DestageComplete { object } => drop(self.files.remove(&object)),
            _ => {}
        }
    }

    fn file(&mut self, object: u64, lap: u64) -> &mut UndestagedFile {
        self.files.entry(object).or_insert_with(|| UndestagedFile { since: lap, ..UndestagedFile::default() })
    }

    /// Notes a hole: keys are missing between the batches added so far and the next ones.
    pub(super) fn hole(&mut self) {
        self.hidden = true;
        self.files.values_mut().for_each(|file| file.doubtful = true);
    }

    /// The result, after all batches were added.
    pub(super) fn finish(mut self) -> Undestaged {
        self.files.retain(|_, file| !file.pages.is_empty());
        self
    }
}
