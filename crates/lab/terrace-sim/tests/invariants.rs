//! Invariants of every eviction policy under any operations: no page lost, no page invented, progress always
//! possible. No policy has fewer misses than the optimum.

use std::collections::BTreeSet;

mod common;

use common::{opt_misses, policy_opt_misses, run};
use proptest::prelude::*;
use terrace_policy::{AccessCounts, Evict, InsertReason, NAMES, Shadow, Slot, Victim};
use terrace_sim::sim::Mode;
use terrace_sim::yardsticks::{build, names};

const SLOTS: u32 = 48;

#[derive(Clone, Debug)]
enum Op {
    Insert { slot: Slot, reason: InsertReason, shadow: bool },
    Touch { slot: Slot, times: u8 },
    Victims { want: usize, restore: u32 },
    Remove(Slot),
    Faulting,
    Pass,
    Capacity(usize),
    Time(u64),
    Accessed(Slot),
    Age,
    VictimsUntil { seq: u64, want: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let reason =
        prop_oneof![Just(InsertReason::Read), Just(InsertReason::Write), Just(InsertReason::Readahead)];
    let op = prop_oneof![
        8 => (0..SLOTS, reason, any::<bool>()).prop_map(|(slot, reason, shadow)| Op::Insert { slot, reason, shadow }),
        6 => (0..SLOTS, 1..10u8).prop_map(|(slot, times)| Op::Touch { slot, times }),
        4 => (0..9usize, any::<u32>()).prop_map(|(want, mask)| Op::Victims { want, restore: mask & mask >> 7 }),
        2 => (0..SLOTS).prop_map(Op::Remove),
        1 => Just(Op::Pass),
        2 => Just(Op::Faulting),
        1 => (0..60usize).prop_map(Op::Capacity),
        1 => (0..30_000u64).prop_map(Op::Time),
        1 => (0..SLOTS).prop_map(Op::Accessed),
        1 => Just(Op::Age),
        1 => (0..40u64, 0..9usize).prop_map(|(seq, want)| Op::VictimsUntil { seq, want }),
    ];
    prop::collection::vec(op, 1..300)
}

/// The policy under test beside a plain model.
struct Pair {
    policy: Box<dyn Evict>,
    touches: Vec<u8>,
    resident: BTreeSet<Slot>,
    shadows: Vec<Shadow>,
    now_ms: u64,
}

impl Pair {
    fn new(name: &str) -> Pair {
        let policy = build(name, SLOTS as usize, 32).unwrap();
        let touches = vec![0; SLOTS as usize];
        Pair { policy, touches, resident: BTreeSet::new(), shadows: Vec::new(), now_ms: 0 }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert { slot, reason, shadow } => {
                if self.resident.insert(slot) {
                    let shadow = if shadow { self.shadows.pop() } else { None };
                    let recent = self.policy.insert(slot, shadow, reason, &mut self.touches);
                    assert!(shadow.is_some() || !recent, "a refault without a shadow");
                    assert_eq!(self.touches[slot as usize], 0);
                }
            }
            Op::Touch { slot, times } => {
                self.touches[slot as usize] = self.touches[slot as usize].saturating_add(times);
            }
            Op::Victims { want, restore } => self.victims(want, restore),
            Op::Remove(slot) => {
                if self.resident.remove(&slot) {
                    self.policy.remove(slot);
                }
            }
            Op::Faulting => {
                if let Some(&shadow) = self.shadows.last() {
                    self.policy.faulting(shadow);
                }
            }
            Op::Pass => self.shadows.extend(self.policy.shadow()),
            Op::Capacity(pages) => self.policy.set_capacity(pages),
            Op::Time(later) => {
                self.now_ms += later;
                self.policy.set_time(self.now_ms);
            }
            Op::Age => {
                let before = self.policy.window();
                let opened = self.policy.age(&mut self.touches);
                assert_eq!(opened.is_some(), before.is_some());
                assert_eq!(opened, self.policy.window().map(|window| *window.end()));
                assert!(opened.is_none() || opened > before.map(|window| *window.end()));
            }
            Op::VictimsUntil { seq, want } => self.victims_until(seq, want),
            Op::Accessed(slot) => {
                if self.resident.contains(&slot) {
                    self.policy.accessed(slot);
                }
            }
        }
    }

    fn victims(&mut self, want: usize, restore: u32) {
        let mut out: Vec<Victim> = Vec::new();
        self.policy.victims(want, &mut self.touches, &mut out);
        assert!(out.len() <= want);
        assert!(!out.is_empty() || want == 0 || self.resident.is_empty(), "pages are left, none offered");
        for (i, victim) in out.iter().enumerate() {
            assert!(self.resident.remove(&victim.slot), "{} was not resident", victim.slot);
            assert!(!self.policy.contains(victim.slot));
            if restore >> i & 1 == 0 {
                self.shadows.extend(victim.shadow);
            }
        }
        for (i, victim) in out.iter().enumerate() {
            if restore >> i & 1 == 1 {
                self.policy.restore(victim.slot);
                self.resident.insert(victim.slot);
            }
        }
    }

    fn victims_until(&mut self, seq: u64, want: usize) {
        let below: BTreeSet<Slot> = match self.policy.window() {
            Some(window) => {
                let seq = seq.min(window.end().saturating_sub(2));
                let old = |slot: &Slot| {
                    *window.end() >= 2 && self.policy.position(*slot).is_some_and(|at| at.seq <= seq)
                };
                self.resident.iter().copied().filter(old).collect()
            }
            None => BTreeSet::new(),
        };
        let mut out: Vec<Victim> = Vec::new();
        self.policy.victims_until(seq, want, &mut self.touches, &mut out);
        assert!(out.len() <= want);
        for victim in out {
            assert!(below.contains(&victim.slot), "{} is not in a generation up to {seq}", victim.slot);
            assert!(self.resident.remove(&victim.slot));
            self.shadows.extend(victim.shadow);
        }
    }

    fn verify_generations(&self) {
        let Some(window) = self.policy.window() else {
            assert!(self.resident.iter().all(|&slot| self.policy.position(slot).is_none()));
            return;
        };
        for row in self.policy.generations(self.now_ms).iter().filter(|row| row.label.starts_with("gen")) {
            assert!(window.contains(&row.seq), "{row:?} is outside of {window:?}");
            let here = |slot: &&Slot| self.policy.position(**slot).is_some_and(|at| at.seq == row.seq);
            assert_eq!(self.resident.iter().filter(here).count(), row.pages, "{row:?}");
        }
        let tiers = self.policy.tiers();
        let pages: usize = tiers.iter().map(|tier| tier.pages).sum();
        assert!(tiers.is_empty() || pages == self.resident.len(), "tiers tell of other pages than there are");
    }

    fn verify(&self) {
        self.verify_generations();
        self.policy.check().unwrap();
        assert_eq!(self.policy.resident(), self.resident.len());
        for slot in 0..SLOTS {
            assert_eq!(self.policy.contains(slot), self.resident.contains(&slot), "slot {slot}");
        }
        let pages: usize = self.policy.generations(self.now_ms).iter().map(|row| row.pages).sum();
        assert_eq!(pages, self.resident.len(), "generations tell of other pages than there are");
    }
}

/// A hostile client: every slot always looks touched, also right after it was cleared.
struct Hostile;

impl AccessCounts for Hostile {
    fn peek(&self, _slot: Slot) -> u8 {
        255
    }
    fn set(&mut self, _slot: Slot, _count: u8) {}
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_page_is_lost_and_all_can_go(ops in ops(), hostile: bool) {
        for name in names() {
            let mut pair = Pair::new(name);
            for op in &ops {
                pair.apply(op);
                pair.verify();
            }
            while !pair.resident.is_empty() {
                let mut out = Vec::new();
                if hostile {
                    pair.policy.victims(4, &mut Hostile, &mut out);
                } else {
                    pair.policy.victims(4, &mut pair.touches, &mut out);
                }
                prop_assert!(!out.is_empty(), "{} pages cannot be evicted", pair.resident.len());
                for victim in out {
                    prop_assert!(pair.resident.remove(&victim.slot));
                }
                pair.verify();
            }
        }
    }
}

/// Short traces with every kind of reuse: keys near each other, keys that repeat, keys never seen again.
fn any_trace() -> impl Strategy<Value = Vec<u64>> {
    let key = prop_oneof![6 => 0..12u64, 3 => 0..60u64, 1 => 0..10_000u64];
    prop::collection::vec(key, 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_beats_the_optimum_and_opt_reaches_it(trace in any_trace(), capacity in 1..40usize) {
        let best = opt_misses(&trace, capacity);
        prop_assert_eq!(policy_opt_misses(&trace, capacity), best);
        for name in names() {
            for mode in [Mode::Exact, Mode::Sampled { batch: 8 }] {
                let mut policy = build(name, capacity, capacity).unwrap();
                let outcome = run(policy.as_mut(), &trace, capacity, mode);
                prop_assert!(outcome.misses >= best, "{} beats the optimum", name);
                prop_assert!(policy.resident() <= capacity);
                policy.check().unwrap();
            }
        }
    }
}

#[test]
fn default_policy_takes_ten_bytes_a_slot_and_others_below_40() {
    for name in names() {
        let policy = build(name, 100_000, 100_000).unwrap();
        let most = if name == NAMES[0] { 10 } else { 40 };
        assert!(policy.bytes() <= most * 100_000, "{name}: {} bytes", policy.bytes());
        assert!(
            policy.bytes() >= 7 * 100_000,
            "{name}: links and tags alone take more than {}",
            policy.bytes()
        );
        assert_eq!(policy.name(), name);
    }
    assert!(build("nonesuch", 1, 1).is_none());
}

/// A pool of dirty pages only: none can be evicted, and every page is still offered in turn.
#[test]
fn a_pool_that_cannot_evict_is_offered_fairly() {
    for name in names() {
        let mut pair = Pair::new(name);
        for slot in 0..SLOTS {
            pair.apply(&Op::Insert { slot, reason: InsertReason::Write, shadow: false });
        }
        let mut offered = BTreeSet::new();
        for _ in 0..4 * SLOTS / 8 {
            let mut out = Vec::new();
            pair.policy.victims(8, &mut pair.touches, &mut out);
            offered.extend(out.iter().map(|victim| victim.slot));
            out.iter().for_each(|victim| pair.policy.restore(victim.slot));
            pair.verify();
        }
        assert_eq!(offered.len(), SLOTS as usize, "{name}");
    }
}

/// Dirty pages do not hide clean ones: with half the pool dirty, the other half is found at once.
#[test]
fn dirty_pages_do_not_stand_in_the_way_of_clean_ones() {
    for name in names() {
        let mut pair = Pair::new(name);
        for slot in 0..SLOTS {
            pair.apply(&Op::Insert { slot, reason: InsertReason::Read, shadow: false });
        }
        let (mut calls, mut freed) = (0, 0);
        while freed < SLOTS / 2 {
            let mut out = Vec::new();
            pair.policy.victims(8, &mut pair.touches, &mut out);
            calls += 1;
            for victim in out {
                if victim.slot % 2 == 0 {
                    pair.policy.restore(victim.slot);
                } else {
                    freed += 1;
                }
            }
            assert!(calls <= 2 * SLOTS / 8, "{name}: {freed} freed in {calls} calls");
        }
    }
}
