//! Events for the schedule follower: cache misses and completed prefetches.

use crate::file::object::ObjectId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrace_api::stats::Schedule;
use terrace_sync::{Condvar, Mutex};

/// Misses kept between two reads by the follower; further ones are dropped.
const MISSED_MAX: usize = 1024;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Missed {
    pub(crate) object: ObjectId,
    pub(crate) first: u64,
    pub(crate) pages: u64,
}

#[derive(Debug, Default)]
pub(crate) struct NewEvents {
    pub(crate) missed: Vec<Missed>,
    /// Fetched pieces, each with a bit mask of its fetched pages.
    pub(crate) landed: Vec<(u32, u32)>,
    /// The follower sleeps for long; a miss wakes it.
    asleep: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Followed {
    active: AtomicBool,
    events: Mutex<NewEvents>,
    changed: Condvar,
    /// Memory of the schedule.
    pub(crate) bytes: Arc<AtomicU64>,
    pub(crate) shown: Mutex<Option<Schedule>>,
}

impl Followed {
    pub(crate) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Release);
        self.changed.notify_all();
    }

    /// Notes a miss. Without a follower it costs one load.
    pub(crate) fn miss(&self, object: ObjectId, first: u64, pages: u64) {
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        let mut events = self.events.lock();
        if events.missed.len() < MISSED_MAX {
            events.missed.push(Missed { object, first, pages });
        }
        if events.asleep {
            self.changed.notify_all();
        }
    }

    pub(crate) fn landed(&self, pieces: impl IntoIterator<Item = (u32, u32)>) {
        self.events.lock().landed.extend(pieces);
    }

    /// Sleeps for `interval`, then takes all events. `long`: a miss ends the sleep.
    pub(crate) fn take(&self, interval: Duration, long: bool) -> NewEvents {
        let mut events = self.events.lock();
        events.asleep = long;
        if !long || events.missed.is_empty() {
            self.changed.wait_for(&mut events, interval);
        }
        std::mem::take(&mut *events)
    }
}
