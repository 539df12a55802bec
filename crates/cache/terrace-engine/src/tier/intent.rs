//! Write-intent and destage-complete records on a target with undestaged pages.
//!
//! **The write-intent record comes first.** It is durable before writeback or a truncate changes the source's
//! file. It allows this run changes until a given time. A start after a power cut finds the file in one of
//! three states:
//! - unchanged since its pages went to the target;
//! - changed within the intent: by this run;
//! - changed later: by another program, a conflict.
//!
//! **The source acknowledges nothing before the destage-complete record is durable.** Otherwise a start would
//! write the undestaged pages over newer data. A failed target takes no such record. The file then gets a
//! ctime after the intent's end ([`move_ctime_past`]), so that a start with this target finds a conflict.

use crate::context::Context;
use crate::file::burst::Burst;
use crate::file::identity::{Identity, SETTLES};
use crate::file::object::Object;
use crate::state::State;
use crate::state::device::Device;
use crate::tier::append::{self, Content};
use crate::tier::regions;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use terrace_tier::format::{Record, holder};
use terrace_tier::{DeviceIo, Writer};

/// Length of a write intent: the source may be changed so long without another record.
pub(crate) const INTENT_NS: i64 = 5_000_000_000;
/// A change this close to a write intent's end needs a new one: the source may stamp it later.
pub(crate) const MARGIN_NS: i64 = 1_000_000_000;

/// A change of a file in the source, under way as long as this value lives.
#[must_use]
pub(crate) struct Change<'a>(Option<&'a Object>);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(o) = self.0 {
            o.burst.lock().changing -= 1;
        }
    }
}

/// Waits for the scans of targets: only they show whether the source may acknowledge.
pub(crate) fn wait_for_scans(cx: &Context) {
    while !cx.is_stopping() && cx.devices.all().iter().any(|device| is_unknown(cx, device)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_unknown(cx: &Context, device: &DeviceIo) -> bool {
    let state = cx.state.lock();
    let of = state.targets.as_ref().and_then(|targets| targets.at(device.number()));
    device.may_have_undestaged()
        && of.is_some_and(|of| of.is_scanning() && of.config.access.trouble().is_none())
}

/// Announces a change of the source's file: of its size or other metadata, not of page content.
pub(crate) fn change<'a>(cx: &Context, o: &'a Object) -> Change<'a> {
    begin(cx, o, false)
}

/// Announces a write of pages to the source: the target's versions of these become older.
pub(crate) fn change_pages<'a>(cx: &Context, o: &'a Object) -> Change<'a> {
    begin(cx, o, true)
}

fn begin<'a>(cx: &Context, o: &'a Object, pages: bool) -> Change<'a> {
    if !cx.may_have_undestaged() {
        return Change(None);
    }
    if Burst::has_begun(o.slot()) && o.burst.lock().target.is_none() {
        // A dead terraced left undestaged pages of the file on some target: a write intent comes first.
        wait_for_scans(cx);
    }
    let mut burst = o.burst.lock();
    burst.must_destage |= pages && burst.target.is_some();
    burst.changes += 1;
    burst.changing += 1;
    burst.changed_at = cx.clock.wall_ns();
    burst.base_version = None;
    if let Some(number) = burst.target {
        record_intent(cx, o, &mut burst, number);
    }
    Change(Some(o))
}

fn record_intent(cx: &Context, o: &Object, burst: &mut Burst, number: usize) {
    let now = cx.clock.wall_ns();
    if now + MARGIN_NS < burst.intent_until {
        return;
    }
    let until = now + INTENT_NS;
    let birth = Identity::of(o.source().as_path()).map_or(0, |identity| identity.birth);
    let record = Record::WriteIntent {
        object: o.id(),
        until: until.cast_unsigned(),
        holder: holder(Boot::this(cx).mark, birth),
    };
    // Without the record a start finds a change without an intent: a conflict.
    if cx.devices.get(number).is_some_and(|device| write_records(cx, &device, &[record])) {
        burst.intent_until = until;
    }
}

/// The present boot of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boot {
    /// Digest of the kernel's boot_id.
    pub(crate) id: u64,
    /// Mark of the boot; never 0.
    pub(crate) mark: u16,
    /// Begin, ns since 1970: later times of files belong to this boot.
    pub(crate) began: i64,
}

impl Boot {
    pub(crate) fn this(cx: &Context) -> Boot {
        if let Some((mark, began)) = cx.config.boot {
            return Boot { id: mark.into(), mark, began };
        }
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // FNV-1.
        let id = id.bytes().fold(1u64, |sum, byte| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Boot { id, mark: id as u16 | 1, began: cx.clock.wall_ns() - (up.tv_sec * 1_000_000_000 + up.tv_nsec) }
    }
}

/// Appends undestaged pages, preceded in time by `others`. Returns the number of pages handled; None: the
/// target takes none.
pub(crate) fn append_undestaged(
    cx: &Context,
    device: &DeviceIo,
    pages: &[Content],
    others: &[Record],
) -> Option<usize> {
    let mut writer = device.writer();
    loop {
        if let Some(taken) = append::append_undestaged(cx, device, &mut writer, pages, others) {
            return Some(taken);
        }
        let make_room = |writer: &mut Writer| regions::make_room(cx, device, writer);
        if !make_room(&mut writer) {
            return None;
        }
    }
}

/// Makes all writes to a target durable. False: the flush has failed, and the target is given up.
pub(crate) fn flush(cx: &Context, device: &DeviceIo) -> bool {
    let flushed = device.flush();
    if let Err(e) = &flushed {
        append::give_up(cx, device.number(), e);
    }
    flushed.is_ok()
}

/// Writes records durably. False: the target refuses them.
pub(crate) fn write_records(cx: &Context, device: &DeviceIo, records: &[Record]) -> bool {
    append_undestaged(cx, device, &[], records).is_some() && flush(cx, device)
}

/// Records on the target that the source has the whole file durably.
pub(crate) fn complete_destage(cx: &Context, o: &Object, burst: &mut Burst) -> io::Result<()> {
    let Some(number) = burst.target else { return Ok(()) };
    let device = cx.devices.get(number);
    let recorded = device
        .as_ref()
        .is_some_and(|of| write_records(cx, of, &[Record::DestageComplete { object: o.id() }]));
    if !recorded {
        move_ctime_past(cx, o, burst.intent_until)?;
    }
    on_target(&mut cx.state.lock(), number, |of| of.undestaged.complete(o.id(), recorded));
    // Without the record the target's pages are a conflict: until then the file gets no target.
    o.dirty.lock().superseded.clear();
    match recorded {
        true => _ = burst.end(o.slot()),
        // The next terraced finds the pages, and reports them.
        false => (burst.target, burst.intent_until, burst.unflushed) = (None, 0, false),
    }
    if let Some(device) = device {
        device.wake();
    }
    Ok(())
}

/// Whether the source's clock agrees with this machine's, by a file's ctime. `since`: the begin of its last
/// change, if known. None: no evidence.
pub(crate) fn is_in_step(since: Option<i64>, ctime: i64, now: i64) -> Option<bool> {
    if ctime > now + MARGIN_NS {
        return Some(false);
    }
    since.map(|since| ctime >= since - MARGIN_NS)
}

/// Durably gives the file a ctime after the write intent's end: a start finds older pages on the target.
fn move_ctime_past(cx: &Context, o: &Object, intent_until: i64) -> io::Result<()> {
    let rest = (intent_until - cx.clock.wall_ns()).clamp(0, INTENT_NS);
    std::thread::sleep(Duration::from_nanos(rest.cast_unsigned()) + SETTLES);
    o.renew_ctime()?;
    if Identity::of(o.source().as_path())?.ctime <= intent_until {
        return Err(io::Error::other("the ctime of the file does not advance"));
    }
    cx.io.sync(o.source().any()?.raw(), false)
}

pub(crate) fn on_target<T>(
    state: &mut State,
    number: usize,
    what: impl FnOnce(&mut Device) -> T,
) -> Option<T> {
    state.target_mut(number).map(what)
}

/// The fastest target that takes undestaged pages of this file. None: none, or a target has some.
pub(crate) fn choose(cx: &Context, o: &Object) -> Option<Arc<DeviceIo>> {
    let number = {
        let state = cx.state.lock();
        let targets = state.targets.as_ref()?;
        if targets.all.iter().any(|of| of.undestaged.has(o.id())) {
            return None;
        }
        let mut takes = targets.all.iter().filter(|of| of.is_serving() && of.takes_undestaged());
        takes.next()?.config.number
    };
    cx.devices.get(number)
}
