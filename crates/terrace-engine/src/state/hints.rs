//! Pages that are fetched before a program asks for them, and clean pages that a program needs no longer.
//!
//! The policy lists the former as it lists read-ahead: on probation. Those that no program has used yet may have a sixteenth of the pool, so that
//! hints that come to nothing push out little.

use crate::file::object::Object;
use crate::segment::flag::{HELD, LEAVING, REUSED, USED};
use crate::state::State;
use crate::state::lru::TouchView;
use std::sync::atomic::Ordering;
use terrace_shm::State as EntryState;

impl State {
    /// A program has used the page in a mapped frame since it came.
    fn is_used(&self, touches: &TouchView, frame: u32) -> bool {
        touches.is_touched(frame) || self.pages.flags(frame).load(Ordering::Relaxed) & (REUSED | USED) != 0
    }

    /// A program has used this page, which is in memory.
    pub(crate) fn is_page_used(&self, o: &Object, page: u64) -> bool {
        let touches = self.lru.touches();
        self.pages.frame_of(o, page).is_some_and(|frame| self.is_used(&touches, frame))
    }

    /// How many more pages may be fetched ahead into a pool of so many frames.
    pub(crate) fn room_ahead(&mut self, pool: u32) -> usize {
        let mut ahead = std::mem::take(&mut self.ahead);
        let touches = self.lru.touches();
        let room =
            ahead.room(pool, |frame| self.lru.policy.contains(frame) && !self.is_used(&touches, frame));
        self.ahead = ahead;
        room
    }

    /// Gives up the frames of clean pages `[first, last]` of an object; copies below DRAM stay. How many.
    pub(crate) fn drop_clean(&mut self, o: &Object, first: u64, last: u64) -> u64 {
        if !self.objects.is_known(o) {
            return 0;
        }
        let mut places = Vec::new();
        self.pages.index.for_range(o.slot_index(), first, last, |_, place| places.push(place));
        let mut dropped = 0;
        for place in places {
            let entry = self.pages.index.get(place);
            let Some(frame) = entry.frame().filter(|_| entry.state() == EntryState::Present) else {
                continue;
            };
            let held = self.pages.flags(frame).load(Ordering::Relaxed) & (HELD | LEAVING) != 0;
            if held || !self.lru.policy.contains(frame) {
                continue;
            }
            self.lru.policy.remove(frame);
            if !self.return_to_copy(place, frame) {
                self.release(place, frame, 0);
            }
            dropped += 1;
        }
        dropped
    }
}
