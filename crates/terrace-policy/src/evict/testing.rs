//! A pool for hand-worked sequences: slots stand for pages, and every step proves the invariants.

use crate::{Evict, Shadow, Slot, Victim, Why};

pub(crate) struct Pool<P> {
    pub(crate) policy: P,
    pub(crate) touches: Vec<u8>,
}

impl<P: Evict> Pool<P> {
    pub(crate) fn new(policy: P) -> Pool<P> {
        Pool { policy, touches: vec![0; 64] }
    }

    pub(crate) fn enter(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.enter_as(slot, None, Why::Read);
        }
    }

    pub(crate) fn enter_as(&mut self, slot: Slot, shadow: Option<Shadow>, why: Why) -> bool {
        let recent = self.policy.insert(slot, shadow, why, &mut self.touches);
        self.policy.check().unwrap();
        recent
    }

    pub(crate) fn touch(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.touches[slot as usize] += 1;
        }
    }

    pub(crate) fn evict(&mut self, want: usize) -> Vec<Slot> {
        self.evict_shadows(want).iter().map(|victim| victim.slot).collect()
    }

    pub(crate) fn evict_shadows(&mut self, want: usize) -> Vec<Victim> {
        let mut out = Vec::new();
        self.policy.victims(want, &mut self.touches, &mut out);
        self.policy.check().unwrap();
        out
    }

    pub(crate) fn restore(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.policy.restore(slot);
            self.policy.check().unwrap();
        }
    }

    #[track_caller]
    pub(crate) fn is(&self, dump: &str) {
        assert_eq!(self.policy.dump(), dump);
    }
}
