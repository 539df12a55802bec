//! The access path that an instance offers: a mount, or leases on the files of the source directory.

use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use terrace_api::schedule::Schedule;
use terrace_engine::Engine;

use super::leases::{self, Served};
use super::mount_path::{self, MountPath};
use crate::handover::Shared;

pub(super) enum Front {
    /// A mount: requests of the kernel.
    Mount(MountPath),
    /// Programs use the source directory itself.
    Leases(Served),
}

/// Creates the front over the engine. With a dead terraced's descriptors ([`descriptors_named`]), takes over
/// its front.
pub(super) fn connect(
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
pub(super) fn descriptors_named(shared: &Shared) -> io::Result<HashSet<RawFd>> {
    match shared.fuse {
        Some(_) => mount_path::descriptors_named(shared),
        None => leases::descriptors(shared),
    }
}

impl Front {
    /// Serves until a stop is requested, or the mount is gone. Calls `begun` once the set-up is done.
    pub(super) fn run(&self, begun: impl FnOnce()) -> io::Result<()> {
        match self {
            Front::Mount(mount) => mount.run(begun),
            Front::Leases(leases) => {
                leases.run(begun);
                Ok(())
            }
        }
    }

    /// The served files, where there is no mount.
    pub(super) fn leases(&self) -> Option<Served> {
        match self {
            Front::Mount(_) => None,
            Front::Leases(leases) => Some(leases.clone()),
        }
    }

    /// Returns a function that refuses further changes of the source; false: a program has a file open for
    /// writing.
    pub(super) fn give_up_changes(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        match self {
            Front::Mount(mount) => mount.give_up_changes(),
            Front::Leases(_) => Box::new(|| true),
        }
    }

    /// Starts the prefetch by a schedule. A failure costs its speed alone.
    pub(super) fn follow(&self, shared: &Shared, engine: &Engine, schedule: &Schedule) {
        if let Err(err) = self.try_follow(shared, engine, schedule) {
            tracing::error!("the prefetch by a schedule cannot start: {err}");
        }
    }

    fn try_follow(&self, shared: &Shared, engine: &Engine, schedule: &Schedule) -> io::Result<()> {
        match self {
            Front::Mount(mount) => engine.follow(schedule, mount.files_of(schedule)),
            Front::Leases(served) => {
                let src = shared.place.src_fd.try_clone()?;
                engine.follow(schedule, served.scheduled(src, schedule))
            }
        }
    }

    /// Closes the front at the end of the instance.
    pub(super) fn close(self) {
        if let Front::Mount(mount) = self {
            mount.close();
        }
    }
}
