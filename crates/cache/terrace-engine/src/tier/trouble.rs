//! A target is turned off after 64 successive failed reads, and receives no more writes. Reads of a hung
//! target go to the source. The log and the tier's state give the reason.

use crate::context::Context;
use crate::state::device::Status;
use crate::tier::intent::on_target;
use std::io;
use std::sync::atomic::Ordering;
use terrace_tier::DeviceIo;
use terrace_tier::ReadPiece;

/// Number of successive failed reads after which a target is turned off.
const FAILURES_MAX: u32 = 64;

pub(crate) fn note_reads(cx: &Context, device: &DeviceIo, reads: &[ReadPiece]) {
    for read in reads {
        match &read.result {
            Ok(()) => device.note_good_read(),
            Err(err) if err.kind() == io::ErrorKind::TimedOut => note_trouble(cx, device),
            Err(err) => {
                if device.note_failed_read() == FAILURES_MAX {
                    turn_off(cx, device, &format!("reads fail: {err}"));
                }
            }
        }
    }
}

/// Notes whether a target hangs. Clients send reads of a hung target to the daemon.
pub(crate) fn note_trouble(cx: &Context, device: &DeviceIo) {
    let Some((_, limit)) = device.medium().file() else { return };
    let late = limit.is_passed().then(|| limit.error().to_string());
    let mut state = cx.state.lock();
    let changed = on_target(&mut state, device.number(), |of| {
        let changed = of.late != late;
        of.late.clone_from(&late);
        changed
    });
    if changed == Some(true) {
        cx.handles.segment.header().targets.fetch_add(1, Ordering::AcqRel);
        match late {
            Some(why) => tracing::error!("tier {}: {why}; the source is read instead", device.name()),
            None => tracing::info!("tier {}: the device answers again, and terrace reads it", device.name()),
        }
    }
}

fn turn_off(cx: &Context, device: &DeviceIo, why: &str) {
    on_target(&mut cx.state.lock(), device.number(), |of| {
        if of.status == Status::Serving {
            tracing::error!("tier {}: {why}; the tier takes no more pages: check the device", device.name());
            of.status = Status::Off(why.to_owned());
        }
    });
}
