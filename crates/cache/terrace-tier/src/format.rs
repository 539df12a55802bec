//! On-disk format of a target: a log of regions. Source: CacheLib's BlockCache (Berg et al., OSDI 2020). Here
//! the keys lie outside the content, so that programs read pages in place.
//!
//! ```text
//!   target:  superblock | superblock | unused | region 0 | region 1 | ...      regions begin at 1 MiB
//!   region:  batch | batch | ... | what an older filling left                  filled front to back
//!   batch:   1 or 2 pages of keys | n pages of content                         at most 256 pages: 1 MiB
//!   keys:    head, 64 bytes | records, 24 bytes each
//!
//!   head     0 crc32 of the key pages, this field 0    32 lap of the filling before      52 pages of that filling
//!            4 magic                                   40 oldest lap that counts         56 content pages (u16)
//!            8 id of the tier                          48 first page of the batch        58 records (u16)
//!           24 lap of this filling                        in its region                  60 flags: 1 = see `PastFilling::torn`
//!   record   0 object | 8 page, first page or digest | 16 crc or count | 20 kind          all little-endian
//! ```
//! The first n records describe the n pages of content, in order.
//!
//! **A record names its file by the engine's whole 64-bit number**, and therefore has 24 bytes instead of 16.
//! 16 bytes would need a table of short numbers on the device. That table would have to survive a power cut
//! together with the keys. The price is one more key page in a full batch: 0.4 % of the bytes written.
//!
//! **A head names the filling before its own.** A flipped bit in a key page hides all later batches of its
//! region. A hidden tombstone would revive dead pages. Each region records the length of the one before, so a
//! scan notices the hole. A head also names the oldest valid region. So the writer forgets a reclaimed region
//! at once, before its zeroed first page is durable.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use terrace_policy::device::log::REGIONS_MIN;
use terrace_shm::{DeviceSlot, PAGE_SIZE};

/// Where the first region begins, in bytes.
pub const DATA_AT: u64 = 1 << 20;
/// Largest batch, pages, with the key pages.
pub const BATCH_PAGES_MAX: u32 = 256;
/// Largest number of key pages of a batch.
pub const KEY_PAGES_MAX: u32 = 2;
/// Largest number of records of a batch.
pub const RECORDS_MAX: usize = records_in(KEY_PAGES_MAX);
/// Count in [`Record::Dead`] for all pages to the end of the file.
pub const TO_THE_END: u32 = u32::MAX;

const HEAD: usize = 64;
const RECORD: usize = 24;
const MAGIC: u32 = u32::from_le_bytes(*b"TRkb");
const TORN: u32 = 1;
/// Largest lap of a filling that a scan accepts: later fillings need higher laps.
const LAP_MAX: u64 = u64::MAX - (1 << 33);
/// Smallest and largest region of a target. ([`Geometry::plan`] makes none below 1 MiB.)
const REGION_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=16 << 20;
const PLANNED_BYTES_MIN: u64 = 1 << 20;
/// Usual number of regions of a smaller target. About three of them are open or free, and hold no pages.
const REGIONS_USUAL: u64 = 256;

const _: () =
    assert!(RECORDS_MAX >= BATCH_PAGES_MAX as usize && BATCH_PAGES_MAX as usize * PAGE_SIZE == 1 << 20);
const _: () = assert!(*REGION_BYTES.end() as usize == DeviceSlot::REGION_PAGES as usize * PAGE_SIZE);

const fn records_in(key_pages: u32) -> usize {
    (key_pages as usize * PAGE_SIZE - HEAD) / RECORD
}

/// Number of key pages of a batch with this many records.
pub const fn key_pages(records: usize) -> u32 {
    if records <= records_in(1) { 1 } else { 2 }
}

/// Largest number of content pages of a batch with `others` further records, and `pages_left` pages left in
/// its region. None: not even the other records fit.
pub fn content_max(others: usize, pages_left: u32) -> Option<u32> {
    let room = |keys: u32| {
        let pages = pages_left.min(BATCH_PAGES_MAX).checked_sub(keys)?;
        Some(pages.min(records_in(keys).checked_sub(others)? as u32))
    };
    room(1).max(room(2))
}

/// The checksum of a page of content.
pub fn crc(page: &[u8]) -> u32 {
    crc32fast::hash(page)
}

/// Identity of a tier, new with each format: batches of an earlier format are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TierId(pub [u8; 16]);

impl TierId {
    /// A new random identity.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn random() -> io::Result<TierId> {
        let mut id = [0; 16];
        let n = getrandom(&mut id[..], GetRandomFlags::empty())?;
        if n == id.len() { Ok(TierId(id)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl std::fmt::Display for TierId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let dash = if [4, 6, 8, 10].contains(&i) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Division of a target into regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    region_bytes: u32,
    regions: u32,
}

impl Geometry {
    /// `regions` regions of `region_bytes` bytes. None: invalid division.
    pub fn new(region_bytes: u32, regions: u32) -> Option<Geometry> {
        let sound = REGION_BYTES.contains(&region_bytes)
            && region_bytes.is_power_of_two()
            && (REGIONS_MIN..=DeviceSlot::REGIONS_MAX).contains(&regions);
        sound.then_some(Geometry { region_bytes, regions })
    }

    /// The best division of a target of `bytes` bytes: regions of 1 to 16 MiB. None: the target is too small.
    pub fn plan(bytes: u64) -> Option<Geometry> {
        let about = (bytes / REGIONS_USUAL).clamp(PLANNED_BYTES_MIN, (*REGION_BYTES.end()).into());
        let region_bytes = 1 << about.ilog2();
        let regions = bytes.checked_sub(DATA_AT)? / region_bytes;
        Geometry::new(region_bytes as u32, regions.min(DeviceSlot::REGIONS_MAX.into()) as u32)
    }

    /// The division after a resize to `bytes`, with regions of the same size. None: too small.
    pub fn resized(self, bytes: u64) -> Option<Geometry> {
        let regions = bytes.checked_sub(DATA_AT)? / u64::from(self.region_bytes);
        Geometry::new(self.region_bytes, u32::try_from(regions).ok()?)
    }
    /// Smallest possible size of the target, bytes.
    pub fn bytes_min(self) -> u64 {
        DATA_AT + u64::from(REGIONS_MIN) * u64::from(self.region_bytes)
    }

    /// Bytes of a region.
    pub fn region_bytes(self) -> u32 {
        self.region_bytes
    }
    /// Pages of a region.
    pub fn region_pages(self) -> u32 {
        self.region_bytes / PAGE_SIZE as u32
    }
    /// Number of regions.
    pub fn regions(self) -> u32 {
        self.regions
    }
    /// Bytes of the target to the end of the last region.
    pub fn bytes(self) -> u64 {
        DATA_AT + u64::from(self.region_bytes) * u64::from(self.regions)
    }
    /// Byte offset of page `page` of region `region`.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn byte(self, region: u32, page: u32) -> u64 {
        assert!(region < self.regions && page < self.region_pages(), "no page {page} of region {region}");
        DATA_AT + u64::from(region) * u64::from(self.region_bytes) + u64::from(page) * PAGE_SIZE as u64
    }
    /// Byte offset of a slot.
    ///
    /// # Panics
    /// If the target has no such slot.
    pub fn byte_of(self, slot: DeviceSlot) -> u64 {
        self.byte(slot.region(), slot.page())
    }
}

/// A record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A page of content.
    Page {
        /// The file.
        object: u64,
        /// The page index.
        page: u64,
        /// Checksum of the content ([`crc`]).
        crc: u32,
    },
    /// Placeholder for a page of content that changed while it was copied.
    Void,
    /// A tombstone: these pages in earlier batches are no longer the file's content.
    Dead {
        /// The file.
        object: u64,
        /// The first of the pages.
        first: u64,
        /// Number of pages; [`TO_THE_END`]: all that follow.
        count: u32,
    },
    /// The file's identity. At its time all earlier pages without a tombstone were the file's content.
    File {
        /// The file.
        object: u64,
        /// Digest of the file's identity and state.
        digest: u64,
    },
    /// An undestaged page: content that the source lacks (`scan/undestaged.rs`).
    Undestaged {
        /// The file.
        object: u64,
        /// The page index.
        page: u64,
        /// Checksum of the content ([`crc`]).
        crc: u32,
    },
    /// The file's identity, durable in the source. A replay writes the undestaged pages over this state.
    BaseVersion {
        /// The file.
        object: u64,
        /// Digest of the file's identity and state.
        digest: u64,
    },
    /// Until this time the run may change the file in the source, although the file has undestaged pages.
    WriteIntent {
        /// The file.
        object: u64,
        /// The time: ns since 1970.
        until: u64,
        /// Mark of the file and of the machine's boot ([`holder`]).
        holder: u32,
    },
    /// The source has all undestaged pages of the file durably.
    DestageComplete {
        /// The file.
        object: u64,
    },
}

/// Holder of a write intent: a mark of the machine's boot, and one of the file's birth.
pub fn holder(boot: u16, birth: u16) -> u32 {
    u32::from(boot) << 16 | u32::from(birth)
}

impl Record {
    pub(crate) fn is_content(&self) -> bool {
        matches!(self, Record::Page { .. } | Record::Void | Record::Undestaged { .. })
    }

    fn encode(&self, out: &mut [u8]) {
        let (object, second, third, kind) = match *self {
            Record::Page { object, page, crc } => (object, page, crc, 1),
            Record::Void => (0, 0, 0, 2),
            Record::Dead { object, first, count } => (object, first, count, 3),
            Record::File { object, digest } => (object, digest, 0, 4u32),
            Record::Undestaged { object, page, crc } => (object, page, crc, 5),
            Record::BaseVersion { object, digest } => (object, digest, 0, 6),
            Record::WriteIntent { object, until, holder } => (object, until, holder, 7),
            Record::DestageComplete { object } => (object, 0, 0, 8),
        };
        out[..8].copy_from_slice(&object.to_le_bytes());
        out[8..16].copy_from_slice(&second.to_le_bytes());
        out[16..20].copy_from_slice(&third.to_le_bytes());
        out[20..RECORD].copy_from_slice(&kind.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Record> {
        let (object, second, third) = (u64_at(bytes, 0), u64_at(bytes, 8), u32_at(bytes, 16));
        match u32_at(bytes, 20) {
            1 => Some(Record::Page { object, page: second, crc: third }),
            2 => Some(Record::Void),
            3 => Some(Record::Dead { object, first: second, count: third }),
            4 => Some(Record::File { object, digest: second }),
            5 => Some(Record::Undestaged { object, page: second, crc: third }),
            6 => Some(Record::BaseVersion { object, digest: second }),
            7 => Some(Record::WriteIntent { object, until: second, holder: third }),
            8 => Some(Record::DestageComplete { object }),
            _ => None,
        }
    }
}

/// The previous filling of the log, as recorded by a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastFilling {
    pub(crate) lap: u64,
    /// Pages of its batches.
    pub(crate) pages: u32,
    /// A power cut damaged some content pages: each scan reads and checks all of them.
    pub(crate) torn: bool,
}

/// One filling of one region, from its first to its last batch, with its place in the order of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling {
    /// Number of the filling, not 0. Later fillings have higher numbers, and none is used twice.
    pub lap: u64,
    /// The filling before it, if there is one.
    pub(crate) before: Option<PastFilling>,
}

impl Filling {
    /// The filling of the next region, after this one got `pages` pages of batches.
    pub(crate) fn next(&self, pages: u32) -> Filling {
        Filling { lap: self.lap + 1, before: Some(PastFilling { lap: self.lap, pages, torn: false }) }
    }
}

/// The keys of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The filling that the batch belongs to.
    pub filling: Filling,
    /// Lap of the oldest valid region: from this batch on, earlier regions are not valid.
    pub oldest: u64,
    /// First page, counted from the start of the region.
    pub at: u32,
    /// Number of content pages.
    pub content: u32,
    /// Records of the content pages first, then tombstones and identities, which are older than these pages.
    pub records: Vec<Record>,
}

impl Batch {
    /// Number of key pages: the content follows them.
    pub fn key_pages(&self) -> u32 {
        key_pages(self.records.len())
    }
    /// Number of key pages and content pages.
    pub fn pages(&self) -> u32 {
        self.key_pages() + self.content
    }
    /// The first page behind the batch, counted from the start of the region.
    pub fn end(&self) -> u32 {
        self.at + self.pages()
    }
    /// Records of the content, each with its page in the region.
    pub fn pages_of_content(&self) -> impl Iterator<Item = (u32, &Record)> {
        (self.at + self.key_pages()..).zip(&self.records[..self.content as usize])
    }
    /// The other records, which precede the batch's content in time.
    pub(crate) fn others(&self) -> &[Record] {
        &self.records[self.content as usize..]
    }

    /// Writes the key pages to `keys`.
    ///
    /// # Panics
    /// If `keys` has another length than the key pages, or the batch breaks the rules of the format.
    pub fn encode(&self, id: TierId, keys: &mut [u8]) {
        assert_eq!(keys.len(), self.key_pages() as usize * PAGE_SIZE, "key pages");
        assert!(self.is_sound(DeviceSlot::REGION_PAGES), "at {}, {} pages", self.at, self.content);
        let before = self.filling.before.unwrap_or(PastFilling { lap: 0, pages: 0, torn: false });
        keys.fill(0);
        keys[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        keys[8..24].copy_from_slice(&id.0);
        keys[24..32].copy_from_slice(&self.filling.lap.to_le_bytes());
        keys[32..40].copy_from_slice(&before.lap.to_le_bytes());
        keys[40..48].copy_from_slice(&self.oldest.to_le_bytes());
        keys[48..52].copy_from_slice(&self.at.to_le_bytes());
        keys[52..56].copy_from_slice(&before.pages.to_le_bytes());
        keys[56..58].copy_from_slice(&(self.content as u16).to_le_bytes());
        keys[58..60].copy_from_slice(&(self.records.len() as u16).to_le_bytes());
        keys[60..64].copy_from_slice(&(if before.torn { TORN } else { 0 }).to_le_bytes());
        for (record, out) in self.records.iter().zip(keys[HEAD..].chunks_mut(RECORD)) {
            record.encode(out);
        }
        let crc = crc(keys);
        keys[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the batch of tier `id` with keys from page `at` of a region on. `bytes`: the pages there,
    /// two or as many as the region has. None: no sound batch of this tier begins here.
    pub(crate) fn decode(id: TierId, geometry: Geometry, at: u32, bytes: &[u8]) -> Option<Batch> {
        let head = bytes.get(..HEAD)?;
        if u32_at(head, 4) != MAGIC || head[8..24] != id.0 || u32_at(head, 48) != at {
            return None;
        }
        let records = u16_at(head, 58).into();
        let keys = bytes.get(..key_pages(records) as usize * PAGE_SIZE)?;
        if records > RECORDS_MAX || crc_without_itself(keys, 0) != u32_at(head, 0) {
            return None;
        }
        let torn = u32_at(head, 60) & TORN != 0;
        let before = PastFilling { lap: u64_at(head, 32), pages: u32_at(head, 52), torn };
        let filling = Filling { lap: u64_at(head, 24), before: (before.lap != 0).then_some(before) };
        let oldest = u64_at(head, 40);
        let records = keys[HEAD..].chunks_exact(RECORD).take(records).map(Record::decode);
        let batch = Batch {
            filling,
            oldest,
            at,
            content: u16_at(head, 56).into(),
            records: records.collect::<Option<_>>()?,
        };
        batch.is_sound(geometry.region_pages()).then_some(batch)
    }

    /// Whether `bytes` begin like a batch of tier `id`, sound or not.
    pub(crate) fn begins(id: TierId, bytes: &[u8]) -> bool {
        bytes.len() >= HEAD && u32_at(bytes, 4) == MAGIC && bytes[8..24] == id.0
    }

    /// Whether the batch keeps the rules of the format, in a region of `region_pages` pages.
    fn is_sound(&self, region_pages: u32) -> bool {
        let filling = self.filling;
        self.records.len() <= RECORDS_MAX
            && self.content as usize <= self.records.len()
            && self.records[..self.content as usize].iter().all(Record::is_content)
            && !self.others().iter().any(Record::is_content)
            && self.pages() <= BATCH_PAGES_MAX
            && self.at <= region_pages
            && self.end() <= region_pages
            && (1..=LAP_MAX).contains(&filling.lap)
            && self.oldest <= filling.lap
            && filling.before.is_none_or(|before| 0 < before.lap && before.lap < filling.lap)
    }
}

/// The crc32 of `bytes`, with the four bytes of the checksum at `at` taken as 0.
pub(super) fn crc_without_itself(bytes: &[u8], at: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for part in [&bytes[..at], &[0; 4], &bytes[at + 4..]] {
        hasher.update(part);
    }
    hasher.finalize()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests;
