//! Walks index, frames, policy and dirty sets, and reports inconsistencies.

use crate::context::Context;
use crate::segment::flag::{DIRTY, HELD, UNSTABLE, WRITEBACK};
use std::sync::atomic::Ordering;
use terrace_shm::State;

/// Disagreements; empty = all is well. Holds the state lock all the while.
pub(crate) fn check(cx: &Context) -> Vec<String> {
    let state = cx.state.lock();
    let slots: Vec<u32> = state.objects.values().map(|o| o.slot_index()).collect();
    let mut bad = state.pages.index.check(&slots);
    bad.extend(state.lru.policy.check().err());
    let mut compressed = Vec::new();
    let (mut named, mut dirty, mut unstable, mut flagged) = (0u32, 0u64, 0u64, [0u64; 3]);
    for o in state.objects.values() {
        let dirty_pages = o.dirty.lock();
        dirty += dirty_pages.dirty.len() as u64;
        unstable += dirty_pages.unstable.len() as u64;
        state.pages.index.for_range(o.slot_index(), 0, u64::MAX, |page, place| {
            let e = state.pages.index.get(place);
            if let Some(handle) = e.handle() {
                compressed.push((place, handle));
            }
            let Some(frame) = e.frame() else { return };
            named += 1;
            let what = format!("object {} page {page} frame {frame}", o.id());
            let flags = cx.handles.frame_flags(frame).load(Ordering::Relaxed);
            for (count, flag) in flagged.iter_mut().zip([DIRTY, WRITEBACK, UNSTABLE]) {
                *count += u64::from(flags & flag != 0);
            }
            if state.pages.place_of(frame) != Some(place) {
                bad.push(format!("{what}: the frame's owner is another"));
            }
            if state.frames.is_free(frame) {
                bad.push(format!("{what}: the frame is free"));
            }
            if dirty_pages.dirty.contains(&page) != (flags & DIRTY != 0)
                || dirty_pages.unstable.contains_key(&page) != (flags & UNSTABLE != 0)
            {
                bad.push(format!("{what}: dirty set and flags ({flags}) disagree"));
            }
            if e.state() == State::Present && !state.lru.policy.contains(frame) {
                bad.push(format!("{what}: unknown to the policy"));
            }
            if page * terrace_shm::PAGE_SIZE as u64 >= o.size() && flags & HELD == 0 {
                bad.push(format!("{what}: beyond the end of the file ({})", o.size()));
            }
        });
    }
    match &state.compressed {
        Some(tier) => tier.check(&compressed, &mut bad),
        None if compressed.is_empty() => {}
        None => bad.push(format!("{} pages in a tier that does not exist", compressed.len())),
    }
    if named + state.claimed != state.frames.in_use() {
        bad.push(format!(
            "{named} frames named, {} claimed, {} in use",
            state.claimed,
            state.frames.in_use()
        ));
    }
    let totals = state.dirty.totals;
    if [dirty, totals.writeback, unstable] != flagged || [totals.dirty, totals.unstable] != [dirty, unstable]
    {
        bad.push(format!(
            "{dirty} dirty and {unstable} unstable in sets, {totals:?} counted, {flagged:?} flagged"
        ));
    }
    bad
}
