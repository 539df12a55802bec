//! Trials: memory given to a group must reduce its losses.
//!
//! A group that scans more than it can hold refaults for ever. So it gets memory for a trial:
//! [`TRIAL_CHUNKS`] must reduce its losses by more than their worth in the cache. Otherwise they go back, and
//! the group gets nothing for a while.

use super::pace::CHUNK;
use std::time::Duration;

/// Chunks given after which losses must have fallen.
pub const TRIAL_CHUNKS: u64 = 16;
/// Time without gifts after a failed trial; doubles with each failure in a row.
const HOLD: Duration = Duration::from_secs(15);
const HOLD_MAX: Duration = Duration::from_secs(240);

/// Memory given, bytes, and the group's losses before, ns of waiting a second.
#[derive(Clone, Copy, Debug)]
struct Trial {
    lost: f64,
    given: u64,
}

/// After a failed trial the group gets nothing until a time, and the cache returns to its former size.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Duration,
    back_to: u64,
}

#[derive(Debug)]
pub(super) struct Trials {
    trial: Option<Trial>,
    hold: Option<Hold>,
    hold_for: Duration,
}

impl Default for Trials {
    fn default() -> Trials {
        Trials { trial: None, hold: None, hold_for: HOLD }
    }
}

impl Trials {
    /// The size to which the cache returns, bytes; None: no hold.
    pub(super) fn goes_back_to(&self, now: Duration) -> Option<u64> {
        self.hold.filter(|hold| now < hold.until).map(|hold| hold.back_to)
    }

    /// Called before each gift. `lost`: current losses of the group; `worth` of a chunk in the cache (both ns
    /// of waiting a second); `size` of the cache, bytes. True: the trial failed, and the group gets nothing
    /// for a while.
    pub(super) fn has_failed(&mut self, now: Duration, lost: f64, worth: f64, size: u64) -> bool {
        let trial = self.trial.get_or_insert(Trial { lost, given: 0 });
        if trial.given < TRIAL_CHUNKS * CHUNK {
            return false;
        }
        let Trial { lost: before, given } = std::mem::replace(trial, Trial { lost, given: 0 });
        let gained = (before - lost) / (given / CHUNK) as f64;
        if gained >= worth {
            self.hold_for = HOLD;
            return false;
        }
        self.trial = None;
        self.hold = Some(Hold { until: now + self.hold_for, back_to: size + given });
        self.hold_for = (2 * self.hold_for).min(HOLD_MAX);
        true
    }

    pub(super) fn note_given(&mut self, bytes: u64) {
        self.trial.iter_mut().for_each(|trial| trial.given += bytes);
    }
}
