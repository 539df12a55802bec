//! The thread of a target: it scans the target at the start, keeps regions free, and records identities of
//! files. [`close`] ends all targets in order.

use crate::burst::fsync;
use crate::context::Context;
use crate::file::identity::SETTLES;
use crate::file::object::ObjectId;
use crate::path::sync;
use crate::state::device::{Device, Parked, Restored};
use crate::state::targets::Targets;
use crate::tier::intent::{Boot, on_target};
use crate::tier::{append, hibernate, organize, park, trouble};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_policy::device::log::{Log, Place};
use terrace_shm::DeviceSlot;
use terrace_tier::DeviceIo;
use terrace_tier::format::{Geometry, Record};
use terrace_tier::superblock::{self, UndestagedMark};
use terrace_tier::{Scanned, ScannedFile, scan};

/// Interval of recorded identities, and of tombstones that no other write has taken along.
const RECORD_EVERY: Duration = Duration::from_secs(30);
const IDENTITIES: usize = 64;
/// Interval between attempts to scan a target with a temporary failure.
const TRY_EVERY: Duration = Duration::from_secs(2);
/// Longest wait at the end of an instance for a target that is not ready.
const READY_WITHIN: Duration = Duration::from_secs(5);

pub(crate) fn device_loop(cx: &Context, device: &DeviceIo) {
    while let Err(e) = open(cx, device) {
        if device.medium().trouble().is_none() {
            fsync::adopt_unknown(cx, device);
            append::give_up(cx, device.number(), &e);
            // Its content stays unknown; a removal is possible.
            break;
        }
        trouble::note_trouble(cx, device);
        device.wait(TRY_EVERY);
        if cx.is_stopping() || device.is_ending() {
            return;
        }
    }
    let mut recorded = Instant::now();
    while !cx.is_stopping() && !device.is_ending() {
        trouble::note_trouble(cx, device);
        park::restore_parked(cx, device.number());
        fsync::destage_due(cx, device);
        while !cx.is_stopping() && organize::reclaim_one(cx, device) {}
        if recorded.elapsed() >= RECORD_EVERY {
            record_identities(cx, device);
            recorded = Instant::now();
        }
        if cx.devices.all().first().is_some_and(|first| first.number() == device.number()) {
            note_client_reads(cx);
        }
        device.wait(Duration::from_millis(500));
    }
}

/// Seconds since 1970.
fn now(cx: &Context) -> u64 {
    cx.clock.wall_ns().max(0) as u64 / 1_000_000_000
}

/// Scans the target, and begins to write to it.
fn open(cx: &Context, device: &DeviceIo) -> io::Result<()> {
    let mut writer = device.writer();
    writer.look_again(device)?;
    writer.superblock_mut().enter_boot(Boot::this(cx).id);
    let began = Instant::now();
    // The run begins on the device first: programs may change files during the scan.
    let before = writer.superblock().clone();
    superblock::begin(&**device.medium(), writer.superblock_mut(), now(cx))?;
    let mut scanned = scan(&**device.medium(), &before, &mut |_| {})?;
    let undestaged = std::mem::take(&mut scanned.undestaged);
    if cx.config.durable_in_tier && device.medium().takes_undestaged() {
        writer.superblock_mut().undestaged = UndestagedMark::Perhaps;
    } else if undestaged.files.is_empty() && writer.superblock().undestaged == UndestagedMark::Perhaps {
        writer.superblock_mut().undestaged = UndestagedMark::Destaged;
    }
    let has_undestaged = writer.superblock().undestaged == UndestagedMark::Perhaps;
    superblock::begin(&**device.medium(), writer.superblock_mut(), now(cx))?;
    writer.begin_with(scanned.next);
    let restored = restore(device, writer.superblock().geometry, scanned);
    let pages: usize = restored.parked.values().map(|parked| parked.pages.len()).sum();
    let name = device.name();
    let files = restored.parked.len();
    tracing::info!(
        "tier {name}: the scan finds {pages} pages of {files} files, and takes {:?}",
        began.elapsed()
    );
    fsync::adopt(cx, device, undestaged);
    cx.state.lock().install(device.number(), restored);
    device.set_may_have_undestaged(has_undestaged);
    Ok(())
}

fn restore(device: &DeviceIo, geometry: Geometry, scanned: Scanned) -> Restored {
    let (regions, region_pages) = (geometry.regions(), geometry.region_pages());
    let filled: Vec<u32> = scanned.regions.iter().map(|filled| filled.region).collect();
    let mut log = Log::restored(regions, region_pages, &filled);
    let mut fillings = vec![(0, 0); regions as usize];
    for filled in &scanned.regions {
        fillings[filled.region as usize] = (filled.lap, filled.pages_used);
    }
    let mut checks = Vec::new();
    let mut park = |(id, file): (ObjectId, ScannedFile)| {
        let page = |(page, slot, crc): (u64, DeviceSlot, u32)| {
            let page = u32::try_from(page).ok()?;
            log.revive(Place { region: slot.region(), page: slot.page() });
            let slot = device.named(slot);
            checks.push((slot, crc));
            Some((page, slot))
        };
        let pages: Vec<_> = file.pages.into_iter().filter_map(page).collect();
        (id, Parked { digest: file.digest, pages })
    };
    let parked: HashMap<ObjectId, Parked> = scanned.files.into_iter().map(&mut park).collect();
    Restored { log, fillings, parked, checks, damaged: scanned.damaged }
}

/// Records identities of files with pages on the target, and writes all queued tombstones.
pub(crate) fn record_identities(cx: &Context, device: &DeviceIo) {
    let number = device.number();
    let unrecorded = match cx.state.lock().targets.as_ref().and_then(|targets| targets.at(number)) {
        Some(device) if device.is_serving() => device.unrecorded.iter().copied().collect::<Vec<_>>(),
        _ => return,
    };
    for ids in unrecorded.chunks(IDENTITIES) {
        let known: Vec<(ObjectId, u64, u64)> =
            ids.iter().filter_map(|id| identity(cx, number, *id)).collect();
        let records: Vec<Record> = known
            .iter()
            .map(|(object, digest, _)| Record::File { object: *object, digest: *digest })
            .collect();
        let mut writer = device.writer();
        let written = append::append(cx, device, &mut writer, &[], &records, |_, _| false);
        drop(writer);
        let mut state = cx.state.lock();
        if written.is_some() {
            known.iter().for_each(|(id, digest, wrote)| state.note_recorded(number, *id, *digest, *wrote));
        }
    }
    if append::dead(cx, device) > 0 {
        append::append(cx, device, &mut device.writer(), &[], &[], |_, _| false);
    }
}

/// A file's number, its identity for its pages on target `number`, and the event clock of its last change.
fn identity(cx: &Context, number: usize, id: ObjectId) -> Option<(ObjectId, u64, u64)> {
    let Some(o) = cx.lookup_object(id) else {
        let state = cx.state.lock();
        let digest = state.targets.as_ref()?.at(number)?.parked.get(&id)?.digest?;
        return Some((id, digest, 0));
    };
    let wrote = o.slot().write_clock.load(Ordering::Acquire);
    Some((id, park::valid_identity(cx, &o)?, wrote))
}

fn note_client_reads(cx: &Context) {
    let totals = cx.read_totals();
    if let Some(targets) = &mut cx.state.lock().targets {
        targets.note_client_reads(&totals);
    }
}

/// Ends the targets with the instance. Targets that were given up are closed, too: a store's lock is released.
pub(crate) fn close(cx: &Context) {
    if cx.state.lock().targets.as_ref().is_some_and(Targets::is_on) {
        leave_clean(cx);
    }
    cx.devices.all().iter().for_each(|device| device.medium().close());
}

/// Writes the hottest pages of DRAM to the targets, and leaves them clean.
fn leave_clean(cx: &Context) {
    hibernate::hibernate(cx);
    // A recorded identity names data that a power cut does not take.
    let synced = sync::sync_root(cx);
    if let Err(e) = &synced {
        tracing::warn!("the source cannot be synced ({e}): after a reboot the tier begins cold");
    }
    // Files written just now get their identity after a pause. One pause covers all targets.
    if cx
        .state
        .lock()
        .targets
        .as_ref()
        .is_some_and(|targets| targets.all.iter().any(Device::has_unrecorded_identities))
    {
        std::thread::sleep(SETTLES);
    }
    for device in &cx.devices.all() {
        device.medium().wait_ready(Instant::now() + READY_WITHIN);
        record_identities(cx, device);
        let mut writer = device.writer();
        // Nothing is written after the clean superblock.
        let end = |targets: &mut Targets| targets.at_mut(device.number()).is_some_and(Device::end);
        let ended = cx.state.lock().targets.as_mut().is_some_and(end);
        let destaged =
            on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.is_empty()) == Some(true);
        if destaged && writer.superblock().undestaged == UndestagedMark::Perhaps {
            writer.superblock_mut().undestaged = UndestagedMark::Destaged;
        }
        // Without the clean flag, the next boot trusts no identity.
        let close = if synced.is_ok() { superblock::end } else { superblock::begin };
        if ended && let Err(e) = close(&**device.medium(), writer.superblock_mut(), now(cx)) {
            append::give_up(cx, device.number(), &e);
        }
    }
}
