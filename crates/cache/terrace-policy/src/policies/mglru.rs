//! The multi-generational LRU: the parts that all its versions share.
//!
//! Source: Linux MGLRU (mm/vmscan.c, mm/workingset.c and its documentation), for clean and dirty pages of
//! files. It is written from a specification, without kernel code. A version is a set of [`Rules`]:
//! `mglru_fg` here, those of released kernels in the simulator (`terrace-sim`, `yardsticks`).
//!
//! ```text
//!   max_seq  ▲ gen 3   youngest                                       a pass looks at the oldest from its tail:
//!            │ gen 2   ◄┐                                               of a protected tier ► up one generation
//!            │ gen 1   ◄┴ where the rules put pages known from before   else ► isolated, up to 64 at once ► victims
//!   min_seq  │ gen 0   ◄── new pages                                  emptied: min_seq + 1, the past counts half
//!            └─ 2 to 4 generations are open; aging opens one when the rules find too few old pages
//! ```
//! A page's *state* is 4 bits that only the rules read: its uses, also those before its last eviction. The
//! *tier* of a state is the logarithm of the uses. The *controller* compares the tiers' rates of refaults,
//! and protects a tier above its set point. A shadow holds min_seq and the state at eviction.
//!
//! A pass isolates a batch and evicts all of it, even pages used meanwhile. If `victims` wants fewer, the
//! others stay isolated. So the oldest generation is empty after its last batch, as in the kernel.
//!
//! Departures in all versions:
//! - Without `accessed`, only a look shows uses: at the tail, and by a hand that passes 8 slots for each
//!   victim wanted. A look shows at most three uses, which are applied one after the other.
//! - A page's list is always its generation, without stale lists to sort.
//! - No mapped pages, hence no page-table walk, Bloom filter or look-around. Only [`Evict::age`] treats a
//!   touched page like one with the accessed bit in that walk. There is one type of page.
//! - Passes stop at 32 isolated pages, whatever was requested, and priority restarts at 12 for the next.
//! - A batch is at most an eighth of the pool, which matters below 512 pages.
//! - A victim that cannot be evicted waits aside (see `list::HeldQueue`). The kernel activates it, and
//!   rotates it to the tail after its writeback.
//! - After a fruitless lap over all pages, pages are evicted regardless of their tiers (see
//!   `list::Patience`). The kernel would kill a process.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use crate::list::{ABSENT, HeldQueue, List, Patience, SWEEP_RATE, Slots, Sweep};
use crate::{AccessCounts, Evict, Generation, InsertReason, Position, Refaults, Shadow, Slot, Tier, Victim};

/// Minimum number of open generations.
pub const MIN_NR_GENS: u64 = 2;
/// Maximum number of open generations.
pub const MAX_NR_GENS: u64 = 4;
/// Reference tiers.
pub const MAX_NR_TIERS: usize = 4;
/// Initial priority of reclaim: a pass looks at lists >> priority pages.
pub const DEF_PRIORITY: u32 = 12;
/// Pages isolated by one pass.
pub(crate) const MIN_LRU_BATCH: usize = 64;
/// Minimum number of pages that one reclaim isolates before it stops searching.
const SWAP_CLUSTER_MAX: usize = 32;
/// Maximum number of pages moved or looked at under one lock.
pub const MAX_LRU_BATCH: usize = 4096;
/// A batch is at most this part of the pool: 1/8.
const BATCH_DIVISOR: usize = 8;
/// Turnovers of the pool before the timer may open a generation. 1 makes a quarter of the traces worse.
const TIMER_TURNOVERS: u64 = 2;
/// Maximum number of uses that one look at the touch table can show: clients count no further.
const TOUCHES_MAX: u8 = 3;

/// The generations open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The oldest.
    pub min: u64,
    /// The youngest.
    pub max: u64,
}

/// Place and state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Its generation.
    pub seq: u64,
    /// 4 bits, which the rules alone read.
    pub state: u8,
}

/// Input of the decision to age: pages by generation.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Generations open.
    pub open: u64,
    /// Pages in the youngest.
    pub young: usize,
    /// Pages in the second generation below the youngest.
    pub old: usize,
    /// Pages in all.
    pub total: usize,
}

/// Decision to age, before a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aging {
    /// Nothing.
    No,
    /// Open a generation.
    Open,
    /// Open a generation, and no pass at this priority.
    OpenOnly,
}

/// Fate of a page at the tail without a new reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Evict it.
    Evict,
    /// Move it up one generation, with this state; `counted`: the controller counts it.
    Protect {
        /// The state from now on.
        state: u8,
        /// Whether the controller counts it.
        counted: bool,
    },
}

/// A version of MGLRU.
pub trait Rules: fmt::Debug + Send + 'static {
    /// The policy's name.
    const NAME: &'static str;
    /// Gains of the set point and of the tier: 1, 2 protects a tier that refaults more than twice as often.
    const GAINS: (u64, u64);
    /// Compare with the tier below instead of the lowest tier.
    const COMPARES_NEIGHBOURS: bool;
    /// Put protected pages at the tail of the next generation, not at its head.
    const PROTECTS_TO_TAIL: bool;
    /// Maximum number of pages that one pass looks at.
    const LOOKS_MAX: usize;
    /// Stop a pass at the total budget of its priority, not only after the pass that exceeded it.
    const KEEPS_TO_BUDGET: bool;
    /// Milliseconds after which a generation opens if the pool was turned over twice meanwhile; 0: never.
    const TIMER_MS: u64;

    /// The tier of a page.
    fn tier(state: u8) -> usize;
    /// The state after one more use, without the page's place.
    fn used(state: u8) -> u8;
    /// One more use through a descriptor.
    fn referenced(at: At, span: Span) -> At;
    /// The page-table walk found the accessed bit set.
    fn sighted(at: At, span: Span) -> At;
    /// The generation a page enters.
    fn entrance(state: u8, span: Span) -> u64;
    /// Whether a shadow that is `opened` generations behind `max_seq` and `retired` behind `min_seq` is recent.
    fn is_recent(opened: u64, retired: u64) -> bool;
    /// The state that a recent shadow gives back.
    fn restored(state: u8) -> u8;
    /// Decides about a page at the tail, `threshold` being the highest tier not protected.
    fn verdict(state: u8, threshold: usize) -> Verdict;
    /// The state of a page after its generation is merged into the next.
    fn drained(state: u8) -> u8;
    /// Place of a page that could not be evicted and was used since; `state` counts that use.
    fn rejected(state: u8, span: Span) -> At;
    /// Whether to age before a pass.
    fn aging(sizes: Sizes, priority: u32) -> Aging;
}

// Tags. Absent: the victim's state, and whether it had been held. Resident: state and place.
const STATE: u8 = 0x0f;
const WAS_HELD: u8 = 0x10;
const HELD: u8 = 0x40;
const ISOLATED: u8 = 0x60;
const LISTED: u8 = 0x80;

// Shadows: a bit that makes them nonzero, the low bits of min_seq, the state.
const SHADOW_MARK: u32 = 1 << 31;
const SHADOW_SEQ_MASK: u64 = (1 << 27) - 1;

fn is_resident(tag: u8) -> bool {
    tag >= HELD
}

fn state_of(tag: u8) -> u8 {
    tag & STATE
}

fn index_of(seq: u64) -> usize {
    (seq % MAX_NR_GENS) as usize
}

fn listed(seq: u64, state: u8) -> u8 {
    LISTED | (index_of(seq) as u8) << 4 | state
}

fn listed_index(tag: u8) -> usize {
    usize::from(tag >> 4 & 3)
}

/// Refaults by tier: the controller's input.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tiers {
    avg_refaulted: [u64; MAX_NR_TIERS],
    avg_total: [u64; MAX_NR_TIERS],
    refaulted: [u64; MAX_NR_TIERS],
    evicted: [u64; MAX_NR_TIERS],
    protected: [u64; MAX_NR_TIERS],
}

impl Tiers {
    /// Refaults, and pages evicted or protected, of `tier`.
    fn rate(&self, tier: usize) -> (u64, u64) {
        let total = self.avg_total[tier] + self.evicted[tier] + self.protected[tier];
        (self.avg_refaulted[tier] + self.refaulted[tier], total)
    }

    /// The statistics of `tier`, without its number of pages.
    fn row(&self, tier: usize) -> Tier {
        Tier {
            tier,
            pages: 0,
            refaulted: self.refaulted[tier],
            evicted: self.evicted[tier],
            protected: self.protected[tier],
            avg_refaulted: self.avg_refaulted[tier],
            avg_total: self.avg_total[tier],
        }
    }

    /// The highest tier below the first one with refaults above its set point ([`Rules::GAINS`],
    /// [`Rules::COMPARES_NEIGHBOURS`]).
    fn threshold(&self, (gain_set, gain): (u64, u64), compares_neighbours: bool) -> usize {
        let fine = |tier: &usize| {
            let set_point = if compares_neighbours { tier - 1 } else { 0 };
            let ((set, set_total), (refaulted, total)) = (self.rate(set_point), self.rate(*tier));
            let here = u128::from(refaulted) * u128::from(set_total + MIN_LRU_BATCH as u64);
            refaulted < MIN_LRU_BATCH as u64
                || here * u128::from(gain_set) <= u128::from(set + 1) * u128::from(total) * u128::from(gain)
        };
        (1..MAX_NR_TIERS).take_while(fine).last().unwrap_or(0)
    }

    /// Halves the weight of the past when a generation is used up.
    fn carry_over(&mut self) {
        for tier in 0..MAX_NR_TIERS {
            let (refaulted, total) = self.rate(tier);
            self.avg_refaulted[tier] = refaulted / 2;
            self.avg_total[tier] = total / 2;
        }
        self.refaulted = [0; MAX_NR_TIERS];
        self.evicted = [0; MAX_NR_TIERS];
        self.protected = [0; MAX_NR_TIERS];
    }
}

/// The reclaim loop under one version's rules. See the module's description.
#[derive(Debug)]
pub struct Mglru<R> {
    slots: Slots,
    /// Generation `seq` is at `seq % 4`.
    lists: [List; MAX_NR_GENS as usize],
    births_ms: [u64; MAX_NR_GENS as usize],
    span: Span,
    tiers: Tiers,
    /// Chosen by a pass, not yet returned as victims.
    isolated: List,
    held: HeldQueue,
    patience: Patience,
    sweep: Sweep,
    capacity: usize,
    /// Pages evicted since the youngest generation opened.
    evictions: u64,
    now_ms: u64,
    refaults: Refaults,
    /// Each access is reported: the touch table is ignored.
    exact: bool,
    /// The page used last: a further access to it is the same use.
    last_used: Option<Slot>,
    rules: PhantomData<R>,
}

impl<R: Rules> Mglru<R> {
    /// For slots below `slots_max` and a pool of `capacity` pages.
    pub fn new(slots_max: usize, capacity: usize) -> Mglru<R> {
        let (slots, [a, b, c, d, isolated, held]) = Slots::new::<6>(slots_max);
        Mglru {
            slots,
            lists: [a, b, c, d],
            births_ms: [0; MAX_NR_GENS as usize],
            span: Span { min: 0, max: MAX_NR_GENS - 1 },
            tiers: Tiers::default(),
            isolated,
            held: HeldQueue::new(held),
            patience: Patience::default(),
            sweep: Sweep::default(),
            capacity,
            evictions: 0,
            now_ms: 0,
            refaults: Refaults::default(),
            exact: false,
            last_used: None,
            rules: PhantomData,
        }
    }

    fn threshold(&self) -> usize {
        self.tiers.threshold(R::GAINS, R::COMPARES_NEIGHBOURS)
    }

    fn evictable(&self) -> usize {
        self.lists.iter().map(List::len).sum()
    }

    fn generations_open(&self) -> u64 {
        self.span.max - self.span.min + 1
    }

    fn oldest(&self) -> &List {
        &self.lists[index_of(self.span.min)]
    }

    fn sizes(&self) -> Sizes {
        let at = |behind| self.lists[index_of(self.span.max + MAX_NR_GENS - behind)].len();
        Sizes { open: self.generations_open(), young: at(0), old: at(2), total: self.evictable() }
    }

    fn at(&self, slot: Slot) -> At {
        let tag = self.slots.tag(slot);
        let above = (listed_index(tag) as u64 + MAX_NR_GENS - self.span.min % MAX_NR_GENS) % MAX_NR_GENS;
        At { seq: self.span.min + above, state: state_of(tag) }
    }

    fn push(&mut self, slot: Slot, to: At) {
        let list = &mut self.lists[index_of(to.seq)];
        self.slots.push(list, slot, listed(to.seq, to.state));
    }

    /// Gives a listed page its new place and state. True if it moved, to another generation's head.
    fn place(&mut self, slot: Slot, from: At, to: At) -> bool {
        if from.seq == to.seq {
            self.slots.set_tag(slot, listed(to.seq, to.state));
            return false;
        }
        self.slots.unlink(&mut self.lists[index_of(from.seq)], slot, ABSENT);
        self.push(slot, to);
        true
    }

    /// Moves a page of the oldest generation to the tail of the next.
    fn sink(&mut self, slot: Slot, state: u8) {
        let (from, to) = (self.span.min, self.span.min + 1);
        self.slots.unlink(&mut self.lists[index_of(from)], slot, ABSENT);
        self.slots.push_tail(&mut self.lists[index_of(to)], slot, listed(to, state));
    }

    /// Applies `uses` to a listed page, one after the other; true when it moved.
    fn reference(&mut self, slot: Slot, uses: u8) -> bool {
        let from = self.at(slot);
        let to = (0..uses.min(TOUCHES_MAX)).fold(from, |at, _| R::referenced(at, self.span));
        self.place(slot, from, to)
    }

    fn take_touches(&self, slot: Slot, touches: &mut dyn AccessCounts) -> u8 {
        if self.exact { 0 } else { touches.take(slot) }
    }

    fn token(&self, state: u8) -> Shadow {
        let seq = (self.span.min & SHADOW_SEQ_MASK) as u32;
        Shadow(NonZeroU32::new(SHADOW_MARK | seq << 4 | u32::from(state)).expect("marked"))
    }

    /// The state restored by a recent shadow; `None` if it is not recent.
    fn refault(&mut self, shadow: Shadow) -> Option<u8> {
        let (seq, state) = (u64::from(shadow.0.get()) >> 4, shadow.0.get() as u8 & STATE);
        let behind = |now: u64| now.wrapping_sub(seq) & SHADOW_SEQ_MASK;
        self.refaults.total += 1;
        if !R::is_recent(behind(self.span.max), behind(self.span.min)) {
            return None;
        }
        self.refaults.recent += 1;
        self.tiers.refaulted[R::tier(state)] += 1;
        Some(R::restored(state))
    }

    /// Steps over empty generations; two always stay open.
    fn advance_min_seq(&mut self) {
        while self.generations_open() > MIN_NR_GENS && self.oldest().is_empty() {
            self.tiers.carry_over();
            self.span.min += 1;
        }
    }

    fn open_generation(&mut self) {
        debug_assert!(self.generations_open() < MAX_NR_GENS);
        self.span.max += 1;
        self.births_ms[index_of(self.span.max)] = self.now_ms;
        self.evictions = 0;
    }

    /// Merges up to `pages` of the oldest generation into the next, page by page, which reverses their order.
    /// True when none is left.
    fn drain(&mut self, pages: usize) -> bool {
        for _ in 0..pages {
            let Some(slot) = self.slots.tail(self.oldest()) else { break };
            let state = state_of(self.slots.tag(slot));
            self.tiers.protected[R::tier(state)] += 1;
            self.sink(slot, R::drained(state));
        }
        self.oldest().is_empty()
    }

    /// Opens a generation when the youngest is old enough. A full window is merged first, part by part.
    /// Rejected: time alone, which leaves one generation in a slow pool.
    fn age_by_timer(&mut self) {
        let open_ms = self.now_ms.saturating_sub(self.births_ms[index_of(self.span.max)]);
        let turned_over = self.evictions >= TIMER_TURNOVERS * self.capacity as u64;
        if R::TIMER_MS == 0 || open_ms < R::TIMER_MS || !turned_over {
            return;
        }
        if self.generations_open() == MAX_NR_GENS && self.drain(MAX_LRU_BATCH) {
            self.advance_min_seq();
        }
        if self.generations_open() < MAX_NR_GENS {
            self.open_generation();
        }
    }

    /// Looks at the tail of the oldest generation, which must not be empty. Returns the slot, unlinked, if
    /// the page is to be evicted.
    fn look(&mut self, threshold: usize, touches: &mut dyn AccessCounts) -> Option<Slot> {
        let slot = self.slots.tail(self.oldest()).expect("the oldest generation is not empty");
        let force = self.patience.touched(self.evictable());
        let touched = self.take_touches(slot, touches);
        if !force && touched != 0 && self.reference(slot, touched) {
            return None;
        }
        let at = self.at(slot);
        if let (false, Verdict::Protect { state, counted }) = (force, R::verdict(at.state, threshold)) {
            self.tiers.protected[R::tier(at.state)] += u64::from(counted);
            if R::PROTECTS_TO_TAIL {
                self.sink(slot, state);
            } else {
                self.place(slot, at, At { seq: at.seq + 1, state });
            }
            return None;
        }
        if !force || touched == 0 {
            self.patience.found();
        }
        self.slots.unlink(&mut self.lists[index_of(at.seq)], slot, at.state);
        Some(slot)
    }

    /// One pass over at most `looks_max` pages of the oldest generation. Returns the number of looks.
    fn pass(&mut self, looks_max: usize, touches: &mut dyn AccessCounts) -> usize {
        if self.generations_open() == MIN_NR_GENS {
            return 0;
        }
        let (threshold, batch) = (self.threshold(), self.batch());
        let (mut looks, mut isolated) = (0, 0);
        while looks < looks_max && isolated < batch && !self.oldest().is_empty() {
            looks += 1;
            if let Some(slot) = self.look(threshold, touches) {
                let state = self.slots.tag(slot);
                self.slots.push(&mut self.isolated, slot, ISOLATED | state);
                isolated += 1;
            }
        }
        self.advance_min_seq();
        looks
    }

    /// Number of pages that a pass isolates.
    fn batch(&self) -> usize {
        (self.capacity / BATCH_DIVISOR).clamp(1, MIN_LRU_BATCH)
    }

    /// Passes of falling priority until a cluster is isolated. After the maximum of looks under the lock, one
    /// page is enough.
    fn isolate(&mut self, touches: &mut dyn AccessCounts) {
        let cluster = self.batch().min(SWAP_CLUSTER_MAX);
        let mut looks = 0;
        for priority in (0..=DEF_PRIORITY).rev() {
            let budget = self.evictable() >> priority;
            let mut scanned = 0;
            while scanned < budget {
                let seen = self.age_or_pass(priority, budget - scanned, touches);
                (scanned, looks) = (scanned + seen, looks + seen);
                let isolated = self.isolated.len();
                if isolated >= cluster || (looks >= MAX_LRU_BATCH && isolated > 0) {
                    return;
                }
                if seen == 0 {
                    break;
                }
            }
        }
    }

    /// Ages as the rules demand, then makes a pass, unless the rules forbid it. Returns the pages looked at.
    fn age_or_pass(&mut self, priority: u32, budget: usize, touches: &mut dyn AccessCounts) -> usize {
        self.advance_min_seq();
        let aging = R::aging(self.sizes(), priority);
        if aging != Aging::No {
            self.open_generation();
            self.advance_min_seq();
        }
        if aging == Aging::OpenOnly {
            return 0;
        }
        let looks_max = if R::KEEPS_TO_BUDGET { R::LOOKS_MAX.min(budget) } else { R::LOOKS_MAX };
        self.pass(looks_max, touches)
    }

    /// Counts the eviction of a page that is in no list.
    fn evict(&mut self, slot: Slot) -> Victim {
        let state = state_of(self.slots.tag(slot));
        self.tiers.evicted[R::tier(state)] += 1;
        self.evictions += 1;
        Victim { slot, shadow: Some(self.token(state)) }
    }

    fn hand_out(&mut self) -> Option<Victim> {
        let slot = self.slots.tail(&self.isolated)?;
        let state = state_of(self.slots.tag(slot));
        self.slots.unlink(&mut self.isolated, slot, state);
        self.held.other_taken();
        Some(self.evict(slot))
    }

    /// Looks at the page held longest. If it was used since, it goes back to a generation, never the oldest.
    fn look_held(&mut self, touches: &mut dyn AccessCounts) -> Option<Victim> {
        let slot = self.slots.tail(&self.held.list).expect("held is due");
        let (before, touched) = (state_of(self.slots.tag(slot)), self.take_touches(slot, touches));
        let state = (0..touched.min(TOUCHES_MAX)).fold(before, |state, _| R::used(state));
        self.slots.unlink(&mut self.held.list, slot, WAS_HELD | state);
        if touched == 0 {
            self.patience.found();
        }
        if touched == 0 || self.patience.touched(self.resident()) {
            return Some(self.evict(slot));
        }
        self.push(slot, R::rejected(state, self.span));
        None
    }
}

impl<R: Rules> Evict for Mglru<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn insert(
        &mut self,
        slot: Slot,
        shadow: Option<Shadow>,
        reason: InsertReason,
        touches: &mut dyn AccessCounts,
    ) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        let known = shadow.filter(|_| reason != InsertReason::Write).and_then(|shadow| self.refault(shadow));
        let mut state = known.unwrap_or(0);
        if reason == InsertReason::Read {
            state = R::used(state);
            self.last_used = Some(slot);
        }
        self.push(slot, At { seq: R::entrance(state, self.span), state });
        known.is_some()
    }

    fn victims(&mut self, want: usize, touches: &mut dyn AccessCounts, out: &mut Vec<Victim>) {
        let mut left = if self.exact { 0 } else { (want * SWEEP_RATE).min(self.slots.slots_max()) };
        let is_listed = |tag| tag >= LISTED;
        while let Some((slot, touched)) = self.sweep.next(&mut left, &self.slots, is_listed, touches) {
            self.reference(slot, touched);
        }
        self.age_by_timer();

        let goal = out.len() + want;
        while out.len() < goal {
            // 1. Held pages, if due.
            if self.held.due(self.evictable() + self.isolated.len()) {
                out.extend(self.look_held(touches));
                continue;
            }
            // 2. The victims of the last pass; a new pass when none are left.
            match self.hand_out() {
                Some(victim) => out.push(victim),
                None if self.evictable() == 0 => break,
                None => self.isolate(touches),
            }
        }
    }

    fn restore(&mut self, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        let tag = self.slots.tag(slot);
        self.held.put(&mut self.slots, slot, tag & WAS_HELD != 0, HELD | state_of(tag));
    }

    fn remove(&mut self, slot: Slot) {
        let tag = self.slots.tag(slot);
        assert!(is_resident(tag), "slot {slot} is not resident");
        let list = match tag {
            LISTED.. => &mut self.lists[listed_index(tag)],
            ISOLATED.. => &mut self.isolated,
            _ => &mut self.held.list,
        };
        self.slots.unlink(list, slot, ABSENT);
    }

    fn shadow(&mut self) -> Option<Shadow> {
        Some(self.token(R::used(0)))
    }

    fn set_capacity(&mut self, pages: usize) {
        self.capacity = pages;
    }

    fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    fn accessed(&mut self, slot: Slot) {
        self.exact = true;
        if self.last_used.replace(slot) == Some(slot) {
            return;
        }
        let tag = self.slots.tag(slot);
        if tag >= LISTED {
            self.reference(slot, 1);
        } else if is_resident(tag) {
            self.slots.set_tag(slot, tag & !STATE | R::used(state_of(tag)));
        }
    }

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let queue = |label: &str, list: &List| Generation::queue(label, list.len(), now_ms);
        let row = |seq: u64| Generation {
            seq,
            age_ms: now_ms.saturating_sub(self.births_ms[index_of(seq)]),
            pages: self.lists[index_of(seq)].len(),
            label: format!("gen {seq}"),
        };
        let queues = [queue("isolated", &self.isolated), queue("held", &self.held.list)];
        queues.into_iter().chain((self.span.min..=self.span.max).rev().map(row)).collect()
    }

    fn window(&self) -> Option<RangeInclusive<u64>> {
        Some(self.span.min..=self.span.max)
    }

    fn position(&self, slot: Slot) -> Option<Position> {
        let is_listed = self.slots.tag(slot) >= LISTED;
        is_listed.then(|| self.at(slot)).map(|at| Position { seq: at.seq, tier: R::tier(at.state) })
    }

    fn tiers(&self) -> Vec<Tier> {
        let mut rows: Vec<Tier> = (0..MAX_NR_TIERS).map(|tier| self.tiers.row(tier)).collect();
        for list in self.lists.iter().chain([&self.isolated, &self.held.list]) {
            for slot in self.slots.iter(list) {
                rows[R::tier(state_of(self.slots.tag(slot)))].pages += 1;
            }
        }
        rows
    }

    fn age(&mut self, touches: &mut dyn AccessCounts) -> Option<u64> {
        for slot in 0..self.slots.slots_max() as Slot {
            if self.slots.tag(slot) >= LISTED && touches.take(slot) != 0 {
                let from = self.at(slot);
                self.place(slot, from, R::sighted(from, self.span));
            }
        }
        if self.generations_open() == MAX_NR_GENS && self.drain(usize::MAX) {
            self.advance_min_seq();
        }
        self.open_generation();
        Some(self.span.max)
    }

    fn victims_until(
        &mut self,
        seq: u64,
        want: usize,
        touches: &mut dyn AccessCounts,
        out: &mut Vec<Victim>,
    ) {
        let goal = out.len() + want;
        let threshold = self.threshold();
        while out.len() < goal {
            self.advance_min_seq();
            if self.span.min > seq || self.generations_open() == MIN_NR_GENS {
                break;
            }
            if let Some(slot) = self.look(threshold, touches) {
                out.push(self.evict(slot));
            }
        }
    }

    fn refaults(&self) -> Refaults {
        self.refaults
    }

    fn resident(&self) -> usize {
        self.evictable() + self.isolated.len() + self.held.list.len()
    }

    fn contains(&self, slot: Slot) -> bool {
        is_resident(self.slots.tag(slot))
    }

    /// Pages appear as `slot/state`.
    fn dump(&self) -> String {
        let show = |list: &List| {
            let page = |slot| format!("{slot}/{}", state_of(self.slots.tag(slot)));
            self.slots.iter(list).map(page).collect::<Vec<_>>().join(" ")
        };
        let row = |seq: u64| format!("gen {seq}: {} | ", show(&self.lists[index_of(seq)]));
        let rows: String = (self.span.min..=self.span.max).rev().map(row).collect();
        rows + &format!("isolated: {} | held: {}", show(&self.isolated), show(&self.held.list))
    }

    fn check(&self) -> Result<(), String> {
        if !(MIN_NR_GENS..=MAX_NR_GENS).contains(&self.generations_open()) {
            return Err(format!("generations {:?} are open", self.span));
        }
        for seq in self.span.max + 1..self.span.min + MAX_NR_GENS {
            if !self.lists[index_of(seq)].is_empty() {
                return Err(format!("the list of generation {seq}, which is not open, holds pages"));
            }
        }
        let belongs = |list, tag| match list {
            4 => (ISOLATED..LISTED).contains(&tag),
            5 => (HELD..ISOLATED).contains(&tag),
            _ => tag >= LISTED && listed_index(tag) == list,
        };
        let [a, b, c, d] = &self.lists;
        self.slots.check(&[a, b, c, d, &self.isolated, &self.held.list], belongs, is_resident)
    }

    fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

#[cfg(any(test, feature = "testing"))]
impl<R: Rules> Mglru<R> {
    /// Sets the counts of refaults and evictions by tier.
    pub fn set_rates(&mut self, refaulted: [u64; MAX_NR_TIERS], evicted: [u64; MAX_NR_TIERS]) {
        (self.tiers.refaulted, self.tiers.evicted) = (refaulted, evicted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::mglru_fg::{FineGrained, MglruFg};
    use crate::testing::Pool;

    /// A pool with a batch of one page.
    fn pool() -> Pool<MglruFg> {
        Pool::new(MglruFg::new(64, 8))
    }

    #[test]
    fn controller_compares_each_tier_with_its_set_point() {
        let lowest = |tiers: &Tiers| tiers.threshold((1, 2), false);
        let below = |tiers: &Tiers| tiers.threshold(FineGrained::GAINS, FineGrained::COMPARES_NEIGHBOURS);
        let mut tiers = Tiers { evicted: [1000; 4], refaulted: [100, 150, 150, 150], ..Tiers::default() };
        assert_eq!((lowest(&tiers), below(&tiers)), (3, 3));
        tiers.refaulted = [100, 180, 340, 150];
        assert_eq!(lowest(&tiers), 1, "3.4 times the lowest");
        assert_eq!(below(&tiers), 3, "1.9 times the one below");
        tiers.refaulted[1] = 300;
        assert_eq!((lowest(&tiers), below(&tiers)), (0, 0));
        tiers.refaulted = [0, 63, 63, 63];
        assert_eq!(lowest(&tiers), 3, "too few to tell");
    }

    #[test]
    fn the_past_counts_half() {
        let mut tiers = Tiers { evicted: [1000; 4], refaulted: [0, 63, 63, 63], ..Tiers::default() };
        tiers.protected[1] = 100;
        tiers.carry_over();
        assert_eq!((tiers.avg_refaulted[1], tiers.avg_total[1], tiers.evicted[1]), (31, 550, 0));
        tiers.refaulted[1] = 9;
        assert_eq!(tiers.rate(1), (40, 550));
        tiers.carry_over();
        assert_eq!((tiers.avg_refaulted[1], tiers.avg_total[1], tiers.refaulted[1]), (20, 275, 0));
    }

    #[test]
    fn the_hand_sees_touches_before_pages_reach_the_tail() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.touch([3]);
        assert_eq!(pool.evict(1), [0]);
        pool.is("gen 3:  | gen 2:  | gen 1: 3/2 | gen 0: 2/1 1/1 | isolated:  | held: ");
    }

    #[test]
    fn exact_mode_ignores_table_and_counts_runs_in_a_page_once() {
        let mut pool = pool();
        pool.enter(0..3);
        for slot in [2, 2, 0, 0, 2] {
            pool.touch([slot]);
            pool.policy.accessed(slot);
        }
        pool.is("gen 3:  | gen 2:  | gen 1: 2/2 0/2 | gen 0: 1/1 | isolated:  | held: ");
        assert_eq!(pool.evict(1), [1]);
        assert_eq!(pool.touches[..3], [2, 0, 3]);
    }

    #[test]
    fn aging_by_command_lifts_what_was_used_and_drains_the_oldest() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.enter_as(4, None, InsertReason::Readahead);
        pool.touch([1, 4]);
        pool.policy.set_time(5);
        assert_eq!(pool.policy.age(&mut pool.touches), Some(4));
        pool.policy.check().unwrap();
        pool.is("gen 4:  | gen 3: 1/2 | gen 2:  | gen 1: 4/1 0/1 2/1 3/1 | isolated:  | held: ");
        assert_eq!(pool.policy.tiers.protected, [0; 4], "carried over");
        assert_eq!(pool.policy.tiers()[0], Tier { pages: 4, avg_total: 1, ..Tier::default() });
        assert_eq!(pool.policy.tiers()[1], Tier { tier: 1, pages: 1, ..Tier::default() });
        assert_eq!(pool.policy.position(1), Some(Position { seq: 3, tier: 1 }));
        assert_eq!(pool.policy.window(), Some(1..=4));
        let youngest = Generation { seq: 4, age_ms: 3, pages: 0, label: "gen 4".into() };
        assert_eq!(pool.policy.generations(8)[2], youngest);
    }

    #[test]
    fn eviction_by_command_stops_at_a_generation() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.touch([1]);
        let mut until = |seq, want| {
            let mut out = Vec::new();
            pool.policy.victims_until(seq, want, &mut pool.touches, &mut out);
            out.iter().map(|victim| victim.slot).collect::<Vec<_>>()
        };
        assert_eq!(until(0, 2), [0, 2]);
        assert_eq!(until(0, 8), [3]);
        assert_eq!(until(0, 8), []);
        assert_eq!(until(9, 8), [1], "it had climbed");
        assert_eq!(pool.policy.window(), Some(2..=3), "the two youngest stay");
        pool.enter([5]);
        pool.policy.victims_until(9, 8, &mut pool.touches, &mut Vec::new());
        pool.is("gen 3:  | gen 2: 5/1 | isolated:  | held: ");
    }

    #[test]
    fn held_pages_never_return_to_the_oldest() {
        let mut pool = pool();
        pool.enter(0..3);
        assert_eq!(pool.evict(2), [0, 1]);
        pool.restore([0, 1]);
        pool.is("gen 3:  | gen 2:  | gen 1:  | gen 0: 2/1 | isolated:  | held: 1/1 0/1");
        pool.touch([0]);
        pool.policy.held.wait_is_over();
        assert_eq!(pool.evict(1), [1]);
        pool.is("gen 3: 0/2 | gen 2:  | gen 1:  | gen 0: 2/1 | isolated:  | held: ");
    }

    #[test]
    fn the_timer_wants_time_and_two_turnovers() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.policy.set_time(FineGrained::TIMER_MS);
        assert_eq!(pool.evict(1), [0]);
        assert_eq!(pool.policy.window(), Some(0..=3), "one eviction is no turnover");
        pool.policy.evictions = 16;
        pool.policy.set_time(FineGrained::TIMER_MS - 1);
        assert_eq!(pool.evict(1), [1]);
        pool.policy.set_time(FineGrained::TIMER_MS);
        pool.enter([3]);
        assert_eq!(pool.evict(1), [3], "the order of what is merged turns round");
        pool.is("gen 4:  | gen 3:  | gen 2:  | gen 1: 2/1 | isolated:  | held: ");
    }
}
