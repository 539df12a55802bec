//! Access path of an instance without a mount: leases on the files of the source directory.

use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use terrace_engine::Engine;
use terrace_opens::{Leases, is_leased};

use super::reserve;
use crate::handover::Shared;

/// Creates the leases over the engine, or takes over those of a dead terraced by their descriptors.
pub(super) fn connect(
    shared: &Shared,
    engine: &Arc<Engine>,
    taken_over: Option<&HashSet<RawFd>>,
) -> io::Result<Arc<Leases>> {
    let dev = rustix::fs::fstat(&shared.place.src_fd)?.st_dev;
    engine.set_mount_dev(dev);
    let leases = Leases::new(engine.clone(), dev, files_max(engine), shared.memory.leases_for_ever());
    let leases = Arc::new(leases);
    if let Some(descriptors) = taken_over {
        // SAFETY: their owner is dead, and `OrphanFds` does not close descriptors that are taken over.
        unsafe { leases.take_over(descriptors.iter().copied()) };
    }
    engine.set_server(leases.clone());
    Ok(leases)
}

/// Descriptors that hold leases. The kernel shows which do, and terrace takes leases for served files only.
pub(super) fn descriptors(shared: &Shared) -> io::Result<HashSet<RawFd>> {
    let open = crate::sys::open_descriptors()?;
    Ok(open.into_iter().filter(|fd| !shared.kept.contains(fd) && is_leased(*fd)).collect())
}

/// Most files with a lease: each costs one or two descriptors, and other parts need some too.
fn files_max(engine: &Engine) -> usize {
    let descriptors = terrace_fs::limits::descriptors_max().saturating_sub(reserve::size());
    let objects = engine.handles().segment.geometry().objects_max / 2;
    usize::try_from(descriptors / 4).unwrap_or(usize::MAX).min(objects as usize)
}
