//! Adds, removes and resizes targets in a live instance.
//!
//! ```text
//!   add      thread scans ──► Serving                       clients request the targets again
//!   remove   Leaving: every region is due ──► each page goes to another target, or is dropped ──► the number is free
//!   shrink   regions from the new end on are given up ──► superblock says fewer ──► table and log
//!   grow     superblock says more ──► table and log
//! ```
//! Reads go on: an entry is withdrawn, or names another slot, before its old slot is reused. After a kill in
//! between, the next daemon follows the superblock, old or new.

use crate::burst::fsync;
use crate::config::EngineConfig;
use crate::context::Context;
use crate::path::resize;
use crate::segment::SegmentHandles;
use crate::state::State;
use crate::state::device::Device;
use crate::state::targets::Targets;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_api::tiers::DeviceCounts;
use terrace_io::{AlignedBuf, Io};
use terrace_policy::placement;
use terrace_shm::PAGE_SIZE;
use terrace_shm::device_table::TARGETS_MAX;
use terrace_tier::DeviceIo;
use terrace_tier::TargetTable;
use terrace_tier::{Access, DeviceConfig};
use terrace_tier::{FileMedium, Geometry, Medium, superblock};

/// Polling interval for the progress of a target's thread.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest wait for readers of a removed target.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// Size of a medium that may grow: the file or device limits its reads and writes.
const NO_END: u64 = i64::MAX as u64 / PAGE_SIZE as u64 * PAGE_SIZE as u64;

/// Tiers of the targets by number; 0 is the fastest.
pub(crate) type Levels = [(usize, u8)];

/// The medium of a target.
///
/// # Errors
/// It is not open.
pub(crate) fn medium(config: &DeviceConfig, io: &Arc<dyn Io>) -> io::Result<Arc<dyn Medium>> {
    match &config.access {
        Access::File(fd) => Ok(Arc::new(FileMedium::new(*fd, io.clone(), NO_END))),
        Access::Medium(medium) => Ok(medium.clone()),
        Access::Unopened => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Begins to use the configured targets.
///
/// # Errors
/// The devices'.
pub(crate) fn open(
    config: &EngineConfig,
    handles: &SegmentHandles,
    io: &Arc<dyn Io>,
) -> io::Result<Vec<DeviceIo>> {
    let open = |(config, table): (&DeviceConfig, Arc<TargetTable>)| {
        DeviceIo::begin(config, medium(config, io)?, table)
    };
    config.devices.iter().zip(handles.tables()).map(open).collect()
}

/// State of the targets; None: there are none.
///
/// # Errors
/// Too many targets; unknown placement engine.
pub(crate) fn targets(
    config: &EngineConfig,
    devices: &[DeviceIo],
    frames_max: usize,
) -> io::Result<Option<Targets>> {
    let invalid = |m: String| io::Error::new(io::ErrorKind::InvalidInput, m);
    if config.devices.iter().any(|device| device.number >= TARGETS_MAX) {
        return Err(invalid(format!("{} tiers are too many: name at most {TARGETS_MAX}", devices.len())));
    }
    let engine = |level: u8| {
        placement::build(&config.placement, level.into()).ok_or_else(|| {
            let known = placement::NAMES.join(", ");
            invalid(format!("placement = {:?} is unknown; choose one of {known}", config.placement))
        })
    };
    let Some(lowest) = config.devices.iter().map(|device| device.level).max() else { return Ok(None) };
    let engines = (0..=lowest).map(engine).collect::<io::Result<_>>()?;
    let device = |(config, io): (&DeviceConfig, &DeviceIo)| Device::new(config.clone(), io.table());
    let all = config.devices.iter().zip(devices).map(device).collect();
    Ok(Some(Targets::new(all, frames_max, engines)))
}

/// Adds a target. The caller starts its thread.
///
/// # Errors
/// The device's; unknown placement engine.
pub(crate) fn add(
    cx: &Context,
    config: DeviceConfig,
    table: Arc<TargetTable>,
    levels: &Levels,
) -> io::Result<Arc<DeviceIo>> {
    let number = config.number;
    if placement::build(&cx.config.placement, 0).is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the placement engine is unknown"));
    }
    if !cx.devices.may_have(number, table.table()) {
        return Err(io::Error::other("region numbers of the new tier are in use"));
    }
    let device = Arc::new(DeviceIo::begin(&config, medium(&config, &cx.io)?, table)?);
    let totals = cx.read_totals();
    let mut more = Device::new(config, device.table());
    let clients = (totals.device_hits[number], totals.device_read_ns[number]);
    more.begin_counts(cx.device_hits(&totals)[number], clients);
    let frames_max = cx.handles.segment.geometry().frames_max as usize;
    {
        let mut state = cx.state.lock();
        let targets = state.targets.get_or_insert_with(|| Targets::new(Vec::new(), frames_max, Vec::new()));
        change(cx, targets, Some(more), levels);
        cx.devices.put(device.clone());
        notify_clients(cx);
    }
    resize::adjust_pool(cx);
    Ok(device)
}

fn change(cx: &Context, targets: &mut Targets, more: Option<Device>, levels: &Levels) {
    let engine =
        |level: u8| placement::build(&cx.config.placement, level.into()).expect("known since the start");
    targets.change(more, levels, engine);
}

/// Makes clients request the targets again before their next read. Called under the state lock, before an
/// entry names a slot of a new target.
fn notify_clients(cx: &Context) {
    cx.handles.segment.header().targets.fetch_add(1, Ordering::AcqRel);
}

fn wait_until(cx: &Context, number: usize, is_done: impl Fn(&Device) -> bool) -> io::Result<()> {
    loop {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let device = cx.devices.get(number).ok_or_else(gone)?;
        if cx.state.lock().targets.as_ref().and_then(|targets| targets.at(number)).is_none_or(&is_done) {
            return Ok(());
        }
        if cx.is_stopping() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the instance ends"));
        }
        device.wake();
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Lets a target's thread empty it: valuable pages go to other targets, and writes to it end. Returns the
/// pages moved and dropped.
///
/// # Errors
/// There is no such target; the instance ends.
pub(crate) fn empty(cx: &Context, number: usize) -> io::Result<DeviceCounts> {
    let counts = || {
        let state = cx.state.lock();
        let of = state.targets.as_ref().and_then(|targets| targets.at(number));
        of.map(|device| device.counts(0)).unwrap_or_default()
    };
    // Only the scan finds its content. A failed scan loses the content.
    wait_until(cx, number, |device| !device.is_scanning() || device.config.access.trouble().is_some())?;
    let before = counts();
    if let Some(device) = cx.devices.get(number) {
        fsync::close(cx, &device)?;
    }
    if let Some(device) = cx.state.lock().target_mut(number) {
        device.leave();
    }
    wait_until(cx, number, |device| device.log.oldest().is_none())?;
    let now = counts();
    let (moved_down, dropped) = (now.moved_down - before.moved_down, now.dropped - before.dropped);
    Ok(DeviceCounts { moved_down, dropped, ..DeviceCounts::default() })
}

/// Removes an emptied target after the end of its thread. `levels`: tiers of the others. The caller may then
/// close its file.
pub(crate) fn remove(cx: &Context, number: usize, levels: &Levels) {
    let Some(device) = cx.devices.get(number) else { return };
    device.writer().end();
    {
        let mut state = cx.state.lock();
        state.drop_target(number);
        if let Some(targets) = &mut state.targets {
            targets.remove(number);
            change(cx, targets, None, levels);
        }
        drop(cx.devices.take(number));
        notify_clients(cx);
    }
    resize::adjust_pool(cx);
    let began = Instant::now();
    while Arc::strong_count(&device) > 1 && began.elapsed() < READ_WITHIN {
        std::thread::sleep(LOOK_EVERY);
    }
    device.medium().close();
}

/// Resizes a target to the number of regions in `config`. Pages behind a new end go as in [`empty`]; the file
/// may be truncated afterwards. A growing file must have its space before the call.
///
/// # Errors
/// The device's: nothing more is written to it then.
pub(crate) fn resize(cx: &Context, config: &DeviceConfig) -> io::Result<Arc<TargetTable>> {
    let number = config.number;
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let geometry = Geometry::new(config.region_bytes as u32, config.regions).ok_or_else(invalid)?;
    wait_until(cx, number, |device| !device.is_scanning())?;
    let device = cx.devices.get(number).ok_or(io::ErrorKind::NotFound)?;
    fsync::refuse_left(cx, &device)?;
    if let Some(of) = cx.state.lock().target_mut(number) {
        of.log.retire(config.regions);
    }
    wait_until(cx, number, |device| device.log.is_retired() || !device.is_on())?;
    let mut writer = device.writer();
    if !cx.state.lock().targets.as_ref().and_then(|targets| targets.at(number)).is_some_and(Device::is_on) {
        return Err(io::Error::other("the tier is off; `terrace stat` shows the reason"));
    }
    let table = Arc::new(device.table_files().resized(config)?);
    if !cx.devices.may_have(number, table.table()) {
        return Err(io::Error::other(
            "the tier cannot grow in place: remove it, and add it again with this size",
        ));
    }
    let before = writer.superblock().geometry;
    // Invalidates old content of these regions.
    let zeros = |buf: &mut [u8]| {
        buf.fill(0);
        let mut new = before.regions()..geometry.regions();
        new.try_for_each(|region| device.medium().write(geometry.byte(region, 0), buf))
    };
    let done = AlignedBuf::default()
        .with(PAGE_SIZE, zeros)
        .and_then(|()| superblock::resize(&**device.medium(), writer.superblock_mut(), geometry));
    if let Err(e) = done {
        crate::tier::append::give_up(cx, number, &e);
        return Err(e);
    }
    {
        let mut state = cx.state.lock();
        if let Some(of) = state.target_mut(number) {
            let level = of.config.level;
            of.resize(DeviceConfig { level, ..config.clone() }, table.table().clone());
            device.set_table(table.clone());
            notify_clients(cx);
        }
    }
    drop(writer);
    resize::adjust_pool(cx);
    Ok(table)
}

impl State {
    /// Drops entries that still name slots of a removed target: its keys were damaged, or never read.
    fn drop_target(&mut self, number: usize) {
        let Some(of) = self.targets.as_ref().and_then(|targets| targets.at(number)) else { return };
        if of.log.live() > 0 || !of.is_counted() {
            self.drop_slots(number, |_| true);
        }
    }
}
