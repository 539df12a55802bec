//! Tests of the heap's allocator: random claims and releases against a model, retired room, and rebuilds.

use super::*;
use std::collections::HashMap;
use terrace_testkit::rng::{Rng, seed};

fn sizes(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(200),
        1 => rng.below(2100),
        2 => rng.below(20_000),
        _ => rng.below(5) * 4096,
    }
}

/// Units of the extent for a blob of `bytes`.
fn units_for(bytes: u64) -> u32 {
    match slabs::class_of(bytes) {
        _ if bytes == 0 => 0,
        Some(class) => slabs::units_of(class),
        None => (bytes.div_ceil(PAGE) * PAGE_UNITS) as u32,
    }
}

/// Owner of each unit in use.
#[derive(Default)]
struct Model(HashMap<u64, u32>);

impl Model {
    fn take(&mut self, extent: Extent, who: u32) {
        for unit in extent.start..extent.start + u64::from(extent.units) {
            assert_eq!(self.0.insert(unit, who), None, "unit {unit} is in use");
        }
    }
    fn give(&mut self, extent: Extent) {
        for unit in extent.start..extent.start + u64::from(extent.units) {
            self.0.remove(&unit).expect("in use");
        }
    }
}

#[test]
fn extents_never_overlap_and_all_comes_back() {
    let mut rng = Rng::new(seed("space"));
    let (mut space, mut model) = (Space::default(), Model::default());
    let mut live: Vec<Extent> = Vec::new();
    let mut pages = 16;
    space.grow(pages);
    for number in 1..8000u64 {
        if rng.below(20) == 0 {
            space.release(number - rng.below(50).min(number));
        }
        if live.len() > 300 || (rng.below(3) == 0 && !live.is_empty()) {
            let at = rng.index(live.len());
            let extent = live.swap_remove(at);
            model.give(extent);
            if rng.below(2) == 0 {
                space.retire(number, extent);
            } else {
                space.free(extent);
            }
            continue;
        }
        let bytes = sizes(&mut rng);
        let claim = loop {
            if let Some(claim) = space.claim(bytes) {
                break claim;
            }
            if let Some(claim) = space.claim_last(bytes) {
                break claim;
            }
            pages += 8;
            space.grow(pages);
        };
        assert!(claim.extent.bytes() >= bytes && claim.extent.units == units_for(bytes));
        assert!(claim.extent.start + u64::from(claim.extent.units) <= pages * PAGE_UNITS);
        model.take(claim.extent, number as u32);
        if claim.fresh {
            space.offer(claim.extent);
        }
        live.push(claim.extent);
    }
    space.release(u64::MAX);
    let rebuilt = Space::rebuild(pages, live.iter().copied()).unwrap();
    assert_eq!(rebuilt.free_bytes(), space.free_bytes());
    live.into_iter().for_each(|extent| space.free(extent));
    assert_eq!(space.free_bytes(), pages * PAGE, "all is free");
    assert!(pages < 1200, "room is used again: {pages} pages");
}

#[test]
fn retired_room_is_not_used_before_its_record_is_durable() {
    let mut space = Space::default();
    space.grow(1);
    let extent = space.claim(4096).unwrap().extent;
    space.retire(7, extent);
    assert_eq!(space.release(6), 0);
    assert_eq!(space.claim(4096), None);
    assert_eq!(space.release(7), 4096);
    assert!(space.claim(4096).is_some());
}

#[test]
fn rebuild_refuses_extents_that_overlap_or_lie_beyond_the_end() {
    let run = |page: u64, pages: u32| Extent { start: page * PAGE_UNITS, units: pages * PAGE_UNITS as u32 };
    let slot = |page: u64, index: u64| Extent { start: page * PAGE_UNITS + index * 16, units: 16 };
    let rebuild =
        |extents: &[Extent]| Space::rebuild(8, extents.iter().copied()).map(|space| space.free_bytes());
    assert_eq!(rebuild(&[run(0, 2), slot(4, 1), slot(4, 3)]), Ok(5 * PAGE));
    assert!(rebuild(&[run(0, 2), run(1, 1)]).is_err());
    assert!(rebuild(&[run(7, 2)]).is_err());
    assert!(rebuild(&[slot(4, 1), slot(4, 1)]).is_err());
    assert!(rebuild(&[slot(4, 1), run(4, 1)]).is_err());
    assert!(rebuild(&[slot(4, 1), Extent { start: 4 * PAGE_UNITS, units: 12 }]).is_err());
    assert!(rebuild(&[Extent { start: 3, units: 16 }]).is_err());
}

#[test]
fn a_fresh_page_is_offered_after_its_first_slot_is_written() {
    let mut space = Space::default();
    space.grow(2);
    let first = space.claim(1000).unwrap();
    let other = space.claim(1000).unwrap();
    assert!(first.fresh && other.fresh && first.extent.page() != other.extent.page());
    space.offer(first.extent);
    let third = space.claim(1000).unwrap();
    assert!(!third.fresh && third.extent.page() == first.extent.page());
}
