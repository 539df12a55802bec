//! Writer of a device's log: one batch at a time.
//!
//! 1. The caller names pages; changes of their content are detected. Their copy lies behind the place of the
//!    keys.
//! 2. Under the state lock the writer leaves out pages changed meanwhile, adds tombstones, and gets a place
//!    of the log.
//! 3. One write without a lock takes keys and content. A region opens only after all writes before it are
//!    stable.
//! 4. The caller, under the state lock, makes entries name the slots, or not.

use crate::context::Context;
use crate::state::State;
use crate::state::device::{Device, Status};
use crate::state::targets::Targets;
use std::io;
use std::sync::atomic::{Ordering, fence};
use terrace_policy::device::log::Stretch;
use terrace_shm::{DeviceSlot, PAGE_SIZE};
use terrace_tier::format::{self, Batch, KEY_PAGES_MAX, Record};
use terrace_tier::{DeviceIo, Writer};

/// Largest number of content pages of a batch.
pub(crate) const CONTENT_MAX: usize = (format::BATCH_PAGES_MAX - KEY_PAGES_MAX) as usize;
/// Largest number of other records of a batch.
const OTHERS_MAX: usize = 64;
/// Largest number of tombstones of a batch without pages.
const DEAD_MAX: usize = format::RECORDS_MAX - OTHERS_MAX;
/// Smallest room, in pages, for which a region stays open.
const LEAST: u32 = 32;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Content {
    pub(crate) object: u64,
    pub(crate) page: u64,
    pub(crate) from: *const u8,
}

/// A written page: its index in the list, its slot, its checksum.
pub(crate) type Written = (usize, DeviceSlot, u32);

#[derive(Debug)]
pub(crate) struct Appended {
    /// Pages handled, from the first on: there may have been no room for more.
    pub(crate) taken: usize,
    /// Handled pages that are on the device; the others changed meanwhile.
    pub(crate) written: Vec<Written>,
}

/// Pages to be written in successive batches.
pub(crate) struct Pages<'a, T, C, S> {
    pub(crate) all: &'a [T],
    pub(crate) content: C,
    /// Whether a page is unchanged since the caller saw it.
    pub(crate) is_still: S,
}

/// Writes pages. `done` is called for each, under the state lock, with slot and checksum if it was written.
/// `make_room` is called when no region is free; false: there is no room. Returns the pages handled: the
/// target may not take more.
pub(crate) fn append_all<T>(
    cx: &Context,
    device: &DeviceIo,
    writer: &mut Writer,
    pages: &Pages<'_, T, impl Fn(&T) -> Content, impl Fn(&State, &T) -> bool>,
    mut done: impl FnMut(&mut State, &T, Option<(DeviceSlot, u32)>),
    mut make_room: impl FnMut(&mut Writer) -> bool,
) -> usize {
    let mut rest = pages.all;
    while !rest.is_empty() {
        let content: Vec<Content> = rest.iter().take(CONTENT_MAX).map(&pages.content).collect();
        let is_still = |state: &State, i: usize| (pages.is_still)(state, &rest[i]);
        let Some(batch) = append(cx, device, writer, &content, &[], is_still) else {
            if make_room(writer) {
                continue;
            }
            break;
        };
        let mut state = cx.state.lock();
        let mut written = batch.written.into_iter().peekable();
        for (i, page) in rest[..batch.taken].iter().enumerate() {
            let at = written.next_if(|(at, ..)| *at == i).map(|(_, slot, crc)| (slot, crc));
            done(&mut state, page, at);
        }
        drop(state);
        rest = &rest[batch.taken..];
    }
    pages.all.len() - rest.len()
}

/// Writes pages, queued tombstones, and `identities`. `is_still(state, i)`: page i is unchanged since the
/// caller saw it. None: nothing could be written.
pub(crate) fn append(
    cx: &Context,
    device: &DeviceIo,
    writer: &mut Writer,
    pages: &[Content],
    identities: &[Record],
    is_still: impl Fn(&State, usize) -> bool,
) -> Option<Appended> {
    write_tombstones(cx, device, writer)?;
    append_batch(cx, device, writer, &Wanted { pages, others: identities, undestaged: false }, is_still)
}

/// Writes undestaged pages, preceded in time by `others`. Returns the number of pages handled. None: nothing
/// could be written.
pub(crate) fn append_undestaged(
    cx: &Context,
    device: &DeviceIo,
    writer: &mut Writer,
    pages: &[Content],
    others: &[Record],
) -> Option<usize> {
    write_tombstones(cx, device, writer)?;
    // The frames keep their pages. A page written meanwhile is dirty again.
    let wanted = Wanted { pages, others, undestaged: true };
    append_batch(cx, device, writer, &wanted, |_, _| true).map(|appended| appended.taken)
}

/// Writes queued tombstones until the rest fits in one batch: a page gets a new key after all its tombstones.
fn write_tombstones(cx: &Context, device: &DeviceIo, writer: &mut Writer) -> Option<()> {
    while dead(cx, device) > OTHERS_MAX {
        append_batch(cx, device, writer, &Wanted { pages: &[], others: &[], undestaged: false }, |_, _| {
            false
        })?;
    }
    Some(())
}

/// Content of a batch.
struct Wanted<'a> {
    pages: &'a [Content],
    others: &'a [Record],
    undestaged: bool,
}

/// Number of queued tombstones.
pub(crate) fn dead(cx: &Context, device: &DeviceIo) -> usize {
    let of = |targets: &Targets| targets.at(device.number()).map(|device| device.dead().len());
    cx.state.lock().targets.as_ref().and_then(of).unwrap_or(0)
}

fn append_batch(
    cx: &Context,
    device: &DeviceIo,
    writer: &mut Writer,
    wanted: &Wanted<'_>,
    is_still: impl Fn(&State, usize) -> bool,
) -> Option<Appended> {
    let pages = wanted.pages;
    let mut buf = writer.take_buf();
    let bytes = format::BATCH_PAGES_MAX as usize * PAGE_SIZE;
    let written = buf.with_or_leak(bytes, |buf| {
        let crcs = copy(&pages[..pages.len().min(CONTENT_MAX)], buf);
        let Some(planned) = plan(cx, device, writer, wanted, &crcs, is_still) else { return (None, false) };
        let (bytes, began) = (u64::from(planned.batch.pages()) * PAGE_SIZE as u64, cx.clock.now_ns());
        match device.queue(bytes, || write(device, writer, &planned, buf)) {
            Ok(()) => {
                // The flush before the first write of a region does not count as bandwidth.
                if !planned.stretch.opens {
                    let took = cx.clock.now_ns().saturating_sub(began);
                    device.note_write(planned.batch.pages().into(), took);
                }
                (Some(planned.appended(device)), false)
            }
            Err(e) => {
                give_up(cx, device.number(), &e);
                // The device may still read the buffer of a late write.
                (None, e.kind() == std::io::ErrorKind::TimedOut)
            }
        }
    });
    writer.put_buf(buf);
    written
}

/// Copies the content behind the place of the keys. Returns the checksums.
fn copy(pages: &[Content], buf: &mut [u8]) -> Vec<u32> {
    let content = buf[KEY_PAGES_MAX as usize * PAGE_SIZE..].chunks_exact_mut(PAGE_SIZE);
    let crcs = pages.iter().zip(content).map(|(page, to)| {
        // SAFETY: the caller's pages are readable; one that is written meanwhile is left out afterwards.
        unsafe { std::ptr::copy_nonoverlapping(page.from, to.as_mut_ptr(), PAGE_SIZE) };
        format::crc(to)
    });
    let crcs = crcs.collect();
    // Orders the copies before the checks of the entries.
    fence(Ordering::Acquire);
    crcs
}

/// A batch and its place.
struct Planned {
    stretch: Stretch,
    batch: Batch,
}

impl Planned {
    fn appended(&self, device: &DeviceIo) -> Appended {
        let records = self.batch.pages_of_content().enumerate();
        let of = |(i, (at, record)): (usize, (u32, &Record))| match record {
            Record::Page { crc, .. } => {
                Some((i, device.named(DeviceSlot::new(self.stretch.region, at)), *crc))
            }
            _ => None,
        };
        Appended { taken: self.batch.content as usize, written: records.filter_map(of).collect() }
    }
}

fn plan(
    cx: &Context,
    device: &DeviceIo,
    writer: &mut Writer,
    wanted: &Wanted<'_>,
    crcs: &[u32],
    is_still: impl Fn(&State, usize) -> bool,
) -> Option<Planned> {
    let Wanted { pages, others: given, undestaged } = *wanted;
    let mut state = cx.state.lock();
    let still: Vec<bool> = (0..crcs.len()).map(|i| is_still(&state, i)).collect();
    let device = state.target_mut(device.number())?;
    if writer.has_ended() || !device.is_serving() {
        return None;
    }
    // Once undestaged pages fill all other regions, the spare one stays for records that destage them.
    let has_room = if undestaged { device.log.has_spare() } else { device.has_room_beside_undestaged() };
    if !crcs.is_empty() && !has_room {
        return None;
    }
    let mut others = device.take_dead(if crcs.is_empty() { DEAD_MAX } else { OTHERS_MAX });
    others.extend(given);
    let room = device.log.room(LEAST.min(crcs.len() as u32 + KEY_PAGES_MAX));
    let fits = format::content_max(others.len(), room).map_or(0, |most| most.min(crcs.len() as u32));
    let head = format::key_pages(fits as usize + others.len());
    let Some(stretch) = device.log.reserve(head, fits, fits) else {
        device.put_dead(others);
        return None;
    };
    debug_assert_eq!(stretch.pages, fits, "there was room");
    if stretch.opens {
        writer.open_region();
        device.fillings[stretch.region as usize] = (writer.filling().lap, 0);
    }
    if undestaged && fits > 0 {
        device.undestaged.note(pages[0].object, writer.filling().lap, fits.into());
    }
    let record = |i: usize| match still[i] {
        true if undestaged => {
            Record::Undestaged { object: pages[i].object, page: pages[i].page, crc: crcs[i] }
        }
        true => Record::Page { object: pages[i].object, page: pages[i].page, crc: crcs[i] },
        false => Record::Void,
    };
    let records: Vec<Record> = (0..fits as usize).map(record).chain(others).collect();
    let (filling, oldest) = (writer.filling(), oldest(device, writer));
    let batch = Batch { filling, oldest, at: stretch.first - head, content: fits, records };
    writer.note_filled(batch.end());
    device.fillings[stretch.region as usize] = (writer.filling().lap, writer.pages());
    device.events.written_bytes += u64::from(batch.pages()) * PAGE_SIZE as u64;
    Some(Planned { stretch, batch })
}

/// Lap of the oldest valid region.
fn oldest(device: &Device, writer: &Writer) -> u64 {
    device.log.oldest().map_or(writer.filling().lap, |oldest| device.fillings[oldest as usize].0)
}

fn write(device: &DeviceIo, writer: &Writer, planned: &Planned, buf: &mut [u8]) -> io::Result<()> {
    let (Planned { stretch, batch }, geometry) = (planned, writer.superblock().geometry);
    if stretch.opens {
        // Invalidates remains of an older filling.
        device.medium().open_region(geometry.byte(stretch.region, 0), &mut buf[..PAGE_SIZE])?;
    }
    let keys = batch.key_pages();
    let from = (KEY_PAGES_MAX - keys) as usize * PAGE_SIZE;
    let to = KEY_PAGES_MAX as usize * PAGE_SIZE;
    batch.encode(device.id(), &mut buf[from..to]);
    debug_assert_eq!(writer.pages(), batch.end());
    let at = geometry.byte(stretch.region, batch.at);
    device.medium().write(at, &buf[from..to + batch.content as usize * PAGE_SIZE])
}

/// Turns a target read-only after a failed write. Other targets go on. The next start scans it as it is.
pub(crate) fn give_up(cx: &Context, number: usize, e: &io::Error) {
    if let Some(device) = cx.state.lock().target_mut(number) {
        let name = &device.config.name;
        tracing::error!(
            "tier {name}: access to the device fails ({e}); the tier takes no more pages: check the device"
        );
        // The removal of a target continues.
        if !device.is_leaving() {
            device.status = Status::Off(e.to_string());
        }
    }
}
