//! Organizer of tiers: moves a target's pages with hits to other targets, if they are worth a write. Pages of
//! a reclaimed region go to the next tier, pages of a removed target to all others.
//!
//! The organizer runs before the reclaim of a target's oldest region, on the target's own thread. It does not
//! hold the writer, so no program or eviction waits for the slower tier. A faster need of regions reclaims
//! them without a move, and [`State::move_down`] skips pages that are gone. Pages move up by hits. A hit
//! takes a page to DRAM. After two reads below the fastest tier it goes from DRAM to that tier
//! ([`Targets::rises`](crate::state::targets::Targets::rises)).

use crate::context::Context;
use crate::state::State;
use crate::tier::append::{self, CONTENT_MAX, Pages};
use crate::tier::pages::{self, Page};
use crate::tier::{place, regions};
use terrace_io::AlignedBuf;
use terrace_shm::{DeviceSlot, PAGE_SIZE};
use terrace_tier::FilledRegion;
use terrace_tier::{DeviceIo, Writer};

/// Reclaims the oldest region on the target's own thread, after other targets. False: none is due.
pub(crate) fn reclaim_one(cx: &Context, device: &DeviceIo) -> bool {
    let Some(filled) = regions::due(&cx.state.lock(), device) else { return false };
    let superblock = device.writer().superblock().clone();
    let keys = regions::keys_of(device, superblock, filled);
    if let Ok(keys) = &keys {
        move_away(cx, device, filled, &pages::pages_of(device, keys));
    }
    let mut writer = device.writer();
    // Another thread may have reclaimed it meanwhile, to make room for a write.
    let is_due = regions::due(&cx.state.lock(), device)
        .is_some_and(|due| (due.region, due.lap) == (filled.region, filled.lap));
    if is_due {
        regions::reclaim(cx, device, &mut writer, filled, keys);
    }
    true
}

/// Moves pages of the next region to be reclaimed to other targets.
fn move_away(cx: &Context, device: &DeviceIo, filled: FilledRegion, all: &[Page]) {
    let (levels, is_leaving) = {
        let state = cx.state.lock();
        let Some(targets) = &state.targets else { return };
        let Some(of) = targets.at(device.number()) else { return };
        let (own, lowest) = (of.config.level, targets.levels());
        match of.is_leaving() {
            true => ((own..lowest).chain(0..own).collect::<Vec<u8>>(), true),
            false => ((own + 1..lowest).take(1).collect(), false),
        }
    };
    let mut rest = all.to_vec();
    if !is_leaving && !levels.is_empty() {
        // Sorted like `all`.
        let mut stay =
            pages::most_read_of(&cx.state.lock(), device, all).into_iter().map(|page| page.slot).peekable();
        rest.retain(|page| stay.next_if_eq(&page.slot).is_none());
    }
    let mut buf = AlignedBuf::default();
    for level in levels {
        let (moving, others) = taken_by(cx, filled, level, rest);
        for moving in moving.chunks(CONTENT_MAX) {
            buf.with(moving.len() * PAGE_SIZE, |content| {
                let intact = pages::read(device, moving, content);
                write(cx, (level, filled.lap), moving, &intact, content);
            });
        }
        rest = others;
    }
}

/// The region's pages without another place: those that tier `level` admits, and those that it refuses.
fn taken_by(cx: &Context, filled: FilledRegion, level: u8, mut all: Vec<Page>) -> (Vec<Page>, Vec<Page>) {
    let now = cx.clock.now_ns();
    let mut state = cx.state.lock();
    all.retain(|page| state.is_only_there(page.slot, filled.lap, page.object, page.page));
    let Some(targets) = &mut state.targets else { return (Vec::new(), Vec::new()) };
    targets.begin_batch(now);
    all.into_iter().partition(|page| {
        let hits = targets.of(page.slot).map_or(0, |of| of.hits_of(page.slot));
        targets.admits_to(level, hits > 0)
    })
}

/// Writes the pages, and makes their entries name the new slots, unless they have changed or the region was
/// filled again.
fn write(cx: &Context, (level, lap): (u8, u64), pages: &[Page], intact: &[bool], content: &[u8]) {
    let shares = place::place(
        cx,
        pages,
        |page| (page.object, page.page),
        |targets, pieces, speeds| targets.place(level, pieces, speeds),
    );
    let is_same = |state: &State, i: &usize| {
        let Page { slot, object, page, .. } = pages[*i];
        intact[*i] && state.is_only_there(slot, lap, object, page)
    };
    let content = |i: &usize| pages[*i].content(*i, content);
    place::for_each(&shares, |device, numbers| {
        let done = |state: &mut State, i: &usize, at: Option<(DeviceSlot, u32)>| {
            let Page { slot: from, object, page, .. } = pages[*i];
            if let Some((slot, crc)) = at {
                let is_same = is_same(state, i);
                state.move_down(from, slot, crc, (object, page), is_same);
            }
        };
        let list = Pages { all: numbers, content, is_still: is_same };
        let make_room = |writer: &mut Writer| regions::make_room(cx, device, writer);
        append::append_all(cx, device, &mut device.writer(), &list, done, make_room);
    });
}
