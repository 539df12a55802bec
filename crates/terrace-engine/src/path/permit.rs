//! Changes of the source by writeback and truncates, as a target is told of them that has pages which the source lacks.
//!
//! **A permit comes first.** Before the source of such a file is changed, a record says durably that this run may do so until a time. A start after a power
//! cut finds the file as it was when its pages were written (then nobody has changed it), or changed within the permit (then it was this run), or changed
//! later: by somebody else, whose change stays.
//!
//! **Nothing is acknowledged by the source before the paid record is durable.** Otherwise the pages would be written over what came after them. If the target
//! fails, so that no such record can be written, the file is given a time behind the permit first ([`leave_behind`]): a start that finds the target again
//! finds a conflict.

use crate::context::Context;
use crate::device::format::{Record, holder};
use crate::device::io::{DeviceIo, Writer};
use crate::file::burst::Burst;
use crate::file::identity::{Identity, SETTLES};
use crate::file::object::Object;
use crate::reclaim::append::{self, Content};
use crate::reclaim::regions;
use crate::state::State;
use crate::state::device::Device;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long the source may be changed without another record.
pub(crate) const PERMIT_NS: i64 = 5_000_000_000;
/// What begins so much before the end of a permit needs another one: its time in the source may be later than the look at the clock.
pub(crate) const MARGIN_NS: i64 = 1_000_000_000;

/// A change of a file in the source is under way.
#[must_use]
pub(crate) struct Change<'a>(Option<&'a Object>);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(o) = self.0 {
            o.burst.lock().changing -= 1;
        }
    }
}

/// Until a target that may have been left with pages is known, nobody knows whether the source may be acknowledged.
pub(crate) fn wait_for_scans(cx: &Context) {
    while !cx.is_stopping() && cx.devices.all().iter().any(|device| is_unknown(cx, device)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_unknown(cx: &Context, device: &DeviceIo) -> bool {
    let state = cx.state.lock();
    let of = state.targets.as_ref().and_then(|targets| targets.at(device.number));
    device.may_owe() && of.is_some_and(|of| of.is_scanning() && of.config.access.trouble().is_none())
}

/// The source of the file is about to be changed: its size, or other metadata. What it has of pages stays.
pub(crate) fn change<'a>(cx: &Context, o: &'a Object) -> Change<'a> {
    begin(cx, o, false)
}

/// The source of the file is about to get pages: what a target has of these will be older.
pub(crate) fn change_pages<'a>(cx: &Context, o: &'a Object) -> Change<'a> {
    begin(cx, o, true)
}

fn begin<'a>(cx: &Context, o: &'a Object, pages: bool) -> Change<'a> {
    if !cx.may_owe() {
        return Change(None);
    }
    if Burst::has_begun(o.slot()) && o.burst.lock().target.is_none() {
        // A dead terraced has written pages of it to some target, which has to be told before.
        wait_for_scans(cx);
    }
    let mut burst = o.burst.lock();
    burst.must_settle |= pages && burst.target.is_some();
    burst.changes += 1;
    burst.changing += 1;
    burst.changed_at = cx.clock.wall_ns();
    burst.base = None;
    if let Some(number) = burst.target {
        permit(cx, o, &mut burst, number);
    }
    Change(Some(o))
}

fn permit(cx: &Context, o: &Object, burst: &mut Burst, number: usize) {
    let now = cx.clock.wall_ns();
    if now + MARGIN_NS < burst.permit {
        return;
    }
    let until = now + PERMIT_NS;
    let birth = Identity::of(o.source().as_path()).map_or(0, |identity| identity.birth);
    let record = Record::Permit {
        object: o.id(),
        until: until.cast_unsigned(),
        holder: holder(Boot::this(cx).mark, birth),
    };
    // If it cannot be told, a start finds a file that nobody was to change: a conflict.
    if cx.devices.get(number).is_some_and(|device| write_records(cx, &device, &[record])) {
        burst.permit = until;
    }
}

/// This boot of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boot {
    /// A mark of it; never 0.
    pub mark: u16,
    /// When it was, ns since 1970: what was changed later was changed after it.
    pub began: i64,
}

impl Boot {
    pub(crate) fn this(cx: &Context) -> Boot {
        if let Some((mark, began)) = cx.config.boot {
            return Boot { mark, began };
        }
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mark =
            id.bytes().fold(1u32, |sum, byte| sum.wrapping_mul(0x0100_0193) ^ u32::from(byte)) as u16 | 1;
        let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Boot { mark, began: cx.clock.wall_ns() - (up.tv_sec * 1_000_000_000 + up.tv_nsec) }
    }
}

/// Writes pages that the source lacks, with `others` before them in time. Pages dealt with; None: the target takes none.
pub(crate) fn append_owed(
    cx: &Context,
    device: &DeviceIo,
    pages: &[Content],
    others: &[Record],
) -> Option<usize> {
    let mut writer = device.writer.lock();
    loop {
        if let Some(taken) = append::append_owed(cx, device, &mut writer, pages, others) {
            return Some(taken);
        }
        let make_room = |writer: &mut Writer| regions::make_room(cx, device, writer);
        if !make_room(&mut writer) {
            return None;
        }
    }
}

/// Makes everything durable that was written to a target. False: it has failed, and is given up.
pub(crate) fn flush(cx: &Context, device: &DeviceIo) -> bool {
    let flushed = device.flush();
    if let Err(e) = &flushed {
        append::give_up(cx, device.number, e);
    }
    flushed.is_ok()
}

/// Writes records durably. False: the target does not take them.
pub(crate) fn write_records(cx: &Context, device: &DeviceIo, records: &[Record]) -> bool {
    append_owed(cx, device, &[], records).is_some() && flush(cx, device)
}

/// The source has everything of the file, durably: its target is told.
pub(crate) fn pay(cx: &Context, o: &Object, burst: &mut Burst) -> io::Result<()> {
    let Some(number) = burst.target else { return Ok(()) };
    let device = cx.devices.get(number);
    let told = device.as_ref().is_some_and(|of| write_records(cx, of, &[Record::Paid { object: o.id() }]));
    if !told {
        leave_behind(cx, o, burst.permit)?;
    }
    on_target(&mut cx.state.lock(), number, |of| of.owed.paid(o.id(), told));
    // Also if it is not told: what it has is a conflict then, and the file goes nowhere before it is.
    o.dirty.lock().superseded.clear();
    match told {
        true => _ = burst.end(o.slot()),
        // The next terraced finds what it has, and tells it.
        false => (burst.target, burst.permit, burst.unflushed) = (None, 0, false),
    }
    if let Some(device) = device {
        device.wakeup.signal();
    }
    Ok(())
}

/// Whether the source's clock is this machine's, by the ctime of a file that was last changed `since` then, if it was. None: it does not tell.
pub(crate) fn is_in_step(since: Option<i64>, ctime: i64, now: i64) -> Option<bool> {
    if ctime > now + MARGIN_NS {
        return Some(false);
    }
    since.map(|since| ctime >= since - MARGIN_NS)
}

/// Gives the file a time behind the permit, durably: what the target holds of it will be found to be older.
fn leave_behind(cx: &Context, o: &Object, permit: i64) -> io::Result<()> {
    let rest = (permit - cx.clock.wall_ns()).clamp(0, PERMIT_NS);
    std::thread::sleep(Duration::from_nanos(rest.cast_unsigned()) + SETTLES);
    o.renew_ctime()?;
    if Identity::of(o.source().as_path())?.ctime <= permit {
        return Err(io::Error::other("the clock stands still"));
    }
    cx.io.sync(o.source().any()?.raw(), false)
}

/// Does something with a target's books.
pub(crate) fn on_target<T>(
    state: &mut State,
    number: usize,
    what: impl FnOnce(&mut Device) -> T,
) -> Option<T> {
    state.target_mut(number).map(what)
}

/// The fastest target that takes pages which the source lacks of this file. None: none does, or one has some already.
pub(crate) fn choose(cx: &Context, o: &Object) -> Option<Arc<DeviceIo>> {
    let number = {
        let state = cx.state.lock();
        let targets = state.targets.as_ref()?;
        if targets.all.iter().any(|of| of.owed.has(o.id())) {
            return None;
        }
        let mut takes = targets.all.iter().filter(|of| of.is_serving() && of.takes_owed());
        takes.next()?.config.number
    };
    cx.devices.get(number)
}
