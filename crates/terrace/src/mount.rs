//! `terrace mount`, and the same as mount(8) calls it.

mod helper;
mod options;

use std::path::Path;
use std::process::ExitCode;

use crate::cgroup;
use crate::cli;
use crate::commands;
use crate::config::Config;
use crate::error::{Failure, Result, reason};
use crate::instance::Kind;
use crate::mountpoint::{self, Place};
use crate::mounts;
use crate::supervisor::{self, By, Task};
use crate::sweep::sweep;

use options::Options;

pub use helper::from_helper_arguments;

/// Mounts, and returns when the mount is served; in the foreground, when it is over.
pub fn mount(args: cli::Mount) -> Result<ExitCode> {
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
    let place = Place::for_mount(&args.src, &args.mnt)?;
    config.look_up_device(&place.src)?;
    // In the foreground the log says it, on the same terminal.
    if !args.foreground {
        cgroup::tell_if_too_small(config.memory.fixed());
    }
    let task = Task {
        place,
        config,
        kind: Kind::Mount,
        by: By::Mount,
        flags: options.flags,
        schedule: None,
        starter: None,
    };
    match args.foreground {
        true => supervisor::keep(task).map(|()| ExitCode::SUCCESS),
        false => supervisor::start(task).map(|_| ExitCode::SUCCESS),
    }
}

/// `mount -o remount,ro,memory=1GiB MNT`: the kernel's flags, and the memory limit. Policy and configuration
/// do not change: mount(8) repeats the options of fstab here.
fn remount(mnt: &Path, options: &Options) -> Result<ExitCode> {
    let name = mnt.display();
    let fail =
        |err: std::io::Error| Failure::new(&name, reason(err), "remount as root, what terrace has mounted");
    let path = mountpoint::absolute(mnt).map_err(fail)?;
    if mounts::at(&path).is_none_or(|entry| entry.fstype != mounts::FSTYPE) {
        return Err(Failure::new(name, "terrace serves nothing here", "mount it first, without `remount`"));
    }
    mounts::remount(&path, options.flags).map_err(fail)?;
    match &options.memory {
        Some(size) => commands::resize(&path, size.clone()),
        None => Ok(ExitCode::SUCCESS),
    }
}
