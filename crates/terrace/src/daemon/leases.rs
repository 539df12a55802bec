//! Access path of an instance without a mount: files of the source directory that clients read from memory.
//! Leases keep writers away, or writers announce their writes.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use terrace_api::control::{self, Staging};
use terrace_api::schedule::{self, Schedule};
use terrace_api::stats::{self, Stats};
use terrace_engine::source::times_of;
use terrace_engine::{AccessPath, Engine, ObjectRef, ScheduledFiles, Serve};
use terrace_fs::{PageCache, STAGE_BYTES_MAX};
use terrace_opens::announced::{self, AnnouncedFiles, GuardedFiles};
use terrace_opens::{Leases, is_leased, lease};

use super::reserve;
use crate::handover::Shared;
use crate::size::PAGE;

/// An open for reading would have effects on pipes and devices.
const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The served files.
#[derive(Debug, Clone)]
pub(super) enum Served {
    /// While no program has them open for writing.
    Leased(Arc<Leases>),
    /// While programs of the run write them: `--exclusive`.
    Announced(Arc<AnnouncedFiles>),
    /// The same, while fanotify shows other writers.
    Guarded(Arc<GuardedFiles>),
}

impl Served {
    /// Serves until [`Served::stop`]. Calls `begun` once the set-up is done.
    pub(super) fn run(&self, begun: impl FnOnce()) {
        match self {
            Served::Leased(leases) => leases.run(begun),
            Served::Announced(files) => files.run(begun),
            Served::Guarded(files) => files.run(begun),
        }
    }

    pub(super) fn stop(&self) {
        match self {
            Served::Leased(leases) => leases.stop(),
            Served::Announced(files) => files.stop(),
            Served::Guarded(files) => files.stop(),
        }
    }

    /// The object of a file.
    ///
    /// # Errors
    /// The file system's; BUSY if a program has the file open for writing.
    fn object(&self, file: impl AsFd) -> rustix::io::Result<ObjectRef> {
        match self {
            Served::Leased(leases) => leases.serve(file.as_fd()),
            Served::Announced(files) => files.serve(file.as_fd()),
            Served::Guarded(files) => files.serve(file.as_fd()),
        }
    }

    /// Stages a part of a file below `root`. Returns the bytes.
    pub(super) fn stage(&self, engine: &Engine, root: &Path, part: &control::Stage) -> io::Result<u64> {
        let file = rustix::fs::openat2(CWD, &part.path, PATH, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if !path.starts_with(root) {
            return Err(Errno::XDEV.into());
        }
        let (object, bytes) = match part.how {
            Staging::Drop => match engine.lookup_object(rustix::fs::fstat(&file)?.st_ino) {
                Some(known) => (known, part.bytes),
                None => return Ok(0),
            },
            _ => (self.object(&file).map_err(not_served)?, part.bytes.min(STAGE_BYTES_MAX)),
        };
        let range = part.offset..part.offset.checked_add(bytes).ok_or(Errno::INVAL)?;
        Ok(match part.how {
            Staging::Read => {
                let mut buf = vec![0; bytes as usize];
                engine.read(&object, part.offset, &mut buf, AccessPath::Preload)? as u64
            }
            Staging::Pin(ms) => PageCache::pin(engine, &object, range, Duration::from_millis(ms)),
            Staging::Down(level) => PageCache::stage_down(engine, &object, range, level),
            Staging::Drop => PageCache::drop_clean(engine, &object, range) * PAGE,
        })
    }

    /// The files of a schedule, below the directory `src`.
    pub(super) fn scheduled(&self, src: OwnedFd, schedule: &Schedule) -> Box<dyn ScheduledFiles> {
        Box::new(Scheduled { served: self.clone(), src, recorded: schedule.files.clone() })
    }

    /// Adds the counts of the files.
    pub(super) fn count(&self, stats: &mut Stats) {
        match self {
            Served::Leased(files) => stats.leases = Some(of_leases(files.counts())),
            Served::Announced(files) => stats.announced = Some(of_announced(files.counts(), 0)),
            Served::Guarded(files) => {
                let (leases, watched, strangers) = files.counts();
                stats.leases = Some(of_leases(leases));
                stats.announced = Some(of_announced(watched, strangers));
            }
        }
    }
}

fn of_leases(counts: lease::Counts) -> stats::Leases {
    let lease::Counts { held, written, broken, refused } = counts;
    stats::Leases { held, written, broken, refused }
}

fn of_announced(counts: announced::Counts, strangers: u64) -> stats::Announced {
    let announced::Counts { served, left, unannounced } = counts;
    stats::Announced { served, left, unannounced, strangers }
}

fn not_served(errno: Errno) -> io::Error {
    match errno {
        Errno::BUSY => io::Error::other("a program writes the file, so the kernel serves it"),
        errno => errno.into(),
    }
}

/// The files of a schedule. They stay in service after their release.
struct Scheduled {
    served: Served,
    src: OwnedFd,
    recorded: Vec<schedule::File>,
}

impl ScheduledFiles for Scheduled {
    fn open(&mut self, file: u32) -> Option<ObjectRef> {
        let recorded = self.recorded.get(file as usize)?;
        let file = rustix::fs::openat2(&self.src, &recorded.path, PATH, Mode::empty(), ResolveFlags::BENEATH)
            .ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        if recorded.is_same(stat.st_size as u64, times_of(&stat).0) {
            self.served.object(&file).ok()
        } else {
            None
        }
    }

    fn release(&mut self, _file: u32) {}
}

/// Serves files over the engine, or takes over those of a dead terraced by their descriptors.
pub(super) fn connect(
    shared: &Shared,
    engine: &Arc<Engine>,
    taken_over: Option<&HashSet<RawFd>>,
) -> io::Result<Served> {
    let dev = rustix::fs::fstat(&shared.place.src_fd)?.st_dev;
    engine.set_mount_dev(dev);
    if engine.has_targets() {
        sync_at_the_end(engine, &shared.place.src)?;
    }
    let (max, word) = (files_max(engine), shared.memory.leases_for_ever());
    if shared.config.exclusive {
        let files = Arc::new(AnnouncedFiles::new(engine.clone(), dev, max, Some(word)));
        if let Some(descriptors) = taken_over {
            // SAFETY: their owner is dead, and `OrphanFds` does not close descriptors that are taken over.
            unsafe { files.take_over(descriptors.iter().copied()) };
        }
        engine.set_server(files.clone());
        return Ok(Served::Announced(files));
    }
    if let Some(opens) = &shared.opens {
        let files = Arc::new(GuardedFiles::new(engine.clone(), dev, max, word, opens.clone()));
        if let Some(descriptors) = taken_over {
            let open = crate::sys::open_descriptors()?;
            // SAFETY: as above.
            unsafe { files.take_over(descriptors.iter().copied(), open)? };
        }
        engine.set_server(files.clone());
        return Ok(Served::Guarded(files));
    }
    let leases = Arc::new(Leases::new(engine.clone(), dev, max, word));
    if let Some(descriptors) = taken_over {
        // SAFETY: as above.
        unsafe { leases.take_over(descriptors.iter().copied()) };
    }
    engine.set_server(leases.clone());
    Ok(Served::Leased(leases))
}

/// Makes the end of the instance sync the source: identities on tiers name durable content alone.
///
/// # Errors
/// The directory cannot be opened for reading.
pub(super) fn sync_at_the_end(engine: &Engine, src: &Path) -> io::Result<()> {
    engine.set_source_root(std::fs::File::open(src)?.as_fd())
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
