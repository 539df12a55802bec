//! Descriptors that a dead terraced had open and no table names: connections, data files, its ring.
//!
//! They live on in the table shared with the keeper. They are found before the new terraced opens or closes anything, and closed when
//! it has taken over what it needs.

use std::io;
use std::os::fd::RawFd;

use super::engine::descriptors_named;
use crate::keeper::Shared;

/// What nobody needs of that which was open when this terraced began.
#[derive(Debug, Default)]
pub struct Strays {
    found: Vec<RawFd>,
}

impl Strays {
    /// All descriptors open now but the keeper's and those that a durable table names. To be asked before the tables are taken over: what
    /// that closes is no stray, and its number may stand for something of this terraced soon.
    pub fn left_by_the_dead(shared: &Shared) -> io::Result<Strays> {
        let named = descriptors_named(shared)?;
        let stray = |fd: &RawFd| *fd > 2 && !shared.kept.contains(fd) && !named.contains(fd);
        Ok(Strays { found: crate::sys::open_descriptors().into_iter().filter(stray).collect() })
    }

    /// Closes them.
    pub fn close(self) {
        for fd in self.found {
            // SAFETY: its owner is dead, and nothing in this process has taken it over.
            unsafe { rustix::io::close(fd) };
        }
    }
}
