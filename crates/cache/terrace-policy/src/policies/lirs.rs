//! Eviction policy `lirs`: keeps the pages with the shortest interval between their last two uses.
//!
//! Source: S. Jiang and X. Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy",
//! SIGMETRICS 2002. HIR pages are 1/100 of the pool as there, and stack S has at most two pools of pages as
//! in libCacheSim.
//!
//! ```text
//!   stack S, by last use:  ─ top ── LIR · HIR · gone · LIR · gone · LIR ─ bottom: always a LIR page
//!   queue Q: HIR pages that are resident, 1/100 of the pool; its end is evicted
//!
//!   used:  LIR ──────────────► top of S
//!          HIR, in S ────────► LIR; the LIR page at the bottom of S becomes HIR, at the head of Q
//!          HIR, not in S ────► top of S, head of Q
//!   new:   gone, still in S ─► LIR, likewise        never seen, or below the bottom ─► HIR
//! ```
//! **Stack S has no list of its own.** LIR pages are an LRU list, and every page has a stamp of its last use.
//! A page is in S if its stamp is newer than that list's tail. Pages leave Q in the order of their last use.
//! So evicted pages in S are a FIFO (see `ghost`), pruned at its old end as the bottom rises.
//!
//! With batches, uses between two passes of the hand (see `queue_policy`) get one stamp, ordered by slot
//! number. HIR pages get at least a batch of the pool. With fewer, reclaim ahead of demand would make the
//! whole pool LIR.
//!
//! Departure: the bound on S counts all of Q as being in S (less than 1/100 of a pool is not).

use crate::list::ghost::{Ghost, serial_of, shadow_of};
use crate::list::{Step, looks_max};
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};
use crate::{Shadow, Slot, Victim};

const LIR: usize = 0;
const Q: usize = 1;
/// Share of the pool for HIR pages: 1/100.
const HIR_DIVISOR: usize = 100;
/// Pages in S, in pools.
const STACK_POOLS: usize = 2;

#[derive(Debug)]
pub(crate) struct Lirs {
    capacity: usize,
    /// Target number of LIR pages.
    lir_max: usize,
    /// Uses seen, modulo 2^32: the stamp of the next.
    now: u32,
    /// Last use of the page in each slot.
    used: Vec<u32>,
    gone: Ghost,
    /// Last use of evicted pages, by place in the ghost.
    gone_used: Vec<u32>,
}

impl Lirs {
    pub(crate) fn build(slots_max: usize, capacity: usize) -> QueuePolicy<Lirs> {
        let gone = Ghost::new(slots_max, 2);
        let mut lirs = Lirs {
            capacity,
            lir_max: 0,
            now: 0,
            used: vec![0; slots_max],
            gone_used: vec![0; gone.ring()],
            gone,
        };
        lirs.share(capacity, 1);
        QueuePolicy::new(slots_max, lirs)
    }

    /// Divides `pages` between LIR and HIR, at least `batch` to the latter.
    fn share(&mut self, pages: usize, batch: usize) {
        let hir = (pages / HIR_DIVISOR).max(batch).min(pages.div_ceil(2));
        self.lir_max = pages - hir;
    }

    fn stamp(&mut self, slot: Slot) {
        self.used[slot as usize] = self.now;
        self.now = self.now.wrapping_add(1);
    }

    /// Whether a use at `stamp` is in the stack: not older than the LIR page at its bottom.
    fn in_stack(&self, queues: &Queues, stamp: u32) -> bool {
        let ago = |stamp| self.now.wrapping_sub(stamp);
        queues.tail(LIR).is_none_or(|bottom| ago(stamp) <= ago(self.used[bottom as usize]))
    }

    /// Prunes the ghost after the bottom of S has risen, or S has grown.
    fn prune(&mut self, queues: &Queues) {
        while let Some(oldest) = self.gone.oldest()
            && !self.in_stack(queues, self.gone_used[self.gone.place(oldest)])
        {
            self.gone.forget_oldest();
        }
        self.gone.trim((STACK_POOLS * self.capacity).saturating_sub(queues.len(LIR) + queues.len(Q)));
    }

    /// Turns excess LIR pages at the bottom of S into HIR pages, at most `moves`.
    fn demote(&mut self, queues: &mut Queues, moves: usize) {
        for _ in 0..moves {
            if queues.len(LIR) <= self.lir_max {
                break;
            }
            let bottom = queues.tail(LIR).expect("counted");
            queues.shift(LIR, Q, bottom);
        }
        self.prune(queues);
    }
}

impl Rules for Lirs {
    const NAME: &'static str = "lirs";
    const QUEUES: &'static [&'static str] = &["lir", "q"];
    const MOVES: bool = true;

    fn set_capacity(&mut self, pages: usize) {
        self.capacity = pages;
        self.share(pages, 1);
        self.gone.trim(STACK_POOLS * pages);
    }

    fn enter(&mut self, queues: &mut Queues, slot: Slot, shadow: Option<Shadow>) -> bool {
        let seen = shadow.map(|shadow| serial_of(shadow).0).filter(|&serial| self.gone.recall(serial));
        let known = seen.is_some_and(|serial| self.in_stack(queues, self.gone_used[self.gone.place(serial)]));
        self.stamp(slot);
        let fills = queues.len(LIR) < self.lir_max;
        queues.push(if known || fills { LIR } else { Q }, slot);
        self.demote(queues, 1);
        known
    }

    fn hit(&mut self, queues: &mut Queues, slot: Slot, _count: u8) {
        let from = queues.queue_of(slot).expect("hits are reported for queued pages");
        let to = if from == LIR || self.in_stack(queues, self.used[slot as usize]) { LIR } else { Q };
        self.stamp(slot);
        queues.shift(from, to, slot);
        self.demote(queues, 1);
    }

    fn prepare(&mut self, queues: &mut Queues, want: usize, resident: usize) {
        self.share(resident.min(self.capacity), want.max(1));
        self.demote(queues, looks_max(want));
    }

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        let Some(slot) = queues.tail(Q) else {
            let Some(bottom) = queues.tail(LIR) else { return Step::Empty };
            queues.shift(LIR, Q, bottom);
            self.prune(queues);
            return Step::Moved;
        };
        let used = uses.take(slot) != 0;
        if uses.stays(used) {
            self.hit(queues, slot, 1);
            return Step::Moved;
        }
        queues.unlink(Q, slot);
        let stamp = self.used[slot as usize];
        let shadow = self.in_stack(queues, stamp).then(|| {
            let serial = self.gone.push();
            let place = self.gone.place(serial);
            self.gone_used[place] = stamp;
            self.prune(queues);
            shadow_of(serial, false)
        });
        Step::Take(Victim { slot, shadow })
    }

    fn readmit(&mut self, queues: &mut Queues, slot: Slot) {
        self.stamp(slot);
        queues.push(Q, slot);
    }

    fn remember(&mut self) -> Option<Shadow> {
        let serial = self.gone.push();
        let place = self.gone.place(serial);
        self.gone_used[place] = self.now;
        self.now = self.now.wrapping_add(1);
        self.gone.trim(STACK_POOLS * self.capacity);
        Some(shadow_of(serial, false))
    }

    fn bytes(&self) -> usize {
        self.gone.bytes() + (self.gone_used.capacity() + self.used.capacity()) * size_of::<u32>()
    }

    fn dump(&self) -> String {
        format!(" | gone: {}", self.gone.show())
    }

    fn check(&self, _queues: &Queues) -> Result<(), String> {
        if self.gone.len() > STACK_POOLS * self.capacity {
            return Err(format!("{} pages remembered of a pool of {}", self.gone.len(), self.capacity));
        }
        self.gone.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;
    use crate::{Evict, InsertReason};

    const A: Slot = 0;
    const B: Slot = 1;
    const C: Slot = 2;
    const D: Slot = 3;
    const E: Slot = 4;

    /// The paper's example (two LIR pages, one HIR): S is E, A, D (gone), B; Q is E. Returns the shadow of D.
    fn example() -> (Pool<QueuePolicy<Lirs>>, Option<Shadow>) {
        let mut pool = Pool::new(Lirs::build(64, 3));
        pool.enter([A, B, D]);
        pool.policy.accessed(A);
        let d = pool.evict_shadows(1)[0];
        assert_eq!(d.slot, D);
        pool.enter([E]);
        pool.is("lir: 0 1 | q: 4 | held:  | gone: 1");
        (pool, d.shadow)
    }

    #[test]
    fn a_lir_page_is_used() {
        let (mut pool, d) = example();
        pool.policy.accessed(B);
        pool.is("lir: 1 0 | q: 4 | held:  | gone: "); // D lay below A, the new bottom
        pool.evict(1);
        assert!(!pool.enter_as(D, d, InsertReason::Read));
    }

    #[test]
    fn a_resident_hir_page_of_the_stack_is_used() {
        let (mut pool, _) = example();
        pool.policy.accessed(E);
        pool.is("lir: 4 0 | q: 1 | held:  | gone: ");
        pool.policy.accessed(B); // not in the stack any more: it stays HIR
        pool.is("lir: 4 0 | q: 1 | held:  | gone: ");
    }

    #[test]
    fn a_page_that_is_gone_but_in_the_stack_is_used() {
        let (mut pool, d) = example();
        assert_eq!(pool.evict(1), [E]);
        assert!(pool.enter_as(D, d, InsertReason::Read));
        pool.is("lir: 3 0 | q: 1 | held:  | gone: 2");
    }

    #[test]
    fn a_new_page_is_hir() {
        let (mut pool, _) = example();
        assert_eq!(pool.evict(1), [E]);
        pool.enter([C]);
        pool.is("lir: 0 1 | q: 2 | held:  | gone: 2 1");
    }

    #[test]
    fn a_stack_of_two_pools_forgets_the_oldest_that_is_gone() {
        let (mut pool, d) = example();
        for slot in 5..8 {
            pool.evict(1);
            pool.enter([slot]);
        }
        pool.is("lir: 0 1 | q: 7 | held:  | gone: 4 3 2");
        pool.evict(1);
        assert!(!pool.enter_as(D, d, InsertReason::Read));
    }

    #[test]
    fn a_batch_finds_its_victims_among_hir_pages() {
        let mut pool = Pool::new(Lirs::build(64, 20));
        pool.enter(0..20);
        pool.is("lir: 18 17 16 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 0 | q: 19 | held:  | gone: ");
        pool.touch([0, 18]);
        assert_eq!(pool.evict(4), [19, 1, 2, 3]); // three LIR pages came down; the hand saved 0 and 18
        pool.is("lir: 18 0 17 16 15 14 13 12 11 10 9 8 7 6 5 4 | q:  | held:  | gone: 1");
    }
}
