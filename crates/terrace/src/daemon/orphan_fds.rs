//! Orphan descriptors: a dead terraced had them open, and no table (or lease) names them. Connections, data
//! files, rings.
//!
//! They stay open in the table shared with the supervisor. The new terraced lists them before it opens or
//! closes any descriptor. It closes them once it has taken over the named descriptors.

use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use terrace_io::{is_busy, is_ring};

use super::front::descriptors_named;
use crate::handover::Shared;
use crate::tier::record;

const LOOK_EVERY: Duration = Duration::from_millis(1);
/// A longer wait for writes is logged: a healthy source is faster.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Descriptors that were open when this terraced began and that are not needed.
#[derive(Debug, Default)]
pub(super) struct OrphanFds {
    found: Vec<RawFd>,
    /// Descriptors that this terraced takes over.
    named: HashSet<RawFd>,
}

impl OrphanFds {
    /// All open descriptors except the supervisor's and those that a durable table names. Call this before
    /// the tables are taken over. The takeover closes descriptors, and new files of this terraced may reuse
    /// their numbers.
    pub(super) fn find(shared: &Shared) -> io::Result<OrphanFds> {
        let named = descriptors_named(shared)?;
        let open = crate::sys::open_descriptors()?;
        let tiers = record::descriptors(&shared.instance);
        let is_needed = |fd: &RawFd| shared.kept.contains(fd) || named.contains(fd) || tiers.contains(fd);
        let found = open.into_iter().filter(|fd| *fd > 2 && !is_needed(fd)).collect();
        Ok(OrphanFds { found, named })
    }

    pub(super) fn named(&self) -> &HashSet<RawFd> {
        &self.named
    }

    /// Waits for the writes that the dead terraced began. They still read its frames, and must not reach the
    /// source after newer ones. The wait is as long as the source needs. Then closes the rings.
    ///
    /// # Errors
    /// The state of a ring cannot be read, so its writes are unknown.
    pub(super) fn finish_writes(&mut self) -> io::Result<()> {
        let rings: Vec<RawFd> = self.found.extract_if(.., |fd| is_ring(*fd)).collect();
        let began = Instant::now();
        let mut told = false;
        for ring in rings {
            while is_busy(ring)? {
                if !told && began.elapsed() > TELL_AFTER {
                    tracing::warn!(
                        "the source has not completed writes of the dead terraced; the mount waits for them: check the source's storage"
                    );
                    told = true;
                }
                std::thread::sleep(LOOK_EVERY);
            }
            // SAFETY: as in `close`.
            unsafe { rustix::io::close(ring) };
        }
        Ok(())
    }

    pub(super) fn close(self) {
        for fd in self.found {
            // SAFETY: the owner is dead, and no part of this process has taken the descriptor over.
            unsafe { rustix::io::close(fd) };
        }
    }
}
