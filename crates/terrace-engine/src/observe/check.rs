//! Walks index, frames, policy and dirty sets, and says what does not agree.

use crate::engine::Engine;
use crate::segment::flag::{DIRTY, HELD, UNSTABLE, WRITEBACK};
use std::sync::atomic::Ordering;
use terrace_shm::State;
use terrace_shm::zobject::Handle;

impl Engine {
    /// Disagreements; empty = all is well. Holds the core lock all the while.
    pub fn check(&self) -> Vec<String> {
        let core = self.core.lock();
        let slots: Vec<u32> = core.objects.values().map(|o| o.slot_index()).collect();
        let mut bad = core.index.check(&slots);
        bad.extend(core.policy.check().err());
        let mut compressed = Vec::new();
        let (mut named, mut dirty, mut unstable, mut flagged) = (0u32, 0u64, 0u64, [0u64; 3]);
        for o in core.objects.values() {
            let dirt = o.dirt.lock();
            dirty += dirt.dirty.len() as u64;
            unstable += dirt.unstable.len() as u64;
            core.index.for_range(o.slot_index(), 0, u64::MAX, |page, place| {
                let e = core.index.get(place);
                if e.state() == State::Tier {
                    compressed.push((place, Handle(e.payload())));
                }
                let Some(frame) = e.frame() else { return };
                named += 1;
                let what = format!("object {} page {page} frame {frame}", o.id());
                let flags = self.handles.frame_flags(frame).load(Ordering::Relaxed);
                for (count, flag) in flagged.iter_mut().zip([DIRTY, WRITEBACK, UNSTABLE]) {
                    *count += u64::from(flags & flag != 0);
                }
                if core.place_of(frame) != Some(place) {
                    bad.push(format!("{what}: the frame's owner is another"));
                }
                if core.frames.is_free(frame) {
                    bad.push(format!("{what}: the frame is free"));
                }
                if dirt.dirty.contains(&page) != (flags & DIRTY != 0)
                    || dirt.unstable.contains_key(&page) != (flags & UNSTABLE != 0)
                {
                    bad.push(format!("{what}: dirty set and flags ({flags}) disagree"));
                }
                if e.state() == State::Present && !core.policy.contains(frame) {
                    bad.push(format!("{what}: unknown to the policy"));
                }
                if page * terrace_shm::PAGE_SIZE as u64 >= o.size() && flags & HELD == 0 {
                    bad.push(format!("{what}: beyond the end of the file ({})", o.size()));
                }
            });
        }
        core.check_tier(&compressed, &mut bad);
        if named + core.claimed != core.frames.in_use() {
            bad.push(format!(
                "{named} frames named, {} claimed, {} in use",
                core.claimed,
                core.frames.in_use()
            ));
        }
        let totals = core.dirt.totals;
        if [dirty, totals.writeback, unstable] != flagged
            || [totals.dirty, totals.unstable] != [dirty, unstable]
        {
            bad.push(format!(
                "{dirty} dirty and {unstable} unstable in sets, {totals:?} counted, {flagged:?} flagged"
            ));
        }
        bad
    }
}
