//! Lookups refuse mounts of terrace inside the source, which could deadlock. The list follows the kernel's mount
//! table.

use std::fs::File;
use std::sync::Weak;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use terrace_engine::Engine;
use terrace_fs::Namespace;

use crate::mounts::{self, FSTYPE};

/// Pause between two reads of a table that changes all the time.
const PAUSE: Duration = Duration::from_millis(5);

/// Reads the table once; returns a descriptor that reports later changes.
pub(super) fn look(namespace: &Namespace<Engine>) -> Option<File> {
    // Opened before the read, so that a change during the read is reported.
    let table = File::open("/proc/self/mountinfo").ok()?;
    set(namespace);
    Some(table)
}

fn set(namespace: &Namespace<Engine>) {
    let entries = mounts::table().into_iter();
    let ours = entries.filter(|entry| entry.fstype == FSTYPE);
    namespace.crossings().set(ours.filter_map(|entry| {
        let (major, minor) = entry.dev;
        Some((entry.point.file_name()?.to_owned(), rustix::fs::makedev(major, minor)))
    }));
}

/// Follows the mount table as long as the namespace exists.
pub(super) fn follow(namespace: &Weak<Namespace<Engine>>, table: &File) {
    loop {
        // Changes are reported as an error condition, which poll always includes (proc(5)).
        let mut fds = [PollFd::new(table, PollFlags::PRI)];
        let _ = rustix::event::poll(&mut fds, None);
        match namespace.upgrade() {
            Some(namespace) => set(&namespace),
            None => return,
        }
        std::thread::sleep(PAUSE);
    }
}
