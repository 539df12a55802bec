//! Tests of the format of batches on a device: they round trip, damaged or foreign bytes are refused, and no
//! decoded slot is out of bounds.

use super::*;
use proptest::prelude::*;

const ID: TierId = TierId([7; 16]);

/// 256 cases, or PROPTEST_CASES.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..40u64, any::<u64>(), Just(u64::MAX)]
}

fn content() -> impl Strategy<Value = Record> {
    let page =
        (number(), number(), any::<u32>()).prop_map(|(object, page, crc)| Record::Page { object, page, crc });
    let undestaged = (number(), number(), any::<u32>()).prop_map(|(object, page, crc)| Record::Undestaged {
        object,
        page,
        crc,
    });
    prop_oneof![9 => page, 3 => undestaged, 1 => Just(Record::Void)]
}

fn other() -> impl Strategy<Value = Record> {
    let dead = (number(), number(), any::<u32>()).prop_map(|(object, first, count)| Record::Dead {
        object,
        first,
        count,
    });
    let intent = (number(), number(), any::<u32>()).prop_map(|(object, until, holder)| Record::WriteIntent {
        object,
        until,
        holder,
    });
    prop_oneof![
        dead,
        intent,
        (number(), number()).prop_map(|(object, digest)| Record::File { object, digest }),
        (number(), number()).prop_map(|(object, digest)| Record::BaseVersion { object, digest }),
        number().prop_map(|object| Record::DestageComplete { object }),
    ]
}

fn batches() -> impl Strategy<Value = Batch> {
    let records = (prop::collection::vec(content(), 0..255), prop::collection::vec(other(), 0..84));
    let filling = (1..=LAP_MAX, any::<prop::sample::Index>(), 0..5000u32, any::<bool>(), any::<bool>());
    (records, filling, 0..3840u32).prop_map(
        |((pages, others), (lap, older, pages_before, torn, first), at)| {
            let older = 1 + older.index(lap.min(1 << 60) as usize) as u64;
            let before =
                (!first && older < lap).then_some(PastFilling { lap: older, pages: pages_before, torn });
            let batch = |content: usize| Batch {
                filling: Filling { lap, before },
                oldest: older,
                at,
                content: content as u32,
                records: [&pages[..content], &others].concat(),
            };
            let room = content_max(others.len(), DeviceSlot::REGION_PAGES - at).expect("room for keys");
            batch(pages.len().min(room as usize))
        },
    )
}

fn geometry() -> Geometry {
    Geometry::new(16 << 20, 8).unwrap()
}

fn keys(batch: &Batch) -> Vec<u8> {
    let mut keys = vec![0xAA; batch.key_pages() as usize * PAGE_SIZE];
    batch.encode(ID, &mut keys);
    keys
}

/// Asserts that a decoded batch lies within its region.
fn bounded(batch: &Batch, geometry: Geometry) {
    assert!(batch.end() <= geometry.region_pages() && batch.pages() <= BATCH_PAGES_MAX);
    let slots = batch.pages_of_content().map(|(page, _)| DeviceSlot::new(7, page));
    assert!(slots.map(|slot| geometry.byte_of(slot)).all(|at| at + PAGE_SIZE as u64 <= geometry.bytes()));
    assert!(batch.others().iter().all(|record| !record.is_content()));
}

fn resealed(mut keys: Vec<u8>) -> Vec<u8> {
    let crc = crc_without_itself(&keys, 0);
    keys[..4].copy_from_slice(&crc.to_le_bytes());
    keys
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn batches_round_trip(batch in batches(), more in any::<bool>()) {
        let mut bytes = keys(&batch);
        if more {
            bytes.resize(KEY_PAGES_MAX as usize * PAGE_SIZE, 0x55);
        }
        prop_assert_eq!(Batch::decode(ID, geometry(), batch.at, &bytes), Some(batch.clone()));
        bounded(&batch, geometry());
        let (other, elsewhere) = (TierId([8; 16]), batch.at + 1);
        prop_assert_eq!(Batch::decode(other, geometry(), batch.at, &bytes), None);
        prop_assert_eq!(Batch::decode(ID, geometry(), elsewhere, &bytes), None);
        let small = Geometry::new(64 << 10, 8).unwrap();
        let fits = batch.end() <= small.region_pages();
        prop_assert_eq!(Batch::decode(ID, small, batch.at, &bytes).is_some(), fits);
    }

    #[test]
    fn any_flipped_bit_is_noticed(batch in batches(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let mut bytes = keys(&batch);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert_eq!(Batch::decode(ID, geometry(), batch.at, &bytes), None);
    }

    #[test]
    fn sealed_nonsense_stays_in_bounds(
        batch in batches(),
        changes in prop::collection::vec((24..200usize, any::<u8>()), 1..6),
        cut in 0..9000usize,
    ) {
        let mut bytes = keys(&batch);
        changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        let at = u32_at(&bytes, 48);
        for bytes in [resealed(bytes.clone()), resealed(bytes[..bytes.len().min(cut).max(HEAD)].to_vec())] {
            if let Some(batch) = Batch::decode(ID, geometry(), at, &bytes) {
                bounded(&batch, geometry());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_batch(bytes in prop::collection::vec(any::<u8>(), 0..9000), at in any::<u32>()) {
        prop_assert_eq!(Batch::decode(ID, geometry(), at, &bytes), None);
    }

    #[test]
    fn room_of_a_batch_is_all_there_is(others in 0..400usize, left in 0..300u32) {
        let fits = |content: u32| {
            let records = others + content as usize;
            records <= RECORDS_MAX && key_pages(records) + content <= left.min(BATCH_PAGES_MAX)
        };
        let most = (0..=BATCH_PAGES_MAX).rev().find(|content| fits(*content));
        prop_assert_eq!(content_max(others, left), most);
    }

    #[test]
    fn planned_regions_lie_on_their_target(bytes in prop_oneof![0..1u64 << 26, 0..1u64 << 50, any::<u64>()]) {
        match Geometry::plan(bytes) {
            Some(geometry) => {
                prop_assert!(geometry.bytes() <= bytes && geometry.region_bytes() >= 1 << 20);
                let unused = bytes - geometry.bytes() < geometry.region_bytes().into();
                prop_assert!(unused || geometry.regions() == DeviceSlot::REGIONS_MAX);
            }
            None => prop_assert!(bytes < 5 << 20),
        }
    }
}

#[test]
fn regions_grow_with_their_target() {
    let plan = |bytes: u64| {
        Geometry::plan(bytes).map(|geometry| (geometry.region_bytes() >> 20, geometry.regions()))
    };
    assert_eq!(plan((5 << 20) - 1), None);
    assert_eq!(plan(5 << 20), Some((1, 4)));
    assert_eq!(plan(64 << 20), Some((1, 63)));
    assert_eq!(plan((16 << 30) + DATA_AT), Some((16, 1024)));
    assert_eq!(plan(1 << 50), Some((16, DeviceSlot::REGIONS_MAX)));
}

#[test]
fn tiers_have_different_ids() {
    let (a, b) = (TierId::random().unwrap(), TierId::random().unwrap());
    assert_ne!(a, b);
    assert_eq!(ID.to_string(), "07070707-0707-0707-0707-070707070707");
}
