//! A minimal writer of a device that keeps the rules of the log, beside a model of the source with changing
//! pages and identities.

use super::super::*;
use crate::format::{Geometry, content_max};
use crate::superblock::{self, Source};
use crate::{Found, SimMedium};
use std::collections::{HashSet, VecDeque};
use terrace_testkit::rng::{Rng, mix};

pub(super) const OBJECTS: u64 = 4;
pub(super) const PAGES: u64 = 12;
const REGION_BYTES: u32 = 64 << 10;
const REGIONS: u32 = 6;

type Key = (u64, u64);

/// The files of the source: a version of each page, and an identity of each file that is unique to its state.
#[derive(Debug, Default)]
pub(super) struct Files {
    versions: HashMap<Key, u64>,
    states: HashMap<u64, u64>,
}

impl Files {
    pub(super) fn digest(&self, object: u64) -> u64 {
        self.states.get(&object).copied().unwrap_or(0)
    }
    pub(super) fn content(&self, (object, page): Key) -> Vec<u8> {
        let version = self.versions.get(&(object, page)).copied().unwrap_or(0);
        let mut word = mix(object << 48 ^ page << 32 ^ version);
        let mut content = Vec::with_capacity(PAGE_SIZE);
        while content.len() < PAGE_SIZE {
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
            content.extend_from_slice(&word.to_le_bytes());
        }
        content
    }
    /// Gives new content to a range of a file's pages.
    pub(super) fn change(&mut self, object: u64, pages: std::ops::Range<u64>) {
        *self.states.entry(object).or_default() += 1;
        for page in pages {
            *self.versions.entry((object, page)).or_default() += 1;
        }
    }
}

/// The writer's memory: lost in a power cut.
pub(super) struct Writer<'a> {
    pub(crate) medium: &'a SimMedium,
    pub(crate) superblock: Superblock,
    regions: VecDeque<FilledRegion>,
    free: VecDeque<u32>,
    next: Filling,
    /// Filling, region and pages used of the open region.
    open: Option<(Filling, u32, u32)>,
    /// Slots of the pages that may be read.
    pub(crate) index: HashMap<Key, DeviceSlot>,
    tombstones: Vec<Record>,
    /// Files with keys on the device that the start rejected.
    cold: HashSet<u64>,
    /// The identity recorded last, and its region.
    pub(crate) digests: HashMap<u64, (u64, u32)>,
    /// Index and identities at the last flush.
    pub(crate) flushed: (HashMap<Key, DeviceSlot>, HashMap<u64, (u64, u32)>),
    /// A write or flush failed: the writer stops.
    pub(crate) failed: bool,
}

pub(super) fn formatted() -> SimMedium {
    let geometry = Geometry::new(REGION_BYTES, REGIONS).unwrap();
    let medium = SimMedium::new(geometry.bytes());
    let source = Source { hash: 7, path: "/source".into() };
    let mut superblock = Superblock::new(source, geometry, 1).unwrap();
    superblock::format(&medium, &mut superblock).unwrap();
    medium
}

pub(super) fn found(medium: &SimMedium) -> Superblock {
    match superblock::find(medium).unwrap() {
        Found::Ours(superblock) => superblock,
        other => panic!("{other:?}"),
    }
}

impl<'a> Writer<'a> {
    /// The writer of a new run, from the result of a scan.
    pub(super) fn start(
        medium: &'a SimMedium,
        superblock: Superblock,
        scanned: Scanned,
        files: &Files,
    ) -> Writer<'a> {
        let used: HashSet<u32> = scanned.regions.iter().map(|filled| filled.region).collect();
        let believed = |object: &u64, file: &ScannedFile| file.digest == Some(files.digest(*object));
        let warm = scanned.files.iter().filter(|(object, file)| believed(object, file));
        let index: HashMap<Key, DeviceSlot> = warm
            .flat_map(|(object, file)| file.pages.iter().map(|(page, slot, _)| ((*object, *page), *slot)))
            .collect();
        let damaged = scanned.damaged.iter();
        let tombstones =
            damaged.map(|(object, page)| Record::Dead { object: *object, first: *page, count: 1 });
        let cold = scanned.files.iter().filter(|(object, file)| !believed(object, file));
        Writer {
            medium,
            superblock,
            free: (0..REGIONS).filter(|region| !used.contains(region)).collect(),
            regions: scanned.regions.iter().copied().collect(),
            next: scanned.next,
            open: None,
            cold: cold.map(|(object, _)| *object).collect(),
            digests: HashMap::new(),
            flushed: (HashMap::new(), HashMap::new()),
            index,
            tombstones: tombstones.collect(),
            failed: false,
        }
    }

    /// Changes the source through the cache, which kills the records of these pages.
    pub(super) fn change(&mut self, files: &mut Files, object: u64, pages: std::ops::Range<u64>) {
        files.change(object, pages.clone());
        let known = pages.clone().any(|page| self.index.remove(&(object, page)).is_some());
        pages.clone().for_each(|page| _ = self.index.remove(&(object, page)));
        if known {
            let count = if pages.end == PAGES { TO_THE_END } else { (pages.end - pages.start) as u32 };
            self.tombstones.push(Record::Dead { object, first: pages.start, count });
        }
    }

    pub(super) fn flush(&mut self) {
        if self.failed || self.medium.flush().is_err() {
            self.failed = true;
            return;
        }
        self.flushed = (self.index.clone(), self.digests.clone());
    }

    /// Frees the region filled first and forgets its pages. Returns some of them, to be written again.
    fn reclaim(&mut self, rng: &mut Rng) -> Vec<Key> {
        let filled = self.regions.pop_front().expect("a region to reclaim");
        // After damage the keys may be unreadable: the index names the pages as well.
        if let Ok(records) = region_keys(self.medium, &self.superblock, filled) {
            let slots: HashSet<u32> = records.iter().map(|(slot, _)| slot.page()).collect();
            let mut here = self.index.values().filter(|slot| slot.region() == filled.region);
            assert!(here.all(|slot| slots.contains(&slot.page())), "keys of region {}", filled.region);
        }
        self.digests.retain(|_, (_, region)| *region != filled.region);
        let here = self.index.extract_if(|_, slot| slot.region() == filled.region);
        let mut again: Vec<Key> = here.map(|(key, _)| key).collect();
        again.sort_unstable();
        again.retain(|_| rng.chance(30));
        self.zero(filled.region);
        self.free.push_back(filled.region);
        again
    }

    fn zero(&mut self, region: u32) {
        let at = self.superblock.geometry.byte(region, 0);
        self.write(at, &[0; PAGE_SIZE]);
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let written = AlignedBuf::default().with(bytes.len(), |buf| {
            buf.copy_from_slice(bytes);
            self.medium.write(at, buf)
        });
        self.failed |= written.is_err();
    }

    /// Opens the next region. Returns reclaimed pages to be written again.
    fn open(&mut self, rng: &mut Rng) -> Vec<Key> {
        if let Some((filling, region, pages_used)) = self.open.take() {
            self.regions.push_back(FilledRegion { region, lap: filling.lap, pages_used });
            self.next = filling.next(pages_used);
        }
        let mut again = Vec::new();
        while self.free.len() < 1 + rng.index(2) {
            again.extend(self.reclaim(rng));
        }
        let region = self.free.pop_front().expect("reclaimed above");
        self.zero(region);
        self.flush();
        self.open = Some((self.next, region, 0));
        again
    }

    /// Writes one batch: content of about these pages, all tombstones, and the identities of some files.
    pub(super) fn append(&mut self, files: &mut Files, mut keys: Vec<Key>, rng: &mut Rng) {
        let mut others = std::mem::take(&mut self.tombstones);
        for object in 0..OBJECTS {
            if rng.chance(30) {
                if self.cold.remove(&object) {
                    others.push(Record::Dead { object, first: 0, count: TO_THE_END });
                    self.index.retain(|(of, _), _| *of != object);
                }
                others.push(Record::File { object, digest: files.digest(object) });
            }
        }
        let pages = self.superblock.geometry.region_pages();
        let room = |open: Option<(Filling, u32, u32)>| {
            open.and_then(|open| content_max(others.len(), pages - open.2))
        };
        if room(self.open).is_none_or(|room| room < keys.len() as u32 && rng.chance(50)) {
            keys.extend(self.open(rng));
        }
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(room(self.open).expect("a new region has room") as usize);
        if !self.failed {
            self.append_in_open(files, &keys, others, rng);
        }
    }

    fn append_in_open(&mut self, files: &mut Files, keys: &[Key], others: Vec<Record>, rng: &mut Rng) {
        let (filling, region, at) = self.open.expect("opened");
        let (mut records, mut contents) = (Vec::new(), Vec::new());
        for key in keys {
            let content = files.content(*key);
            let (object, page) = *key;
            let changes = rng.chance(5);
            records.push(if changes {
                Record::Void
            } else {
                Record::Page { object, page, crc: crc(&content) }
            });
            contents.push(content);
            if changes {
                self.change(files, object, page..page + 1);
            }
        }
        records.extend(others);
        let oldest = self.regions.front().map_or(filling.lap, |filled| filled.lap);
        let batch = Batch { filling, oldest, at, content: keys.len() as u32, records };
        let mut bytes = vec![0; batch.key_pages() as usize * PAGE_SIZE];
        batch.encode(self.superblock.id, &mut bytes);
        bytes.extend(contents.concat());
        self.write(self.superblock.geometry.byte(region, at), &bytes);
        if self.failed {
            return;
        }
        self.open = Some((filling, region, batch.end()));
        for (page, record) in batch.pages_of_content() {
            if let Record::Page { object, page: of, .. } = *record {
                self.index.insert((object, of), DeviceSlot::new(region, page));
            }
        }
        for record in batch.others() {
            if let Record::File { object, digest } = *record {
                self.digests.insert(object, (digest, region));
            }
        }
        // The page changed after the copy, before the write returned.
        if let Some((object, page)) = keys.first().filter(|_| rng.chance(5)) {
            self.change(files, *object, *page..page + 1);
        }
    }
}
