//! What a tier gives up goes to the next one, if it was read here and is worth a write there.
//!
//! Before the oldest region of a target is reclaimed, by the target's own thread and without its writer: so neither programs nor pages that leave memory
//! wait for the slower tier. If regions are needed sooner than that is done, they are reclaimed as those of the last tier are, and a page that was copied
//! meanwhile is found to be gone ([`State::move_down`]). The way up is a hit: the page goes to DRAM, and from there to the fastest tier if it was read
//! below that twice ([`Targets::rises`](crate::state::targets::Targets::rises)).

use crate::context::Context;
use crate::device::io::DeviceIo;
use crate::device::scan::{FilledRegion, region_keys};
use crate::io::AlignedBuf;
use crate::reclaim::append::{self, CONTENT_MAX, Content};
use crate::reclaim::place;
use crate::reclaim::regions::{self, Page};
use crate::state::State;
use terrace_shm::PAGE_SIZE;

/// Moves pages of the region that is reclaimed next to the next tier.
pub(super) fn move_down(cx: &Context, device: &DeviceIo) {
    let (filled, level) = {
        let state = cx.state.lock();
        let Some(targets) = &state.targets else { return };
        let below = targets.all[device.number].config.level + 1;
        let Some(filled) = regions::due(&state, device).filter(|_| below < targets.levels()) else { return };
        (filled, below)
    };
    let superblock = device.writer.lock().superblock.clone();
    // If they cannot be read, reclaim tells.
    let Ok(keys) = region_keys(&*device.medium, &superblock, filled) else { return };
    let pages = worth_moving(cx, device, filled, level, regions::pages_of(device, keys));
    let mut buf = AlignedBuf::default();
    for pages in pages.chunks(CONTENT_MAX) {
        buf.with(pages.len() * PAGE_SIZE, |content| {
            let intact = regions::read_pages(device, pages, content);
            write(cx, (level, filled.lap), pages, &intact, content);
        });
    }
}

/// The pages that nothing but the region has, that will not be written again in this tier, and that the next tier takes.
fn worth_moving(
    cx: &Context,
    device: &DeviceIo,
    filled: FilledRegion,
    level: u8,
    mut pages: Vec<Page>,
) -> Vec<Page> {
    let now = cx.clock.now_ns();
    let mut state = cx.state.lock();
    let stay = regions::most_read_of(&state, device, &pages);
    let mut stay = stay.into_iter().map(|page| page.slot).peekable();
    // In the order of the pages.
    pages.retain(|page| stay.next_if_eq(&page.slot).is_none());
    pages.retain(|page| {
        if !state.is_only_there(page.slot, filled.lap, page.object, page.page) {
            return false;
        }
        let Some(targets) = &mut state.targets else { return false };
        let hits = targets.of(page.slot).map_or(0, |of| of.hits_of(page.slot));
        targets.begin_batch(now);
        targets.admits_to(level, hits > 0)
    });
    pages
}

/// Writes them, and has their entries name the new slots, unless they have changed meanwhile, or their region was filled anew.
fn write(cx: &Context, (level, lap): (u8, u64), pages: &[Page], intact: &[bool], content: &[u8]) {
    let shares = place::place(
        cx,
        pages,
        |page| (page.object, page.page),
        |targets, pieces, speeds| targets.place(level, pieces, speeds),
    );
    place::for_each(cx, &shares, |device, numbers| {
        let mut rest = numbers;
        let mut writer = device.writer.lock();
        while !rest.is_empty() {
            let of = |i: &usize| Content {
                object: pages[*i].object,
                page: pages[*i].page,
                from: content[*i * PAGE_SIZE..].as_ptr(),
            };
            let list: Vec<Content> = rest.iter().map(of).collect();
            let is_same = |state: &State, i: usize| {
                let Page { slot, object, page, .. } = pages[i];
                intact[i] && state.is_only_there(slot, lap, object, page)
            };
            let is_still = |state: &State, i: usize| is_same(state, rest[i]);
            let Some(batch) = append::append(cx, device, &mut writer, &list, &[], is_still) else {
                if regions::reclaim_one(cx, device, &mut writer) {
                    continue;
                }
                return;
            };
            let mut state = cx.state.lock();
            for (i, slot, crc) in batch.written {
                let Page { slot: from, object, page, .. } = pages[rest[i]];
                let is_same = is_same(&state, rest[i]);
                state.move_down(from, slot, crc, (object, page), is_same);
            }
            drop(state);
            rest = &rest[batch.taken.max(1)..];
        }
    });
}
