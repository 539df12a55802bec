//! `terrace mount`, and the same as mount(8) calls it.

mod options;

use std::process::ExitCode;

use rustix::mount::MountFlags;

use crate::cli;
use crate::config::Config;
use crate::error::{Failure, Result, reason};
use crate::instance::{self, Kind};
use crate::keeper::{self, Task};
use crate::mounts;
use crate::place::{self, Place};
use crate::report;
use crate::sys::{self, Side};

pub use options::from_helper_arguments;

/// Mounts, and returns when the mount is served; in the foreground, when it is over.
pub fn mount(args: cli::Mount) -> Result<ExitCode> {
    let mut tuning = args.tuning;
    let options = options::parse(args.options.as_deref().unwrap_or_default())?;
    options.tune(&mut tuning);
    if options.remount {
        return remount(&args.mnt, options.flags);
    }
    let config = Config::load(&tuning)?;
    instance::sweep();
    let place = Place::for_mount(&args.src, &args.mnt)?;
    let task = Task { place, config, kind: Kind::Mount, flags: options.flags, starter: None };
    match args.foreground {
        true => keeper::keep(task).map(|()| ExitCode::SUCCESS),
        false => in_background(task),
    }
}

/// The keeper becomes a process of its own; this one waits for its word.
fn in_background(mut task: Task) -> Result<ExitCode> {
    let fail = |err: std::io::Error| Failure::new("keeper", reason(err), "try again with --foreground");
    let (mut line, keepers) = report::pair().map_err(fail)?;
    match sys::fork().map_err(fail)? {
        Side::Child => {
            drop(line);
            task.starter = Some(keepers);
            sys::exit_now(i32::from(keeper::keep(task).is_err()) * 2)
        }
        Side::Parent(_) => {
            drop((keepers, task));
            line.wait_ready().map(|()| ExitCode::SUCCESS)
        }
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
