//! `terrace mount`: mounts and remounts, also as the helper of mount(8).

mod helper;
mod options;

use std::path::Path;
use std::process::ExitCode;

use rustix::mount::MountFlags;

use crate::cgroup;
use crate::cli;
use crate::commands;
use crate::config::Config;
use crate::error::{Failure, Result, reason};
use crate::instance::Kind;
use crate::mountpoint::{self, Place};
use crate::mounts::{self, utab};
use crate::supervisor::{self, By, Task};
use crate::sweep::sweep;

use options::Options;

pub(crate) use helper::{exit_code, from_helper_arguments};

/// Mounts. Returns once the mount is served; in the foreground, once it has ended.
pub(crate) fn mount(args: cli::Mount) -> Result<ExitCode> {
    let mut tuning = args.tuning;
    let options = options::parse(args.options.as_deref().unwrap_or_default(), args.sloppy)?;
    if options.remount && !args.fake {
        return remount(&args.mnt, &options);
    }
    options.tune(&mut tuning);
    let mut config = Config::load(&tuning)?;
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    sweep();
    if options.nofail && !args.src.exists() {
        return Ok(ExitCode::SUCCESS);
    }
    let mut place = Place::for_mount(&args.src, &args.mnt)?;
    config.look_up_device(&place.src)?;
    place.claim(true)?;
    // In the foreground the log has the warning, on the same terminal.
    if !args.foreground {
        cgroup::tell_if_too_small(config.memory.fixed());
    }
    let task = Task {
        flags: options.flags_over(mounts::of_mount(&place.src_fd)),
        place,
        config,
        kind: Kind::Mount,
        by: By::Mount,
        schedule: None,
        starter: None,
    };
    match args.foreground {
        true => supervisor::supervise(task).map(|()| ExitCode::SUCCESS),
        false => {
            let (src, mnt) = (task.place.src.clone(), task.place.mnt.clone());
            supervisor::start(task)?;
            let _ = utab::note(&src, &mnt).map(|mut child| child.wait());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// `mount -o remount,ro,memory=1GiB MNT`: changes the kernel's flags and the memory limit. Policy and
/// configuration stay: mount(8) repeats the options of fstab here.
fn remount(mnt: &Path, options: &Options) -> Result<ExitCode> {
    let name = mnt.display();
    let fail = |err: std::io::Error| match err.raw_os_error() {
        Some(libc::EBUSY) => {
            Failure::new(&name, "programs have files open for writing", "close these files, then repeat")
        }
        _ => Failure::new(&name, reason(err), "remount as root; only mounts of terrace can be remounted"),
    };
    let path = mountpoint::absolute(mnt).map_err(fail)?;
    if mounts::at(&path).is_none_or(|entry| entry.fstype != mounts::FSTYPE) {
        return Err(Failure::new(name, "terrace serves nothing here", "mount it first, without `remount`"));
    }
    let dir = std::fs::File::open(&path).map_err(fail)?;
    // The remount sets read-only; mount(8) repeats the other flags, and other callers may omit them.
    let kept = mounts::of_mount(&dir).difference(MountFlags::RDONLY);
    drop(dir);
    mounts::remount(&path, options.flags_over(kept)).map_err(fail)?;
    match &options.memory {
        Some(size) => commands::resize(&path, size.clone()),
        None => Ok(ExitCode::SUCCESS),
    }
}
