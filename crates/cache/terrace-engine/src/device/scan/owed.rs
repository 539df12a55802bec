//! Owed pages on a device, as its records name them: an fsync was answered once they were durable here, and
//! the source lacks them.
//!
//! ```text
//!   Base, Owed ...   fsync: the source durably has this identity; these pages are to be written over it
//!   Permit           from here on the run may change the source, up to a time
//!   Paid             the source has all of them durably
//! ```
//! Only a later *paid* record or a later owed page settles an owed page. A tombstone does not: the page
//! changed in memory, and the new content may exist nowhere else. A later clean page does not either: it is
//! the source's content, but perhaps not durable there.
//!
//! A hole may have held paid records: earlier owed pages are *doubtful* then. They are reported and kept, and
//! nothing writes them over the source automatically. A hole may have held owed pages, too: [`Owed::hidden`]
//! reports that.

use super::{Batch, Link, Record};
use std::collections::{BTreeMap, HashMap};
use terrace_shm::DeviceSlot;

/// Pages of one file that the source lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwedFile {
    /// Identity of the file over which the pages are to be written.
    pub(crate) base: Option<u64>,
    /// The run may have changed the source.
    pub(crate) permit: Option<Permits>,
    /// Page index, slot and checksum of the content.
    pub pages: BTreeMap<u64, (DeviceSlot, u32)>,
    /// Lap of the oldest region with records of the file.
    pub(crate) since: u64,
    /// A record that settles them may have been lost.
    pub doubtful: bool,
}

/// Permits of one file, all of its last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// End of the first permit, ns since 1970.
    pub(crate) first: u64,
    /// End of the last permit.
    pub(crate) until: u64,
    /// Holder ([`crate::device::format::holder`]).
    pub(crate) holder: u32,
}

/// All owed pages on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Owed files by number.
    pub files: HashMap<u64, OwedFile>,
    /// Owed pages with damaged content. Perhaps no fsync of them was answered.
    pub damaged: u64,
    /// Damaged keys may have named more owed pages.
    pub hidden: bool,
}

impl Owed {
    /// Adds a region's batches, in the order of the log. `damaged`: content pages that do not match their
    /// keys.
    pub(super) fn add(&mut self, link: &Link, batches: &[Batch], damaged: &[u32]) {
        for batch in batches {
            batch.others().iter().for_each(|record| self.note(record, link.filling.lap));
            for (at, record) in batch.pages_of_content() {
                let Record::Owed { object, page, crc } = *record else { continue };
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
            Record::Base { object, digest } => self.file(object, lap).base = Some(digest),
            // A file without owed pages needs no permit.
            Record::Permit { object, until, holder } => {
                if let Some(file) = self.files.get_mut(&object) {
                    let first = file.permit.map_or(until, |permit| permit.first.min(until));
                    file.permit = Some(Permits { first, until, holder });
                }
            }
            Record::Paid { object } => drop(self.files.remove(&object)),
            _ => {}
        }
    }

    fn file(&mut self, object: u64, lap: u64) -> &mut OwedFile {
        self.files.entry(object).or_insert_with(|| OwedFile { since: lap, ..OwedFile::default() })
    }

    /// Notes a hole: keys are missing between the batches added so far and the next ones.
    pub(super) fn hole(&mut self) {
        self.hidden = true;
        self.files.values_mut().for_each(|file| file.doubtful = true);
    }

    /// The result, after all batches were added.
    pub(super) fn finish(mut self) -> Owed {
        self.files.retain(|_, file| !file.pages.is_empty());
        self
    }
}
