//! Scans of a device after power cuts at random times: each valid page must have the content of the source.

use super::super::*;
use super::writer::{Files, OBJECTS, PAGES, Writer, formatted, found};
use crate::superblock;
use crate::{Geometry, SimCall, SimMedium};
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_testkit::rng::{Rng, mix, seed};

/// Rounds on one device, one after the other.
const ROUNDS_OF_A_LIFE: u64 = 25;

/// Faults beside power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// Bits of the device flip.
    Flips,
    /// Some reads of scans fail, and some writes.
    Errors,
}

/// Pages accepted as valid, in all rounds.
#[derive(Debug, Default)]
struct Believed {
    pages: u64,
    damaged: u64,
    lost: u64,
}

/// Every valid page is the content of the source now. With flips, the page's checksum may refuse it.
fn check(medium: &SimMedium, scanned: &Scanned, files: &Files, geometry: Geometry, trouble: Trouble) -> u64 {
    let device = medium.content();
    let mut pages = 0;
    for (object, file) in &scanned.files {
        if file.digest != Some(files.digest(*object)) {
            continue;
        }
        assert!(file.pages.is_sorted_by(|a, b| a.0 < b.0));
        for (page, slot, recorded) in &file.pages {
            let content = &device[geometry.byte_of(*slot) as usize..][..PAGE_SIZE];
            if trouble != Trouble::None && crc(content) != *recorded {
                continue;
            }
            assert!(
                content == files.content((*object, *page)),
                "page {page} of {object} at {slot:?} is not its content"
            );
            pages += 1;
        }
    }
    pages
}

/// A scan finds flushed, valid pages if their file's identity was flushed, too. Exception: a later key of the
/// page is damaged.
fn check_warmth(scanned: &Scanned, writer: &Writer<'_>, files: &Files) {
    let (index, digests) = &writer.flushed;
    for ((object, page), slot) in index {
        let recorded = digests.get(object).filter(|recorded| writer.digests.get(object) == Some(recorded));
        let warm = recorded.is_some_and(|(digest, _)| *digest == files.digest(*object));
        let torn = scanned.damaged.contains(&(*object, *page));
        if warm && !torn && writer.index.contains_key(&(*object, *page)) {
            let file = scanned.files.get(object);
            let has = |file: &ScannedFile| file.pages.iter().any(|(of, ..)| of == page);
            assert!(
                file.is_some_and(has),
                "page {page} of {object} at {slot:?} was flushed: {:?}",
                scanned.regions
            );
            assert_eq!(file.unwrap().digest, Some(files.digest(*object)), "{object}");
        }
    }
}

fn step(writer: &mut Writer<'_>, files: &mut Files, rng: &mut Rng) {
    let object = rng.below(OBJECTS);
    match rng.below(20) {
        0..8 => {
            let keys = (0..rng.below(7)).map(|_| (rng.below(OBJECTS), rng.below(PAGES)));
            writer.append(files, keys.collect(), rng);
        }
        8..10 => {
            let first = rng.below(PAGES);
            writer.append(files, (first..PAGES).map(|page| (object, page)).collect(), rng);
        }
        10..12 => writer.flush(),
        12 => writer.change(files, object, rng.below(PAGES)..PAGES),
        13..16 => {
            let first = rng.below(PAGES);
            writer.change(files, object, first..(first + 1 + rng.below(3)).min(PAGES));
        }
        _ => {}
    }
}

fn fail_some(medium: &SimMedium, seed: u64, reads_per_mille: u64, writes_per_mille: u64) {
    let calls = AtomicU64::new(seed);
    medium.set_hook(move |call| {
        let rate = if matches!(call, SimCall::Read { .. }) { reads_per_mille } else { writes_per_mille };
        let strikes = mix(calls.fetch_add(1, Ordering::Relaxed)) % 1000 < rate;
        if strikes { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    });
}

/// The writer stops, cleanly or in the middle of a write.
fn stop(mut writer: Writer<'_>, files: &mut Files, rng: &mut Rng, trouble: Trouble, believed: &mut Believed) {
    let (medium, geometry) = (writer.medium, writer.superblock.geometry);
    let (clean, kill) = (rng.chance(20), rng.chance(10));
    if clean {
        writer.flush();
        if !writer.failed {
            superblock::end(medium, &mut writer.superblock, 3).unwrap();
        }
    } else if !kill {
        medium.power_cut(rng);
    }
    if trouble == Trouble::Flips && rng.chance(50) {
        let region = rng.below(geometry.regions().into()) as u32;
        let whole = rng.chance(30);
        for _ in 0..4 {
            let page = if whole { 0 } else { 1 + rng.below(geometry.region_pages() as u64 - 1) };
            let at = geometry.byte(region, page as u32);
            medium.flip_bit(at..at + PAGE_SIZE as u64, rng);
        }
    }
    if trouble == Trouble::None {
        let scanned = scan(medium, &found(medium), &mut |_| {}).unwrap();
        check_warmth(&scanned, &writer, files);
        assert!(!clean || scanned.regions_lost == 0, "{scanned:?}");
        believed.damaged += scanned.pages_damaged;
    }
    if rng.chance(20) {
        files.change(rng.below(OBJECTS), 0..PAGES);
    }
}

/// One device from its format on, over several runs.
fn life(seed: u64, rounds: u64, trouble: Trouble, believed: &mut Believed) {
    let rng = &mut Rng::new(seed);
    let (medium, mut files) = (formatted(), Files::default());
    for _ in 0..rounds {
        let mut superblock = found(&medium);
        if rng.chance(30) {
            superblock::begin(&medium, &mut superblock, 2).unwrap();
        }
        if trouble == Trouble::Errors && rng.chance(30) {
            fail_some(&medium, rng.next_u64(), 50, 0);
        }
        let mut done = 0;
        let scanned = scan(&medium, &superblock, &mut |regions| done = regions);
        medium.clear_hook();
        let Ok(scanned) = scanned else { continue };
        assert!(scanned.regions.is_empty() || done == superblock.geometry.regions());
        believed.pages += check(&medium, &scanned, &files, superblock.geometry, trouble);
        believed.lost += u64::from(scanned.regions_lost);
        superblock::begin(&medium, &mut superblock, 2).unwrap();
        let mut writer = Writer::start(&medium, superblock, scanned, &files);
        if trouble == Trouble::Errors && rng.chance(50) {
            fail_some(&medium, rng.next_u64(), 0, 20);
        }
        for _ in 0..rng.below(40) {
            step(&mut writer, &mut files, rng);
        }
        medium.clear_hook();
        stop(writer, &mut files, rng, trouble, believed);
    }
}

/// Runs `TERRACE_POWER_CUTS` rounds. Default: 10,000 over all tests of this file; in a soak, in each of them.
fn lives(name: &str, trouble: Trouble) -> Believed {
    let usual = if std::env::var_os("TERRACE_SOAK").is_some() { 10_000 } else { 3400 };
    let rounds: u64 = std::env::var("TERRACE_POWER_CUTS").map_or(usual, |n| n.parse().expect("a number"));
    let mut seeds = Rng::new(seed(name));
    let mut believed = Believed::default();
    for _ in 0..rounds.div_ceil(ROUNDS_OF_A_LIFE) {
        let seed = seeds.next_u64();
        let run = std::panic::AssertUnwindSafe(|| life(seed, ROUNDS_OF_A_LIFE, trouble, &mut believed));
        if let Err(why) = std::panic::catch_unwind(run) {
            println!("{name}: the life of seed {seed}");
            std::panic::resume_unwind(why);
        }
    }
    println!("{name}: {rounds} rounds, {believed:?}");
    believed
}

#[test]
fn power_cuts_leave_only_valid_pages() {
    let believed = lives("power_cuts_leave_only_valid_pages", Trouble::None);
    assert!(believed.pages > 1000 && believed.damaged > 10, "{believed:?}");
}

#[test]
fn flipped_bits_bring_back_no_stale_page() {
    let believed = lives("flipped_bits_bring_back_no_stale_page", Trouble::Flips);
    assert!(believed.pages > 500 && believed.lost > 10, "{believed:?}");
}

/// A start fails to read a page (in one case with an older key of the same content), or a region's keys. Then
/// the page changes, and the file's new identity is recorded.
#[test]
fn failed_read_of_a_start_brings_back_no_stale_page() {
    for seed in [16525238721193464334, 2497973756372081834, 18310230027719256210] {
        life(seed, ROUNDS_OF_A_LIFE, Trouble::Errors, &mut Believed::default());
    }
}

#[test]
fn failing_calls_bring_back_no_stale_page() {
    let believed = lives("failing_calls_bring_back_no_stale_page", Trouble::Errors);
    assert!(believed.pages > 500, "{believed:?}");
}
