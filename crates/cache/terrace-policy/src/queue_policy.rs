//! The common part of eviction policies made of queues, without their rules.
//!
//! ```text
//!   Evict (engine, simulator) ──► QueuePolicy ──► Rules: where a page enters, what a hit does, which page goes
//!                                   │
//!                                   ├─ Queues: lists over slots, one tag a slot says which
//!                                   ├─ HeldQueue: victims that could not go
//!                                   ├─ Patience: an end to the search when all pages are hot
//!                                   └─ Sweep: reports touched pages to rules that move them
//! ```
//! **Hits in batches.** Most published policies move a page at every hit. A hit here writes one byte. For
//! rules with [`Rules::MOVES`], a hand passes the next slots with every batch of victims. It reports touched
//! pages, as does a look at a candidate for eviction. The loss: uses between two passes (an eighth of a
//! turnover of the pool) look like one, ordered by slot number. The guarantee: a page used since its last
//! look stays while an idle one is left. From the first [`Evict::accessed`] on (the simulator's exact mode),
//! such rules get each hit at once and ignore the table.
//!
//! The cost of batches of 64 with victims ahead of demand (`terrace-sim gates`). Percent above Belady, exact
//! mode -> in batches: 22 cells of six traces, then 36 of eleven others.
//!
//! ```text
//!   2q     30.9 -> 32.1   26.2 -> 28.0     s3fifo     27.2 -> 29.8   16.7 -> 17.9
//!   arc    32.3 -> 33.5   26.1 -> 27.0     sieve      38.4 -> 35.7   28.3 -> 29.0
//!   clock  35.5 -> 36.7   31.3 -> 32.3     w-tinylfu  41.1 -> 39.9   18.3 -> 20.0
//!   fifo   45.1 -> 46.6   41.1 -> 42.2     lirs       33.4 -> 33.2   17.3 -> 18.9
//!   lru    35.2 -> 36.2   32.4 -> 33.0
//! ```

use std::fmt;

use crate::list::{ABSENT, HeldQueue, List, Patience, SWEEP_RATE, Slots, Step, Sweep, collect};
use crate::{AccessCounts, Evict, Generation, InsertReason, Refaults, Shadow, Slot, Victim};

const OUT_OF_HELD: u8 = 1;
const HELD: u8 = 2;
/// Tag of the pages of queue 0; queue n has this plus n.
const FIRST_QUEUE: u8 = 3;
const QUEUES_MAX: usize = 4;

fn is_resident(tag: u8) -> bool {
    tag >= HELD
}

/// A policy's queues, by number. Pages enter at the head (newest) and mostly leave at the tail.
#[derive(Debug)]
pub(crate) struct Queues {
    slots: Slots,
    lists: [List; QUEUES_MAX],
}

impl Queues {
    pub(crate) fn len(&self, queue: usize) -> usize {
        self.lists[queue].len()
    }

    /// The queue of a page; `None`: absent or held.
    pub(crate) fn queue_of(&self, slot: Slot) -> Option<usize> {
        self.slots.tag(slot).checked_sub(FIRST_QUEUE).map(usize::from)
    }

    /// Puts a page that is in no queue at the head.
    pub(crate) fn push(&mut self, queue: usize, slot: Slot) {
        self.slots.push(&mut self.lists[queue], slot, FIRST_QUEUE + queue as u8);
    }

    pub(crate) fn unlink(&mut self, queue: usize, slot: Slot) {
        debug_assert_eq!(self.queue_of(slot), Some(queue));
        self.slots.unlink(&mut self.lists[queue], slot, ABSENT);
    }

    pub(crate) fn shift(&mut self, from: usize, to: usize, slot: Slot) {
        self.unlink(from, slot);
        self.push(to, slot);
    }

    pub(crate) fn tail(&self, queue: usize) -> Option<Slot> {
        self.slots.tail(&self.lists[queue])
    }

    /// The next page of the same queue towards the head.
    pub(crate) fn newer(&self, queue: usize, slot: Slot) -> Option<Slot> {
        self.slots.newer(&self.lists[queue], slot)
    }

    /// Pages in queues, without held ones.
    pub(crate) fn queued(&self) -> usize {
        self.lists.iter().map(List::len).sum()
    }
}

/// The uses of a page as one look shows them, and whether they save it from eviction.
pub(crate) struct Uses<'a> {
    touches: &'a mut dyn AccessCounts,
    patience: &'a mut Patience,
    looks_max: usize,
    told: bool,
}

impl Uses<'_> {
    /// Uses since the count was last set; 0 if each hit is reported anyway.
    pub(crate) fn count(&self, slot: Slot) -> u8 {
        if self.told { 0 } else { self.touches.peek(slot) }
    }

    /// [`Uses::count`], and clears the touch table's.
    pub(crate) fn take(&mut self, slot: Slot) -> u8 {
        let count = self.touches.take(slot);
        if self.told { 0 } else { count }
    }

    pub(crate) fn set(&mut self, slot: Slot, count: u8) {
        self.touches.set(slot, count);
    }

    /// Whether a `proved` page really stays: not after a fruitless lap over all pages.
    pub(crate) fn stays(&mut self, proved: bool) -> bool {
        if !proved {
            self.patience.found();
        }
        proved && !self.patience.touched(self.looks_max)
    }
}

/// The decisions of one policy. All costs are O(1), amortized, and nothing is allocated after construction.
pub(crate) trait Rules: fmt::Debug + Send {
    const NAME: &'static str;
    /// The queues, by number.
    const QUEUES: &'static [&'static str];
    /// True if hits move pages, so that each must be reported: see the module's description.
    const MOVES: bool;
    /// Laps over the pool with a further survival of every page, before evictions regardless of touches.
    const LAPS: usize = 1;

    /// The pool now has this many pages.
    fn set_capacity(&mut self, _pages: usize) {}

    /// See [`Evict::faulting`].
    fn faulting(&mut self, _shadow: Shadow) {}

    /// Enters a new page, which is in no queue; true: a recent refault. By default it enters queue 0.
    fn enter(&mut self, queues: &mut Queues, slot: Slot, _shadow: Option<Shadow>) -> bool {
        queues.push(0, slot);
        false
    }

    /// A queued page was used `count` times since it entered or was last reported.
    fn hit(&mut self, _queues: &mut Queues, _slot: Slot, _count: u8) {}

    /// Called before a search for `want` victims among `resident` pages.
    fn prepare(&mut self, _queues: &mut Queues, _want: usize, _resident: usize) {}

    /// Looks at the next candidate for eviction. `Step::Empty` when nothing is queued.
    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step;

    /// Readmits a held page that was used; it is in no queue. By default it enters queue 0.
    fn readmit(&mut self, queues: &mut Queues, slot: Slot) {
        queues.push(0, slot);
    }

    /// Drops references to a queued page that is removed, or was a victim.
    fn leaves(&mut self, _queues: &Queues, _slot: Slot) {}

    /// The shadow of a page that left from outside the queues: held, or not admitted.
    fn remember(&mut self) -> Option<Shadow> {
        None
    }

    /// See [`Evict::wants_keys`].
    const WANTS_KEYS: bool = false;

    /// See [`Evict::key`].
    fn key(&mut self, _slot: Slot, _key: u64) {}

    /// Heap used beyond the queues.
    fn bytes(&self) -> usize {
        0
    }

    /// Further state for a dump besides the queues, each part preceded by ` | `.
    fn dump(&self) -> String {
        String::new()
    }

    fn check(&self, _queues: &Queues) -> Result<(), String> {
        Ok(())
    }
}

/// A policy made of queues. See the module's description.
#[derive(Debug)]
pub(crate) struct QueuePolicy<R> {
    rules: R,
    queues: Queues,
    held: HeldQueue,
    patience: Patience,
    sweep: Sweep,
    /// Each access is reported: the touch table is ignored.
    told: bool,
    refaults: Refaults,
}

impl<R: Rules> QueuePolicy<R> {
    pub(crate) fn new(slots_max: usize, rules: R) -> QueuePolicy<R> {
        let (slots, [held, lists @ ..]) = Slots::new::<{ QUEUES_MAX + 1 }>(slots_max);
        QueuePolicy {
            rules,
            queues: Queues { slots, lists },
            held: HeldQueue::new(held),
            patience: Patience::default(),
            sweep: Sweep::default(),
            told: false,
            refaults: Refaults::default(),
        }
    }

    /// A resident page was used.
    fn hit(&mut self, slot: Slot, count: u8) {
        if self.queues.slots.tag(slot) == HELD {
            self.queues.slots.unlink(&mut self.held.list, slot, ABSENT);
            self.rules.readmit(&mut self.queues, slot);
        } else {
            self.rules.hit(&mut self.queues, slot, count);
        }
    }

    fn look(&mut self, touches: &mut dyn AccessCounts) -> Step {
        let resident = self.resident();
        let held = self.held.due(self.queues.queued());
        let looks_max = resident * R::LAPS;
        let mut uses = Uses { touches, patience: &mut self.patience, looks_max, told: self.told };
        if held {
            let slot = self.queues.slots.pop(&mut self.held.list, OUT_OF_HELD).expect("held is due");
            let used = uses.take(slot) != 0;
            if uses.stays(used) {
                self.rules.readmit(&mut self.queues, slot);
                return Step::Moved;
            }
            return Step::Take(Victim { slot, shadow: self.rules.remember() });
        }
        let step = self.rules.look(&mut self.queues, &mut uses);
        if matches!(step, Step::Take(_)) {
            self.held.other_taken();
        }
        step
    }
}

impl<R: Rules> Evict for QueuePolicy<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn insert(
        &mut self,
        slot: Slot,
        shadow: Option<Shadow>,
        _reason: InsertReason,
        touches: &mut dyn AccessCounts,
    ) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        let recent = self.rules.enter(&mut self.queues, slot, shadow);
        self.refaults.total += u64::from(shadow.is_some());
        self.refaults.recent += u64::from(recent);
        recent
    }

    fn victims(&mut self, want: usize, touches: &mut dyn AccessCounts, out: &mut Vec<Victim>) {
        if R::MOVES && !self.told {
            let mut left = (want * SWEEP_RATE).min(self.queues.slots.slots_max());
            while let Some((slot, count)) =
                self.sweep.next(&mut left, &self.queues.slots, is_resident, touches)
            {
                self.hit(slot, count);
            }
        }
        let resident = self.resident();
        self.rules.prepare(&mut self.queues, want, resident);
        collect(want, out, || self.look(touches));
    }

    fn restore(&mut self, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        let again = self.queues.slots.tag(slot) == OUT_OF_HELD;
        self.held.put(&mut self.queues.slots, slot, again, HELD);
    }

    fn remove(&mut self, slot: Slot) {
        match self.queues.queue_of(slot) {
            Some(queue) => {
                self.rules.leaves(&self.queues, slot);
                self.queues.unlink(queue, slot);
            }
            None => {
                assert!(self.contains(slot), "slot {slot} is not resident");
                self.queues.slots.unlink(&mut self.held.list, slot, ABSENT);
            }
        }
    }

    fn shadow(&mut self) -> Option<Shadow> {
        self.rules.remember()
    }

    fn set_capacity(&mut self, pages: usize) {
        self.rules.set_capacity(pages);
    }

    /// No page has a time.
    fn set_time(&mut self, _now_ms: u64) {}

    fn accessed(&mut self, slot: Slot) {
        if R::MOVES {
            self.told = true;
            self.hit(slot, 1);
        }
    }

    fn faulting(&mut self, shadow: Shadow) {
        self.rules.faulting(shadow);
    }

    fn wants_keys(&self) -> bool {
        R::WANTS_KEYS
    }

    fn key(&mut self, slot: Slot, key: u64) {
        self.rules.key(slot, key);
    }

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let row = |label: &str, list: &List| Generation::queue(label, list.len(), now_ms);
        let queues = R::QUEUES.iter().zip(&self.queues.lists).map(|(label, list)| row(label, list));
        queues.chain([row("held", &self.held.list)]).collect()
    }

    fn refaults(&self) -> Refaults {
        self.refaults
    }

    fn resident(&self) -> usize {
        self.queues.queued() + self.held.list.len()
    }

    fn contains(&self, slot: Slot) -> bool {
        is_resident(self.queues.slots.tag(slot))
    }

    fn dump(&self) -> String {
        let queues = R::QUEUES.iter().zip(&self.queues.lists);
        let mut text: String =
            queues.map(|(name, list)| format!("{name}: {} | ", self.queues.slots.show(list))).collect();
        text += &format!("held: {}", self.queues.slots.show(&self.held.list));
        text + &self.rules.dump()
    }

    fn check(&self) -> Result<(), String> {
        let [a, b, c, d] = &self.queues.lists;
        let belongs = |list: usize, tag| tag == HELD + list as u8;
        self.queues.slots.check(&[&self.held.list, a, b, c, d], belongs, is_resident)?;
        self.rules.check(&self.queues)
    }

    fn bytes(&self) -> usize {
        self.queues.slots.bytes() + self.rules.bytes()
    }
}
