//! Test helper for eviction policies: a pool for hand-worked sequences. Slots are pages; every step checks
//! the invariants.

use crate::{Evict, InsertReason, Shadow, Slot, Victim};

/// A policy and its touch table, for 64 slots.
#[derive(Debug)]
pub struct Pool<P> {
    /// The policy.
    pub policy: P,
    /// Its touch table.
    pub touches: Vec<u8>,
}

impl<P: Evict> Pool<P> {
    /// An empty pool.
    pub fn new(policy: P) -> Pool<P> {
        Pool { policy, touches: vec![0; 64] }
    }

    /// Inserts pages read by a program.
    pub fn enter(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.enter_as(slot, None, InsertReason::Read);
        }
    }

    /// Inserts one page; true: a recent refault.
    pub fn enter_as(&mut self, slot: Slot, shadow: Option<Shadow>, reason: InsertReason) -> bool {
        let recent = self.policy.insert(slot, shadow, reason, &mut self.touches);
        self.policy.check().unwrap();
        recent
    }

    /// One hit each.
    pub fn touch(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.touches[slot as usize] += 1;
        }
    }

    /// The slots of up to `want` victims.
    pub fn evict(&mut self, want: usize) -> Vec<Slot> {
        self.evict_shadows(want).iter().map(|victim| victim.slot).collect()
    }

    /// Up to `want` victims.
    pub fn evict_shadows(&mut self, want: usize) -> Vec<Victim> {
        let mut out = Vec::new();
        self.policy.victims(want, &mut self.touches, &mut out);
        self.policy.check().unwrap();
        out
    }

    /// Restores victims that could not be evicted.
    pub fn restore(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.policy.restore(slot);
            self.policy.check().unwrap();
        }
    }

    /// Asserts the content of the policy's queues ([`Evict::dump`]).
    #[track_caller]
    pub fn is(&self, dump: &str) {
        assert_eq!(self.policy.dump(), dump);
    }
}
