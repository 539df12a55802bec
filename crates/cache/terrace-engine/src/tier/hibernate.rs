//! Hibernation: at the end of an instance, clean pages of DRAM go to devices, those used more than once
//! first. The next instance then starts warm.

use crate::context::Context;
use crate::state::device::DemoteCandidate;
use crate::tier::append::CONTENT_MAX;
use crate::tier::{place, regions};
use std::time::{Duration, Instant};

const TIME_MAX: Duration = Duration::from_secs(5);

/// Writes clean pages without a copy, those used more than once first, within the time limit.
pub(crate) fn hibernate(cx: &Context) {
    let until = Instant::now() + TIME_MAX;
    for reused in [true, false] {
        let frames = cx.state.lock().frames.populated();
        let mut next = 0;
        while next < frames && Instant::now() < until {
            let pages = cx.state.lock().unwritten(&mut next, CONTENT_MAX * cx.devices.len(), reused);
            if !pages.is_empty() && !write(cx, &pages, reused, until) {
                break;
            }
        }
    }
}

/// Writes pages to the fastest tier that takes them. Pages used once do not displace pages on a device.
/// False: no page was written.
fn write(cx: &Context, pages: &[DemoteCandidate], reused: bool, until: Instant) -> bool {
    let levels = cx.state.lock().targets.as_ref().map_or(0, |targets| targets.levels());
    (0..levels).any(|level| {
        let numbers = cx.state.lock().targets.as_ref().map_or(Vec::new(), |targets| targets.of_level(level));
        let of_level = numbers.into_iter().filter_map(|number| cx.devices.get(number));
        of_level.for_each(|device| device.medium().wait_ready(until));
        write_to(cx, level, pages, !(reused && level == 0))
    })
}

fn write_to(cx: &Context, level: u8, pages: &[DemoteCandidate], room_only: bool) -> bool {
    let shares = place::place(
        cx,
        pages,
        |page| (page.object, page.page),
        |targets, pieces, speeds| targets.place_last(level, pieces, speeds, room_only),
    );
    let written = place::for_each(&shares, |device, numbers| {
        regions::reclaim_due(cx, device);
        let its: Vec<DemoteCandidate> = numbers.iter().map(|i| pages[*i]).collect();
        place::write(cx, device, &its, |state, page, at| {
            if let Some((slot, crc)) = at {
                state.keep_copy(page, slot, crc);
            }
        })
    });
    written.into_iter().any(|pages| pages > 0)
}
