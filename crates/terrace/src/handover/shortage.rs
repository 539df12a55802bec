//! Kills of terraced for lack of memory: their detection, and the amount of memory that the next terraced
//! leaves unused.
//!
//! The kernel counts its kills for each control group and for the machine, but does not name the victims. If
//! a count has moved when terraced was killed, this is the cause. If it moves while terraced lives, another
//! process was killed; terraced then reports the new counts.

use std::io;
use std::time::{Duration, Instant};

use terrace_system::cgroup::{self, Groups};

use crate::config::MemoryLimit;
use crate::size::{MIB, human};

/// Half-life of the penalty while terraced is not killed.
pub(super) const HALVED_AFTER: Duration = Duration::from_secs(60);

/// Number of processes killed for lack of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kills {
    /// In our control group.
    pub group: u64,
    pub machine: u64,
}

impl Kills {
    /// The present counts; 0 where the kernel does not count.
    ///
    /// # Errors
    /// A count cannot be read at the moment.
    pub(crate) fn so_far(groups: &Groups) -> io::Result<Kills> {
        let machine = cgroup::kills_of_the_machine()?;
        Ok(Kills { group: groups.kills()?.unwrap_or(0), machine: machine.unwrap_or(0) })
    }
}

/// The supervisor's record of kills for lack of memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shortage {
    /// Counts when terraced last lived. None: unknown, so that no cause is named.
    kills: Option<Kills>,
    /// Time of the last such death.
    died: Option<Instant>,
    /// Penalty: bytes by which the next terraced uses less.
    penalty: u64,
    /// Was the last death such a kill?
    now: bool,
}

impl Shortage {
    /// State before the first terraced.
    pub(crate) fn new() -> Shortage {
        let kills = Groups::own().and_then(|groups| Kills::so_far(&groups));
        Shortage { kills: kills.ok(), ..Shortage::default() }
    }

    /// Notes kills of other processes while terraced lives.
    pub(crate) fn note_others(&mut self, kills: Kills) {
        self.kills = Some(kills);
    }

    /// Was the last terraced killed for lack of memory?
    pub(crate) fn is_now(&self) -> bool {
        self.now
    }

    /// The penalty in bytes, after terraced has lived for this time.
    pub(crate) fn penalty(&self, lives: Duration) -> u64 {
        halved(self.penalty, lives)
    }

    /// Called after the death of a terraced (`killed`: by SIGKILL) with the limit `memory`. Returns the cause
    /// if it was lack of memory.
    pub(crate) fn explain(&mut self, killed: bool, memory: MemoryLimit) -> Option<String> {
        let groups = Groups::own();
        let limit = groups.as_ref().ok().and_then(|groups| groups.limit().ok().flatten());
        let limit = limit.map(|limit| format!("{} of {}", human(limit.bytes), limit.file.display()));
        let now = groups.and_then(|groups| Kills::so_far(&groups)).ok().or(self.kills);
        let before = std::mem::replace(&mut self.kills, now).or(now).unwrap_or_default();
        let now = now.unwrap_or_default();
        let where_ = match limit {
            _ if !killed => None,
            Some(limit) if now.group > before.group => {
                Some(format!("in its control group, whose limit is {limit}"))
            }
            None if now.group > before.group => Some("in its control group".to_owned()),
            _ if now.machine > before.machine => Some("on this machine".to_owned()),
            _ => None,
        };
        self.now = where_.is_some();
        let where_ = where_?;
        self.note(memory.most().0, Instant::now());
        Some(format!("by the kernel, for lack of memory {where_}, with --memory {memory}"))
    }

    fn note(&mut self, memory: u64, now: Instant) {
        let rest = self.died.map_or(Duration::ZERO, |died| now.saturating_duration_since(died));
        let least = (memory / 16).max(4 * MIB);
        self.penalty = (2 * halved(self.penalty, rest)).clamp(least, (memory / 4 * 3).max(least));
        self.died = Some(now);
    }
}

fn halved(penalty: u64, after: Duration) -> u64 {
    penalty >> (after.as_secs() / HALVED_AFTER.as_secs()).min(63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::Size;

    #[test]
    fn penalty_doubles_with_each_death_and_fades() {
        let (mut shortage, start) = (Shortage::default(), Instant::now());
        shortage.note(128 * MIB, start);
        assert_eq!(shortage.penalty(Duration::ZERO), 8 * MIB);
        shortage.note(128 * MIB, start + Duration::from_secs(1));
        assert_eq!(shortage.penalty(Duration::from_secs(1)), 16 * MIB);
        assert_eq!(shortage.penalty(2 * HALVED_AFTER), 4 * MIB);
        (2..20).for_each(|s| shortage.note(128 * MIB, start + Duration::from_secs(s)));
        assert_eq!(shortage.penalty(Duration::ZERO), 96 * MIB, "a quarter is left");
        shortage.note(128 * MIB, start + Duration::from_secs(3600));
        assert_eq!(shortage.penalty(Duration::ZERO), 8 * MIB);
    }

    #[test]
    fn kill_by_somebody_is_no_shortage() {
        // The counts stand still, unless the machine runs out of memory at this moment.
        let mut shortage = Shortage::new();
        if shortage.explain(true, MemoryLimit::Fixed(Size(128 * MIB))).is_none() {
            assert!(!shortage.is_now());
            assert_eq!(shortage.penalty(Duration::ZERO), 0);
        }
        shortage.note_others(Kills::default());
        assert_eq!(shortage.explain(false, MemoryLimit::Auto), None, "a crash of its own");
    }
}
