//! The memory guard: it keeps the cache within the memory of the machine and its control groups. It reads
//! their use, applies the rule ([`terrace_policy::memory`]), and sets the engine's ceiling.
//!
//! If the cache is too large, the kernel kills terraced, the largest process of the group. The frames stay
//! allocated in the memory file that the supervisor holds, so the next terraced finds as little room.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_api::stats::{Bound, Mode, Sizing};
use terrace_engine::Engine;
use terrace_policy::memory::{Earning, Level, Rule, SizeReason, Sizer, WEIGH_EVERY};
use terrace_sync::Mutex;
use terrace_system::cgroup::{Groups, Machine};

use super::thread::thread;
use crate::cgroup::{Alarm, OWN_NEED};
use crate::engine::{Limit, Memory};
use crate::handover::channel::Channel;
use crate::handover::{Kills, Shared, Shortage};
use crate::size::{MIB, human};

/// Interval of the checks: for a group with a limit, for the machine alone, and while idle.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_AT_MACHINE_EVERY: Duration = Duration::from_millis(100);
const LOOK_IDLE: Duration = Duration::from_millis(250);
/// A smaller change of use between two checks counts as idle, bytes.
const STILL: u64 = MIB;
/// Idle checks in a row before the interval grows.
const STILL_LOOKS: u32 = 40;
/// Minimum time between two checks after an alarm: alarms may repeat without end.
const LOOK_MIN: Duration = Duration::from_millis(3);
/// Nice value of the thread: a high priority.
const NICE: i32 = -15;
/// Interval of the search for the groups: a process may be moved, and limits change.
const FIND_EVERY: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about less memory.
const SHORTAGE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The current size decision, for `terrace stat`.
pub(super) type Shown = Arc<Mutex<Sizing>>;

/// Decides how much memory the cache may have.
#[derive(Debug)]
pub(super) struct Guard {
    groups: Groups,
    machine: Machine,
    alarm: Alarm,
    /// Limits for which the alarm is set.
    alarmed: Vec<terrace_system::cgroup::Limit>,
    shortage: Shortage,
    sizer: Sizer,
    began: Instant,
    found: Instant,
    weighed: Instant,
    told: Option<Instant>,
    /// The last readings; kept while a file is unreadable.
    levels: Vec<Level>,
    files: Vec<PathBuf>,
    /// Use at the last change, and checks since then.
    used: u64,
    still: u32,
    shown: Shown,
}

impl Guard {
    pub(super) fn new(shortage: &Shortage, limit: Limit) -> Guard {
        let now = Instant::now();
        Guard {
            groups: Groups::own().unwrap_or_default(),
            machine: Machine::default(),
            alarm: Alarm::default(),
            alarmed: Vec::new(),
            shortage: shortage.clone(),
            sizer: Sizer::new(rule(limit)),
            began: now,
            found: now,
            weighed: now,
            told: None,
            levels: Vec::new(),
            files: Vec::new(),
            used: 0,
            still: 0,
            shown: Shown::default(),
        }
    }

    /// Its decisions, for statistics.
    pub(super) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Gives back memory of the dead terraced's cache, before the next one allocates. Needed if the old one
    /// was killed for lack of memory, or if less memory is left than it used.
    pub(super) fn make_room(&mut self, memory: &Memory) {
        let ours = memory.resident_bytes();
        let ceiling = self.target(ours);
        if self.shortage.is_now() || ours > ceiling {
            // The rest is for tables and metadata.
            let given = memory.give_back(ceiling / 16 * 15);
            tracing::warn!(
                "memory is scarce: the cache gives back {} to stay below {}",
                human(given),
                human(ceiling)
            );
        }
        // The old use does not predict that of this terraced.
        self.sizer = Sizer::new(self.sizer.rule());
    }

    /// Sets the engine's ceiling to the memory available now.
    pub(super) fn look(&mut self, engine: &Engine, memory: &Memory) {
        let limit = Limit { bytes: engine.memory_limit(), auto: engine.memory_is_auto() };
        if self.sizer.rule() != rule(limit) {
            self.sizer = Sizer::new(rule(limit));
        }
        let ours = memory.resident_bytes();
        self.target(ours);
        if self.weighed.elapsed() >= WEIGH_EVERY {
            self.weighed = Instant::now();
            let earning = engine.earning();
            let earning = Earning {
                hits: earning.hits,
                misses: earning.misses,
                refaults: earning.refaults,
                chunk_saves: earning.chunk_saves,
                miss_ns: earning.miss_ns,
            };
            self.sizer.weigh(self.began.elapsed(), ours, &earning, &self.levels);
        }
        // Shown before it takes effect: shrinking takes a while.
        self.show();
        engine.set_ceiling(self.ceiling());
        self.tell();
    }

    /// Target size for a cache that has `ours` now.
    fn target(&mut self, ours: u64) -> u64 {
        if let Ok(read) = self.read() {
            (self.files, self.levels) = read.into_iter().unzip();
        }
        let used = self.levels.first().map_or(0, |level| level.used);
        match used.abs_diff(self.used) > STILL {
            true => (self.used, self.still) = (used, 0),
            false => self.still = self.still.saturating_add(1),
        }
        self.sizer.fit(self.began.elapsed(), ours, &self.levels);
        self.ceiling()
    }

    fn read(&self) -> io::Result<Vec<(PathBuf, Level)>> {
        let groups = self.groups.levels()?;
        let all = groups.into_iter().chain(self.machine.level()?);
        Ok(all.map(|(limit, level)| (limit.file, level)).collect())
    }

    /// The rule's target, less the penalty for kills, which the rule does not consider.
    fn ceiling(&self) -> u64 {
        self.sizer.target().saturating_sub(self.shortage.penalty(self.began.elapsed()))
    }

    /// The bound in force, and the file of the limit behind it.
    fn bound(&self) -> (Bound, Option<&Path>) {
        let (bound, level) = match self.sizer.why() {
            _ if self.ceiling() < self.sizer.target() => return (Bound::Kill, None),
            SizeReason::Most => return (Bound::Limit, None),
            SizeReason::Room(level) => (Bound::Room, level),
            SizeReason::Weighed(level) => (Bound::Weighed, level),
            SizeReason::GaveWay(level) => (Bound::GaveWay, level),
        };
        (bound, self.files.get(level).map(PathBuf::as_path))
    }

    fn show(&self) {
        let (bound, file) = self.bound();
        let (chunk_saves, chunk_costs) = self.sizer.worth();
        let mode = if self.sizer.rule().fixed { Mode::Fixed } else { Mode::Auto };
        *self.shown.lock() = Sizing {
            mode,
            target_bytes: self.ceiling(),
            bound,
            bound_by: file.map(Path::to_owned),
            reserve_bytes: self.sizer.reserve(),
            yielded_bytes: self.sizer.yielded(),
            chunk_saves_ns: chunk_saves as u64,
            chunk_costs_ns: chunk_costs as u64,
        };
    }

    fn tell(&mut self) {
        let rule = self.sizer.rule();
        if !rule.fixed
            || self.ceiling() >= rule.most
            || self.told.is_some_and(|told| told.elapsed() < SHORTAGE_LOG_INTERVAL)
        {
            return;
        }
        self.told = Some(Instant::now());
        let (bound, file) = self.bound();
        let file = file.map(|file| format!(" ({})", file.display())).unwrap_or_default();
        let why = match bound {
            Bound::GaveWay => "programs needed the memory more",
            _ => "there is no more memory",
        };
        tracing::warn!(
            "the cache is limited to {} of {}: {why}{file}",
            human(self.ceiling()),
            human(rule.most)
        );
    }

    /// Starts the thread: checks at intervals and when memory becomes scarce; reports kills by the kernel to
    /// the supervisor.
    pub(super) fn start(mut self, engine: &Arc<Engine>, shared: &Shared) -> io::Result<()> {
        let (engine, memory, mut to_supervisor) =
            (engine.clone(), shared.memory.clone(), shared.to_supervisor.try_clone()?);
        self.set_alarm();
        thread("memory", move || {
            // Programs that allocate memory are running at that moment, and do not wait. Refused without
            // privileges.
            let _ = rustix::process::setpriority_process(None, NICE);
            let mut kills = Kills::so_far(&self.groups).ok();
            let mut kills_at = Instant::now();
            loop {
                let alarmed = self.alarm.wait(self.pause());
                self.look(&engine, &memory);
                if alarmed {
                    self.still = 0;
                    std::thread::sleep(LOOK_MIN);
                }
                if kills_at.elapsed() >= LOOK_IDLE {
                    kills_at = Instant::now();
                    tell_kills(&mut kills, &self.groups, &mut to_supervisor);
                }
                self.find();
            }
        })
    }

    fn pause(&self) -> Duration {
        match self.levels.len() {
            _ if self.still > STILL_LOOKS => LOOK_IDLE,
            // Only the machine: no group has a limit.
            0 | 1 => LOOK_AT_MACHINE_EVERY,
            _ => LOOK_EVERY,
        }
    }

    fn find(&mut self) {
        if self.found.elapsed() < FIND_EVERY {
            return;
        }
        self.found = Instant::now();
        if let Ok(groups) = Groups::own() {
            self.groups = groups;
            self.set_alarm();
        }
    }

    /// Sets the alarm again if the limits have changed.
    fn set_alarm(&mut self) {
        let Ok(levels) = self.groups.levels() else { return };
        let limits: Vec<_> = levels.into_iter().map(|(limit, _)| limit).collect();
        if limits != self.alarmed {
            self.alarm = Alarm::set(&self.groups, &limits, self.sizer.reserve());
            self.alarmed = limits;
        }
    }
}

fn rule(limit: Limit) -> Rule {
    Rule { most: limit.bytes, fixed: !limit.auto, own: OWN_NEED }
}

fn tell_kills(known: &mut Option<Kills>, groups: &Groups, to_supervisor: &mut Channel) {
    let Ok(now) = Kills::so_far(groups) else { return };
    if known.replace(now).is_some_and(|before| before != now) {
        to_supervisor.say(&format!("kills {} {}", now.group, now.machine));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LARGE: Limit = Limit { bytes: 1 << 40, auto: false };

    #[test]
    fn ceiling_stays_while_nobody_can_tell_what_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "134217728\n");
        write("memory.stat", "inactive_file 0\n");
        write("memory.current", "0\n");
        let (groups, machine) = (Groups::of(dir.path()), Machine::of(dir.path()));
        let new = || Guard {
            groups: groups.clone(),
            machine: machine.clone(),
            ..Guard::new(&Shortage::default(), LARGE)
        };
        let mut guard = new();
        let ceiling = guard.target(0);
        assert_eq!(ceiling, 128 * MIB - OWN_NEED);
        assert_eq!(guard.bound(), (Bound::Room, Some(dir.path().join("memory.max").as_path())));
        // A directory in its place: opening fails with an error other than "not found".
        fs::remove_file(dir.path().join("memory.max")).unwrap();
        fs::create_dir(dir.path().join("memory.max")).unwrap();
        assert_eq!(guard.target(0), ceiling);
        fs::remove_dir(dir.path().join("memory.max")).unwrap();
        assert_eq!(new().target(0), 1 << 40, "there is no limit any more");
    }

    #[test]
    fn group_of_version_2_that_stalls_is_given_memory() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "134217728\n");
        write("memory.stat", "inactive_file 4194304\nworkingset_refault_file 0\n");
        write("memory.current", "134217728\n");
        write("memory.events", "max 0\n");
        let stalled = |us: u64| write("memory.pressure", &format!("some avg10=0.00 total={us}\n"));
        let limit = Limit { bytes: 100 * MIB, auto: false };
        let (groups, machine) = (Groups::of(dir.path()), Machine::of(dir.path()));
        let mut guard = Guard { groups, machine, ..Guard::new(&Shortage::default(), limit) };
        for second in 0..6 {
            stalled(second * 300_000);
            let now = Duration::from_secs(second);
            let levels: Vec<Level> = guard.read().unwrap().into_iter().map(|(_, level)| level).collect();
            guard.sizer.fit(now, 100 * MIB, &levels);
            guard.sizer.weigh(now, 100 * MIB, &Earning { miss_ns: 100_000, ..Earning::default() }, &levels);
        }
        assert!(guard.ceiling() <= 92 * MIB, "{}", guard.ceiling() / MIB);
        assert_eq!(guard.bound().0, Bound::GaveWay);
    }
}
