//! At the end of an instance the hottest pages of DRAM that the device lacks are written to it, so that the next one begins warm.

use crate::context::Context;
use crate::reclaim::append::{self, CONTENT_MAX, Content};
use crate::reclaim::{demote, regions};
use crate::state::State;
use crate::state::device::DemoteCandidate;
use std::time::{Duration, Instant};

/// Longest time that it takes.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Writes clean pages without a copy, those that were used more than once first, for a bounded time.
pub(crate) fn hibernate(cx: &Context) {
    let began = Instant::now();
    for reused in [true, false] {
        let frames = cx.state.lock().frames.populated();
        let mut next = 0;
        while next < frames && began.elapsed() < TIME_MAX {
            let pages = cx.state.lock().unwritten(&mut next, CONTENT_MAX, reused);
            if !pages.is_empty() && !write(cx, &pages) {
                return;
            }
            // Pages on the device are not given up for pages that were used once.
            if !reused && cx.state.lock().device.as_ref().is_none_or(|device| device.log.has_been_full()) {
                return;
            }
        }
    }
}

fn write(cx: &Context, pages: &[DemoteCandidate]) -> bool {
    regions::reclaim_due(cx);
    let Some(device) = &cx.device else { return false };
    let content: Vec<Content> = pages.iter().map(|page| demote::content(cx, page)).collect();
    let mut writer = device.writer.lock();
    let is_still = |state: &State, i: usize| state.is_still(&pages[i]);
    let Some(batch) = append::append(cx, &mut writer, &content, &[], is_still) else { return false };
    let mut state = cx.state.lock();
    for (i, slot, crc) in batch.written {
        state.keep_copy(&pages[i], slot, crc);
    }
    true
}
