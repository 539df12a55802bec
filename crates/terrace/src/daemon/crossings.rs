//! The mounts of terrace that the mount path does not enter, as the kernel's table has them now.

use std::fs::File;
use std::sync::Weak;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use terrace_engine::Engine;
use terrace_fs::Namespace;

use crate::mounts::{self, FSTYPE};

/// Between two looks at a table that changes all the time.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks now; the answer is the table, which tells of its changes.
pub fn look(namespace: &Namespace<Engine>) -> Option<File> {
    // Opened first, so that a change during the look is one more.
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

/// Follows the table while there is a namespace.
pub fn follow(namespace: &Weak<Namespace<Engine>>, table: &File) {
    loop {
        // Its changes come as an error condition, which needs no asking for (proc(5)).
        let mut fds = [PollFd::new(table, PollFlags::PRI)];
        let _ = rustix::event::poll(&mut fds, None);
        match namespace.upgrade() {
            Some(namespace) => set(&namespace),
            None => return,
        }
        std::thread::sleep(PAUSE);
    }
}
