//! Whether a group makes something of the memory that it is given.
//!
//! A group that scans more than it can hold loses by refaults for ever, however much it gets. So what it is given is a trial: after [`TRIAL_CHUNKS`] its
//! losses must have fallen by more than these chunks were worth in the cache. Otherwise they go back, and the group is left alone for a while.

use super::pace::CHUNK;
use std::time::Duration;

/// Chunks given after which losses must have fallen.
pub const TRIAL_CHUNKS: u64 = 16;
/// How long a group is left alone that made nothing of them; each time in a row twice as long.
const HOLD: Duration = Duration::from_secs(15);
const HOLD_MAX: Duration = Duration::from_secs(240);

/// Memory that was given, bytes, and what the group lost before, ns of waiting a second.
#[derive(Clone, Copy, Debug)]
struct Trial {
    lost: f64,
    given: u64,
}

/// A group that made nothing of it is left alone, while the cache goes back to what it had.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Duration,
    back_to: u64,
}

/// The trial under way, and those that failed.
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
    /// The size to which the cache goes back, bytes; none: no group is left alone at the moment.
    pub(super) fn goes_back_to(&self, now: Duration) -> Option<u64> {
        self.hold.filter(|hold| now < hold.until).map(|hold| hold.back_to)
    }

    /// Asked before each gift: `lost` is what the group loses now, `worth` what a chunk would save in the cache (ns of waiting a second), `size` that of
    /// the cache, bytes. True: what was given has brought less, and nothing more is given for a while.
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

    /// So many bytes were given.
    pub(super) fn note_given(&mut self, bytes: u64) {
        self.trial.iter_mut().for_each(|trial| trial.given += bytes);
    }
}
