//! Sizes the cache: how much memory it takes of a machine, or of a control group.
//!
//! Memory outside the cache is in one of three states, each with its own rule:
//!
//! ```text
//!   0                                                                          limit of the group
//!   ├── the cache ──┬── pinned ───────┬── cached pages of files ──┬── free ──┬── reserve ──┤
//!                   │ memory of pro-  │ the kernel drops them     └ taken as needed
//!                   │ grams: the cache└ weighed: what does a chunk save on either side?
//!                   └ gives way at once, before they have used up the reserve
//! ```
//! 1. *Free* memory, except for the reserve: the cache grows into it as it fills.
//! 2. *Pinned* memory has precedence. When it grows, the next call shrinks the cache; until then programs
//!    take the reserve. So a burst enlarges the reserve ([`BURST_HALVES`]).
//! 3. *Cached pages of files* are a cache like this one. At a group's limit, twice a second the sizer weighs
//!    a chunk of either, in nanoseconds of waiting a second:
//!    - *here*: misses that the last chunk saves, times the cost of a miss. The greater of two estimates
//!      counts. The sample's curve of stack distances undervalues parts of a loop, which a scan-resistant
//!      policy keeps. The mean of all chunks (hits, or refaults if they are fewer) undervalues a chunk that
//!      completes a set.
//!    - *there*: time that programs stall for memory, divided by the cached pages. Without this time:
//!      refaults times the cost of a miss.
//!
//!    Memory moves when one side is worth [`BAND`] times the other, at most [`CHUNKS_A_SECOND`]. The number
//!    doubles while the cache fills them at once without losses elsewhere: a program's start leaves unused
//!    pages. A group that scans more than it can hold always refaults. So after [`TRIAL_CHUNKS`] its losses
//!    must have fallen by more than these chunks are worth here. Otherwise they come back, and the group gets
//!    nothing for a while. Losses of less than two seconds are a program's start, and end before the sizer
//!    can act.
//!
//! The cache uses a fixed limit in full while it fits. It gives up a part only if the group loses much
//! ([`THRASH`]) for a while.
//!
//! *Tried:* to shrink whenever a group is at its limit, by `memory.failcnt` or by its usage. Every group that
//! reads files is at its limit, mostly without losses.

mod pace;
mod trial;

use pace::Pace;
pub use pace::{CHUNK, CHUNKS_A_SECOND, WEIGH_EVERY};
use std::time::Duration;
pub use trial::TRIAL_CHUNKS;
use trial::Trials;

/// Minimum size of the cache beside cached pages of files, bytes. Only pinned memory can push it lower.
pub(crate) const FLOOR: u64 = 16 << 20;
/// Normal fluctuation of a group's usage, bytes: no reason to grow.
const STILL: u64 = 2 * CHUNK;
/// Dead band: one side must be worth this many times the other.
pub(crate) const BAND: f64 = 2.0;
/// Losses of a group below this are ignored, ns of waiting a second.
const LOSS_MIN: f64 = 5e6;
/// Worth of a chunk below this is ignored, ns of waiting a second.
const WORTH_MIN: f64 = 1e5;
/// Losses above which a fixed limit is given up in part, ns of waiting a second.
pub(crate) const THRASH: f64 = 20e6;
/// Number of weighings with losses before the cache shrinks: a starting program reads its code only once. For
/// a fixed limit the weighings must be consecutive. Otherwise they count among the last eight, because
/// programs start repeatedly. A cache without use shrinks at once.
const LOSSES_LAST: u32 = 4;
/// A fixed limit is restored when the group has lost nothing for this long.
const CALM: Duration = Duration::from_secs(10);
/// The reserve is a sixteenth of the limit, within these bounds, bytes.
const RESERVE_MIN: u64 = 16 << 20;
const RESERVE_MAX: u64 = 1 << 30;
/// Half-life of the largest recent growth between two calls. The reserve is at least twice that growth.
pub(crate) const BURST_HALVES: Duration = Duration::from_secs(20);

/// Bounds of the cache's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Maximum, bytes.
    pub most: u64,
    /// The user has set `most`.
    pub fixed: bool,
    /// Memory that the daemon needs beside the cache, bytes, taken or not.
    pub own: u64,
}

/// Memory counters of a control group, or of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Maximum, bytes.
    pub limit: u64,
    /// In use, bytes; includes cached pages of files.
    pub used: u64,
    /// Cached pages of files, bytes.
    pub cached: u64,
    /// Pages read again after the kernel had dropped them, since the start.
    pub refaults: u64,
    /// Time that programs have stalled for memory, since the start, ns; None: not counted for this level.
    pub stalled_ns: Option<u64>,
    /// How often the limit was hit, since the start.
    pub met: u64,
}

impl Level {
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
    /// Memory outside the cache that the kernel cannot drop.
    fn pinned(&self, ours: u64) -> u64 {
        self.used.saturating_sub(self.cached).saturating_sub(ours)
    }
}

/// Activity of the cache; counters since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Earning {
    /// Pages found in the cache.
    pub hits: u64,
    /// Pages not found in the cache.
    pub misses: u64,
    /// Misses of pages that were cached before.
    pub refaults: u64,
    /// Share of accesses that would miss with one chunk less, by the sample.
    pub chunk_saves: f64,
    /// Cost of a miss, ns.
    pub miss_ns: u64,
}

/// Why the cache is not larger. The number is the level's index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizeReason {
    /// The cache has its maximum.
    #[default]
    Most,
    /// Programs or the reserve have the rest.
    Room(usize),
    /// More memory would cost programs more than it would save.
    Weighed(usize),
    /// The cache shrank, because programs lost more than it saved.
    GaveWay(usize),
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    last: Option<u64>,
    /// Rate in the newest interval.
    lately: f64,
    per_second: f64,
}

impl Rate {
    /// The newest interval has half the weight. A counter that decreased was reset.
    fn note(&mut self, count: u64, seconds: f64) -> f64 {
        if let Some(last) = self.last.replace(count) {
            self.lately = count.saturating_sub(last) as f64 / seconds.max(0.01);
            self.per_second = (self.per_second + self.lately) / 2.0;
        }
        self.per_second
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Past {
    refaults: Rate,
    stalled: Rate,
    met: Rate,
    pinned: Option<u64>,
    /// Largest recent growth of pinned memory between two calls, bytes, fading.
    burst: f64,
}

/// Losses of the level that loses most by a chunk, ns of waiting a second.
#[derive(Clone, Copy, Debug)]
struct Loss {
    level: usize,
    all: f64,
    chunk: f64,
    /// All losses in the newest interval.
    lately: f64,
}

/// Chooses the size of the cache over time. All times are of one clock with any origin.
#[derive(Debug)]
pub struct Sizer {
    rule: Rule,
    pace: Pace,
    /// Memory that all levels have for the cache at the moment, bytes.
    fits: u64,
    target: u64,
    why: SizeReason,
    fitted: Option<Duration>,
    weighed: Option<Duration>,
    past: Vec<Past>,
    hits: Rate,
    misses: Rate,
    refaults: Rate,
    /// Worth of a chunk here and elsewhere, ns of waiting a second.
    worth: (f64, f64),
    lost_at: Option<Duration>,
    /// Consecutive weighings with losses above [`THRASH`].
    thrashed: u32,
    /// The last eight weighings, a bit each, the newest lowest: 1 for losses.
    lossy: u8,
    trials: Trials,
    /// Bytes of a fixed limit that were given up.
    given: u64,
    reserve: u64,
    yielded: u64,
}

impl Sizer {
    /// The first [`Sizer::fit`] chooses the size.
    pub fn new(rule: Rule) -> Sizer {
        Sizer {
            rule,
            pace: Pace::new(rule.most),
            fits: rule.most,
            target: rule.most,
            why: SizeReason::Most,
            fitted: None,
            weighed: None,
            past: Vec::new(),
            hits: Rate::default(),
            misses: Rate::default(),
            refaults: Rate::default(),
            worth: (0.0, 0.0),
            lost_at: None,
            thrashed: 0,
            lossy: 0,
            trials: Trials::default(),
            given: 0,
            reserve: 0,
            yielded: 0,
        }
    }

    /// The rule in force.
    pub fn rule(&self) -> Rule {
        self.rule
    }
    /// Target size of the cache, bytes.
    pub fn target(&self) -> u64 {
        self.target
    }
    /// Why the target is not larger.
    pub fn why(&self) -> SizeReason {
        self.why
    }
    /// Gain of the last chunk here, and of a chunk for programs elsewhere: ns of waiting a second.
    pub fn worth(&self) -> (f64, f64) {
        self.worth
    }
    /// Memory that stays free, bytes.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }
    /// Memory given back so far, bytes.
    pub fn yielded(&self) -> u64 {
        self.yielded
    }

    /// Limits the target to the memory that every level can spare, and lets it grow into free memory. `ours`:
    /// current memory of the cache, bytes. Called often, because programs that need memory do not wait.
    pub fn fit(&mut self, now: Duration, ours: u64, levels: &[Level]) -> u64 {
        let since = self.fitted.replace(now).map(|then| now.saturating_sub(then));
        self.note_bursts(since.unwrap_or_default(), ours, levels);
        let largest = levels.iter().map(|level| level.limit).fold(self.rule.most, u64::min);
        self.pace.note(largest, ours, since.unwrap_or_default());
        let least = |of: &dyn Fn(usize, &Level) -> u64| {
            levels.iter().enumerate().map(|(i, level)| (of(i, level), i)).min()
        };
        let spare = least(&|i, level| level.free().saturating_sub(self.reserve_of(i, level)));
        let (mut want, mut why) = self.wanted(ours, spare);
        let fits = least(&|i, level| self.fitting(i, level, ours));
        self.fits = fits.map_or(self.rule.most, |(fits, _)| fits.min(self.rule.most));
        if let Some((fits, i)) = fits.filter(|fit| fit.0 < want) {
            (want, why) = (fits, SizeReason::Room(i));
        }
        self.reserve = spare.map_or(0, |(_, i)| self.reserve_of(i, &levels[i]));
        if want >= self.rule.most {
            (want, why) = (self.rule.most, SizeReason::Most);
        } else if want > self.target && want < self.target + STILL {
            return self.target;
        }
        let growth = self.pace.regrowth(now);
        self.set(now, want.min(self.target.saturating_add(growth)), ours, why);
        self.target
    }

    /// Target if all unpinned memory were the cache's own, less the memory given up. `spare`: free memory
    /// beyond the reserve.
    fn wanted(&self, ours: u64, spare: Option<(u64, usize)>) -> (u64, SizeReason) {
        let Some((spare, level)) = spare.filter(|_| !self.rule.fixed) else {
            let why = if self.given > 0 { self.why } else { SizeReason::Most };
            return (self.rule.most - self.given, why);
        };
        // Others may fill the level with memory that the cache did not take.
        let Pace { taken, .. } = self.pace;
        let held = taken.max(FLOOR) + taken / 16 + (self.pace.step() + self.pace.stride()).max(spare);
        match () {
            () if spare >= CHUNK && ours + spare >= self.target => (ours + spare, SizeReason::Room(level)),
            () if self.target > held => (held, SizeReason::Weighed(level)),
            () => (self.target, self.why),
        }
    }

    /// Weighs the last chunk here against one more for cached pages of files, if a level is at its limit. Due
    /// every [`WEIGH_EVERY`].
    pub fn weigh(&mut self, now: Duration, ours: u64, earning: &Earning, levels: &[Level]) -> u64 {
        let since = self.weighed.replace(now).map_or(WEIGH_EVERY, |then| now.saturating_sub(then));
        let earns = self.note_earning(earning, ours, since.as_secs_f64());
        let loss = self.note_losses(earning.miss_ns, levels, since.as_secs_f64());
        let costs = loss.map_or(0.0, |loss| loss.chunk);
        self.worth = (earns, costs);
        if costs > 0.0 {
            self.lost_at = Some(now);
        }
        let lasts = self.losses_last(loss.map_or(0.0, |loss| loss.lately), earns);
        let loses = loss.filter(|_| lasts);
        let pays = earns > WORTH_MIN && earns > BAND * costs;
        let calm = self.lost_at.is_none_or(|lost| now.saturating_sub(lost) >= CALM);
        // Weighing decides only if others could use the memory. Otherwise `fit` lets the cache grow.
        let grows = !self.rule.fixed
            && pays
            && self.pace.is_full(self.target)
            && (loss.is_some() || self.is_stuck(ours, levels));
        let unopposed = grows && costs == 0.0;
        let (step, stride) = (self.pace.step(), self.pace.stride());
        match (self.trials.goes_back_to(now), loses) {
            (Some(back_to), _) => self.grow(now, back_to.saturating_sub(self.target).min(step), ours),
            (None, Some(loss)) if costs > BAND * earns => self.give(now, ours, loss),
            (None, _) if self.rule.fixed && (pays || calm) => self.grow(now, step / 4, ours),
            (None, _) if grows => self.grow(now, stride, ours),
            _ => {}
        }
        self.pace.note_growth(unopposed);
        self.target
    }

    /// Records losses of the newest interval, ns of waiting a second. Returns whether they last longer than a
    /// program's start, after which more memory saves nothing. A cache without savings does not wait for
    /// that.
    fn losses_last(&mut self, lately: f64, earns: f64) -> bool {
        self.thrashed = if lately > THRASH { self.thrashed + 1 } else { 0 };
        let loses = lately > LOSS_MIN;
        self.lossy = self.lossy << 1 | u8::from(loses);
        match self.rule.fixed {
            true => self.thrashed >= LOSSES_LAST,
            false => loses && (self.lossy.count_ones() >= LOSSES_LAST || earns <= WORTH_MIN),
        }
    }

    /// Whether others' cached pages leave too little free memory for growth by [`Sizer::fit`]. No level may
    /// reach its limit then.
    fn is_stuck(&self, ours: u64, levels: &[Level]) -> bool {
        let spares = |(i, level): (usize, &Level)| {
            ours + level.free().saturating_sub(self.reserve_of(i, level)) >= self.target + STILL
        };
        !levels.iter().enumerate().all(spares) && levels.iter().any(|level| level.cached >= CHUNK)
    }

    fn set(&mut self, now: Duration, target: u64, ours: u64, why: SizeReason) {
        self.pace.note_target(now, target != self.target);
        self.yielded += self.target.min(ours).saturating_sub(target);
        (self.target, self.why) = (target, why);
    }

    /// Grows by up to `bytes`, within the memory that fits.
    fn grow(&mut self, now: Duration, bytes: u64, ours: u64) {
        self.given = self.given.saturating_sub(bytes);
        if !self.rule.fixed {
            self.set(now, (self.target + bytes).min(self.fits.max(self.target)), ours, self.why);
        }
    }

    fn give(&mut self, now: Duration, ours: u64, loss: Loss) {
        if self.trials.has_failed(now, loss.all, self.worth.0.max(WORTH_MIN), self.target) {
            return;
        }
        let from = self.target.min(ours.max(FLOOR));
        let to = from.saturating_sub(self.pace.step()).max(FLOOR.min(from));
        self.trials.note_given(from - to);
        if self.rule.fixed {
            self.given = self.rule.most.saturating_sub(to);
        }
        self.set(now, to, ours, SizeReason::GaveWay(loss.level));
    }

    /// Bytes.
    fn reserve_of(&self, i: usize, level: &Level) -> u64 {
        let bursts = 2 * self.past.get(i).map_or(0, |past| past.burst as u64);
        match self.rule.fixed {
            true => self.rule.own / 4 + bursts.min(level.limit / 16),
            false => (level.limit / 16).clamp(RESERVE_MIN, RESERVE_MAX).max(bursts.min(level.limit / 4)),
        }
    }

    /// Memory of a level that the cache may take, including cached pages of files.
    fn fitting(&self, i: usize, level: &Level, ours: u64) -> u64 {
        let beside = level.pinned(ours) + self.reserve_of(i, level);
        level.limit.saturating_sub(beside.max(self.rule.own))
    }

    fn note_bursts(&mut self, since: Duration, ours: u64, levels: &[Level]) {
        if self.past.len() != levels.len() {
            self.past = vec![Past::default(); levels.len()];
        }
        let fade = (-since.as_secs_f64() / BURST_HALVES.as_secs_f64()).exp2();
        for (past, level) in self.past.iter_mut().zip(levels) {
            let pinned = level.pinned(ours);
            let grown = past.pinned.replace(pinned).map_or(0, |before| pinned.saturating_sub(before));
            past.burst = (past.burst * fade).max(grown as f64);
        }
    }

    /// Savings of the last chunk.
    fn note_earning(&mut self, earning: &Earning, ours: u64, seconds: f64) -> f64 {
        let hits = self.hits.note(earning.hits, seconds);
        let misses = self.misses.note(earning.misses, seconds);
        let refaults = self.refaults.note(earning.refaults, seconds);
        let mean = hits.min(refaults) * CHUNK as f64 / ours.max(CHUNK) as f64;
        let by_curve = earning.chunk_saves.max(0.0) * (hits + misses);
        mean.max(by_curve) * earning.miss_ns as f64
    }

    /// Largest losses among the levels at their limit; None: no level is.
    fn note_losses(&mut self, miss_ns: u64, levels: &[Level], seconds: f64) -> Option<Loss> {
        let mut most: Option<Loss> = None;
        for (i, level) in levels.iter().enumerate() {
            let reserve = self.reserve_of(i, level);
            let Some(past) = self.past.get_mut(i) else { break };
            let refaults = past.refaults.note(level.refaults, seconds);
            let met = past.met.note(level.met, seconds);
            let (all, lately) = match level.stalled_ns {
                Some(stalled) => (past.stalled.note(stalled, seconds), past.stalled.lately),
                None => (refaults * miss_ns as f64, past.refaults.lately * miss_ns as f64),
            };
            if level.free() >= reserve / 2 && met < 1.0 {
                continue;
            }
            let all = if all < LOSS_MIN { 0.0 } else { all };
            let loss =
                Loss { level: i, all, chunk: all * CHUNK as f64 / level.cached.max(CHUNK) as f64, lately };
            most = Some(most.filter(|most| most.chunk >= loss.chunk).unwrap_or(loss));
        }
        most
    }
}

#[cfg(test)]
mod tests;
