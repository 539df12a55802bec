//! The record of targets that were changed, for the next terraced: a file in the instance's directory.
//!
//! The supervisor knows only the targets of the start. Descriptors stay open in the shared table, so the
//! record names them by number. The record is replaced atomically before each change. A target recorded as
//! removed is gone for the next terraced, however many pages were moved.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_tier::TargetTable;
use terrace_tier::target;

use super::{OpenTarget, Tier};
use crate::config::{Device, Speed};
use crate::engine;
use crate::handover::Shared;
use crate::instance::Instance;

const NAME: &str = "tiers.json";
/// Names of targets that were unusable at the start, and have been removed from the list.
const GONE: &str = "tiers-gone.json";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    number: usize,
    first_region: u32,
    device: Device,
    read_ns: Option<u64>,
    write_bytes: Option<f64>,
    /// Descriptors: the target, its table's memory file, and a read-only one of that for clients.
    fd: RawFd,
    table: RawFd,
    table_read_only: RawFd,
    /// Device and inode of each. A terraced that is killed at the end of a removal has closed the descriptors, and
    /// their numbers may be other files'.
    files: [Option<(u64, u64)>; 3],
    /// The instance created the file.
    made: bool,
    /// A removal has begun.
    removed: bool,
}

impl Entry {
    /// The entry of a target in use.
    pub(crate) fn of(held: &OpenTarget) -> Option<Entry> {
        let table = held.table.as_ref()?;
        let speed = held.device.speed;
        let fds = [held.target.fd.as_raw_fd(), table.fd().as_raw_fd(), table.read_only().as_raw_fd()];
        Some(Entry {
            number: held.number,
            first_region: held.first_region,
            device: held.device.clone(),
            read_ns: speed.map(|speed| speed.read.as_nanos() as u64),
            write_bytes: speed.map(|speed| speed.write_bytes),
            fd: fds[0],
            table: fds[1],
            table_read_only: fds[2],
            files: fds.map(file_of),
            made: held.made,
            removed: held.removed,
        })
    }

    fn fds(&self) -> [RawFd; 3] {
        [self.fd, self.table, self.table_read_only]
    }

    /// True if the descriptors are still those of the target.
    fn is_open(&self) -> bool {
        let is_same = |(fd, file): (RawFd, Option<(u64, u64)>)| file.is_some() && file_of(fd) == file;
        self.fds().into_iter().zip(self.files).all(is_same)
    }

    /// Takes over the target and its descriptors in the next terraced.
    fn take_over(self) -> Result<OpenTarget, String> {
        // SAFETY: the record names descriptors that a dead terraced left open. They have no other owner:
        // `orphan_fds.rs` skips them.
        let own = |fd: RawFd| unsafe { OwnedFd::from_raw_fd(fd) };
        let target = target::take_over(own(self.fd), &self.device.path);
        let target = target.map_err(|err| err.to_string())?;
        let speed = self.read_ns.zip(self.write_bytes);
        let speed = speed.map(|(ns, write_bytes)| Speed { read: Duration::from_nanos(ns), write_bytes });
        let device = Device { speed, ..self.device };
        let (number, first_region, made, removed) = (self.number, self.first_region, self.made, self.removed);
        let mut held = OpenTarget { device, target, number, first_region, made, removed, table: None };
        let config = engine::device_config(&held, 0);
        let table = TargetTable::take_over(&config, own(self.table), own(self.table_read_only));
        held.table = Some(Arc::new(table.map_err(|err| format!("its table in memory is lost ({err})"))?));
        Ok(held)
    }
}

/// Device and inode of a descriptor's file. None: it is closed.
fn file_of(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: only for fstat, which answers EBADF for a closed descriptor.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

fn read(instance: &Instance) -> Option<Vec<Entry>> {
    serde_json::from_slice(&std::fs::read(instance.path(NAME)).ok()?).ok()
}

/// Files and devices in use, if they have changed since the start.
pub(crate) fn paths(instance: &Instance) -> Option<Vec<PathBuf>> {
    let all = read(instance)?;
    Some(all.into_iter().filter(|entry| !entry.removed).map(|entry| entry.device.path).collect())
}

pub(crate) fn descriptors(instance: &Instance) -> Vec<RawFd> {
    let all = read(instance).unwrap_or_default();
    all.iter().filter(|entry| entry.is_open()).flat_map(Entry::fds).collect()
}

/// Replaces the record.
///
/// # Errors
/// The directory has no space.
pub(crate) fn write(instance: &Instance, all: &[OpenTarget]) -> std::io::Result<()> {
    let entries: Vec<Entry> = all.iter().filter_map(Entry::of).collect();
    instance.replace(NAME, &serde_json::to_vec(&entries)?)
}

fn gone(instance: &Instance) -> Vec<String> {
    let gone = std::fs::read(instance.path(GONE)).ok();
    gone.and_then(|gone| serde_json::from_slice(&gone).ok()).unwrap_or_default()
}

/// Records that an unusable target was removed from the list, for the next terraced.
///
/// # Errors
/// The directory has no space.
pub(crate) fn note_gone(instance: &Instance, name: &str) -> std::io::Result<()> {
    let mut all = gone(instance);
    all.push(name.to_owned());
    instance.replace(GONE, &serde_json::to_vec(&all)?)
}

/// Takes over the targets of a dead terraced, and completes its removals.
pub(crate) fn take_over(shared: &mut Shared) {
    let gone = gone(&shared.instance);
    shared.tier.off.retain(|off| !gone.contains(&off.device.name));
    let Some(entries) = read(&shared.instance) else { return };
    let mut held = Vec::new();
    for entry in entries.into_iter().filter(Entry::is_open) {
        let (removed, path) = (entry.removed, entry.device.path.clone());
        match entry.take_over() {
            Ok(target) if removed => super::close(target, &shared.kept),
            Ok(target) => held.push(target),
            Err(why) => tracing::warn!("{}: {why}; terrace serves without this tier", path.display()),
        }
    }
    if let Err(err) = write(&shared.instance, &held) {
        tracing::error!("{NAME} cannot be replaced ({err}); a restarted terraced uses the old list of tiers");
    }
    let tables = shared.memory.set_tables(held.iter().filter_map(|held| held.table.clone()).collect());
    let off = std::mem::take(&mut shared.tier.off);
    let tier = std::mem::replace(&mut shared.tier, Tier { held, off, ..Tier::default() });
    // The old values hold descriptors that are named in the record, and must stay open, or that are already
    // closed.
    std::mem::forget((tables, tier));
}
