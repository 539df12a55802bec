//! Descriptors that a dead terraced had open and no table names: connections, data files, its ring.
//!
//! They live on in the table shared with the keeper. They are found before the new terraced opens anything, and closed when it
//! has taken over what it needs.

use std::collections::HashSet;
use std::os::fd::RawFd;

/// What was open when this terraced began.
#[derive(Debug, Default)]
pub struct Strays {
    found: Vec<RawFd>,
}

impl Strays {
    /// All descriptors open now.
    pub fn found() -> Strays {
        Strays { found: crate::sys::open_descriptors() }
    }

    /// Without the keeper's and those that a durable table names.
    pub fn but(self, kept: &[RawFd], named: &HashSet<RawFd>) -> Strays {
        let stray = |fd: &RawFd| *fd > 2 && !kept.contains(fd) && !named.contains(fd);
        Strays { found: self.found.into_iter().filter(stray).collect() }
    }

    /// Closes them.
    pub fn close(self) {
        for fd in self.found {
            // SAFETY: its owner is dead, and nothing in this process has taken it over.
            unsafe { rustix::io::close(fd) };
        }
    }
}
