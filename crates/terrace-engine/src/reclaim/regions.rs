//! The oldest region of the log is emptied: what is worth it is written again at the head, the rest is dropped.
//!
//! Each entry that names a slot of the region is withdrawn before anything is written to the region: a reader that still reads the
//! old slot finds its entry changed.

use crate::context::Context;
use crate::device::format::{self, Record};
use crate::device::io::{DeviceIo, Writer};
use crate::device::scan::{FilledRegion, region_keys};
use crate::file::object::ObjectId;
use crate::io::AlignedBuf;
use crate::reclaim::append::{self, CONTENT_MAX, Content};
use crate::state::State;
use crate::state::slots::Named;
use crate::state::targets::Targets;
use terrace_policy::device::log::most_read;
use terrace_shm::{DeviceSlot, PAGE_SIZE};

/// Pages that are dropped under one lock.
const BATCH: usize = 256;

/// A page of a region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub slot: DeviceSlot,
    pub object: ObjectId,
    pub page: u64,
    pub crc: u32,
}

/// Reclaims regions of a target as long as one is due.
pub(crate) fn reclaim_due(cx: &Context, device: &DeviceIo) {
    while reclaim_one(cx, device, &mut device.writer.lock()) {}
}

/// Reclaims the oldest region, if one is due. False: none is.
pub(crate) fn reclaim_one(cx: &Context, device: &DeviceIo, writer: &mut Writer) -> bool {
    let due = due(&cx.state.lock(), device);
    if let Some(filled) = due {
        reclaim(cx, device, writer, filled);
    }
    due.is_some()
}

/// The region of a target that is to be reclaimed next, if one is due.
pub(super) fn due(state: &State, device: &DeviceIo) -> Option<FilledRegion> {
    let of = &state.targets.as_ref()?.all[device.number];
    let region = of.log.due().filter(|_| of.is_serving())?;
    let (lap, pages_used) = of.fillings[region as usize];
    Some(FilledRegion { region, lap, pages_used })
}

/// Reclaims the region that is the oldest.
fn reclaim(cx: &Context, device: &DeviceIo, writer: &mut Writer, filled: FilledRegion) {
    let region = filled.region;
    match region_keys(&*device.medium, &writer.superblock, filled) {
        Ok(keys) => {
            if let Some(targets) = &mut cx.state.lock().targets {
                targets.forget_records(device.number, keys.iter().map(|(_, record)| *record));
            }
            let pages = pages_of(device, keys);
            reinsert(cx, device, writer, &pages);
            pages.chunks(BATCH).for_each(|pages| drop_pages(cx, pages));
        }
        Err(e) => tracing::warn!(
            "tier: keys of region {region} cannot be read ({e}); its pages are looked for one by one"
        ),
    }
    let mut state = cx.state.lock();
    state.drop_region(device.number, region);
    if let Some(targets) = &mut state.targets {
        targets.all[device.number].log.reclaimed(region);
    }
}

/// The pages among the keys of a region.
pub(super) fn pages_of(device: &DeviceIo, keys: Vec<(DeviceSlot, Record)>) -> Vec<Page> {
    let page = |(slot, record)| match record {
        Record::Page { object, page, crc } => Some(Page { slot: device.named(slot), object, page, crc }),
        _ => None,
    };
    keys.into_iter().filter_map(page).collect()
}

/// Writes the pages again that were read most.
fn reinsert(cx: &Context, device: &DeviceIo, writer: &mut Writer, pages: &[Page]) {
    let again = {
        let mut state = cx.state.lock();
        let again = most_read_of(&state, device, pages);
        let admits = |targets: &mut Targets| targets.all[device.number].admits_again();
        again.into_iter().take_while(|_| state.targets.as_mut().is_some_and(admits)).collect::<Vec<_>>()
    };
    let mut buf = AlignedBuf::default();
    for pages in again.chunks(CONTENT_MAX) {
        buf.with(pages.len() * PAGE_SIZE, |content| write_again(cx, device, writer, pages, content));
    }
}

/// The pages that were read most, at most so many as the log allows.
pub(super) fn most_read_of(state: &State, device: &DeviceIo, pages: &[Page]) -> Vec<Page> {
    let rated = |page: &Page| Some((state.reinsertion_hits(page.slot, page.object, page.page)?, *page));
    let mut rated: Vec<(u8, Page)> = pages.iter().filter_map(rated).collect();
    let most = state.targets.as_ref().map_or(0, |targets| targets.all[device.number].log.reinserted_max());
    most_read(&mut rated, most as usize);
    rated.into_iter().map(|(_, page)| page).collect()
}

fn write_again(cx: &Context, device: &DeviceIo, writer: &mut Writer, pages: &[Page], content: &mut [u8]) {
    let intact = read_pages(device, pages, content);
    let list = |from: usize| -> Vec<Content> {
        let of = |(page, bytes): (&Page, &[u8])| Content {
            object: page.object,
            page: page.page,
            from: bytes.as_ptr(),
        };
        pages[from..].iter().zip(content[from * PAGE_SIZE..].chunks_exact(PAGE_SIZE)).map(of).collect()
    };
    let mut done = 0;
    while done < pages.len() {
        let rest = &pages[done..];
        let is_still = |state: &State, i: usize| {
            intact[done + i] && state.names(rest[i].slot, rest[i].object, rest[i].page) != Named::No
        };
        let Some(batch) = append::append(cx, device, writer, &list(done), &[], is_still) else { return };
        let mut state = cx.state.lock();
        for (i, slot, crc) in batch.written {
            state.move_slot(rest[i].slot, slot, crc, rest[i].object, rest[i].page);
        }
        done += batch.taken.max(1);
    }
}

/// Reads pages from their slots; which of them are what was written there.
pub(super) fn read_pages(device: &DeviceIo, pages: &[Page], content: &mut [u8]) -> Vec<bool> {
    let adjacent = |a: &Page, b: &Page| a.slot.page() + 1 == b.slot.page();
    let (mut rest, mut intact) = (content, Vec::with_capacity(pages.len()));
    for run in pages.chunk_by(adjacent) {
        let (part, behind) = rest.split_at_mut(run.len() * PAGE_SIZE);
        let at = device.table.offset(run[0].slot).unwrap_or(u64::MAX);
        let read = device.medium.read(at, part);
        let page = |(page, bytes): (&Page, &[u8])| read.is_ok() && format::crc(bytes) == page.crc;
        intact.extend(run.iter().zip(part.chunks_exact(PAGE_SIZE)).map(page));
        rest = behind;
    }
    intact
}

fn drop_pages(cx: &Context, pages: &[Page]) {
    let mut state = cx.state.lock();
    pages.iter().for_each(|page| state.drop_slot(page.slot, page.object, page.page));
}
