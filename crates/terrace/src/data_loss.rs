//! Reports data that an instance lost when supervisor and terraced died.
//!
//! Several times a second, terraced records which files have data that are not yet written to the source. The
//! record lies in the runtime directory and survives both processes. Data acknowledged by fsync are in the
//! source in any case.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use terrace_api::instance::Dirty;

use crate::error::{Failure, Result, reason};
use crate::instance::{self, Info, Instance, Kind};
use crate::mounts;
use crate::size::human;

/// Most files named in a record.
pub(crate) const FILES_MAX: usize = 100;
/// Most files named in a message.
const TOLD_MAX: usize = 8;
/// Name of the record in the instance's directory.
const RECORD: &str = "dirty.json";
/// File with the source's reason for refusing the last writes.
const REFUSAL: &str = "refusal";
pub(crate) const RECORD_EVERY: Duration = Duration::from_millis(250);

/// A record as found in an instance's directory.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    dirty: Dirty,
    /// Last confirmation of the record: the modification time of its file.
    held_until: SystemTime,
}

/// Part of a message: number of bytes, and files.
pub(crate) fn described(dirty: &Dirty) -> String {
    format!("up to {} bytes ({}) unwritten in {}", dirty.bytes, human(dirty.bytes), named(dirty))
}

pub(crate) fn record(instance: &Instance, dirty: &Dirty) -> std::io::Result<()> {
    instance.replace(RECORD, &serde_json::to_vec(dirty)?)
}

/// Confirms the record: sets the times of record and directory to now.
pub(crate) fn renew(instance: &Instance) -> std::io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    for path in [instance.path(RECORD), instance.path("")] {
        rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?;
    }
    Ok(())
}

fn find(instance: &Instance) -> Option<Found> {
    let path = instance.path(RECORD);
    let dirty = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
    Some(Found { dirty, held_until: std::fs::metadata(&path).ok()?.modified().ok()? })
}

/// Stores why the source refused data of an instance that ended in order. A separate file, for `record` and
/// `renew` replace the record.
pub(crate) fn note_refusal(instance: &Instance, why: &str) {
    let _ = instance.replace(REFUSAL, why.as_bytes());
}

fn refusal(instance: &Instance) -> Option<String> {
    std::fs::read_to_string(instance.path(REFUSAL)).ok()
}

/// The loss of an ended instance by its own records; none after an orderly end, or without its directory.
pub(crate) fn by(instance: &Instance) -> Option<String> {
    let Found { dirty, .. } = find(instance)?;
    let refused = refusal(instance);
    let why = refused.as_ref().map(|why| format!(": the source refuses it: {why}"));
    (dirty.bytes > 0 || refused.is_some()).then(|| described(&dirty) + &why.unwrap_or_default())
}

/// The message for an instance that died although [`by`] finds no loss: its record may be slightly out of
/// date.
pub(crate) fn by_dying(instance: &Instance) -> Option<String> {
    let info = instance.info().filter(|_| instance.is_dead())?;
    Some(told(find(instance), None, &info))
}

/// Clears a dead mount and the directories of dead instances at `mnt`, and reports lost data.
pub(crate) fn clear(mnt: &Path, out: &mut dyn Write) -> Result<()> {
    let name = mnt.display();
    let mut dead = instance::recorded_at(mnt);
    dead.retain(|(instance, _)| !instance.is_alive());
    if dead.is_empty() && instance::is_dead_at(mnt) {
        let _ = writeln!(
            out,
            "terrace: {name}: the previous instance died and left no record: what programs wrote without fsync may be lost"
        );
    }
    // Mounts can be stacked: a dead one may lie below.
    while instance::is_dead_at(mnt) {
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
pub(crate) fn tell_of_runs(dir: &Path, out: &mut dyn Write) {
    let silent = |(instance, info): &(Instance, Info)| {
        info.kind == Kind::Run && !instance.is_alive() && by(instance).is_some()
    };
    for found in instance::recorded_at(dir).into_iter().filter(silent) {
        tell(found, out);
    }
}

/// Reports the loss of a dead instance, and removes its directory.
fn tell((instance, info): (Instance, Info), out: &mut dyn Write) {
    let line = told(find(&instance), refusal(&instance), &info);
    let _ = writeln!(out, "terrace: {}: {line}", info.mnt.display());
    instance.remove();
}

/// The supervisor's message when it gives up, while the record is still its own.
pub(crate) fn told_by_supervisor(instance: &Instance) -> String {
    match find(instance) {
        Some(Found { dirty, .. }) if dirty.bytes > 0 => described(&dirty),
        _ => "nothing was unwritten".to_owned(),
    }
}

/// The message about one dead instance.
fn told(found: Option<Found>, refusal: Option<String>, info: &Info) -> String {
    let who = format!("the previous instance (supervisor {}) died", info.pid);
    let Some(Found { dirty, held_until }) = found else {
        return format!("{who} and left no record: what programs wrote without fsync may be lost");
    };
    if let Some(why) = refusal {
        let who = who.replace("died", "ended");
        return format!(
            "{who} with {}: lost, the source refused it: {why}; what fsync had acknowledged is safe",
            described(&dirty)
        );
    }
    if dirty.bytes == 0 {
        let last = RECORD_EVERY.as_secs_f64();
        return format!(
            "{who}; nothing was unwritten at its last record, {}: nothing was lost except writes without fsync \
             in the {last} s after that",
            ago(held_until)
        );
    }
    let when = ago(held_until);
    format!("{who} with {}, as recorded {when}; what fsync had acknowledged is safe", described(&dirty))
}

/// The files of a record, at most [`TOLD_MAX`].
fn named(dirty: &Dirty) -> String {
    let names: Vec<&str> = dirty.files.iter().take(TOLD_MAX).map(|file| file.path.as_str()).collect();
    let more = dirty.files_total.saturating_sub(names.len() as u64);
    match more {
        0 => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}

/// Age of a moment, as text.
fn ago(then: SystemTime) -> String {
    match SystemTime::now().duration_since(then).unwrap_or_default().as_secs_f64() {
        seconds if seconds < 120.0 => format!("{seconds:.1} s ago"),
        seconds if seconds < 7200.0 => format!("{:.0} min ago", seconds / 60.0),
        seconds => format!("{:.0} h ago", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;
    use terrace_api::instance::DirtyFile;

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
            device: None,
            claim: None,
            memory_bytes: 0,
            policy: String::new(),
            tiers: Vec::new(),
            metrics: None,
            version: String::new(),
        }
    }

    fn dirty(files: u64) -> Dirty {
        let file = |n| DirtyFile { path: format!("f{n}"), bytes: 4096 };
        Dirty { bytes: files * 4096, files_total: files, files: (0..files).map(file).collect() }
    }

    fn found(files: u64) -> Option<Found> {
        Some(Found { dirty: dirty(files), held_until: UNIX_EPOCH })
    }

    #[test]
    fn a_record_is_told_in_one_line() {
        let line = told(found(12), None, &info());
        assert!(line.contains("up to 49152 bytes (48.0 KiB) unwritten in f0, f1"), "{line}");
        assert!(line.contains("f7 and 4 more"), "{line}");
        assert!(!line.contains('\n'));
    }

    #[test]
    fn no_unwritten_data_is_no_loss() {
        let line = told(found(0), None, &info());
        assert!(line.contains("nothing was lost"), "{line}");
    }

    #[test]
    fn no_record_is_no_promise() {
        assert!(told(None, None, &info()).contains("may be lost"));
    }

    #[test]
    fn a_source_that_refused_is_named_as_the_cause() {
        let line = told(found(1), Some("No space left on device".to_owned()), &info());
        assert!(line.contains("ended with up to 4096 bytes") && line.contains("No space left"), "{line}");
    }

    #[test]
    fn a_record_that_still_holds_is_as_young_as_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance { dir: dir.path().to_owned() };
        assert!(renew(&instance).is_err(), "there is none");
        record(&instance, &dirty(3)).unwrap();
        let recorded = std::fs::File::options().write(true).open(instance.path(RECORD)).unwrap();
        recorded.set_modified(UNIX_EPOCH).unwrap();
        assert_eq!(find(&instance), found(3));
        renew(&instance).unwrap();
        let renewed = find(&instance).unwrap();
        assert!(ago(renewed.held_until).ends_with("s ago"), "{}", ago(renewed.held_until));
        assert_eq!(renewed.dirty, dirty(3));
    }
}
