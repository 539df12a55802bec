//! The trait of an eviction policy, and its types: slots, shadows, touch counts, victims.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

/// A frame number: an index below the `slots_max` a policy was built for.
pub type Slot = u32;

/// The record of a page's eviction, in the index entry of the absent page.
///
/// The engine keeps the 32 bits in place of the frame number, and passes them to the policy at the page's
/// next fault. Each policy reads only its own shadows: a change of policy must drop them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shadow(pub NonZeroU32);

/// Why a page becomes resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InsertReason {
    /// A program read this page.
    Read,
    /// A program wrote this page.
    Write,
    /// The page was read along with its neighbours; no program has used it yet.
    Readahead,
}

/// A page chosen for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The frame to free.
    pub slot: Slot,
    /// The shadow for the index entry, if any.
    pub shadow: Option<Shadow>,
}

/// The touch table: one saturating count a slot, bumped by every hit.
///
/// Counts are hints. Clients may write anything at any time. A policy stays correct (progress, no page lost)
/// whatever `peek` returns, even right after `set`.
pub trait AccessCounts {
    /// Uses of `slot` since it was last `set`.
    fn peek(&self, slot: Slot) -> u8;
    /// Replaces the count of `slot`.
    fn set(&mut self, slot: Slot, count: u8);
    /// Reads and clears the count of `slot`.
    fn take(&mut self, slot: Slot) -> u8 {
        let count = self.peek(slot);
        if count != 0 {
            self.set(slot, 0);
        }
        count
    }
}

/// The plain touch table of simulators and tests.
impl AccessCounts for Vec<u8> {
    fn peek(&self, slot: Slot) -> u8 {
        self[slot as usize]
    }
    fn set(&mut self, slot: Slot, count: u8) {
        self[slot as usize] = count;
    }
}

/// One row of a policy's state, as `terrace stat` shows it: queues first, then generations, youngest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Sequence number; 0 for a queue.
    pub seq: u64,
    /// Milliseconds since the generation was opened (for a queue: since the policy's start).
    pub age_ms: u64,
    /// Pages in it.
    pub pages: usize,
    /// `probation`, `gen 7`, `held`, ...
    pub label: String,
}

impl Generation {
    /// The row of a queue: no sequence number, as old as the policy.
    pub fn queue(label: &str, pages: usize, now_ms: u64) -> Generation {
        Generation { seq: 0, age_ms: now_ms, pages, label: label.into() }
    }
}

/// Place of a page in a policy with generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its generation, within [`Evict::window`].
    pub seq: u64,
    /// Its reference tier: 0 where the policy has none.
    pub(crate) tier: usize,
}

/// One reference tier: pages with about equal use, and the refaults of evicted ones (a row of the kernel's
/// `lru_gen_full`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    /// 0 (used once or never) and up.
    pub tier: usize,
    /// Resident pages.
    pub pages: usize,
    /// Refaults that counted, of pages evicted out of this tier, since the oldest generation became the oldest.
    pub refaulted: u64,
    /// Pages evicted since then.
    pub evicted: u64,
    /// Pages kept by protection since then.
    pub protected: u64,
    /// Moving average of `refaulted`, by generations.
    pub avg_refaulted: u64,
    /// Moving average of `evicted + protected`, by generations.
    pub avg_total: u64,
}

/// Faults on pages that carried a shadow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refaults {
    /// All of them (kernel: `workingset_refault`).
    pub total: u64,
    /// Those recent enough to show that the page belongs in the cache (kernel: `workingset_activate`).
    pub recent: u64,
}

/// An eviction policy.
///
/// A slot is *resident* from `insert` (or `restore`) until `victims` returns it or `remove` takes it. Units
/// are pages throughout. A violated precondition panics, since the caller's bookkeeping is wrong.
pub trait Evict: Send + fmt::Debug {
    /// The name that `build` accepts.
    fn name(&self) -> &'static str;

    /// A page becomes resident in `slot`, which was free. Called by the fault path after a frame is filled,
    /// or at a first write. `shadow` comes from the index entry. The slot's touches start at zero: the
    /// faulting access is not counted. Returns true for a recent refault. O(1).
    fn insert(
        &mut self,
        slot: Slot,
        shadow: Option<Shadow>,
        reason: InsertReason,
        touches: &mut dyn AccessCounts,
    ) -> bool;

    /// Appends up to `want` victims to `out`; they are no longer resident. Reclaim calls this when free
    /// frames run low, typically with 64, so the pool is nearly full. May return fewer than `want` (call
    /// again), but at least one while any page is resident and `want > 0`.
    fn victims(&mut self, want: usize, touches: &mut dyn AccessCounts, out: &mut Vec<Victim>);

    /// Makes a victim resident again that could not be evicted (dirty, under writeback, pinned): near the
    /// eviction end but not next. Called after `victims`, before another use of the slot.
    fn restore(&mut self, slot: Slot);

    /// Removes the page of a resident `slot` (truncate, drop, forget): no shadow, no later refault.
    fn remove(&mut self, slot: Slot);

    /// The shadow of a page read without admission (it enters the ghost only). At its next fault it counts as
    /// evicted now. `None`: this policy has no ghost.
    fn shadow(&mut self) -> Option<Shadow>;

    /// Sets the pool's size in pages (at construction, at `terrace resize`). Takes effect gradually: the
    /// caller requests victims until the resident pages fit.
    fn set_capacity(&mut self, pages: usize);

    /// The only clock, in milliseconds; it never decreases. It stamps generations, and `mglru-fg` opens them
    /// by it. The simulator has no time.
    fn set_time(&mut self, now_ms: u64);

    /// One access to a resident page, reported at once. The engine has the touch table instead, and never
    /// calls this. The simulator's exact mode calls it *in addition* to raising the count in the table. A
    /// policy that uses it ignores the table from the first call on.
    fn accessed(&mut self, slot: Slot) {
        let _ = slot;
    }

    /// Announces the fault of a page that left with `shadow`. Only the simulator's exact mode calls this,
    /// before `victims` for this page alone: some published policies choose the victim by its successor. The
    /// engine makes room in batches, ahead of demand, and never calls this.
    fn faulting(&mut self, shadow: Shadow) {
        let _ = shadow;
    }

    /// Whether `key` must be called. Queried once, after construction.
    fn wants_keys(&self) -> bool {
        false
    }

    /// The key (any stable hash of object and page index) of the page about to enter `slot`. Called right
    /// before `insert`, for policies with `wants_keys`, which count uses by key (TinyLFU).
    fn key(&mut self, slot: Slot, key: u64) {
        let _ = (slot, key);
    }

    /// Sizes and ages of queues and generations, for `stat`.
    fn generations(&self, now_ms: u64) -> Vec<Generation>;

    /// The open generations, oldest to youngest. `None`: this policy has none, and the four methods below
    /// have no effect.
    fn window(&self) -> Option<RangeInclusive<u64>> {
        None
    }

    /// Generation and tier of a resident page; `None` while it is in none (probation, held). O(1).
    fn position(&self, slot: Slot) -> Option<Position> {
        let _ = slot;
        None
    }

    /// The reference tiers, lowest first; empty where there are none. O(slots).
    fn tiers(&self) -> Vec<Tier> {
        Vec::new()
    }

    /// Ages as the kernel's `+` command does: touched pages join the youngest generation, and their touches
    /// are cleared. Then opens a generation and returns its number. So a generation has the pages used while
    /// it was the youngest. O(slots).
    fn age(&mut self, touches: &mut dyn AccessCounts) -> Option<u64> {
        let _ = touches;
        None
    }

    /// [`Evict::victims`] from generations up to `seq`, as the kernel's `-` command: never from the two
    /// youngest, or without a generation. Fewer than `want` but more than none: call again. None: those
    /// generations are used up. Touched or protected pages move to younger generations as usual.
    fn victims_until(
        &mut self,
        seq: u64,
        want: usize,
        touches: &mut dyn AccessCounts,
        out: &mut Vec<Victim>,
    ) {
        let _ = (seq, want, touches, out);
    }

    /// Refaults since the start.
    fn refaults(&self) -> Refaults;

    /// Resident pages.
    fn resident(&self) -> usize;

    /// Whether `slot` is resident.
    fn contains(&self, slot: Slot) -> bool;

    /// Exact queue contents for tests: `name: newest ... oldest`, queues parted by ` | `.
    fn dump(&self) -> String;

    /// Invariants: each resident page in exactly one list, counts agree. O(slots); for tests and `terrace check`.
    fn check(&self) -> Result<(), String>;

    /// Heap used, in bytes, with all tables at their full length; at most 10 a slot for the default policy.
    fn bytes(&self) -> usize;
}
