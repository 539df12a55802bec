//! Reclaims the oldest region of a log: writes valuable pages again at the head, and drops the others.
//!
//! Withdraws all entries of a region before new writes to it: a reader of an old slot finds a changed entry.

use crate::context::Context;
use crate::state::State;
use crate::state::device::Device;
use crate::state::slots::Named;
use crate::state::targets::Targets;
use crate::tier::append::{self, CONTENT_MAX, Pages};
use crate::tier::pages::{self, Page};
use std::io;
use terrace_io::AlignedBuf;
use terrace_shm::{DeviceSlot, PAGE_SIZE};
use terrace_tier::format::Record;
use terrace_tier::superblock::Superblock;
use terrace_tier::{DeviceIo, Writer};
use terrace_tier::{FilledRegion, region_keys};

/// Pages dropped under one lock.
const BATCH: usize = 256;

pub(crate) fn reclaim_due(cx: &Context, device: &DeviceIo) {
    while reclaim_one(cx, device, &mut device.writer()) {}
}

/// Reclaims the oldest region if it is due. False: none is due.
pub(crate) fn reclaim_one(cx: &Context, device: &DeviceIo, writer: &mut Writer) -> bool {
    if writer.has_ended() {
        return false;
    }
    let due = due(&cx.state.lock(), device);
    if let Some(filled) = due {
        let keys = keys_of(device, writer.superblock().clone(), filled);
        reclaim(cx, device, writer, filled, keys);
    }
    due.is_some()
}

/// [`reclaim_one`] to make room for a write.
pub(crate) fn make_room(cx: &Context, device: &DeviceIo, writer: &mut Writer) -> bool {
    let is_serving = |targets: &Targets| targets.at(device.number()).is_some_and(Device::is_serving);
    let is_serving = cx.state.lock().targets.as_ref().is_some_and(is_serving);
    is_serving && reclaim_one(cx, device, writer)
}

pub(super) type Keys = io::Result<Vec<(DeviceSlot, Record)>>;

/// The records of the next region to be reclaimed.
pub(super) fn keys_of(device: &DeviceIo, superblock: Superblock, filled: FilledRegion) -> Keys {
    region_keys(&**device.medium(), &superblock, filled)
}

/// The next region of a target to be reclaimed, if one is due.
pub(super) fn due(state: &State, device: &DeviceIo) -> Option<FilledRegion> {
    let of = state.targets.as_ref()?.at(device.number())?;
    let region = of.log.due().filter(|_| of.is_serving() || of.is_leaving())?;
    let (lap, pages_used) = of.fillings[region as usize];
    if of.undestaged.blocks(lap) {
        return None;
    }
    Some(FilledRegion { region, lap, pages_used })
}

/// Reclaims the oldest region, given its keys.
pub(super) fn reclaim(
    cx: &Context,
    device: &DeviceIo,
    writer: &mut Writer,
    filled: FilledRegion,
    keys: Keys,
) {
    let region = filled.region;
    match keys {
        Ok(keys) => {
            if let Some(targets) = &mut cx.state.lock().targets {
                targets.forget_records(device.number(), keys.iter().map(|(_, record)| *record));
            }
            let pages = pages::pages_of(device, &keys);
            reinsert(cx, device, writer, &pages);
            pages.chunks(BATCH).for_each(|pages| drop_pages(cx, pages));
        }
        Err(e) => tracing::warn!(
            "tier {}: keys of region {region} cannot be read ({e}); its pages leave this tier",
            device.name()
        ),
    }
    let mut state = cx.state.lock();
    state.drop_region(device.number(), region);
    if let Some(of) = state.targets.as_mut().and_then(|targets| targets.at_mut(device.number())) {
        of.log.reclaimed(region);
    }
}

/// Writes the most read pages again.
fn reinsert(cx: &Context, device: &DeviceIo, writer: &mut Writer, pages: &[Page]) {
    let again = {
        let mut state = cx.state.lock();
        let again = pages::most_read_of(&state, device, pages);
        let of = state.targets.as_mut().and_then(|targets| targets.at_mut(device.number()));
        let Some(of) = of else { return };
        again.into_iter().take_while(|_| of.admits_again()).collect::<Vec<_>>()
    };
    let mut buf = AlignedBuf::default();
    for pages in again.chunks(CONTENT_MAX) {
        buf.with(pages.len() * PAGE_SIZE, |content| write_again(cx, device, writer, pages, content));
    }
}

fn write_again(cx: &Context, device: &DeviceIo, writer: &mut Writer, pages: &[Page], content: &mut [u8]) {
    let intact = pages::read(device, pages, content);
    let content = &*content;
    let numbers: Vec<usize> = (0..pages.len()).collect();
    let is_still = |state: &State, i: &usize| {
        let Page { slot, object, page, .. } = pages[*i];
        intact[*i] && state.names(slot, object, page) != Named::No
    };
    let list = Pages { all: &numbers, content: |i: &usize| pages[*i].content(*i, content), is_still };
    let done = |state: &mut State, i: &usize, at: Option<(DeviceSlot, u32)>| {
        let Page { slot: from, object, page, .. } = pages[*i];
        if let Some((slot, crc)) = at {
            state.move_slot(from, slot, crc, object, page);
        }
    };
    append::append_all(cx, device, writer, &list, done, |_| false);
}

fn drop_pages(cx: &Context, pages: &[Page]) {
    let mut state = cx.state.lock();
    pages.iter().for_each(|page| state.drop_slot(page.slot, page.object, page.page));
}
