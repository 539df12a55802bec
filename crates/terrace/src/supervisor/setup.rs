//! Setup by the supervisor, once, before any terraced: directory, log, memory, sockets, mount.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use terrace_api::schedule::Schedule;
use terrace_opens::guard::Listener;

use super::aborter;
use crate::cgroup;
use crate::config::{Config, Level};
use crate::engine::Memory;
use crate::error::{Failure, Result, reason};
use crate::handover::channel::{self, Channel};
use crate::handover::{Shared, Shortage};
use crate::http;
use crate::instance::{Instance, Kind, Lock};
use crate::mountpoint::Place;
use crate::mounts::{self, fusermount};
use crate::size::human;
use crate::sys;
use crate::tier::{self, Tier};

/// Difference between terraced's and the supervisor's oom_score_adj (thousandths of all memory).
const OUTLIVES_BY: i32 = 500;
/// Open files of supervisor and terraced, which share a table: some 40, and those of a few clients.
const DESCRIPTORS_MIN: u64 = 64;
/// Private memory of terraced: request buffers and thread stacks, mostly untouched.
const PRIVATE_MIN: u64 = 512 << 20;
/// Lowest oom_score_adj with which a process can still be killed.
const OOM_SCORE_ADJ_LAST: i32 = -999;

/// How files are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// A mount over the directory.
    Mount,
    /// Leases: programs use the directory itself.
    Leases,
}

#[derive(Debug)]
pub(crate) struct Task {
    /// Source and mount point.
    pub place: Place,
    pub config: Config,
    /// For all programs or for one command.
    pub kind: Kind,
    pub by: By,
    /// Mount flags: read-only, noatime, ...
    pub flags: MountFlags,
    /// Pages that programs will read.
    pub schedule: Option<Schedule>,
    /// Channel to the starting command; none in the foreground.
    pub starter: Option<Channel>,
}

/// The supervisor's ends of [`Shared::to_supervisor`] and [`Shared::go`].
pub(super) struct SupervisorEnds {
    pub from_terraced: Channel,
    /// Pipe for the `go` byte, and for the answer to `ready`.
    pub go: OwnedFd,
    /// Channel to the aborter, if it runs.
    pub aborter: Option<Channel>,
}

/// Makes all resources, or fails and leaves nothing. A tier that cannot be used may be left out. `starter`:
/// the waiting command, if the supervisor runs in the background.
pub(super) fn prepare(
    mut task: Task,
    starter: Option<&mut Channel>,
) -> Result<(Shared, Lock, SupervisorEnds)> {
    let detached = starter.is_some();
    // The kernel has applied the caller's umask before a mode arrives here.
    rustix::process::umask(rustix::fs::Mode::empty());
    enough_descriptors(terrace_fs::limits::descriptors_max())?;
    enough_private_memory(rustix::process::getrlimit(rustix::process::Resource::Data).current)?;
    let (instance, lock) = Instance::create(&[&task.place.mnt, &task.place.src])?;
    let made = detach_streams(detached, &instance).and_then(|()| {
        start_log(task.config.log.level);
        if let Some(line) = cgroup::too_small_for(task.config.memory.fixed()) {
            tracing::warn!("{line}");
        }
        let tier = tier::open(&mut task.config, &task.place.src).or_refuse(&task.config)?;
        if let Some(starter) = starter {
            tier.warnings.iter().for_each(|line| starter.say(&format!("warning {line}")));
        }
        assemble(task, tier, &instance, detached)
    });
    match made {
        Ok((shared, ends)) => Ok((shared, lock, ends)),
        Err(failure) => {
            instance.remove();
            Err(failure)
        }
    }
}

/// A daemon without free descriptors answers no client: `run` and the supervisor would wait for ever.
fn enough_descriptors(max: u64) -> Result<()> {
    if max >= DESCRIPTORS_MIN {
        return Ok(());
    }
    let why = format!("the limit is {max} and terrace needs {DESCRIPTORS_MIN}");
    Err(Failure::new("open files", why, "raise it, `ulimit -n 1024`"))
}

/// Below this RLIMIT_DATA, terraced fails at its start.
fn enough_private_memory(max: Option<u64>) -> Result<()> {
    match max {
        Some(max) if max < PRIVATE_MIN => {
            let why = format!("the limit is {} and terrace needs {}", human(max), human(PRIVATE_MIN));
            Err(Failure::new("private memory", why, "raise it, `ulimit -d unlimited`"))
        }
        _ => Ok(()),
    }
}

/// Mounts last: no later step can fail.
fn assemble(task: Task, tier: Tier, instance: &Instance, detached: bool) -> Result<(Shared, SupervisorEnds)> {
    let Task { place, config, kind, by, flags, schedule, .. } = task;
    let short = |what: &'static str| {
        move |err: std::io::Error| Failure::new(what, reason(err), "raise this limit, or lower --memory")
    };
    let memory = Memory::create(&config, &tier.held).map_err(short("memory for the cache"))?;
    let control = bind(&instance.control_socket())?;
    let preload = preload_listener(&instance.preload_socket())?;
    let metrics = config.metrics.socket_address().map(http::bind).transpose()?;
    let (from_terraced, to_supervisor) = channel::pair().map_err(short("socket"))?;
    let (go, let_go) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|err| short("pipe")(err.into()))?;
    let (fuse, mount_dev, aborter) = match by {
        By::Mount => {
            let (fuse, mount_dev) = mount(&place, kind, flags)?;
            let aborter = start_aborter(mount_dev, &fuse, detached);
            (Some(fuse), mount_dev, aborter)
        }
        By::Leases => (None, None, None),
    };
    let opens =
        match config.guarded {
            true => Some(Arc::new(Listener::new().map_err(|err| {
                Failure::new("fanotify", err, "raise /proc/sys/fs/fanotify/max_user_groups")
            })?)),
            false => None,
        };
    let instance = instance.clone();
    let supervisor = rustix::process::getpid();
    let kept = Vec::new();
    let shared = Shared {
        place,
        config,
        kind,
        schedule,
        memory,
        tier,
        fuse,
        opens,
        mount_dev,
        control,
        preload,
        metrics,
        to_supervisor,
        go,
        instance,
        kept,
        supervisor,
        oom_score_adj: outlive_terraced(),
        shortage: Shortage::new(),
    };
    Ok((shared, SupervisorEnds { from_terraced, go: let_go, aborter }))
}

/// A listening socket for this user alone.
pub(crate) fn bind(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path).and_then(|listener| close_to_others(path).map(|()| listener)).map_err(|err| {
        Failure::new(path.display(), reason(err), "set XDG_RUNTIME_DIR to a directory of yours")
    })
}

/// The umask is empty, so a new socket is open to all users.
fn close_to_others(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

/// SOCK_SEQPACKET: preserves message boundaries, and shows a client's end.
fn preload_listener(path: &Path) -> Result<OwnedFd> {
    let listener = || -> rustix::io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 128)?;
        Ok(socket)
    };
    let private = || -> std::io::Result<OwnedFd> {
        let socket = listener()?;
        close_to_others(path)?;
        Ok(socket)
    };
    private().map_err(|err| {
        Failure::new(path.display(), reason(err), "set XDG_RUNTIME_DIR to a directory of yours")
    })
}

/// Root mounts directly, as does the supervisor of `run` in its user namespace. Other users mount by the
/// setuid helper.
fn mount(place: &Place, kind: Kind, flags: MountFlags) -> Result<(OwnedFd, Option<(u32, u32)>)> {
    let permissions = (!place.is_checked_by_source()).then_some("default_permissions");
    let direct = mounts::open_fuse().and_then(|dev| {
        mounts::mount(&dev, &place.src, &place.mnt, place.mode, flags, permissions)?;
        Ok(dev)
    });
    let name = place.mnt.display();
    let fuse = match direct {
        Err(err) if err.kind() == std::io::ErrorKind::PermissionDenied && kind == Kind::Mount => {
            let mut options = mounts::names_of(flags);
            options.extend(permissions);
            fusermount::mount(&place.src, &place.mnt, &options)
                .map_err(|words| Failure::new(name, words, "mount as root, or at a directory of yours"))
        }
        done => done.map_err(|err| Failure::new(name, reason(err), "see `dmesg` for the kernel's reason")),
    };
    let mounted = mounts::at(&place.mnt).filter(|entry| entry.fstype == mounts::FSTYPE);
    Ok((fuse?, mounted.map(|entry| entry.dev)))
}

fn start_aborter(mount_dev: Option<(u32, u32)>, fuse: &OwnedFd, detached: bool) -> Option<Channel> {
    let aborter = aborter::means(mount_dev, fuse.as_fd()).and_then(|means| aborter::start(means, detached));
    let warn = |err| {
        tracing::warn!(
            "cannot start the aborter ({err}): if all processes are killed, the mount hangs until `umount -f`"
        )
    };
    aborter.map_err(warn).ok()
}

/// In the background, the supervisor has its own session, holds no directory and no terminal, and logs to a
/// file.
fn detach_streams(detached: bool, instance: &Instance) -> Result<()> {
    if !detached {
        return Ok(());
    }
    let detach = || -> std::io::Result<()> {
        rustix::process::setsid()?;
        std::env::set_current_dir("/")?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let log = instance.open_log()?;
        sys::replace_fd(&null, 0)?;
        sys::replace_fd(&null, 1)?;
        sys::replace_fd(&log, 2)
    };
    detach().map_err(|err| {
        Failure::new("the daemon cannot run in the background", reason(err), "try again with --foreground")
    })
}

/// Lowers the supervisor's oom_score_adj where permitted, so that the kernel kills terraced first. The
/// supervisor holds data that must not be lost, and little memory. It can still be killed. Returns the old
/// value, for terraced.
fn outlive_terraced() -> Option<i32> {
    let before = sys::oom_score_adj()?;
    sys::set_oom_score_adj(
        Some((before - OUTLIVES_BY).max(OOM_SCORE_ADJ_LAST)).filter(|lower| *lower < before),
    );
    Some(before)
}

/// Sends log messages to standard error.
pub(crate) fn start_log(level: Level) {
    let level = match level {
        Level::Error => tracing::Level::ERROR,
        Level::Warn => tracing::Level::WARN,
        Level::Info => tracing::Level::INFO,
        Level::Debug => tracing::Level::DEBUG,
        Level::Trace => tracing::Level::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        // On a full disk, logging fails silently.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let _ = subscriber.try_init();
}
