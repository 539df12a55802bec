//! The oldest region of the log is emptied: what is worth it is written again at the head, the rest is dropped.
//!
//! Each entry that names a slot of the region is withdrawn before anything is written to the region: a reader that still reads the
//! old slot finds its entry changed.

use crate::context::Context;
use crate::device::format::Record;
use crate::device::io::{DeviceIo, Writer};
use crate::device::scan::{FilledRegion, region_keys};
use crate::file::object::ObjectId;
use crate::io::AlignedBuf;
use crate::reclaim::append::{self, CONTENT_MAX, Content};
use crate::state::State;
use crate::state::slots::Named;
use std::io;
use terrace_shm::{DeviceSlot, PAGE_SIZE};

/// Pages that are dropped under one lock.
const BATCH: usize = 256;

/// A page of a region.
#[derive(Debug, Clone, Copy)]
struct Page {
    slot: DeviceSlot,
    object: ObjectId,
    page: u64,
}

/// Reclaims regions as long as one is due.
pub(crate) fn reclaim_due(cx: &Context) {
    let Some(device) = &cx.device else { return };
    while reclaim_one(cx, device, &mut device.writer.lock()) {}
}

/// Reclaims the oldest region, if one is due. False: none is, or the device has failed.
pub(crate) fn reclaim_one(cx: &Context, device: &DeviceIo, writer: &mut Writer) -> bool {
    let due = cx.state.lock().device.as_ref().filter(|d| d.is_serving()).and_then(|d| d.log.due());
    let reclaimed = due.map(|region| reclaim(cx, device, writer, region));
    if let Some(Err(e)) = &reclaimed {
        append::give_up(cx, e);
    }
    reclaimed.is_some_and(|done| done.is_ok())
}

/// Reclaims the region that is the oldest.
fn reclaim(cx: &Context, device: &DeviceIo, writer: &mut Writer, region: u32) -> io::Result<()> {
    let (lap, pages_used) = {
        let state = cx.state.lock();
        state.device.as_ref().map_or((0, 0), |device| device.fillings[region as usize])
    };
    let filled = FilledRegion { region, lap, pages_used };
    match region_keys(&*device.medium, &writer.superblock, filled) {
        Ok(keys) => {
            cx.state.lock().forget_records(&keys);
            let pages: Vec<Page> = keys.into_iter().filter_map(page_of).collect();
            reinsert(cx, device, writer, &pages)?;
            pages.chunks(BATCH).for_each(|pages| drop_pages(cx, pages));
        }
        Err(e) => tracing::warn!(
            "tier: keys of region {region} cannot be read ({e}); its pages are looked for one by one"
        ),
    }
    let mut state = cx.state.lock();
    state.drop_region(region);
    let Some(log) = state.device.as_mut().map(|device| &mut device.log) else { return Ok(()) };
    log.reclaimed(region);
    Ok(())
}

fn page_of((slot, record): (DeviceSlot, Record)) -> Option<Page> {
    match record {
        Record::Page { object, page, .. } => Some(Page { slot, object, page }),
        _ => None,
    }
}

/// Writes the pages again that were read often, at most half of the region.
fn reinsert(cx: &Context, device: &DeviceIo, writer: &mut Writer, pages: &[Page]) -> io::Result<()> {
    let again: Vec<Page> = {
        let mut state = cx.state.lock();
        let most = state.device.as_ref().map_or(0, |device| device.log.reinserted_max() as usize);
        pages
            .iter()
            .filter(|page| state.is_worth_writing_again(page.slot, page.object, page.page))
            .take(most)
            .copied()
            .collect()
    };
    let mut buf = AlignedBuf::default();
    for pages in again.chunks(CONTENT_MAX) {
        buf.with(pages.len() * PAGE_SIZE, |content| write_again(cx, device, writer, pages, content))?;
    }
    Ok(())
}

fn write_again(
    cx: &Context,
    device: &DeviceIo,
    writer: &mut Writer,
    pages: &[Page],
    content: &mut [u8],
) -> io::Result<()> {
    let adjacent = |a: &Page, b: &Page| a.slot.page() + 1 == b.slot.page();
    let mut rest = &mut *content;
    for run in pages.chunk_by(adjacent) {
        let (part, behind) = rest.split_at_mut(run.len() * PAGE_SIZE);
        device.medium.read(device.geometry.byte_of(run[0].slot), part)?;
        rest = behind;
    }
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
        let is_still =
            |state: &State, i: usize| state.names(rest[i].slot, rest[i].object, rest[i].page) != Named::No;
        let Some(batch) = append::append(cx, writer, &list(done), &[], is_still) else { return Ok(()) };
        let mut state = cx.state.lock();
        for (i, slot, crc) in batch.written {
            state.move_slot(rest[i].slot, slot, crc, rest[i].object, rest[i].page);
        }
        done += batch.taken.max(1);
    }
    Ok(())
}

fn drop_pages(cx: &Context, pages: &[Page]) {
    let mut state = cx.state.lock();
    pages.iter().for_each(|page| state.drop_slot(page.slot, page.object, page.page));
}
