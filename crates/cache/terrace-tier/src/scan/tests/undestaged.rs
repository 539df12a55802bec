//! Scans after a power cut find all undestaged pages: content that is durable on the device only. Where keys
//! are damaged, the scan reports that undestaged pages may be missing (`Undestaged::hidden`).

use super::super::*;
use super::writer::{formatted, found};
use crate::SimMedium;
use crate::superblock::{self, UndestagedMark};
use proptest::prelude::*;
use std::collections::BTreeSet;
use terrace_testkit::rng::{Rng, seed};

const OBJECTS: u64 = 3;
const PAGES: u64 = 6;
const REGIONS: u32 = 6;

type Key = (u64, u64);

/// Undestaged pages: file and page, and a word of the content.
type PageMap = BTreeMap<Key, u64>;

fn content(of: u64) -> Vec<u8> {
    of.to_le_bytes().repeat(PAGE_SIZE / 8)
}

/// A writer that never reclaims. It notes its pages after each batch, and the number of flushed batches.
struct Writer<'a> {
    medium: &'a SimMedium,
    superblock: Superblock,
    filling: Filling,
    region: u32,
    at: u32,
    next: u64,
    maps: Vec<PageMap>,
    /// The same between the batch's records and its pages.
    complete: Vec<PageMap>,
    flushed: usize,
    /// Region and page of each batch.
    places: Vec<(u32, u32)>,
}

impl<'a> Writer<'a> {
    fn new(medium: &'a SimMedium) -> Writer<'a> {
        let mut superblock = found(medium);
        superblock.undestaged = UndestagedMark::Perhaps;
        superblock::begin(medium, &mut superblock, 2).unwrap();
        let filling = Filling { lap: superblock.lap_base(), before: None };
        let (maps, complete, places) = (vec![PageMap::new()], vec![PageMap::new()], Vec::new());
        Writer { medium, superblock, filling, region: 0, at: 0, next: 1, maps, complete, flushed: 0, places }
    }
    fn flush(&mut self) {
        self.medium.flush().unwrap();
        self.flushed = self.maps.len() - 1;
    }
    /// Opens the next region if this one has no room. False: no region is left.
    fn make_room(&mut self, pages: u32) -> bool {
        if self.at + pages <= self.superblock.geometry.region_pages() {
            return true;
        }
        if self.region + 1 == REGIONS {
            return false;
        }
        self.filling = self.filling.next(self.at);
        (self.region, self.at) = (self.region + 1, 0);
        self.flush();
        true
    }
    fn put(&mut self, others: Vec<Record>, undestaged: &[Key], clean: &[Key]) -> bool {
        if !self.make_room(1 + (undestaged.len() + clean.len()) as u32) {
            return false;
        }
        let mut maps = self.maps.last().unwrap().clone();
        for other in &others {
            if let Record::DestageComplete { object } = other {
                maps.retain(|(of, _), _| of != object);
            }
        }
        // Destaged pages stay so even if the batch's own pages do not arrive.
        let complete = maps.clone();
        let (mut records, mut contents) = (Vec::new(), Vec::new());
        for (n, (object, page)) in undestaged.iter().chain(clean).copied().enumerate() {
            let bytes = content(self.next);
            let crc = crc(&bytes);
            records.push(match n < undestaged.len() {
                true => Record::Undestaged { object, page, crc },
                false => Record::Page { object, page, crc },
            });
            if n < undestaged.len() {
                maps.insert((object, page), self.next);
            }
            contents.extend(bytes);
            self.next += 1;
        }
        let pages = records.len() as u32;
        records.extend(others);
        let batch = Batch { filling: self.filling, oldest: 0, at: self.at, content: pages, records };
        AlignedBuf::default().with(batch.pages() as usize * PAGE_SIZE, |bytes| {
            let (keys, rest) = bytes.split_at_mut(PAGE_SIZE);
            batch.encode(self.superblock.id, keys);
            rest.copy_from_slice(&contents);
            self.medium.write(self.superblock.geometry.byte(self.region, self.at), bytes).unwrap();
        });
        self.places.push((self.region, self.at));
        self.at = batch.end();
        self.maps.push(maps);
        self.complete.push(complete);
        true
    }
    /// A random batch, or a flush.
    fn step(&mut self, rng: &mut Rng) -> bool {
        if rng.chance(30) {
            self.flush();
            return true;
        }
        let mut keys: Vec<Key> = (0..rng.below(5)).map(|_| (rng.below(OBJECTS), rng.below(PAGES))).collect();
        keys.sort_unstable();
        keys.dedup();
        let object = rng.below(OBJECTS);
        let mut others = Vec::new();
        if rng.chance(25) {
            others.push(Record::DestageComplete { object });
        }
        // None of these records destages a page.
        if rng.chance(20) {
            others.push(Record::Dead { object, first: 0, count: TO_THE_END });
        }
        if rng.chance(20) {
            others.push(Record::File { object, digest: 1 });
        }
        let (undestaged, clean) = keys.split_at(rng.index(keys.len() + 1));
        let files: BTreeSet<u64> = undestaged.iter().map(|(object, _)| *object).collect();
        others
            .extend(files.iter().map(|object| Record::BaseVersion { object: *object, digest: *object + 7 }));
        self.put(others, undestaged, clean)
    }
}

fn look(medium: &SimMedium) -> Undestaged {
    scan(medium, &found(medium), &mut |_| {}).unwrap().undestaged
}

/// Undestaged pages that the scan lists, with the word of the content on the device.
fn listed(medium: &SimMedium, undestaged: &Undestaged) -> PageMap {
    let (bytes, geometry) = (medium.content(), found(medium).geometry);
    let word = |slot: &DeviceSlot, recorded: u32| {
        let content = &bytes[geometry.byte_of(*slot) as usize..][..PAGE_SIZE];
        assert_eq!(crc(content), recorded, "{slot:?}");
        u64::from_le_bytes(content[..8].try_into().unwrap())
    };
    let of = |(object, file): (&u64, &UndestagedFile)| {
        let object = *object;
        file.pages.iter().map(move |(page, (slot, crc))| ((object, *page), (*slot, *crc))).collect::<Vec<_>>()
    };
    undestaged.files.iter().flat_map(of).map(|(key, (slot, crc))| (key, word(&slot, crc))).collect()
}

/// A life that ends with a power cut. Each listed page was undestaged, with this content, at some moment
/// since the last flush. Each page undestaged at all these moments is listed.
fn life(seed: u64) {
    let rng = &mut Rng::new(seed);
    let medium = formatted();
    let mut writer = Writer::new(&medium);
    for _ in 0..rng.below(60) {
        if !writer.step(rng) {
            break;
        }
    }
    let flushed = writer.flushed;
    let since = [&writer.maps[flushed..], &writer.complete[flushed + 1..]].concat();
    medium.power_cut(rng);
    let undestaged = look(&medium);
    let listed = listed(&medium, &undestaged);
    let keys: BTreeSet<Key> = since.iter().flat_map(|maps| maps.keys().copied()).collect();
    assert!(listed.keys().all(|key| keys.contains(key)), "seed {seed}: {listed:?} since batch {flushed}");
    for key in keys {
        let may_be: Vec<Option<u64>> = since.iter().map(|maps| maps.get(&key).copied()).collect();
        assert!(
            may_be.contains(&listed.get(&key).copied()),
            "seed {seed}: {key:?} of {may_be:?}: {listed:?}"
        );
    }
    let bases = undestaged.files.iter().map(|(object, file)| file.base_version == Some(*object + 7));
    assert!(bases.into_iter().all(|known| known), "seed {seed}: {undestaged:?}");
    assert!(undestaged.files.values().all(|file| !file.doubtful), "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn power_cut_keeps_undestaged_pages(seed in any::<u64>()) {
        life(seed);
    }
}

#[test]
fn only_a_destage_complete_record_ends_undestaged_pages() {
    let medium = formatted();
    let mut writer = Writer::new(&medium);
    let base = |object| Record::BaseVersion { object, digest: 5 };
    writer.put(vec![base(1), base(2)], &[(1, 0), (1, 1), (2, 0)], &[]);
    let intent = Record::WriteIntent { object: 1, until: 9, holder: 4 };
    let dead = Record::Dead { object: 1, first: 0, count: TO_THE_END };
    let earlier = Record::WriteIntent { object: 1, until: 8, holder: 4 };
    writer.put(vec![earlier, intent, dead, Record::File { object: 1, digest: 6 }], &[], &[(1, 0)]);
    writer.put(vec![Record::DestageComplete { object: 2 }], &[(1, 1)], &[]);
    let undestaged = look(&medium);
    assert_eq!(listed(&medium, &undestaged), PageMap::from([((1, 0), 1), ((1, 1), 5)]));
    let file = &undestaged.files[&1];
    assert_eq!(
        (file.base_version, file.intents, file.doubtful),
        (Some(5), Some(WriteIntents { first: 8, until: 9, holder: 4 }), false)
    );
    assert_eq!((file.since, undestaged.hidden, undestaged.damaged), (writer.filling.lap, false, 0));
}

/// The scan searches for undestaged pages only if the superblock says that there may be some.
#[test]
fn target_without_undestaged_pages_is_not_searched() {
    let medium = formatted();
    let mut writer = Writer::new(&medium);
    writer.put(vec![Record::BaseVersion { object: 1, digest: 5 }], &[(1, 0)], &[]);
    writer.superblock.undestaged = UndestagedMark::Destaged;
    superblock::end(&medium, &mut writer.superblock, 3).unwrap();
    assert_eq!(look(&medium), Undestaged::default());
}

#[test]
fn damaged_keys_of_undestaged_pages_are_reported() {
    for behind in 0..8 {
        let medium = formatted();
        let mut writer = Writer::new(&medium);
        // Each batch takes half a region.
        for page in 0..8 {
            let keys: Vec<Key> = (0..7).map(|_| (1, page)).collect();
            writer.put(vec![Record::BaseVersion { object: 1, digest: 5 }], &keys, &[]);
        }
        writer.flush();
        let (region, at) = writer.places[behind];
        let at = writer.superblock.geometry.byte(region, at);
        // Behind the bytes that mark the beginning of a batch.
        medium.flip_bit(at + 24..at + 100, &mut Rng::new(seed("damaged_keys") + behind as u64));
        let undestaged = look(&medium);
        assert!(undestaged.hidden, "batch {behind}: {undestaged:?}");
        let found: BTreeSet<u64> =
            undestaged.files.values().flat_map(|file| file.pages.keys().copied()).collect();
        // The batches behind the damaged one cannot be reached within its region.
        let lost: BTreeSet<u64> = match behind % 2 {
            0 => [behind as u64, behind as u64 + 1].into(),
            _ => [behind as u64].into(),
        };
        assert!((0..8).all(|page| found.contains(&page) != lost.contains(&page)), "{behind}: {found:?}");
        let doubtful = undestaged.files[&1].doubtful;
        assert_eq!(doubtful, (2..6).contains(&behind) || behind == 1, "batch {behind}");
    }
}

#[test]
fn damaged_undestaged_page_is_replaced_by_the_older_version() {
    let medium = formatted();
    let mut writer = Writer::new(&medium);
    writer.put(vec![Record::BaseVersion { object: 1, digest: 5 }], &[(1, 0)], &[]);
    writer.put(Vec::new(), &[(1, 0), (1, 2)], &[]);
    let at = writer.superblock.geometry.byte(0, writer.at - 2);
    medium.flip_bit(at..at + 2 * PAGE_SIZE as u64, &mut Rng::new(seed("damaged_page")));
    let undestaged = look(&medium);
    let found = listed(&medium, &undestaged);
    assert_eq!(undestaged.damaged, 1);
    assert!(
        found == PageMap::from([((1, 0), 1), ((1, 2), 3)]) || found == PageMap::from([((1, 0), 2)]),
        "{found:?}"
    );
}
