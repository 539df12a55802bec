//! Pace of the cache's growth and shrinking: bytes at a time, and pauses.

use std::time::Duration;

/// Memory moves in chunks of frames, bytes.
pub const CHUNK: u64 = 2 << 20;
/// Interval of the weighing of chunks.
pub const WEIGH_EVERY: Duration = Duration::from_millis(500);
/// Chunks that move in a second of weighing; the next constant is the part of a large cache.
pub const CHUNKS_A_SECOND: u64 = 8;
const PART_A_SECOND: u64 = 64;
/// Maximum part of the limit that moves at once.
const PART_AT_ONCE: u64 = 8;
/// Part of the limit for regrowth each second after shrinking: programs often take memory again.
const REGROW_PART: u64 = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Memory that all levels allow the cache, bytes.
    largest: u64,
    /// Memory that the cache has taken recently, bytes.
    pub(super) taken: u64,
    moved: Option<Duration>,
    /// Consecutive weighings with growth and without losses elsewhere.
    unopposed: u32,
}

impl Pace {
    pub(super) fn new(largest: u64) -> Pace {
        Pace { largest, taken: 0, moved: None, unopposed: 0 }
    }

    /// Updates the levels' limit and the cache's memory, bytes; `since` the last call.
    pub(super) fn note(&mut self, largest: u64, ours: u64, since: Duration) {
        self.largest = largest;
        self.taken = ours.max(self.taken.saturating_sub(self.step_within(since)));
    }

    /// Records a chosen size; `is_new`: it differs from the last.
    pub(super) fn note_target(&mut self, now: Duration, is_new: bool) {
        if is_new || self.moved.is_none() {
            self.moved = Some(now);
        }
    }

    /// Records a weighing; `unopposed`: the cache grew by it without losses elsewhere.
    pub(super) fn note_growth(&mut self, unopposed: bool) {
        self.unopposed = if unopposed { self.unopposed + 1 } else { 0 };
    }

    /// Bytes by which the cache may have grown into free memory since its size last changed. No limit before
    /// the first change.
    pub(super) fn regrowth(&self, now: Duration) -> u64 {
        let Some(moved) = self.moved else { return u64::MAX };
        ((self.largest / REGROW_PART) as f64 * now.saturating_sub(moved).as_secs_f64()) as u64
    }

    /// Bytes of growth at a weighing.
    pub(super) fn stride(&self) -> u64 {
        let most = (self.largest / PART_AT_ONCE).max(self.step());
        self.step().saturating_mul(1 << self.unopposed.min(16)).min(most)
    }

    /// Bytes that move at once.
    pub(super) fn step(&self) -> u64 {
        self.step_within(WEIGH_EVERY) / CHUNK * CHUNK
    }

    fn step_within(&self, time: Duration) -> u64 {
        let per_second = (CHUNKS_A_SECOND * CHUNK).max(self.largest / PART_A_SECOND);
        (per_second as f64 * time.as_secs_f64()) as u64
    }

    /// Whether the cache has taken all of `target`, with tolerance. Frames come in chunks, tables have an
    /// unusable part, and frames may be on their way to the compressed tier.
    pub(super) fn is_full(&self, target: u64) -> bool {
        self.taken + self.step() + target / 32 >= target
    }
}
