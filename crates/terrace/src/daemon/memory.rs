//! Keeps the cache below `--memory` while the control group cannot hold that much beside everything else.
//!
//! Otherwise the kernel kills terraced as the largest process of the group. Its frames stay allocated,
//! because they belong to the memory file that the supervisor holds, and the next terraced finds as little room
//! as this one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_engine::Engine;

use super::thread::thread;
use crate::cgroup::Groups;
use crate::engine::Memory;
use crate::handover::channel::Channel;
use crate::handover::{Kills, Shared, Shortage};
use crate::size::{MIB, human};

/// How often the group is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often, where it has no limit; one may be set, and the process may be moved.
const FIND_EVERY: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about less memory.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How much memory the cache may have.
#[derive(Debug)]
pub struct Guard {
    groups: Groups,
    shortage: Shortage,
    began: Instant,
    found: Instant,
    told: Option<Instant>,
    /// In force.
    ceiling: u64,
    /// What fitted when that could last be read. None: all, or nobody knows.
    fitting: Option<u64>,
}

impl Guard {
    /// As this terraced begins.
    pub fn new(shortage: &Shortage) -> Guard {
        let now = Instant::now();
        let (groups, shortage) = (Groups::own().unwrap_or_default(), shortage.clone());
        Guard { groups, shortage, began: now, found: now, told: None, ceiling: u64::MAX, fitting: None }
    }

    /// Before a terraced that takes over allocates anything: gives back the dead one's cache, if it was
    /// killed for lack of memory or if less memory is left than it had.
    pub fn make_room(&mut self, memory: &Memory, limit: u64) {
        let ceiling = self.target(limit, memory.resident_bytes());
        if self.shortage.is_now() || memory.resident_bytes() > ceiling {
            // Tables and books have their part, too.
            let given = memory.give_back(ceiling / 16 * 15);
            tracing::warn!("{} given back, to keep to {}", human(given), human(ceiling));
        }
    }

    /// Sets the engine's ceiling to the present room.
    pub fn look(&mut self, engine: &Engine, memory: &Memory) {
        let (limit, used) = (engine.memory_limit(), engine.stats().memory.used_bytes);
        let target = self.target(limit, memory.resident_bytes().max(used));
        // Downward at once. Upward slowly: programs often take memory again soon after they have freed it.
        let step = (limit / 64).max(2 * MIB);
        self.ceiling = target.min(self.ceiling.max(step).saturating_add(step));
        engine.set_ceiling(self.ceiling);
        self.tell(limit);
    }

    /// Room for a cache of this limit that has `ours` now.
    fn target(&mut self, limit: u64, ours: u64) -> u64 {
        // What cannot be read at the moment, for example for lack of a descriptor, is taken to be unchanged.
        self.fitting = self.groups.fitting(ours).unwrap_or(self.fitting);
        let fitting = self.fitting.unwrap_or(u64::MAX);
        fitting.min(limit).saturating_sub(self.shortage.penalty(self.began.elapsed()))
    }

    fn tell(&mut self, limit: u64) {
        if self.ceiling < limit && self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            tracing::warn!(
                "{} of {} are used, for there is no more memory",
                human(self.ceiling),
                human(limit)
            );
        }
    }

    /// Looks regularly; reports kills by the kernel to the supervisor.
    pub fn start(mut self, engine: &Arc<Engine>, shared: &Shared) -> std::io::Result<()> {
        let (engine, memory, mut news) = (engine.clone(), shared.memory.clone(), shared.news.try_clone()?);
        thread("memory", move || {
            let mut kills = Kills::so_far(&self.groups).ok();
            loop {
                tell_kills(&mut kills, &self.groups, &mut news);
                let limited = self.groups.limit().map_or(true, |limit| limit.is_some());
                std::thread::sleep(if limited { LOOK_EVERY } else { 4 * LOOK_EVERY });
                if self.found.elapsed() >= FIND_EVERY
                    && let Ok(groups) = Groups::own()
                {
                    (self.groups, self.found) = (groups, Instant::now());
                }
                self.look(&engine, &memory);
            }
        })
    }
}

fn tell_kills(known: &mut Option<Kills>, groups: &Groups, news: &mut Channel) {
    let Ok(now) = Kills::so_far(groups) else { return };
    if known.replace(now).is_some_and(|before| before != now) {
        news.say(&format!("kills {} {}", now.group, now.machine));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn ceiling_stays_while_nobody_can_tell_what_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "134217728\n");
        write("memory.stat", "inactive_file 0\n");
        write("memory.current", "0\n");
        let mut guard = Guard { groups: Groups::of(dir.path()), ..Guard::new(&Shortage::default()) };
        let ceiling = guard.target(1 << 40, 0);
        assert!(ceiling < 128 * MIB, "{ceiling}");
        // It cannot be opened any more, and that is not because it is not there.
        fs::remove_file(dir.path().join("memory.max")).unwrap();
        fs::create_dir(dir.path().join("memory.max")).unwrap();
        assert_eq!(guard.target(1 << 40, 0), ceiling);
        fs::remove_dir(dir.path().join("memory.max")).unwrap();
        assert_eq!(guard.target(1 << 40, 0), 1 << 40, "there is no limit any more");
    }
}
