//! Removes the directories of dead instances that have nothing left to report.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::data_loss;
use crate::instance::{self, Instance, Kind};
use crate::mounts;

/// Time during which the next run on the same directory reports losses of the last one.
const TOLD_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// An unlocked directory without a description after this time never gets one.
const STARTED_WITHIN: Duration = Duration::from_secs(60);

/// Removes the directories of dead instances that have nothing to report: those of `run`, and those without a
/// mount point. Directories of other mounts stay, so that the next `terrace mount` there reports lost
/// data.
pub(crate) fn sweep() {
    for instance in instance::all().iter().filter(|instance| is_swept(instance)) {
        instance.remove();
    }
}

/// Is an instance dead, with nothing to report? A run that lost nothing or died long ago; a mount without its
/// mount point; an instance without a description.
fn is_swept(instance: &Instance) -> bool {
    if instance.is_alive() {
        return false;
    }
    match instance.info() {
        Some(info) if info.kind == Kind::Run => {
            data_loss::by(instance).is_none() || instance.age() > TOLD_WITHIN
        }
        // The log of the store shows losses; there is no other record.
        Some(info) if info.kind == Kind::Kv => true,
        Some(info) => is_gone(&info.mnt),
        None => instance.age() > STARTED_WITHIN,
    }
}

/// Is the mount point deleted? A dead mount there counts as existing, and gets no request, for it may never
/// answer.
fn is_gone(mnt: &Path) -> bool {
    mounts::at(mnt).is_none()
        && fs::symlink_metadata(mnt).is_err_and(|err| err.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Info;
    use crate::instance::tests::info;
    use std::fs::File;
    use std::time::SystemTime;
    use terrace_api::instance::Dirty;
    use terrace_testkit::wait::wait_until;

    #[test]
    fn instance_that_died_at_its_start_is_swept_later() {
        let parent = tempfile::tempdir().unwrap();
        let (instance, lock) = Instance::create_in(parent.path()).unwrap();
        let long_ago = SystemTime::now() - 2 * STARTED_WITHIN;
        let grow_old = || File::open(&instance.dir).unwrap().set_modified(long_ago).unwrap();
        grow_old();
        assert!(!is_swept(&instance), "it lives");
        drop(lock);
        // A program that another test is just starting also holds the lock's descriptor for a moment.
        wait_until("no process holds the lock", || is_swept(&instance));
        instance.write_info(&Info { kind: Kind::Mount, mnt: parent.path().into(), ..info() }).unwrap();
        grow_old();
        assert!(!is_swept(&instance), "it has to tell what was lost");
        fs::remove_file(instance.path("info.json")).unwrap();
        assert!(!is_swept(&instance), "it may just start");
    }

    #[test]
    fn a_run_that_lost_something_is_swept_when_nobody_asks() {
        let parent = tempfile::tempdir().unwrap();
        let (instance, lock) = Instance::create_in(parent.path()).unwrap();
        instance.write_info(&info()).unwrap();
        drop(lock);
        // A program that another test is just starting also holds the lock's descriptor for a moment.
        wait_until("no process holds the lock", || is_swept(&instance));
        let dirty = Dirty { bytes: 4096, files_total: 1, ..Dirty::default() };
        data_loss::record(&instance, &dirty).unwrap();
        assert!(!is_swept(&instance));
        let long_ago = SystemTime::now() - 2 * TOLD_WITHIN;
        File::open(&instance.dir).unwrap().set_modified(long_ago).unwrap();
        assert!(is_swept(&instance));
    }
}
