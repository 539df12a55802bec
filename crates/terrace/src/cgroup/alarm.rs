//! Wakes the memory guard as soon as memory becomes scarce in its control groups, before its next regular
//! check.
//!
//! | control groups | wake-up |
//! |---|---|
//! | version 1 | use crosses a threshold (`memory.usage_in_bytes`), or reclaim has to search (`memory.pressure_level`): eventfd |
//! | version 2 | the limit is met (`memory.events`), or programs stall for memory (`memory.pressure`): POLLPRI |
//!
//! Notifications that this kernel or user does not have are left out: the regular checks go on in any case.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use terrace_system::cgroup::{Group, Groups, Limit, Version};

/// Stall time and window, in us. Without privileges, the window must be at least two seconds.
const STALLS: [&str; 2] = ["some 50000 1000000", "some 100000 2000000"];

/// Descriptors that report scarce memory.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// Eventfd for the notifications of version 1.
    events: Option<OwnedFd>,
    /// Files of version 2.
    files: Vec<File>,
}

impl Alarm {
    /// Sets the alarm for the groups with these limits. Version 1 first wakes when `reserve` bytes are left.
    pub(crate) fn set(groups: &Groups, limits: &[Limit], reserve: u64) -> Alarm {
        let mut alarm = Alarm::default();
        for group in &groups.0 {
            let is_its = |limit: &&Limit| limit.file.parent() == Some(&group.dir);
            let Some(limit) = limits.iter().find(is_its) else { continue };
            let set = match group.version {
                Version::V1 => alarm.set_v1(group, limit.bytes, reserve),
                Version::V2 => alarm.set_v2(group),
            };
            if let Err(err) = set {
                tracing::debug!("{}: does not report scarce memory: {err}", group.dir.display());
            }
        }
        alarm
    }

    fn set_v1(&mut self, group: &Group, limit: u64, reserve: u64) -> io::Result<()> {
        if self.events.is_none() {
            self.events = Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        let Some(events) = &self.events else { return Ok(()) };
        let register = |name: &str, what: &str| -> io::Result<()> {
            // The kernel needs the file open only during the call.
            let file = File::open(group.dir.join(name))?;
            let line = format!("{} {} {what}", events.as_raw_fd(), file.as_raw_fd());
            fs::write(group.dir.join("cgroup.event_control"), line)
        };
        for left in [reserve, reserve / 2, reserve / 4] {
            register("memory.usage_in_bytes", &limit.saturating_sub(left).to_string())?;
        }
        register("memory.pressure_level", "medium")
    }

    fn set_v2(&mut self, group: &Group) -> io::Result<()> {
        self.files.push(File::open(group.dir.join("memory.events"))?);
        let pressure = group.dir.join("memory.pressure");
        let trigger = |line: &&str| -> io::Result<File> {
            let file = File::options().read(true).write(true).open(&pressure)?;
            file.write_at(line.as_bytes(), 0)?;
            Ok(file)
        };
        self.files.extend(STALLS.iter().find_map(|line| trigger(line).ok()));
        Ok(())
    }

    /// Waits at most so long; true if memory became scarce.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let events = self.events.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
        let files = self.files.iter().map(|file| PollFd::from_borrowed_fd(file.as_fd(), PollFlags::PRI));
        let mut polled: Vec<PollFd<'_>> = events.chain(files).collect();
        let woken = poll(&mut polled, Timespec::try_from(at_most).ok().as_ref());
        if !woken.is_ok_and(|ready| ready > 0) {
            return false;
        }
        self.rearm();
        true
    }

    /// Reads the files that reported, which silences them until the next event.
    fn rearm(&self) {
        let mut buf = [0; 512];
        if let Some(events) = &self.events {
            let _ = rustix::io::read(events, &mut buf[..8]);
        }
        for file in &self.files {
            let _ = file.read_at(&mut buf, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarm_without_groups_is_a_pause() {
        let alarm = Alarm::set(&Groups::default(), &[], 1 << 20);
        assert!(!alarm.wait(Duration::from_millis(1)));
        assert!(alarm.files.is_empty() && alarm.events.is_none());
    }

    #[test]
    fn files_that_report_nothing_do_not_wake() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["memory.events", "memory.pressure"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let limit = Limit { bytes: 1 << 30, file: dir.path().join("memory.max") };
        let alarm = Alarm::set(&Groups::of(dir.path()), &[limit], 1 << 20);
        assert_eq!(alarm.files.len(), 2);
        assert!(!alarm.wait(Duration::from_millis(1)));
    }
}
