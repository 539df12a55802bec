//! Scan of a device at a start, after a clean stop, a crash or a power cut.
//!
//! **Rules of the writer**, on which the scan rests:
//! 1. Regions are filled one after the other, and reclaimed in the order of their filling.
//! 2. The writer zeroes a region's first page, flushes all writes, and only then opens the region. So old
//!    keys are gone before new data come, and tombstones outlive the keys that they kill.
//! 3. A run never continues a region of an earlier run. Its first region gets [`Scanned::next`], each later
//!    one [`Filling::next`].
//! 4. A change of a page with a possible key queues a tombstone for the next batch. A page gets a new key
//!    only after all its tombstones. The reclaim of a region forgets its keys: the next batch records that
//!    ([`Batch::oldest`]), and the region's first page is zeroed.
//! 5. A file's identity follows the durable tombstones of all its outdated keys, or shares a batch with them.
//!    Keys rejected at a start (another digest, or none) count as outdated: one tombstone covers the whole
//!    file.
//! 6. [`super::superblock::begin`] has returned before the first batch of a run.
//!
//! **Validity of keys.** A key records the page's content at its time. By rules 4 and 5, keys without a
//! tombstone were the file's content at its last identity. If the file still has this identity, these keys
//! and later ones are valid. The rule holds for every prefix of the log: a power cut removes unflushed
//! batches from its end. It holds for every suffix: all tombstones of the remaining keys are there. It fails
//! across a hole. Heads record the length of the filling before. If that filling is missing or shorter, the
//! scan gives up everything before the hole.
//!
//! **The newest region** may be unflushed and incomplete. Keys count up to the first batch with damaged keys.
//! The scan reads and checks each page of content. It drops a damaged page together with the key that the
//! page replaces, even one of the same content. Otherwise the reclaim of the older region would later lose
//! the page's last key. Heads of a later run mark such a region ([`super::format::PastFilling::torn`]), and each scan
//! checks it again. A damaged page's key stays on the device, and a later read of the page may succeed. So a
//! damaged page without a later key gets a tombstone ([`Scanned::damaged`], rule 4).

mod undestaged;

use super::format::{Batch, Filling, KEY_PAGES_MAX, PastFilling, Record, TO_THE_END, crc};
use super::medium::{Medium, ReadPiece};
use super::superblock::{Superblock, UndestagedMark};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Bound::{Excluded, Included};
use terrace_io::{AlignedBuf, IoVec};
use terrace_shm::{DeviceSlot, PAGE_SIZE};

pub use undestaged::{Undestaged, UndestagedFile, WriteIntents};

/// Regions with keys in memory at a time (a full region of 16 MiB has up to 130 KiB of records).
const WINDOW: usize = 64;
/// Bytes read to find a batch's keys.
const KEYS_BYTES: usize = KEY_PAGES_MAX as usize * PAGE_SIZE;

/// A region with valid batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilledRegion {
    /// Number of the region.
    pub region: u32,
    /// Number of its filling.
    pub lap: u64,
    /// Pages of its batches.
    pub pages_used: u32,
}

/// Pages of one file on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScannedFile {
    /// The identity recorded last. If it is None, or not the file's identity now, the pages are not valid.
    pub digest: Option<u64>,
    /// Page index, slot and checksum of the content, sorted by page.
    pub pages: Vec<(u64, DeviceSlot, u32)>,
}

/// Content of a device.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// Regions in the order of their filling, the newest last. All others are free.
    pub regions: Vec<FilledRegion>,
    /// The filling of the next region; `next.lap` is the next lap.
    pub next: Filling,
    /// Files with pages on the device.
    pub files: HashMap<u64, ScannedFile>,
    /// Damaged pages of content.
    pub pages_damaged: u64,
    /// Damaged pages without a later key: file and page. The writer queues a tombstone for each, because a
    /// later start may read the outdated page.
    pub damaged: Vec<(u64, u64)>,
    /// Regions given up, because keys of them or of a later region are damaged.
    pub regions_lost: u32,
    /// Failed reads; their bytes count as damaged.
    pub reads_failed: u64,
    /// Pages that the source lacks.
    pub undestaged: Undestaged,
}

/// Finds the valid pages on a device. `superblock`: the device's own, or that of the run's begin. `progress`
/// gets the number of regions done, at intervals.
///
/// # Errors
/// `InvalidData` if the device is smaller than its superblock says; the device's error if all reads fail.
pub fn scan(
    medium: &dyn Medium,
    superblock: &Superblock,
    progress: &mut dyn FnMut(u32),
) -> io::Result<Scanned> {
    let geometry = superblock.geometry;
    if medium.bytes() < geometry.bytes() {
        let text = format!(
            "the tier has {} bytes, fewer than the {} of its superblock",
            medium.bytes(),
            geometry.bytes()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut keys = Keys::new(medium, superblock);
    let (found, oldest) = keys.first_heads();
    if let Some(why) = keys.only_errors() {
        return Err(why);
    }
    let oldest = keys.oldest(&found).max(oldest);
    let links = chain(&found, oldest, geometry.region_pages());
    let mut done = geometry.regions() - links.len() as u32;
    let (mut log, mut undestaged) = (Log::default(), Undestaged::default());
    let may_have_undestaged = superblock.undestaged == UndestagedMark::Perhaps;
    if may_have_undestaged {
        keys.undestaged_in_lost(&found, &links, oldest, &mut undestaged);
        let named = links.first().and_then(|link| link.filling.before);
        undestaged.hidden |= named.is_some_and(|before| before.lap >= oldest) || keys.heads_damaged > 0;
    }
    for window in links.chunks(WINDOW) {
        for (link, batches) in window.iter().zip(keys.of_regions(window)) {
            let checked = if link.torn || link.newest && !superblock.is_flushed(link.filling.lap) {
                keys.damaged_pages(link.region, &batches)
            } else {
                Vec::new()
            };
            let whole = log.add(link, &batches, &checked, superblock.trusts(link.filling.lap));
            if may_have_undestaged {
                if !whole {
                    undestaged.hole();
                }
                undestaged.add(link, &batches, &checked);
                undestaged.hidden |= link.newest && keys.continues_behind(link, &batches);
            }
        }
        done += window.len() as u32;
        progress(done);
    }
    let highest = found.iter().map(|(_, filling)| filling.lap).max().unwrap_or(0);
    let lap = superblock.lap_base().max(highest + 1);
    let regions_lost = (found.len() - log.regions.len()) as u32;
    Ok(log.finish(lap, regions_lost, keys.reads_failed, undestaged.finish()))
}

/// All records of a region to be reclaimed, in the order of writing, with the slots of the content pages.
/// Other records have the slot of their batch's first page.
///
/// # Errors
/// The device's; `InvalidData` if keys are damaged.
pub fn region_keys(
    medium: &dyn Medium,
    superblock: &Superblock,
    filled: FilledRegion,
) -> io::Result<Vec<(DeviceSlot, Record)>> {
    let mut keys = Keys::new(medium, superblock);
    let (mut records, mut at, mut filling) = (Vec::new(), 0, None);
    while at < filled.pages_used {
        let batch = keys.heads(&[(filled.region, at)]).pop().flatten();
        let Some(batch) = batch.filter(|batch| {
            batch.filling.lap == filled.lap
                && filling.is_none_or(|filling| filling == batch.filling)
                && batch.end() <= filled.pages_used
        }) else {
            let text = format!("the keys at page {at} are damaged");
            return Err(keys
                .only_errors()
                .unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidData, text)));
        };
        let slot = |page| DeviceSlot::new(filled.region, page);
        records.extend(batch.others().iter().map(|record| (slot(at), *record)));
        records.extend(batch.pages_of_content().map(|(page, record)| (slot(page), *record)));
        (at, filling) = (batch.end(), Some(batch.filling));
    }
    Ok(records)
}

#[derive(Debug)]
struct Link {
    region: u32,
    filling: Filling,
    /// Pages of its batches: an upper bound for the newest region, exact for others.
    pages: u32,
    torn: bool,
    newest: bool,
}

impl Link {
    fn newest(&(region, filling): &(u32, Filling), region_pages: u32) -> Link {
        Link { region, filling, pages: region_pages, torn: false, newest: true }
    }
}

/// Follows the heads from the newest region back to the oldest valid one. The result begins with the oldest.
fn chain(found: &[(u32, Filling)], oldest: u64, region_pages: u32) -> Vec<Link> {
    let by_lap: HashMap<u64, &(u32, Filling)> = found.iter().map(|one| (one.1.lap, one)).collect();
    let newest = found.iter().max_by_key(|(_, filling)| filling.lap);
    let mut links = Vec::new();
    let mut next = newest.map(|newest| Link::newest(newest, region_pages));
    while let Some(link) = next {
        next = link.filling.before.filter(|before| before.lap >= oldest).and_then(|before| {
            let (region, filling) = **by_lap.get(&before.lap)?;
            let pages = before.pages.min(region_pages);
            Some(Link { region, filling, pages, torn: before.torn, newest: false })
        });
        links.push(link);
    }
    links.reverse();
    links
}

/// Reads keys. Unreadable ones count as damaged.
struct Keys<'a> {
    medium: &'a dyn Medium,
    superblock: &'a Superblock,
    buf: AlignedBuf,
    reads: u64,
    reads_failed: u64,
    error: Option<io::Error>,
    /// Heads of this tier with damage.
    heads_damaged: u64,
}

/// Heads per batch of reads: 1 MiB.
const HEADS: usize = 128;

impl<'a> Keys<'a> {
    fn new(medium: &'a dyn Medium, superblock: &'a Superblock) -> Keys<'a> {
        let buf = AlignedBuf::default();
        Keys { medium, superblock, buf, reads: 0, reads_failed: 0, error: None, heads_damaged: 0 }
    }

    /// The last error, if all reads failed.
    fn only_errors(&mut self) -> Option<io::Error> {
        if self.reads == self.reads_failed { self.error.take() } else { None }
    }

    fn note(&mut self, read: io::Result<()>) -> bool {
        self.reads += 1;
        match read {
            Ok(()) => true,
            Err(why) => {
                self.reads_failed += 1;
                self.error = Some(why);
                false
            }
        }
    }

    /// The batches that begin at the given regions and pages; None where there is no sound one.
    fn heads(&mut self, wanted: &[(u32, u32)]) -> Vec<Option<Batch>> {
        let (id, geometry, medium) = (self.superblock.id, self.superblock.geometry, self.medium);
        let mut heads = Vec::with_capacity(wanted.len());
        let mut buf = std::mem::take(&mut self.buf);
        for wanted in wanted.chunks(HEADS) {
            buf.with(wanted.len() * KEYS_BYTES, |buf| {
                let piece = |(&(region, at), keys): (&(u32, u32), &mut [u8])| {
                    let len = ((geometry.region_pages() - at) as usize * PAGE_SIZE).min(keys.len());
                    ReadPiece::new(geometry.byte(region, at), vec![IoVec { ptr: keys.as_mut_ptr(), len }])
                };
                let mut pieces: Vec<_> = wanted.iter().zip(buf.chunks_mut(KEYS_BYTES)).map(piece).collect();
                // SAFETY: each piece lies in the buffer, which is borrowed for longer.
                unsafe { medium.read_batch(&mut pieces) };
                for ((piece, (_, at)), keys) in pieces.into_iter().zip(wanted).zip(buf.chunks(KEYS_BYTES)) {
                    let len = piece.bufs[0].len;
                    let read = self.note(piece.result);
                    let batch = Batch::decode(id, geometry, *at, &keys[..len]).filter(|_| read);
                    self.heads_damaged += u64::from(batch.is_none() && Batch::begins(id, &keys[..len]));
                    heads.push(batch);
                }
            });
        }
        self.buf = buf;
        heads
    }

    /// Regions that begin with a batch of this tier, and the highest [`Batch::oldest`] of these batches.
    fn first_heads(&mut self) -> (Vec<(u32, Filling)>, u64) {
        let (mut found, mut oldest) = (Vec::new(), 0);
        let regions: Vec<(u32, u32)> =
            (0..self.superblock.geometry.regions()).map(|region| (region, 0)).collect();
        for some in regions.chunks(HEADS) {
            for ((region, _), batch) in some.iter().zip(self.heads(some)) {
                let Some(batch) = batch else { continue };
                oldest = oldest.max(batch.oldest);
                found.push((*region, batch.filling));
            }
        }
        (found, oldest)
    }

    /// Adds undestaged pages of regions given up.
    fn undestaged_in_lost(
        &mut self,
        found: &[(u32, Filling)],
        links: &[Link],
        oldest: u64,
        undestaged: &mut Undestaged,
    ) {
        let counted: HashSet<u64> = links.iter().map(|link| link.filling.lap).collect();
        let pages = self.superblock.geometry.region_pages();
        let is_lost = |one: &&(u32, Filling)| one.1.lap >= oldest && !counted.contains(&one.1.lap);
        let mut lost: Vec<Link> = found
            .iter()
            .filter(is_lost)
            .map(|one| Link { newest: false, ..Link::newest(one, pages) })
            .collect();
        lost.sort_unstable_by_key(|link| link.filling.lap);
        for (link, batches) in lost.iter().zip(self.of_regions(&lost)) {
            undestaged.add(link, &batches, &[]);
            undestaged.hole();
        }
    }

    /// Whether the newest region has a damaged batch, which may have named undestaged pages. (A power cut
    /// during a write looks the same.)
    fn continues_behind(&mut self, link: &Link, batches: &[Batch]) -> bool {
        let (end, before) = (batches.last().map_or(0, Batch::end), self.heads_damaged);
        let places: Vec<(u32, u32)> = (end..link.pages).map(|page| (link.region, page)).collect();
        let heads = self.heads(&places);
        self.heads_damaged > before
            || heads.into_iter().flatten().any(|batch| batch.filling.lap == link.filling.lap)
    }

    /// The batches of these regions up to the first damaged one. Reads one batch of each region at a time.
    fn of_regions(&mut self, links: &[Link]) -> Vec<Vec<Batch>> {
        let mut batches: Vec<Vec<Batch>> = links.iter().map(|_| Vec::new()).collect();
        let mut open: Vec<(usize, u32)> = (0..links.len()).map(|i| (i, 0)).collect();
        loop {
            open.retain(|(i, at)| *at < links[*i].pages);
            if open.is_empty() {
                return batches;
            }
            let wanted: Vec<(u32, u32)> = open.iter().map(|(i, at)| (links[*i].region, *at)).collect();
            let heads = self.heads(&wanted);
            let continuing = open.iter().zip(heads).filter_map(|((i, _), batch)| {
                let batch = batch?;
                let end = batch.end();
                if batch.filling != links[*i].filling || end > links[*i].pages {
                    return None;
                }
                batches[*i].push(batch);
                Some((*i, end))
            });
            open = continuing.collect();
        }
    }

    /// Lap of the oldest valid region by the newest batch; 0 if unreadable. (With 0, regions reclaimed since
    /// the last readable batch count. Their keys still need the file's identity of that time. Regions given
    /// up by an earlier scan do not count: every later batch names the oldest region.)
    fn oldest(&mut self, found: &[(u32, Filling)]) -> u64 {
        let Some(newest) = found.iter().max_by_key(|(_, filling)| filling.lap) else { return 0 };
        let link = Link::newest(newest, self.superblock.geometry.region_pages());
        self.of_regions(&[link])[0].last().map_or(0, |batch| batch.oldest)
    }

    /// Content pages, counted from the start of the region, that do not match the checksums in their keys.
    fn damaged_pages(&mut self, region: u32, batches: &[Batch]) -> Vec<u32> {
        let mut damaged = Vec::new();
        let mut buf = AlignedBuf::default();
        for batch in batches.iter().filter(|batch| batch.content > 0) {
            buf.with(batch.content as usize * PAGE_SIZE, |buf| {
                let first = batch.at + batch.key_pages();
                let unread = self.read_content(region, first, buf);
                let pages = batch.pages_of_content().zip(buf.chunks(PAGE_SIZE));
                damaged.extend(pages.filter_map(|((page, record), content)| {
                    let (Record::Page { crc: recorded, .. } | Record::Undestaged { crc: recorded, .. }) =
                        *record
                    else {
                        return None;
                    };
                    (unread.contains(&page) || crc(content) != recorded).then_some(page)
                }));
            });
        }
        damaged
    }

    /// Reads adjacent pages of a region. Returns the unreadable ones.
    fn read_content(&mut self, region: u32, first: u32, buf: &mut [u8]) -> Vec<u32> {
        let (medium, geometry) = (self.medium, self.superblock.geometry);
        if self.note(medium.read(geometry.byte(region, first), buf)) {
            return Vec::new();
        }
        let mut one_by_one = (first..).zip(buf.chunks_mut(PAGE_SIZE));
        let mut unread = Vec::new();
        one_by_one.by_ref().for_each(|(page, content)| {
            if !self.note(medium.read(geometry.byte(region, page), content)) {
                unread.push(page);
            }
        });
        unread
    }
}

#[derive(Default)]
struct Log {
    pages: BTreeMap<(u64, u64), (DeviceSlot, u32)>,
    digests: HashMap<u64, u64>,
    regions: Vec<FilledRegion>,
    last: Option<PastFilling>,
    pages_damaged: u64,
    damaged: Vec<(u64, u64)>,
}

impl Log {
    /// Adds a region. False: there is a hole before it.
    fn add(&mut self, link: &Link, batches: &[Batch], damaged: &[u32], trusted: bool) -> bool {
        let named = link.filling.before.map(|before| (before.lap, before.pages));
        let first = self.last.is_none();
        let whole = self.last.map(|last| (last.lap, last.pages)) == named;
        if !whole {
            // A hole may have contained tombstones.
            *self = Log { pages_damaged: self.pages_damaged, ..Log::default() };
        }
        for batch in batches {
            self.add_batch(link.region, batch, damaged, trusted);
        }
        let pages = batches.last().map_or(0, Batch::end);
        self.last = Some(PastFilling { lap: link.filling.lap, pages, torn: !damaged.is_empty() });
        self.regions.push(FilledRegion { region: link.region, lap: link.filling.lap, pages_used: pages });
        self.pages_damaged += damaged.len() as u64;
        whole || first
    }

    fn add_batch(&mut self, region: u32, batch: &Batch, damaged: &[u32], trusted: bool) {
        for record in batch.others() {
            match *record {
                Record::Dead { object, first, count } => self.kill(object, first, count),
                Record::File { object, digest } if trusted => _ = self.digests.insert(object, digest),
                Record::File { .. } => {}
                // `Undestaged` collects these records.
                Record::BaseVersion { .. } | Record::WriteIntent { .. } | Record::DestageComplete { .. } => {}
                Record::Page { .. } | Record::Void | Record::Undestaged { .. } => {
                    unreachable!("decoding refuses it")
                }
            }
        }
        for (at, record) in batch.pages_of_content() {
            let Record::Page { object, page, crc } = *record else { continue };
            let key = (object, page);
            if damaged.binary_search(&at).is_err() {
                self.pages.insert(key, (DeviceSlot::new(region, at), crc));
            } else {
                self.pages.remove(&key);
                self.damaged.push(key);
            }
        }
    }

    fn kill(&mut self, object: u64, first: u64, count: u32) {
        let end = if count == TO_THE_END { None } else { first.checked_add(count.into()) };
        let dead = (
            Included((object, first)),
            end.map_or(Included((object, u64::MAX)), |end| Excluded((object, end))),
        );
        self.pages.extract_if(dead, |_, _| true).for_each(drop);
    }

    fn finish(mut self, lap: u64, regions_lost: u32, reads_failed: u64, undestaged: Undestaged) -> Scanned {
        self.damaged.retain(|key| !self.pages.contains_key(key));
        let mut files: HashMap<u64, ScannedFile> = HashMap::new();
        for ((object, page), (slot, crc)) in self.pages {
            let new = || ScannedFile { digest: self.digests.get(&object).copied(), pages: Vec::new() };
            files.entry(object).or_insert_with(new).pages.push((page, slot, crc));
        }
        let next = Filling { lap, before: self.last };
        let Log { regions, pages_damaged, damaged, .. } = self;
        Scanned { regions, next, files, pages_damaged, damaged, regions_lost, reads_failed, undestaged }
    }
}

#[cfg(test)]
mod tests;
