//! What the follower of a schedule is told: which pages programs waited for, and which have been fetched.

use crate::file::object::ObjectId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrace_api::stats::Schedule;
use terrace_sync::{Condvar, Mutex};

/// Misses kept between two looks of the follower; what comes then is not told.
const MISSED_MAX: usize = 1024;

/// Pages that were not in memory when a program wanted them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missed {
    pub object: ObjectId,
    pub first: u64,
    pub pages: u64,
}

/// Since the follower last looked.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub missed: Vec<Missed>,
    /// Pieces, each with a bit for each page that was fetched for it.
    pub landed: Vec<(u32, u32)>,
    /// The follower sleeps for long: a miss wakes it.
    asleep: bool,
}

/// The follower's box, and what it shows.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    active: AtomicBool,
    told: Mutex<Told>,
    changed: Condvar,
    /// Memory of the schedule.
    pub bytes: Arc<AtomicU64>,
    pub shown: Mutex<Option<Schedule>>,
}

impl Followed {
    /// There is a follower from now on, or no longer.
    pub(crate) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Release);
        self.changed.notify_all();
    }

    /// A program wants pages that are not in memory. Without a follower it costs a load.
    pub(crate) fn miss(&self, object: ObjectId, first: u64, pages: u64) {
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        let mut told = self.told.lock();
        if told.missed.len() < MISSED_MAX {
            told.missed.push(Missed { object, first, pages });
        }
        if told.asleep {
            self.changed.notify_all();
        }
    }

    /// Pieces have been fetched.
    pub(crate) fn landed(&self, pieces: impl IntoIterator<Item = (u32, u32)>) {
        self.told.lock().landed.extend(pieces);
    }

    /// Sleeps, and takes what was told meanwhile; `long`: until a miss at the most.
    pub(crate) fn take(&self, nap: Duration, long: bool) -> Told {
        let mut told = self.told.lock();
        told.asleep = long;
        if !long || told.missed.is_empty() {
            self.changed.wait_for(&mut told, nap);
        }
        std::mem::take(&mut *told)
    }
}
