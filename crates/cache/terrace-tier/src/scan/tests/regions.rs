//! Scans of devices written by hand, one situation for each test.

use super::super::*;
use super::writer::{formatted, found};
use crate::format::Geometry;
use crate::superblock::{self, Source};
use crate::{FileMedium, SimMedium};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;
use terrace_io::testing::ShortCalls;
use terrace_io::{BlockingIo, Io, UringIo};

const FIRST: Filling = Filling { lap: 1 << 32, before: None };

fn content(of: u64) -> Vec<u8> {
    vec![of as u8 + 1; PAGE_SIZE]
}

/// A record of a page of file 1, with the content of `of`.
fn page(page: u64, of: u64) -> Record {
    Record::Page { object: 1, page, crc: crc(&content(of)) }
}

/// Writes a batch; the content of page i is that of `of[i]`. Returns the offset of the next batch.
fn put(medium: &dyn Medium, region: u32, at: u32, filling: Filling, records: &[Record], of: &[u64]) -> u32 {
    let superblock = superblock::find(medium).unwrap();
    let super::super::super::Found::Ours(superblock) = superblock else { panic!("{superblock:?}") };
    let batch = Batch { filling, oldest: 0, at, content: of.len() as u32, records: records.to_vec() };
    AlignedBuf::default().with(batch.pages() as usize * PAGE_SIZE, |bytes| {
        let (keys, pages) = bytes.split_at_mut(batch.key_pages() as usize * PAGE_SIZE);
        batch.encode(superblock.id, keys);
        of.iter().zip(pages.chunks_mut(PAGE_SIZE)).for_each(|(of, page)| page.copy_from_slice(&content(*of)));
        medium.write(superblock.geometry.byte(region, at), bytes).unwrap();
    });
    batch.end()
}

fn scanned(medium: &SimMedium) -> Scanned {
    scan(medium, &found(medium), &mut |_| {}).unwrap()
}

/// Pages of file 1, with region and page of their slots.
fn pages(scanned: &Scanned) -> Vec<(u64, u32, u32)> {
    let pages = scanned.files.get(&1).map_or(&[][..], |file| &file.pages);
    pages.iter().map(|(page, slot, _)| (*page, slot.region(), slot.page())).collect()
}

#[test]
fn later_keys_and_tombstones_count() {
    let medium = formatted();
    let at = put(&medium, 3, 0, FIRST, &[page(0, 0), page(1, 1), page(2, 2), page(7, 7)], &[0, 1, 2, 7]);
    // In time the tombstone and the identity are before the batch's own pages.
    let dead = Record::Dead { object: 1, first: 1, count: 2 };
    let file = |digest| Record::File { object: 1, digest };
    let end = put(&medium, 3, at, FIRST, &[page(1, 3), Record::Void, dead, file(5)], &[3, 9]);
    let second = FIRST.next(end);
    let last = put(&medium, 0, 0, second, &[page(0, 4), file(6)], &[4]);
    let scanned = scanned(&medium);
    assert_eq!(pages(&scanned), [(0, 0, 1), (1, 3, 6), (7, 3, 4)]);
    assert_eq!(scanned.files[&1].digest, Some(6));
    let regions: Vec<_> = scanned.regions.iter().map(|r| (r.region, r.lap, r.pages_used)).collect();
    assert_eq!(regions, [(3, 1 << 32, end), (0, (1 << 32) + 1, last)]);
    assert_eq!(scanned.next, Filling { lap: 1 << 32 | 2, before: second.next(last).before });
    let keys = region_keys(&medium, &found(&medium), scanned.regions[0]).unwrap();
    let slot = |page| DeviceSlot::new(3, page);
    assert_eq!(
        keys[4..],
        [(slot(5), dead), (slot(5), file(5)), (slot(6), page(1, 3)), (slot(7), Record::Void)]
    );
}

#[test]
fn keys_of_older_laps_behind_are_not_read() {
    let medium = formatted();
    let at = put(&medium, 2, 0, FIRST, &[page(0, 0)], &[0]);
    put(&medium, 2, at, FIRST, &[page(1, 1)], &[1]);
    put(&medium, 2, 0, FIRST.next(0), &[page(5, 5)], &[5]);
    assert_eq!(pages(&scanned(&medium)), [(5, 2, 1)]);
}

#[test]
fn batch_left_by_a_power_cut_never_counts_later() {
    let medium = formatted();
    let mut superblock = found(&medium);
    superblock::begin(&medium, &mut superblock, 2).unwrap();
    // The first batch of this filling was lost.
    let lost = scan(&medium, &superblock, &mut |_| {}).unwrap().next;
    put(&medium, 2, 2, lost, &[page(1, 1)], &[1]);
    let next = scanned(&medium).next;
    superblock::begin(&medium, &mut found(&medium), 2).unwrap();
    put(&medium, 2, 0, next, &[page(0, 0)], &[0]);
    assert_eq!(pages(&scanned(&medium)), [(0, 2, 1)]);
}

#[test]
fn damaged_page_is_left_out_after_a_clean_run_too() {
    let medium = formatted();
    superblock::begin(&medium, &mut found(&medium), 2).unwrap();
    put(&medium, 2, 0, FIRST, &[page(0, 0), page(1, 1)], &[0, 9]);
    let first = scanned(&medium);
    assert_eq!((pages(&first), first.pages_damaged), (vec![(0, 2, 1)], 1));
    // A run that writes no batch, and stops cleanly.
    let mut superblock = found(&medium);
    superblock::begin(&medium, &mut superblock, 3).unwrap();
    superblock::end(&medium, &mut superblock, 4).unwrap();
    assert_eq!(pages(&scanned(&medium)), [(0, 2, 1)]);
    // A run that continues behind it.
    let mut superblock = found(&medium);
    superblock::begin(&medium, &mut superblock, 5).unwrap();
    assert!(first.next.before.unwrap().torn);
    put(&medium, 3, 0, Filling { lap: 9 << 32, ..first.next }, &[page(7, 7)], &[7]);
    assert_eq!(pages(&scanned(&medium)), [(0, 2, 1), (7, 3, 1)]);
}

#[test]
fn clean_end_saves_the_reading_of_content() {
    let medium = formatted();
    let mut superblock = found(&medium);
    superblock::begin(&medium, &mut superblock, 2).unwrap();
    // Damaged content, which only reading detects.
    put(&medium, 2, 0, FIRST, &[page(0, 0), page(1, 1)], &[0, 9]);
    superblock::end(&medium, &mut superblock, 3).unwrap();
    assert_eq!(pages(&scanned(&medium)), [(0, 2, 1), (1, 2, 2)]);
}

#[test]
fn damaged_page_takes_its_older_key_along() {
    let medium = formatted();
    superblock::begin(&medium, &mut found(&medium), 2).unwrap();
    let end = put(&medium, 2, 0, FIRST, &[page(0, 0), page(1, 1), page(2, 2)], &[0, 1, 2]);
    // The first page has the older key's content, the second has not.
    put(&medium, 3, 0, FIRST.next(end), &[page(0, 0), page(1, 5)], &[9, 9]);
    let scanned = scanned(&medium);
    assert_eq!((pages(&scanned), scanned.damaged), (vec![(2, 2, 3)], vec![(1, 0), (1, 1)]));
}

#[test]
fn all_before_a_hole_is_given_up() {
    let medium = formatted();
    let end = put(&medium, 2, 0, FIRST, &[page(0, 0)], &[0]);
    let second = FIRST.next(end);
    let at = put(&medium, 3, 0, second, &[page(1, 1)], &[1]);
    let end = put(&medium, 3, at, second, &[Record::Dead { object: 1, first: 0, count: TO_THE_END }], &[]);
    put(&medium, 4, 0, second.next(end), &[page(2, 2)], &[2]);
    assert_eq!(pages(&scanned(&medium)), [(2, 4, 1)]);
    let at = found(&medium).geometry.byte(3, at);
    medium.flip_bit(at..at + PAGE_SIZE as u64, &mut terrace_testkit::rng::Rng::new(1));
    let scanned = scanned(&medium);
    assert_eq!(pages(&scanned), [(2, 4, 1)]);
    assert_eq!((scanned.regions.len(), scanned.regions_lost), (1, 2));
}

#[test]
fn truncated_image_and_dead_device_are_errors() {
    let medium = formatted();
    let superblock = found(&medium);
    let mut image = medium.content();
    image.truncate(image.len() - PAGE_SIZE);
    let short = SimMedium::with_content(image);
    let why = scan(&short, &superblock, &mut |_| {}).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::InvalidData);
    medium.set_hook(|_| Err(io::Error::from_raw_os_error(libc::EIO)));
    let why = scan(&medium, &superblock, &mut |_| {}).unwrap_err();
    assert_eq!(why.raw_os_error(), Some(libc::EIO));
    medium.clear_hook();
    let filled = FilledRegion { region: 2, lap: 1 << 32, pages_used: 2 };
    assert_eq!(region_keys(&medium, &superblock, filled).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

/// `regions` regions of `batches` batches each in a file. Their records fill both key pages.
fn large(regions: u32, region_bytes: u32, batches: u32) -> (std::fs::File, Superblock, u64) {
    let geometry = Geometry::new(region_bytes, regions).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(geometry.bytes()).unwrap();
    let source = Source { hash: 7, path: "/source".into() };
    let superblock = Superblock::new(source, geometry, 1).unwrap();
    let (mut filling, mut next) = (FIRST, 0);
    for region in (0..regions).rev() {
        let mut at = 0;
        for left in (1..=batches).rev() {
            let content = 200.min((geometry.region_pages() - at) / left - 2);
            let page = |i| Record::Page { object: i % 64, page: i / 64, crc: i as u32 };
            let mut records: Vec<Record> = (next..next + u64::from(content)).map(page).collect();
            records.resize(RECORDS, Record::File { object: 1, digest: next });
            next += u64::from(content);
            let batch = Batch { filling, oldest: 0, at, content, records };
            let mut keys = vec![0; 2 * PAGE_SIZE];
            batch.encode(superblock.id, &mut keys);
            file.write_all_at(&keys, geometry.byte(region, at)).unwrap();
            at = batch.end();
        }
        filling = filling.next(at);
    }
    (file, superblock, next)
}

const RECORDS: usize = 338;

/// `TERRACE_SCAN_REGIONS` regions of 16 MiB with 16 batches: prints the time of a scan.
#[test]
fn scan_reads_more_regions_than_one_window() {
    let regions = std::env::var("TERRACE_SCAN_REGIONS").ok().map(|n| n.parse().unwrap());
    let (file, superblock, pages) = match regions {
        Some(regions) => large(regions, 16 << 20, 16),
        None => large(200, 64 << 10, 2),
    };
    let kinds: [Arc<dyn Io>; 3] = [
        Arc::new(BlockingIo::default()),
        Arc::new(UringIo::new().unwrap()),
        Arc::new(UringIo::with_short_calls(ShortCalls::new(1, 300)).unwrap()),
    ];
    for io in kinds {
        let medium = FileMedium::new(file.as_raw_fd(), io, superblock.geometry.bytes());
        let mut superblock = superblock.clone();
        superblock::format(&medium, &mut superblock).unwrap();
        superblock::begin(&medium, &mut superblock, 2).unwrap();
        // The content of the newest region is missing.
        let (began, mut progress) = (Instant::now(), Vec::new());
        let scanned = scan(&medium, &superblock, &mut |done| progress.push(done)).unwrap();
        println!("{} regions, {pages} pages: {:?}", scanned.regions.len(), began.elapsed());
        assert!(
            progress.is_sorted() && progress.last() == Some(&superblock.geometry.regions()),
            "{progress:?}"
        );
        let found: usize = scanned.files.values().map(|file| file.pages.len()).sum();
        assert_eq!(found as u64 + scanned.pages_damaged, pages);
        assert!(scanned.pages_damaged > 0 && scanned.regions_lost == 0 && scanned.reads_failed == 0);
    }
}
