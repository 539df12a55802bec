//! Simulated cache with a compressed tier below DRAM, both within one memory budget, and an optional device
//! below them.
//!
//! The rules are the engine's: the same policy object chooses the victims of DRAM, and the same
//! [`TierBalancer`] sizes the tier.
//!
//! ```text
//!                 victims                            neither ────────────────► absent, shadow
//!   DRAM, policy ─────────► used again, or room below? ─┤
//!     ▲    ▲                                             └─ compresses? ─► the tier, by age ► absent, shadow
//!     │    └───────────────────────────────── enough recent touches there ───┘    the untouched oldest
//!     └──── fault: used again if it is a recent refault
//! ```
//! With a device ([`DeviceTier`]), a page about to become absent is offered to it, and a fault reads it
//! before the source. Hits reach the policy as touch counts, in batches as in [`Mode::Sampled`]. The clock of
//! the balancer is the sum of the requests' times ([`Prices`]); compression runs beside them.

use std::cell::Cell;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;
use terrace_policy::balancer::{Costs, TierBalancer, Window};
use terrace_policy::list::{List, Slots};
use terrace_policy::{AccessCounts, Evict, InsertReason, Slot, Victim};

use crate::device_sim::{DeviceOutcome, DeviceSetup, DeviceTier};
use crate::sim::{Entry, Mode, Pool};

/// Pages of a chunk, the step of the boundary; a small budget has `CHUNKS_MIN` chunks all the same.
const CHUNK_PAGES: usize = 512;
const CHUNKS_MIN: usize = 64;
/// Interval of the balancer's judgements, ns.
const JUDGED_EVERY_NS: u64 = 50_000_000;
/// Pages evicted from DRAM at once, and from the tier to make room.
const BATCH: usize = 64;
/// Touches in the tier, halved over time, that move a page back to DRAM; the next constant is their maximum.
const PROMOTE_AT: u8 = 8;
const TOUCHES_MAX: u8 = 64;
/// Consecutive refusals after which a file counts as incompressible; then one page in the next constant is
/// tried.
const REFUSALS: u32 = 16;
const REPROBE: u32 = 64;
/// Tags of nodes.
const FREE: u8 = 0;
const USED: u8 = 1;

/// Times of requests, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// A hit in DRAM.
    pub(crate) hit: u64,
    /// Device read, compression, decompression.
    pub costs: Costs,
}

impl Default for Prices {
    /// Times of an NVMe disk, and of LZ4.
    fn default() -> Prices {
        Prices { hit: 500, costs: Costs { read: 50_000, work: 10_000, compress: 8_000, decompress: 4_000 } }
    }
}

/// Content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Its file: any small number.
    pub file: u8,
    /// Whether it is compressible.
    pub compresses: bool,
}

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Memory of both tiers, pages.
    pub budget: usize,
    /// Compressed pages that fit into the memory of one, at least 1.
    pub ratio: f64,
    /// The tier's share of the budget, per cent; an empty range fixes the boundary.
    pub percent: RangeInclusive<u32>,
    /// Times for the clock and for the balancer.
    pub prices: Prices,
    /// A device below both.
    pub device: Option<DeviceSetup>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompressedOutcome {
    /// Requests.
    pub requests: u64,
    /// Requests answered by the tier.
    pub tier_hits: u64,
    /// Requests for a page in no tier.
    pub misses: u64,
    /// Pages compressed and stored.
    pub stored: u64,
    /// Pages compressed but not stored: the result was too long.
    pub refused: u64,
    /// Pages not compressed, because other pages of their file were refused.
    pub refused_by_file: u64,
    /// Pages moved from the tier to DRAM.
    pub promoted: u64,
    /// Windows judged.
    pub windows: u64,
    /// Windows in which the boundary moved.
    pub moves: u64,
    /// Windows in which it moved in the opposite direction.
    pub turns: u64,
    /// The tier's limit, pages, summed over all requests.
    #[serde(skip)]
    pub share_sum: u64,
    /// Counters of the device, if there is one.
    #[serde(skip)]
    pub device: DeviceOutcome,
    /// Time of the device's hits, ns.
    #[serde(skip)]
    pub device_ns: u64,
}

impl CompressedOutcome {
    /// Mean time of a request, ns. Compression runs beside it.
    pub fn request_ns(&self, prices: &Prices) -> f64 {
        let Prices { hit, costs } = *prices;
        let hits = self.requests - self.misses - self.tier_hits - self.device.hits;
        let ns = hits * hit + self.tier_hits * costs.decompress + self.misses * costs.miss() + self.device_ns;
        ns as f64 / self.requests.max(1) as f64
    }
    /// Mean processor time of the tier for each request, ns: compression, and decompression for readers and
    /// for DRAM.
    pub fn tier_ns(&self, prices: &Prices) -> f64 {
        let Costs { compress, decompress, .. } = prices.costs;
        let ns = (self.stored + self.refused) * compress + (self.tier_hits + self.promoted) * decompress;
        ns as f64 / self.requests.max(1) as f64
    }
    /// Hits in the tier for each compressed page.
    pub fn hits_per_compression(&self) -> f64 {
        self.tier_hits as f64 / (self.stored + self.refused).max(1) as f64
    }
    /// Mean limit of the tier, pages.
    pub fn share_mean(&self) -> f64 {
        self.share_sum as f64 / self.requests.max(1) as f64
    }
}

/// The compressed pages: a queue by age, with a second chance for touched pages.
struct CompressedPool {
    slots: Slots,
    queue: List,
    ids: Vec<u32>,
    touches: Vec<u8>,
    free: Vec<Slot>,
    ratio: f64,
    /// Maximum number of pages.
    room: usize,
    /// Nodes ever used, and the one aged last.
    known: usize,
    aged: usize,
}

impl CompressedPool {
    fn new(budget: usize, ratio: f64) -> CompressedPool {
        let nodes = (budget as f64 * ratio) as usize;
        let (slots, [queue]) = Slots::new::<1>(nodes);
        CompressedPool {
            slots,
            queue,
            ids: vec![0; nodes],
            touches: vec![0; nodes],
            free: (0..nodes as Slot).rev().collect(),
            ratio,
            room: 0,
            known: 0,
            aged: 0,
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }
    /// Memory in use, pages.
    fn pages(&self) -> usize {
        (self.len() as f64 / self.ratio).ceil() as usize
    }
    fn set_limit(&mut self, pages: usize) {
        self.room = ((pages as f64 * self.ratio) as usize).min(self.ids.len());
    }

    fn store(&mut self, id: u32) -> Slot {
        let node = self.free.pop().expect("there is room");
        self.known = self.known.max(node as usize + 1);
        (self.ids[node as usize], self.touches[node as usize]) = (id, 0);
        self.slots.push(&mut self.queue, node, USED);
        node
    }
    fn remove(&mut self, node: Slot) {
        self.slots.unlink(&mut self.queue, node, FREE);
        self.free.push(node);
    }

    /// Counts a hit; true if the page is now worth a frame.
    fn touch(&mut self, node: Slot) -> bool {
        let touches = &mut self.touches[node as usize];
        *touches = (*touches + 1).min(TOUCHES_MAX);
        *touches == PROMOTE_AT
    }
    /// Halves the touches of the next `pages` pages, in turn; a touched page keeps at least one.
    fn age(&mut self, pages: usize) {
        for _ in 0..pages.min(self.known) {
            self.aged = (self.aged + 1) % self.known;
            let touches = &mut self.touches[self.aged];
            *touches = (*touches / 2).max((*touches).min(1));
        }
    }
    /// Whether the tier has filled its memory.
    fn is_full(&self) -> bool {
        self.len() >= self.room / 16 * 15
    }

    /// Removes up to `want` of the oldest pages that were not touched since the last look; the others start
    /// anew.
    fn coldest(&mut self, want: usize) -> Vec<u32> {
        let mut out = Vec::new();
        let mut looks = self.len();
        while let Some(node) = self.slots.tail(&self.queue).filter(|_| looks > 0 && out.len() < want) {
            looks -= 1;
            if std::mem::take(&mut self.touches[node as usize]) > 0 {
                self.slots.unlink(&mut self.queue, node, FREE);
                self.slots.push(&mut self.queue, node, USED);
            } else {
                out.push(self.ids[node as usize]);
                self.remove(node);
            }
        }
        out
    }
}

/// A touch table that records which pages the policy finds touched: those were used again.
struct Noting<'a> {
    counts: &'a mut Vec<u8>,
    reused: &'a [Cell<bool>],
}

impl AccessCounts for Noting<'_> {
    fn peek(&self, slot: Slot) -> u8 {
        let count = self.counts[slot as usize];
        if count != 0 {
            self.reused[slot as usize].set(true);
        }
        count
    }
    fn set(&mut self, slot: Slot, count: u8) {
        self.counts[slot as usize] = count;
    }
}

/// DRAM and the compressed tier, with an optional device.
pub struct CompressedSim<'a> {
    pool: Pool<'a>,
    compressed: CompressedPool,
    device: Option<DeviceTier>,
    balancer: TierBalancer,
    setup: Setup,
    content: &'a dyn Fn(u32) -> Content,
    /// Slots with a page that was used again, or refaulted soon.
    reused: Vec<Cell<bool>>,
    /// Consecutive refusals, by file.
    refused: Vec<u32>,
    chunk_pages: usize,
    /// Maximum pages in DRAM.
    dram: usize,
    outcome: CompressedOutcome,
    window: Window,
    clock_ns: u64,
    judged_ns: u64,
    /// Hits of the tier at the last aging of its touches.
    aged_at: u64,
    /// Reads of the device and of the source since the last judgement.
    below: (u64, u64),
    /// Direction of the boundary's last move.
    went: i8,
    /// The policy keeps shadows.
    has_ghost: bool,
}

impl fmt::Debug for CompressedSim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompressedSim { balancer, outcome, .. } = self;
        f.debug_struct("CompressedSim")
            .field("balancer", balancer)
            .field("outcome", outcome)
            .finish_non_exhaustive()
    }
}

impl<'a> CompressedSim<'a> {
    /// An empty cache. `policy`: freshly built for `setup.budget` slots. `ids_max`: above the numbers of all
    /// pages. `content`: compressibility of a page.
    ///
    /// # Panics
    /// If the ratio is less than 1, or the budget less than 2 pages.
    pub fn new(
        policy: &'a mut dyn Evict,
        setup: Setup,
        ids_max: usize,
        content: &'a dyn Fn(u32) -> Content,
    ) -> CompressedSim<'a> {
        assert!(setup.ratio >= 1.0 && setup.budget >= 2, "{setup:?}");
        let chunk_pages = (setup.budget / CHUNKS_MIN).clamp(1, CHUNK_PAGES);
        let chunks = (setup.budget / chunk_pages) as u32;
        let share = |percent: u32| (u64::from(chunks) * u64::from(percent) / 100) as u32;
        let has_ghost = policy.shadow().is_some();
        let mut balancer = TierBalancer::new(setup.prices.costs);
        balancer.set_limits(share(*setup.percent.start())..=share(*setup.percent.end()), chunks);
        let pool = Pool::new(policy, ids_max, setup.budget, Mode::Sampled { batch: BATCH });
        let mut sim = CompressedSim {
            pool,
            compressed: CompressedPool::new(setup.budget, setup.ratio),
            device: setup.device.map(|device| DeviceTier::new(device, ids_max)),
            balancer,
            content,
            has_ghost,
            reused: vec![Cell::new(false); setup.budget],
            refused: vec![0; 1 << u8::BITS],
            chunk_pages,
            dram: setup.budget,
            outcome: CompressedOutcome::default(),
            window: Window::default(),
            clock_ns: 0,
            judged_ns: 0,
            aged_at: 0,
            below: (0, 0),
            went: 0,
            setup,
        };
        sim.fit();
        sim
    }

    /// The result up to now.
    pub fn outcome(&self) -> CompressedOutcome {
        let device = self.device.as_ref().map(DeviceTier::outcome).unwrap_or_default();
        CompressedOutcome { device, ..self.outcome }
    }
    /// Memory used by DRAM and by the tier, pages: never more than the budget.
    pub fn used(&self) -> (usize, usize) {
        (self.resident(), self.compressed.pages())
    }
    /// Memory of both tiers, pages.
    pub fn budget(&self) -> usize {
        self.setup.budget
    }
    /// Current limit of the tier, pages.
    pub fn share(&self) -> usize {
        self.setup.budget - self.dram
    }
    fn resident(&self) -> usize {
        self.setup.budget - self.pool.free.len()
    }

    /// One request.
    pub fn request(&mut self, id: u32) {
        let Prices { hit, costs } = self.setup.prices;
        self.outcome.requests += 1;
        self.outcome.share_sum += self.share() as u64;
        let entry = self.pool.entries[id as usize];
        self.clock_ns += if let Some(slot) = entry.slot() {
            let touches = &mut self.pool.touches[slot as usize];
            *touches = touches.saturating_add(1);
            hit
        } else if let Some(node) = entry.node() {
            self.outcome.tier_hits += 1;
            self.window.tier_hits += 1;
            if self.compressed.touch(node) {
                self.promote(id, node);
            }
            costs.decompress
        } else if let Some(device) = self.device.as_mut().filter(|device| device.holds(id)) {
            let (promotes, ns) = (device.hit(id), device.setup().read + costs.work);
            self.outcome.device_ns += ns;
            self.window.refaults += 1;
            self.below.0 += 1;
            if promotes {
                self.fault(id, true);
            }
            ns
        } else {
            self.outcome.misses += 1;
            self.below.1 += 1;
            self.window.refaults += u64::from(entry.came_before());
            self.fault(id, false);
            costs.miss()
        };
        if self.clock_ns - self.judged_ns >= JUDGED_EVERY_NS {
            self.judged_ns = self.clock_ns;
            self.rebalance();
        }
    }

    /// Faults a page, read from the source or the device, into a frame.
    fn fault(&mut self, id: u32, from_device: bool) {
        self.make_room();
        let source = self.setup.prices.costs.read;
        let came_back =
            self.device.as_ref().is_some_and(|device| from_device && device.came_back(id, source));
        let shadow = match came_back {
            true => self.pool.policy.shadow(),
            false => self.pool.entries[id as usize].shadow(),
        };
        let slot = self.pool.claim(id);
        let recent = self.pool.policy.insert(slot, shadow, InsertReason::Read, &mut self.pool.touches);
        let was_read = self.device.as_ref().is_some_and(|device| device.was_read(id));
        self.reused[slot as usize].set(recent || from_device || was_read);
    }

    fn promote(&mut self, id: u32, node: Slot) {
        self.make_room();
        // Making room in DRAM may have evicted the page from the tier.
        if self.pool.entries[id as usize].node() != Some(node) {
            return;
        }
        self.compressed.remove(node);
        let slot = self.pool.claim(id);
        let shadow = self.pool.policy.shadow();
        self.pool.policy.insert(slot, shadow, InsertReason::Read, &mut self.pool.touches);
        self.reused[slot as usize].set(true);
        self.outcome.promoted += 1;
        self.window.promoted += 1;
    }

    /// Makes room in DRAM for one more page.
    fn make_room(&mut self) {
        while self.resident() + self.pool.free_min >= self.dram {
            self.reclaim();
        }
    }

    /// Evicts a batch from DRAM, in part into the tier.
    fn reclaim(&mut self) {
        let mut victims = std::mem::take(&mut self.pool.victims);
        let mut touches = Noting { counts: &mut self.pool.touches, reused: &self.reused };
        self.pool.policy.victims(self.pool.batch, &mut touches, &mut victims);
        assert!(!victims.is_empty(), "no victim among {} pages", self.resident());
        for victim in victims.drain(..) {
            let id = self.pool.ids[victim.slot as usize];
            let node = self.lower(&victim, id);
            let reused = self.reused[victim.slot as usize].get();
            let on_device = node.is_none() && self.offer_to_device(id, reused);
            // The balancer must recognise refaults even if the policy keeps no shadows.
            let has_shadow = self.has_ghost && (!on_device || self.setup.device.is_some_and(|d| d.shadows));
            let absent = if has_shadow { Entry::absent(victim.shadow) } else { Entry::was_here() };
            self.pool.entries[id as usize] = node.map_or(absent, Entry::compressed);
            self.pool.free.push(victim.slot);
        }
        self.pool.victims = victims;
    }

    /// Stores a victim of DRAM in the tier, if it is worth it; returns its node.
    fn lower(&mut self, victim: &Victim, id: u32) -> Option<Slot> {
        let filling = !self.reused[victim.slot as usize].get();
        if filling && self.compressed.is_full() {
            return None;
        }
        if !self.balancer.compresses() {
            self.balancer.passed();
            return None;
        }
        let Content { file, compresses } = (self.content)(id);
        if self.is_incompressible(file) {
            self.outcome.refused_by_file += 1;
            self.window.untried += 1;
            return None;
        }
        if self.compressed.room == 0 {
            return None;
        }
        if !compresses {
            self.refused[file as usize] += 1;
            self.outcome.refused += 1;
            self.window.refused += 1;
            self.window.filling += u64::from(filling);
            return None;
        }
        self.refused[file as usize] = 0;
        if self.compressed.len() >= self.compressed.room {
            self.give_up(BATCH.min(self.compressed.room.div_ceil(8)));
        }
        if self.compressed.len() >= self.compressed.room {
            return None;
        }
        self.outcome.stored += 1;
        self.window.stored += 1;
        self.window.filling += u64::from(filling);
        Some(self.compressed.store(id))
    }

    /// Whether to skip a page, after many refusals of its file; one page in [`REPROBE`] is tried.
    fn is_incompressible(&mut self, file: u8) -> bool {
        let refused = &mut self.refused[file as usize];
        let Some(vain) = refused.checked_sub(REFUSALS) else { return false };
        *refused += 1;
        !vain.is_multiple_of(REPROBE)
    }

    /// Evicts pages from the tier. The policy gets no shadow for them: they have been away longer than any
    /// page of DRAM. (Otherwise all pages of a loop would return as recent refaults, DRAM would turn over,
    /// and all pages would circulate.)
    fn give_up(&mut self, want: usize) {
        for id in self.compressed.coldest(want) {
            self.pool.entries[id as usize] = Entry::was_here();
            self.offer_to_device(id, true);
        }
    }

    /// Offers an evicted page to the device, if there is one. Pages evicted from the compressed tier were
    /// used again before they came there.
    fn offer_to_device(&mut self, id: u32, reused: bool) -> bool {
        let source = self.setup.prices.costs.read;
        self.device.as_mut().is_some_and(|device| device.demote(id, reused, source))
    }

    fn rebalance(&mut self) {
        self.learn_miss_cost();
        let hits = self.outcome.tier_hits;
        self.compressed.age((hits - std::mem::replace(&mut self.aged_at, hits)) as usize);
        let before = self.balancer.chunks();
        let window = Window {
            tier_pages: self.compressed.len() as u64,
            tier_frames: self.compressed.pages() as u64,
            full: self.compressed.is_full(),
            ..self.window
        };
        if !self.balancer.rebalance(window) {
            return;
        }
        self.window = Window::default();
        self.outcome.windows += 1;
        let goes = (i64::from(self.balancer.chunks()) - i64::from(before)).signum() as i8;
        if goes != 0 {
            self.outcome.moves += 1;
            self.outcome.turns += u64::from(self.went == -goes);
            self.went = goes;
            self.fit();
        }
    }

    /// Sets the cost of a miss to the mean of device and source, by their recent shares.
    fn learn_miss_cost(&mut self) {
        let Some(device) = &mut self.device else { return };
        device.pass(JUDGED_EVERY_NS);
        let (hits, misses) = std::mem::take(&mut self.below);
        let ns = hits * device.setup().read + misses * self.setup.prices.costs.read;
        if let Some(mean) = ns.checked_div(hits + misses) {
            self.balancer.costs.read = mean;
        }
    }

    /// Resizes both tiers to the balancer's decision, the shrinking one first. Pages evicted from DRAM for
    /// that go to the tier, and its oldest pages make room.
    fn fit(&mut self) {
        let share = (self.balancer.chunks() as usize * self.chunk_pages).min(self.setup.budget - 1);
        if share < self.share() {
            self.limit_compressed(share);
        }
        self.dram = self.setup.budget - share;
        while self.resident() > self.dram {
            self.reclaim();
        }
        self.pool.policy.set_capacity(self.dram);
        self.limit_compressed(share);
    }

    fn limit_compressed(&mut self, pages: usize) {
        self.compressed.set_limit(pages);
        while self.compressed.len() > self.compressed.room {
            self.give_up(BATCH.min(self.compressed.len() - self.compressed.room));
        }
    }
}
