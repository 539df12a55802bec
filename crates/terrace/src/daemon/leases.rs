//! The front without a mount.

use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use terrace_engine::Engine;
use terrace_lease::{Leases, is_leased};

use super::reserve;
use crate::handover::Shared;

/// Leases over the engine, new or taken over from a dead terraced, by its descriptors.
pub fn connect(
    shared: &Shared,
    engine: &Arc<Engine>,
    taken_over: Option<&HashSet<RawFd>>,
) -> io::Result<Arc<Leases>> {
    let dev = rustix::fs::fstat(&shared.place.src_fd)?.st_dev;
    engine.set_mount_dev(dev);
    let leases = Leases::new(engine.clone(), dev, files_max(engine), shared.memory.leases_for_ever());
    let leases = Arc::new(leases);
    if let Some(descriptors) = taken_over {
        // SAFETY: their owner is dead, and `OrphanFds` leaves them to us.
        unsafe { leases.take_over(descriptors.iter().copied()) };
    }
    engine.set_server(leases.clone());
    Ok(leases)
}

/// Descriptors that hold leases. A lease tells by itself whose descriptor it is: nothing else of ours has one.
pub fn descriptors(shared: &Shared) -> io::Result<HashSet<RawFd>> {
    let open = crate::sys::open_descriptors()?;
    Ok(open.into_iter().filter(|fd| !shared.kept.contains(fd) && is_leased(*fd)).collect())
}

/// Files whose leases may be held at one time: each costs a descriptor or two, and other things need some.
fn files_max(engine: &Engine) -> usize {
    let descriptors = terrace_fs::limits::descriptors_max().saturating_sub(reserve::size());
    let objects = engine.handles().segment.geometry().objects_max / 2;
    usize::try_from(descriptors / 4).unwrap_or(usize::MAX).min(objects as usize)
}
