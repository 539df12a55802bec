//! `terrace mount`, and the same as mount(8) calls it.

mod options;

use std::process::ExitCode;

use rustix::mount::MountFlags;

use crate::cgroup;
use crate::cli;
use crate::config::Config;
use crate::error::{Failure, Result, reason};
use crate::instance::{self, Kind};
use crate::keeper::{self, Task};
use crate::mounts;
use crate::place::{self, Place};

pub use options::{from_helper_arguments, names_of};

/// Mounts, and returns when the mount is served; in the foreground, when it is over.
pub fn mount(args: cli::Mount) -> Result<ExitCode> {
    let mut tuning = args.tuning;
    let options = options::parse(args.options.as_deref().unwrap_or_default())?;
    options.tune(&mut tuning);
    if options.remount {
        return remount(&args.mnt, options.flags);
    }
    let mut config = Config::load(&tuning)?;
    instance::sweep();
    let place = Place::for_mount(&args.src, &args.mnt)?;
    config.look_up_device(&place.src)?;
    // In the foreground the log says it, which goes to the same place.
    if !args.foreground {
        cgroup::tell_if_too_small(config.memory);
    }
    let task = Task { place, config, kind: Kind::Mount, flags: options.flags, starter: None };
    match args.foreground {
        true => keeper::keep(task).map(|()| ExitCode::SUCCESS),
        false => keeper::start(task).map(|_| ExitCode::SUCCESS),
    }
}

/// `mount -o remount,ro MNT`.
fn remount(mnt: &std::path::Path, flags: MountFlags) -> Result<ExitCode> {
    let name = mnt.display();
    let fail =
        |err: std::io::Error| Failure::new(&name, reason(err), "remount as root, what terrace has mounted");
    let mnt = place::absolute(mnt).map_err(fail)?;
    mounts::remount(&mnt, flags).map_err(fail)?;
    Ok(ExitCode::SUCCESS)
}
