//! The targets of an instance that has changed them, for the next terraced: a file in the directory of the instance.
//!
//! The supervisor knows the targets of the start alone. Descriptors stay open in the table that it shares with each terraced, so the record names them by
//! number. It is replaced at once, before what it says is done: a target that is written down as removed is gone for the next terraced, whatever the one
//! before has managed to move.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_engine::TargetTable;
use terrace_engine::device::target;

use super::{Held, Tier};
use crate::config::{Device, Speed};
use crate::engine;
use crate::handover::Shared;
use crate::instance::Instance;

const NAME: &str = "tiers.json";
/// The names of targets of the start that could not be used, and are not to be named any more.
const GONE: &str = "tiers-gone.json";

/// A target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    number: usize,
    first_region: u32,
    device: Device,
    read_ns: Option<u64>,
    write_bytes: Option<f64>,
    /// Descriptors: the target, the memory file of its table, the same for clients.
    fd: RawFd,
    table: RawFd,
    table_read_only: RawFd,
    /// The instance made the file.
    made: bool,
    /// It is not to be used any more.
    removed: bool,
}

impl Entry {
    /// Of a target that is in use.
    pub fn of(held: &Held) -> Option<Entry> {
        let table = held.table.as_ref()?;
        let speed = held.device.speed;
        Some(Entry {
            number: held.number,
            first_region: held.first_region,
            device: held.device.clone(),
            read_ns: speed.map(|speed| speed.read.as_nanos() as u64),
            write_bytes: speed.map(|speed| speed.write_bytes),
            fd: held.target.fd.as_raw_fd(),
            table: table.fd.as_raw_fd(),
            table_read_only: table.read_only.as_raw_fd(),
            made: held.made,
            removed: held.removed,
        })
    }

    /// As the target is taken over by the next terraced, whose descriptors these are then.
    fn take_over(self) -> Result<Held, String> {
        // SAFETY: the record names descriptors that a dead terraced has left open, and nobody else uses them: they are no orphans (`orphan_fds.rs`).
        let own = |fd: RawFd| unsafe { OwnedFd::from_raw_fd(fd) };
        let target = target::take_over(own(self.fd), &self.device.path);
        let target = target.map_err(|err| err.to_string())?;
        let speed = self.read_ns.zip(self.write_bytes);
        let speed = speed.map(|(ns, write_bytes)| Speed { read: Duration::from_nanos(ns), write_bytes });
        let device = Device { speed, ..self.device };
        let (number, first_region, made, removed) = (self.number, self.first_region, self.made, self.removed);
        let mut held = Held { device, target, number, first_region, made, removed, table: None };
        let config = engine::device_config(&held, 0);
        let table = TargetTable::take_over(&config, own(self.table), own(self.table_read_only));
        held.table = Some(Arc::new(table.map_err(|err| format!("its table: {err}"))?));
        Ok(held)
    }
}

fn read(instance: &Instance) -> Option<Vec<Entry>> {
    serde_json::from_slice(&std::fs::read(instance.path(NAME)).ok()?).ok()
}

/// The files and devices in use, if that has changed since the start.
pub fn paths(instance: &Instance) -> Option<Vec<PathBuf>> {
    let all = read(instance)?;
    Some(all.into_iter().filter(|entry| !entry.removed).map(|entry| entry.device.path).collect())
}

/// The descriptors that it names.
pub fn descriptors(instance: &Instance) -> Vec<RawFd> {
    let all = read(instance).unwrap_or_default();
    all.iter().flat_map(|entry| [entry.fd, entry.table, entry.table_read_only]).collect()
}

/// Replaces the record.
///
/// # Errors
/// There is no room for it.
pub fn write(instance: &Instance, all: &[Held]) -> std::io::Result<()> {
    let entries: Vec<Entry> = all.iter().filter_map(Entry::of).collect();
    instance.replace(NAME, &serde_json::to_vec(&entries)?)
}

fn gone(instance: &Instance) -> Vec<String> {
    let gone = std::fs::read(instance.path(GONE)).ok();
    gone.and_then(|gone| serde_json::from_slice(&gone).ok()).unwrap_or_default()
}

/// A target that could not be used is not named any more, also by the next terraced.
///
/// # Errors
/// There is no room for the record.
pub fn note_gone(instance: &Instance, name: &str) -> std::io::Result<()> {
    let mut all = gone(instance);
    all.push(name.to_owned());
    instance.replace(GONE, &serde_json::to_vec(&all)?)
}

/// A terraced that begins after another uses the targets that that one has left, and ends the removals that it had begun.
pub fn take_over(shared: &mut Shared) {
    let gone = gone(&shared.instance);
    shared.tier.off.retain(|off| !gone.contains(&off.device.name));
    let Some(entries) = read(&shared.instance) else { return };
    let mut held = Vec::new();
    for entry in entries {
        let (removed, path) = (entry.removed, entry.device.path.clone());
        match entry.take_over() {
            Ok(target) if removed => super::close(target, &shared.kept),
            Ok(target) => held.push(target),
            Err(why) => tracing::warn!("{}: {why}; serving without it", path.display()),
        }
    }
    if let Err(err) = write(&shared.instance, &held) {
        tracing::error!("{NAME}: {err}");
    }
    let tables = shared.memory.set_tables(held.iter().filter_map(|held| held.table.clone()).collect());
    let off = std::mem::take(&mut shared.tier.off);
    let tier = std::mem::replace(&mut shared.tier, Tier { held, off, ..Tier::default() });
    // The descriptors of before are those of the record, which must not be closed here, or those of targets that are gone.
    std::mem::forget((tables, tier));
}
