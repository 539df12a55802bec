//! Pages that a device holds and the source lacks, as its records tell: an fsync was answered once they were durable here.
//!
//! ```text
//!   Base, Owed ...   fsync: the source has this identity, durably; these pages are to be written over it
//!   Permit            the run may change the source from here on, until then
//!   Paid             the source has all of them, durably
//! ```
//! Nothing but a later *paid* record or a later owed page settles an owed page. A tombstone does not: the page was changed in memory, and the new content
//! may be nowhere else. Nor does a later clean page: it is the source's content, but perhaps not durable there.
//!
//! A hole may have held paid records: what was owed before it is *doubtful* then. It is told and kept, and nothing writes it over the source by itself. A
//! hole may have held owed pages, too: [`Owed::hidden`] tells of that.

use super::{Batch, Link, Record};
use std::collections::{BTreeMap, HashMap};
use terrace_shm::DeviceSlot;

/// Pages of one file that the source lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwedFile {
    /// The identity over which they are to be written.
    pub base: Option<u64>,
    /// That the run may have changed the source.
    pub permit: Option<Permits>,
    /// Page, where it lies, checksum of the content.
    pub pages: BTreeMap<u64, (DeviceSlot, u32)>,
    /// The lap of the oldest region that has records of it.
    pub since: u64,
    /// A record that settles them may have been lost.
    pub doubtful: bool,
}

/// Permits of one file, all of its last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// The first ended then, ns since 1970.
    pub first: u64,
    /// The last ends then.
    pub until: u64,
    /// Whose they are ([`crate::device::format::holder`]).
    pub holder: u32,
}

/// All that a device holds of such.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// By file.
    pub files: HashMap<u64, OwedFile>,
    /// Owed pages whose content is damaged: perhaps no fsync of them was answered.
    pub damaged: u64,
    /// Keys are damaged that may have named more owed pages.
    pub hidden: bool,
}

impl Owed {
    /// A region's batches, in the order of the log. `damaged`: pages of content that are not what their keys say.
    pub(super) fn add(&mut self, link: &Link, batches: &[Batch], damaged: &[u32]) {
        for batch in batches {
            batch.others().iter().for_each(|record| self.note(record, link.filling.lap));
            for (at, record) in batch.pages_of_content() {
                let Record::Owed { object, page, crc } = *record else { continue };
                if damaged.binary_search(&at).is_ok() {
                    // What was durable before still counts.
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
            // Without pages there is nothing to be written.
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

    /// Keys are missing between what was added and what follows.
    pub(super) fn hole(&mut self) {
        self.hidden = true;
        self.files.values_mut().for_each(|file| file.doubtful = true);
    }

    /// All was added.
    pub(super) fn finish(mut self) -> Owed {
        self.files.retain(|_, file| !file.pages.is_empty());
        self
    }
}
