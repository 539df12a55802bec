//! The device's thread: finds out what the device holds, keeps regions free, records what files the pages are of; and the end.

use crate::context::Context;
use crate::device::Record;
use crate::device::scan::{Scanned, ScannedFile, scan};
use crate::device::superblock;
use crate::file::object::ObjectId;
use crate::path::park;
use crate::reclaim::{append, hibernate, regions};
use crate::state::device::{Device, Parked, Restored};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_policy::device::log::Log;

/// How often identities are recorded, and tombstones written that wait for no other write.
const RECORD_EVERY: Duration = Duration::from_secs(30);
/// Identities of one write.
const IDENTITIES: usize = 64;

/// Body of the device's thread.
pub(crate) fn device_loop(cx: &Context) {
    if let Err(e) = open(cx) {
        append::give_up(cx, &e);
        return;
    }
    let mut recorded = Instant::now();
    while !cx.is_stopping() {
        park::bring_back(cx);
        regions::reclaim_due(cx);
        if recorded.elapsed() >= RECORD_EVERY {
            record_identities(cx);
            recorded = Instant::now();
        }
        note_client_reads(cx);
        cx.device_wakeup.wait(Duration::from_millis(500));
    }
}

/// Seconds since 1970.
fn now(cx: &Context) -> u64 {
    cx.clock.wall_ns().max(0) as u64 / 1_000_000_000
}

/// Finds out what the device holds, and begins to write to it.
fn open(cx: &Context) -> io::Result<()> {
    let Some(device) = &cx.device else { return Ok(()) };
    let mut writer = device.writer.lock();
    let began = Instant::now();
    let scanned = scan(&*device.medium, &writer.superblock, &mut |_| {})?;
    superblock::begin(&*device.medium, &mut writer.superblock, now(cx))?;
    writer.filling = scanned.next;
    let restored = restore(device.geometry.regions(), device.geometry.region_pages(), scanned);
    let pages: usize = restored.parked.values().map(|parked| parked.pages.len()).sum();
    tracing::info!("tier: {pages} pages of {} files found in {:?}", restored.parked.len(), began.elapsed());
    cx.state.lock().install(restored);
    Ok(())
}

/// Results of the scan, in the form of the state.
fn restore(regions: u32, region_pages: u32, scanned: Scanned) -> Restored {
    let filled: Vec<u32> = scanned.regions.iter().map(|filled| filled.region).collect();
    let mut log = Log::restored(regions, region_pages, &filled);
    let mut fillings = vec![(0, 0); regions as usize];
    for filled in &scanned.regions {
        fillings[filled.region as usize] = (filled.lap, filled.pages_used);
    }
    let mut checks = Vec::new();
    let mut park = |(id, file): (ObjectId, ScannedFile)| {
        let page = |(page, slot, crc): (u64, _, u32)| {
            let page = u32::try_from(page).ok()?;
            checks.push((slot, crc));
            Some((page, slot))
        };
        let pages: Vec<_> = file.pages.into_iter().filter_map(page).collect();
        (id, Parked { digest: file.digest, pages })
    };
    let parked: HashMap<ObjectId, Parked> = scanned.files.into_iter().map(&mut park).collect();
    for (slot, _) in &checks {
        log.revive(crate::state::device::in_log(*slot));
    }
    Restored { log, fillings, parked, checks, damaged: scanned.damaged }
}

/// Records identities of files of which the device has pages, and writes all tombstones that wait.
pub(crate) fn record_identities(cx: &Context) {
    let Some(device) = &cx.device else { return };
    let unrecorded = match &cx.state.lock().device {
        Some(device) if device.is_serving() => device.unrecorded.iter().copied().collect::<Vec<_>>(),
        _ => return,
    };
    for ids in unrecorded.chunks(IDENTITIES) {
        let known: Vec<(ObjectId, u64, u64)> = ids.iter().filter_map(|id| identity(cx, *id)).collect();
        let records: Vec<Record> = known
            .iter()
            .map(|(object, digest, _)| Record::File { object: *object, digest: *digest })
            .collect();
        let mut writer = device.writer.lock();
        let written = append::append(cx, &mut writer, &[], &records, |_, _| false);
        drop(writer);
        let mut state = cx.state.lock();
        if written.is_some() {
            known.iter().for_each(|(id, digest, wrote)| state.note_recorded(*id, *digest, *wrote));
        }
    }
    let waits = cx.state.lock().device.as_ref().is_some_and(|device| !device.dead().is_empty());
    if waits {
        append::append(cx, &mut device.writer.lock(), &[], &[], |_, _| false);
    }
}

/// The identity of a file for what the device holds of it, and the event clock of its last change.
fn identity(cx: &Context, id: ObjectId) -> Option<(ObjectId, u64, u64)> {
    let Some(o) = cx.lookup_object(id) else {
        let state = cx.state.lock();
        let digest = state.device.as_ref()?.parked.get(&id)?.digest?;
        return Some((id, digest, 0));
    };
    let wrote = o.slot().write_clock.load(Ordering::Acquire);
    Some((id, park::believable(cx, &o)?, wrote))
}

/// The reads of clients count for the costs of source and device.
fn note_client_reads(cx: &Context) {
    let totals = cx.read_totals();
    if let Some(device) = &mut cx.state.lock().device {
        device.note_client_reads(&totals);
    }
}

/// The instance ends: the hottest pages of DRAM go to the device, and it is left clean.
pub(crate) fn close(cx: &Context) {
    let Some(device) = &cx.device else { return };
    if !cx.state.lock().device.as_ref().is_some_and(|device| device.is_serving()) {
        return;
    }
    hibernate::hibernate(cx);
    record_identities(cx);
    let mut writer = device.writer.lock();
    // Nothing is written behind the clean superblock.
    let ended = cx.state.lock().device.as_mut().is_some_and(Device::end);
    if ended && let Err(e) = superblock::end(&*device.medium, &mut writer.superblock, now(cx)) {
        append::give_up(cx, &e);
    }
}
