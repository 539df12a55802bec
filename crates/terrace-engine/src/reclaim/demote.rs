//! Pages that leave DRAM and are worth it are written to the device first: then they leave as pages do that are there already.

use crate::context::Context;
use crate::reclaim::append::{self, Content};
use crate::reclaim::regions;
use crate::state::device::DemoteCandidate;
use crate::state::{Leaving, State};

/// Writes the pages that are to go to the device. They leave their frames, or join those to be compressed.
pub(crate) fn demote(cx: &Context, leaving: &mut Leaving) {
    let all = std::mem::take(&mut leaving.to_device);
    if all.is_empty() {
        return;
    }
    let mut rest = &all[..];
    if let Some(device) = &cx.device {
        let mut writer = device.writer.lock();
        while !rest.is_empty() {
            let pages: Vec<Content> = rest.iter().map(|page| content(cx, page)).collect();
            let is_still = |state: &State, i: usize| state.is_still(&rest[i]);
            let appended = append::append(cx, &mut writer, &pages, &[], is_still);
            let Some(batch) = appended else {
                // The device's thread has not kept regions free.
                if regions::reclaim_one(cx, device, &mut writer) {
                    continue;
                }
                break;
            };
            let mut state = cx.state.lock();
            let mut written = batch.written.into_iter().peekable();
            for (i, page) in rest[..batch.taken].iter().enumerate() {
                match written.next_if(|(at, ..)| *at == i) {
                    Some((_, slot, crc)) => state.finish_demotion(page, slot, crc, leaving),
                    None => state.stay(page),
                }
            }
            drop(state);
            rest = &rest[batch.taken..];
        }
        if cx.state.lock().device.as_ref().is_some_and(|device| device.log.due().is_some()) {
            cx.device_wakeup.signal();
        }
    }
    let state = cx.state.lock();
    rest.iter().for_each(|page| state.stay(page));
}

/// A page in its frame, to be written.
pub(crate) fn content(cx: &Context, page: &DemoteCandidate) -> Content {
    Content { object: page.object, page: page.page, from: cx.handles.segment.frame(page.frame) }
}
