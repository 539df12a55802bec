//! What programs come to: a mount, or their own directory with leases on the files that are served.

use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use terrace_api::schedule::Schedule;
use terrace_engine::Engine;
use terrace_lease::Leases;

use super::leases;
use super::mount_path::{self, MountPath};
use crate::handover::Shared;

/// The front of the cache.
pub enum Front {
    /// Requests of the kernel.
    Mount(MountPath),
    /// None: programs use the directory itself.
    Leases(Arc<Leases>),
}

/// The front over the engine; with descriptors of a dead terraced ([`descriptors_named`]) it is taken over from that one.
pub fn connect(
    shared: &Shared,
    engine: &Arc<Engine>,
    taken_over: Option<&HashSet<RawFd>>,
) -> io::Result<Front> {
    match &shared.fuse {
        Some(fuse) => mount_path::connect(shared, fuse, engine, taken_over.is_some()).map(Front::Mount),
        None => leases::connect(shared, engine, taken_over).map(Front::Leases),
    }
}

/// Descriptors of a dead terraced that the next one takes over.
pub fn descriptors_named(shared: &Shared) -> io::Result<HashSet<RawFd>> {
    match shared.fuse {
        Some(_) => mount_path::descriptors_named(shared),
        None => leases::descriptors(shared),
    }
}

impl Front {
    /// Serves until the end is asked for, or the mount is gone. `begun` is called when all that this needs is open.
    pub fn run(&self, begun: impl FnOnce()) -> io::Result<()> {
        match self {
            Front::Mount(mount) => mount.run(begun),
            Front::Leases(leases) => {
                leases.run(begun);
                Ok(())
            }
        }
    }

    /// The leases, where there is no mount.
    pub fn leases(&self) -> Option<Arc<Leases>> {
        match self {
            Front::Mount(_) => None,
            Front::Leases(leases) => Some(leases.clone()),
        }
    }

    /// Gives changes of the source up; false: a program has a file open for writing.
    pub fn give_up_changes(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        match self {
            Front::Mount(mount) => mount.give_up_changes(),
            Front::Leases(_) => Box::new(|| true),
        }
    }

    /// Begins to fetch what programs will read, where a mount names the files.
    pub fn follow(&self, engine: &Engine, schedule: &Schedule) -> io::Result<()> {
        match self {
            Front::Mount(mount) => engine.follow(schedule, mount.files_of(schedule)),
            Front::Leases(_) => Ok(()),
        }
    }

    /// In the end, when no terraced follows.
    pub fn close(self) {
        if let Front::Mount(mount) = self {
            mount.close();
        }
    }
}
