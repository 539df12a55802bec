//! Reports data that an instance lost when keeper and terraced died.
//!
//! While it lives, terraced records several times a second which files have data not yet written to the
//! source. The record lies in the runtime directory and survives both processes. Data that fsync acknowledged
//! is in the source in any case.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Result, reason};
use crate::instance::{self, Info, Instance, Kind};
use crate::mounts;
use crate::size::human;

/// dirty.json.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirty {
    /// Until when that was so, in milliseconds since 1970: the time of the file.
    #[serde(skip)]
    pub unix_ms: u64,
    /// Bytes unwritten, all files together.
    pub bytes: u64,
    /// How many files have some.
    pub files_total: u64,
    /// Those with most.
    pub files: Vec<File>,
}

/// A file with unwritten data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its path below the source.
    pub path: String,
    /// Its unwritten bytes.
    pub bytes: u64,
}

/// Most files named in a record.
pub const FILES_MAX: usize = 100;
/// Most files named in a message.
const TOLD_MAX: usize = 8;
/// Name of the record in the instance's directory.
const RECORD: &str = "dirty.json";
/// Name of the file with the source's reason for refusing the last writes.
const REFUSAL: &str = "refusal";
/// How often the record is renewed.
pub const RECORD_EVERY: Duration = Duration::from_millis(250);

impl Dirty {
    /// As part of a line: how much, in which files.
    pub fn told(&self) -> String {
        format!("up to {} bytes ({}) unwritten in {}", self.bytes, human(self.bytes), named(self))
    }

    /// Writes the record.
    pub fn record(&self, instance: &Instance) -> std::io::Result<()> {
        instance.replace(RECORD, &serde_json::to_vec(self)?)
    }

    /// Confirms the record: sets the times of record and directory as if they were new.
    pub fn renew(instance: &Instance) -> std::io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        for path in [instance.path(RECORD), instance.path("")] {
            rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    fn of(instance: &Instance) -> Option<Dirty> {
        let path = instance.path(RECORD);
        let dirty: Dirty = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        let held_until = std::fs::metadata(&path).ok()?.modified().ok()?;
        let since = held_until.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Dirty { unix_ms: since.as_millis() as u64, ..dirty })
    }
}

/// Leaves the reason why an instance that ended in order could not write everything: beside the record, which others renew.
pub fn note_refusal(instance: &Instance, why: &str) {
    let _ = instance.replace(REFUSAL, why.as_bytes());
}

fn refusal(instance: &Instance) -> Option<String> {
    std::fs::read_to_string(instance.path(REFUSAL)).ok()
}

/// The loss of an ended instance by its own records; none if it ended in order, or its directory is gone.
pub fn by(instance: &Instance) -> Option<String> {
    let dirty = Dirty::of(instance)?;
    let refused = refusal(instance);
    let why = refused.as_ref().map(|why| format!(": the source does not take it: {why}"));
    (dirty.bytes > 0 || refused.is_some()).then(|| dirty.told() + &why.unwrap_or_default())
}

/// The message for an instance that died although [`by`] finds nothing lost: its record may be a moment too
/// old.
pub fn by_dying(instance: &Instance) -> Option<String> {
    let info = instance.info().filter(|_| instance.is_dead())?;
    Some(told(Dirty::of(instance), None, &info))
}

/// Clears a dead mount, if there is one, and the directories of dead instances there, and reports lost data.
pub fn clear(mnt: &Path, out: &mut dyn Write) -> Result<()> {
    let name = mnt.display();
    let mut dead = instance::recorded_at(mnt);
    dead.retain(|(instance, _)| !instance.is_alive());
    if dead.is_empty() && crate::place::is_dead(mnt) {
        let _ = writeln!(out, "terrace: {name}: the previous instance died and left no record");
    }
    // Mounts can lie on each other: a dead one may have been mounted over.
    while crate::place::is_dead(mnt) {
        mounts::clear(mnt).map_err(|err| {
            Failure::new(&name, reason(err), format!("clear the dead mount with `umount -l {name}`"))
        })?;
    }
    for found in dead {
        tell(found, out);
    }
    Ok(())
}

/// Reports losses of earlier runs on `dir` that died together with their commands.
pub fn tell_of_runs(dir: &Path, out: &mut dyn Write) {
    let silent = |(instance, info): &(Instance, Info)| {
        info.kind == Kind::Run && !instance.is_alive() && by(instance).is_some()
    };
    for found in instance::recorded_at(dir).into_iter().filter(silent) {
        tell(found, out);
    }
}

/// Reports the loss of a dead instance, and removes its directory.
fn tell((instance, info): (Instance, Info), out: &mut dyn Write) {
    let line = told(Dirty::of(&instance), refusal(&instance), &info);
    let _ = writeln!(out, "terrace: {}: {line}", info.mnt.display());
    instance.remove();
}

/// The keeper's message when it gives up, while the record is still its own.
pub fn told_by_keeper(instance: &Instance) -> String {
    match Dirty::of(instance) {
        Some(dirty) if dirty.bytes > 0 => dirty.told(),
        _ => "nothing was unwritten".to_owned(),
    }
}

/// The message about one dead instance.
fn told(dirty: Option<Dirty>, refusal: Option<String>, info: &Info) -> String {
    let who = format!("the previous instance (keeper {}) died", info.pid);
    let Some(dirty) = dirty else {
        return format!("{who} and left no record: what programs wrote without fsync may be lost");
    };
    if let Some(why) = refusal {
        let who = who.replace("died", "ended");
        return format!(
            "{who} with {}: lost, the source did not take it: {why}; what fsync had acknowledged is safe",
            dirty.told()
        );
    }
    if dirty.bytes == 0 {
        let last = RECORD_EVERY.as_secs_f64();
        return format!(
            "{who}; nothing was unwritten at its last record, {}: nothing was lost but what programs wrote without fsync \
             in the {last} s after that",
            ago(dirty.unix_ms)
        );
    }
    let when = ago(dirty.unix_ms);
    format!("{who} with {}, as recorded {when}; what fsync had acknowledged is safe", dirty.told())
}

/// The files of a record, as many as a line bears.
fn named(dirty: &Dirty) -> String {
    let names: Vec<&str> = dirty.files.iter().take(TOLD_MAX).map(|file| file.path.as_str()).collect();
    let more = dirty.files_total.saturating_sub(names.len() as u64);
    match more {
        0 => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}

/// How long ago a moment was.
fn ago(unix_ms: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_millis(unix_ms);
    match SystemTime::now().duration_since(then).unwrap_or_default().as_secs_f64() {
        seconds if seconds < 120.0 => format!("{seconds:.1} s ago"),
        seconds if seconds < 7200.0 => format!("{:.0} min ago", seconds / 60.0),
        seconds => format!("{:.0} h ago", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> Info {
        Info {
            schema: instance::SCHEMA.to_owned(),
            pid: 7,
            terraced: 8,
            pid_namespace: instance::pid_namespace(),
            restarts: 0,
            last_death: None,
            kind: Kind::Mount,
            src: "/data".into(),
            mnt: "/mnt".into(),
            memory_bytes: 0,
            policy: String::new(),
            version: String::new(),
        }
    }

    fn dirty(files: u64) -> Dirty {
        let files: Vec<File> = (0..files).map(|n| File { path: format!("f{n}"), bytes: 4096 }).collect();
        Dirty { bytes: files.len() as u64 * 4096, files_total: files.len() as u64, files, ..Dirty::default() }
    }

    #[test]
    fn a_record_is_told_in_one_line() {
        let line = told(Some(dirty(12)), None, &info());
        assert!(line.contains("up to 49152 bytes (48.0 KiB) unwritten in f0, f1"), "{line}");
        assert!(line.contains("f7 and 4 more"), "{line}");
        assert!(!line.contains('\n'));
    }

    #[test]
    fn no_unwritten_data_is_no_loss() {
        let line = told(Some(dirty(0)), None, &info());
        assert!(line.contains("nothing was lost"), "{line}");
    }

    #[test]
    fn no_record_is_no_promise() {
        assert!(told(None, None, &info()).contains("may be lost"));
    }

    #[test]
    fn a_source_that_refused_is_named_as_the_cause() {
        let line = told(Some(dirty(1)), Some("No space left on device".to_owned()), &info());
        assert!(line.contains("ended with up to 4096 bytes") && line.contains("No space left"), "{line}");
    }

    #[test]
    fn a_record_that_still_holds_is_as_young_as_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance { dir: dir.path().to_owned() };
        assert!(Dirty::renew(&instance).is_err(), "there is none");
        dirty(3).record(&instance).unwrap();
        let recorded = std::fs::File::options().write(true).open(instance.path(RECORD)).unwrap();
        recorded.set_modified(UNIX_EPOCH).unwrap();
        assert_eq!(Dirty::of(&instance), Some(dirty(3)));
        Dirty::renew(&instance).unwrap();
        let renewed = Dirty::of(&instance).unwrap();
        assert!(ago(renewed.unix_ms).ends_with("s ago"), "{}", ago(renewed.unix_ms));
        assert_eq!(Dirty { unix_ms: 0, ..renewed }, dirty(3));
    }
}
