//! Access path of an instance without a mount: files of the source directory that clients read from memory.
//! Leases keep writers away, or all writers announce their writes.

use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use terrace_api::stats::{self, Stats};
use terrace_engine::Engine;
use terrace_opens::announced::{self, AnnouncedFiles};
use terrace_opens::{Leases, is_leased, lease};

use super::reserve;
use crate::handover::Shared;

/// The served files.
#[derive(Debug, Clone)]
pub(super) enum Served {
    /// While no program has them open for writing.
    Leased(Arc<Leases>),
    /// While programs of the run write them.
    Announced(Arc<AnnouncedFiles>),
}

impl Served {
    /// Serves until [`Served::stop`]. Calls `begun` once the set-up is done.
    pub(super) fn run(&self, begun: impl FnOnce()) {
        match self {
            Served::Leased(leases) => leases.run(begun),
            Served::Announced(files) => files.run(begun),
        }
    }

    pub(super) fn stop(&self) {
        match self {
            Served::Leased(leases) => leases.stop(),
            Served::Announced(files) => files.stop(),
        }
    }

    /// Adds the counts of the files.
    pub(super) fn count(&self, stats: &mut Stats) {
        match self {
            Served::Leased(leases) => {
                let lease::Counts { held, written, broken, refused } = leases.counts();
                stats.leases = Some(stats::Leases { held, written, broken, refused });
            }
            Served::Announced(files) => {
                let announced::Counts { served, left, unannounced } = files.counts();
                stats.announced = Some(stats::Announced { served, left, unannounced });
            }
        }
    }
}

/// Serves files over the engine, or takes over those of a dead terraced by their descriptors.
pub(super) fn connect(
    shared: &Shared,
    engine: &Arc<Engine>,
    taken_over: Option<&HashSet<RawFd>>,
) -> io::Result<Served> {
    let dev = rustix::fs::fstat(&shared.place.src_fd)?.st_dev;
    engine.set_mount_dev(dev);
    let (max, word) = (files_max(engine), shared.memory.leases_for_ever());
    if shared.config.exclusive {
        let files = Arc::new(AnnouncedFiles::new(engine.clone(), dev, max, word));
        if let Some(descriptors) = taken_over {
            // SAFETY: their owner is dead, and `OrphanFds` does not close descriptors that are taken over.
            unsafe { files.take_over(descriptors.iter().copied()) };
        }
        engine.set_server(files.clone());
        return Ok(Served::Announced(files));
    }
    let leases = Arc::new(Leases::new(engine.clone(), dev, max, word));
    if let Some(descriptors) = taken_over {
        // SAFETY: as above.
        unsafe { leases.take_over(descriptors.iter().copied()) };
    }
    engine.set_server(leases.clone());
    Ok(Served::Leased(leases))
}

/// Descriptors of served files: those with leases, which the kernel shows, or those of files with an object.
pub(super) fn descriptors(shared: &Shared) -> io::Result<HashSet<RawFd>> {
    let open = crate::sys::open_descriptors()?;
    let mut others: Vec<RawFd> = open.into_iter().filter(|fd| !shared.kept.contains(fd)).collect();
    if shared.config.exclusive {
        let dev = rustix::fs::fstat(&shared.place.src_fd)?.st_dev;
        let has_object = |id| shared.memory.has_object(id);
        return Ok(announced::descriptors(has_object, dev, &others).into_iter().collect());
    }
    others.retain(|fd| is_leased(*fd));
    Ok(others.into_iter().collect())
}

/// Most files in service: each costs one or two descriptors, and other parts need some too.
fn files_max(engine: &Engine) -> usize {
    let descriptors = terrace_fs::limits::descriptors_max().saturating_sub(reserve::size());
    let objects = engine.handles().segment.geometry().objects_max / 2;
    usize::try_from(descriptors / 4).unwrap_or(usize::MAX).min(objects as usize)
}
