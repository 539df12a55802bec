//! How fast a cache grows and shrinks.

use std::time::Duration;

/// Memory moves in chunks of frames, bytes.
pub const CHUNK: u64 = 2 << 20;
/// How often what a chunk saves is weighed.
pub const WEIGH_EVERY: Duration = Duration::from_millis(500);
/// Chunks that move in a second where they are weighed; in a large cache this part of it.
pub const CHUNKS_A_SECOND: u64 = 8;
const PART_A_SECOND: u64 = 64;
/// The part of the limit that moves at once at the most, however often nobody lost by it.
const PART_AT_ONCE: u64 = 8;
/// The part of the limit by which it grows a second after it has shrunk: programs often take memory again soon after they
/// have freed it.
const REGROW_PART: u64 = 16;

/// What the pace depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Memory that all levels allow the cache, bytes.
    largest: u64,
    /// Memory that the cache has taken of late, bytes.
    pub(super) taken: u64,
    /// When its size was last changed.
    moved: Option<Duration>,
    /// Weighings in a row by which it grew while nobody lost.
    unopposed: u32,
}

impl Pace {
    pub(super) fn new(largest: u64) -> Pace {
        Pace { largest, taken: 0, moved: None, unopposed: 0 }
    }

    /// What the levels allow, and what the cache has, bytes; `since` the last time.
    pub(super) fn note(&mut self, largest: u64, ours: u64, since: Duration) {
        self.largest = largest;
        self.taken = ours.max(self.taken.saturating_sub(self.step_within(since)));
    }

    /// A size was chosen; is it another one?
    pub(super) fn note_target(&mut self, now: Duration, is_new: bool) {
        if is_new || self.moved.is_none() {
            self.moved = Some(now);
        }
    }

    /// A weighing has ended; did the cache grow by it while nobody lost?
    pub(super) fn note_growth(&mut self, unopposed: bool) {
        self.unopposed = if unopposed { self.unopposed + 1 } else { 0 };
    }

    /// Bytes by which it may have grown into free memory since its size was last changed. The first time it has not shrunk before.
    pub(super) fn regrowth(&self, now: Duration) -> u64 {
        let Some(moved) = self.moved else { return u64::MAX };
        ((self.largest / REGROW_PART) as f64 * now.saturating_sub(moved).as_secs_f64()) as u64
    }

    /// Bytes by which it grows at a weighing.
    pub(super) fn stride(&self) -> u64 {
        let most = (self.largest / PART_AT_ONCE).max(self.step());
        self.step().saturating_mul(1 << self.unopposed.min(16)).min(most)
    }

    /// Bytes that move at once.
    pub(super) fn step(&self) -> u64 {
        self.step_within(WEIGH_EVERY) / CHUNK * CHUNK
    }

    /// Bytes that move within this time.
    fn step_within(&self, time: Duration) -> u64 {
        let per_second = (CHUNKS_A_SECOND * CHUNK).max(self.largest / PART_A_SECOND);
        (per_second as f64 * time.as_secs_f64()) as u64
    }

    /// Has it taken all of `target`? Frames come in chunks, tables have a part that they may not use, and frames that become a part of the compressed tier are
    /// missing for a moment.
    pub(super) fn is_full(&self, target: u64) -> bool {
        self.taken + self.step() + target / 32 >= target
    }
}
