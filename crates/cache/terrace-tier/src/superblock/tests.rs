//! Tests of the superblock: round trips, damage, foreign targets, and power cuts over several runs.

use super::*;
use crate::SimMedium;
use proptest::prelude::*;
use terrace_testkit::rng::{Rng, seed};

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn superblock(path: &str) -> Superblock {
    let source = Source { hash: 7, path: path.into() };
    Superblock::new(source, Geometry::new(64 << 10, 4).unwrap(), 1).unwrap()
}

fn ours(found: Found) -> Superblock {
    match found {
        Found::Ours(superblock) => superblock,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn superblocks_round_trip(path in ".{0,300}", hash in any::<u64>(), clean in any::<bool>(), used in any::<u64>(), mark in 0..3usize) {
        let mut written = superblock(&path);
        (written.source.hash, written.clean, written.used, written.run) = (hash, clean, used, used >> 40);
        (written.boot, written.trusted_run) = (hash ^ used, used >> 41);
        written.undestaged = [UndestagedMark::Never, UndestagedMark::Destaged, UndestagedMark::Perhaps][mark];
        let read = ours(Superblock::decode(&written.encode()));
        prop_assert_eq!(written.source.path.len().min(PATH_MAX) - read.source.path.len() < 4, true);
        prop_assert!(written.source.path.starts_with(&read.source.path));
        written.source.path.clone_from(&read.source.path);
        prop_assert_eq!(read, written);
    }

    #[test]
    fn nonsense_is_refused(at in 0..PAGE_SIZE, byte in 1..=255u8, sealed in any::<bool>(), value in any::<u64>()) {
        let mut page = superblock("/source").encode();
        page[at] ^= byte;
        if sealed {
            page[64 + at % 16..72 + at % 16].copy_from_slice(&value.to_le_bytes());
            let crc = crc_without_itself(&page, CRC_AT);
            page[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        }
        match Superblock::decode(&page) {
            Found::Ours(read) => prop_assert!(sealed && Some(read.geometry) == Geometry::new(read.geometry.region_bytes(), read.geometry.regions())),
            Found::Foreign => prop_assert!(at < 8),
            Found::Layout(_) => prop_assert!(sealed && (8..12).contains(&at)),
            Found::Damaged => prop_assert!(at >= 8),
            Found::Empty => prop_assert!(false),
        }
    }

    #[test]
    fn arbitrary_bytes_are_not_ours(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        for bytes in [bytes.clone(), [&MAGIC, bytes.as_slice()].concat()] {
            prop_assert!(!matches!(Superblock::decode(&bytes), Found::Ours(_)));
        }
    }
}

#[test]
fn targets_are_distinguished() {
    let medium = SimMedium::new(2 << 20);
    assert_eq!(find(&medium).unwrap(), Found::Empty);
    let mut foreign = vec![0; 2 << 20];
    foreign[70_000] = 1; // A mark of btrfs.
    assert_eq!(find(&SimMedium::with_content(foreign)).unwrap(), Found::Foreign);
    let mut other = superblock("/source").encode();
    other[8] += 2;
    let crc = crc_without_itself(&other, CRC_AT);
    other[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    let other = [&other[..], &vec![0; 2 << 20]].concat();
    assert_eq!(find(&SimMedium::with_content(other)).unwrap(), Found::Layout(LAYOUT_UNDESTAGED + 1));
    let mut written = superblock("/source");
    format(&medium, &mut written).unwrap();
    assert_eq!(ours(find(&medium).unwrap()), written);
    let mut later = superblock("/other");
    format(&medium, &mut later).unwrap();
    assert_eq!(ours(find(&medium).unwrap()).id, later.id);
    let rng = &mut Rng::new(1);
    medium.flip_bit(100..4096, rng);
    assert_eq!(ours(find(&medium).unwrap()).id, later.id, "one copy is enough");
    medium.flip_bit(4200..8192, rng);
    assert_eq!(find(&medium).unwrap(), Found::Damaged);
    assert_eq!(format(&SimMedium::new(1 << 20), &mut later).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn damaged_copy_leaves_no_clean_target() {
    let medium = SimMedium::new(2 << 20);
    let mut superblock = superblock("/source");
    format(&medium, &mut superblock).unwrap();
    begin(&medium, &mut superblock, 2).unwrap();
    let laps = superblock.lap_base();
    end(&medium, &mut superblock, 3).unwrap();
    let found = ours(find(&medium).unwrap());
    assert!(found.clean && found.is_flushed(laps) && found.lap_base() > laps);
    medium.flip_bit(0..4096, &mut Rng::new(2));
    let found = ours(find(&medium).unwrap());
    assert!(!found.clean && found.lap_base() > laps, "{found:?}");
}

/// Runs with power cuts. A target is clean only after an end, and no two runs share laps.
#[test]
fn power_cuts_leave_one_sound_superblock() {
    let rng = &mut Rng::new(seed("power_cuts_leave_one_sound_superblock"));
    let medium = SimMedium::new(2 << 20);
    format(&medium, &mut superblock("/source")).unwrap();
    let mut laps = 0;
    for _ in 0..500 {
        let mut superblock = ours(find(&medium).unwrap());
        let calls = std::sync::atomic::AtomicU64::new(rng.below(12));
        medium.set_hook(move |_| {
            let left = calls.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            if left == 0 || left > 100 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
        });
        let begun = begin(&medium, &mut superblock, 2).is_ok();
        if begun {
            assert!(superblock.lap_base() > laps);
            laps = superblock.lap_base();
        }
        let ended = begun && rng.chance(50) && end(&medium, &mut superblock, 3).is_ok();
        let ending = superblock.clean;
        medium.clear_hook();
        medium.power_cut(rng);
        let found = ours(find(&medium).unwrap());
        assert!(!ended || found.clean && found.run == superblock.run);
        assert!(!begun || ending || !found.clean, "{found:?}");
    }
}

/// Identities of a run count after a clean end or within its boot.
#[test]
fn a_reboot_in_the_middle_of_a_run_voids_its_identities() {
    let medium = SimMedium::new(2 << 20);
    let mut superblock = superblock("/source");
    let mut trusts = |boot, ends_clean| {
        let before = superblock.run << LAP_BITS;
        superblock.begun = false;
        superblock.enter_boot(boot);
        let trusts = superblock.trusts(before);
        begin(&medium, &mut superblock, 0).unwrap();
        if ends_clean {
            end(&medium, &mut superblock, 0).unwrap();
        }
        superblock = ours(find(&medium).unwrap());
        trusts
    };
    let runs = [(1, true), (2, false), (2, false), (3, true), (4, false), (5, false)];
    assert_eq!(runs.map(|(boot, clean)| trusts(boot, clean)), [true, true, true, false, true, false]);
}
