//! Direct opens: clients of the preload path open small files for reading in the source itself.
//!
//! They reach it through this process, which holds the source's root in the mount namespace of the run from before it is covered:
//! /proc/PID/fd/N, for those who may look into this process. It ends with the run, so nothing is left behind.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use terrace_api::control::Passthrough;

use crate::commands;
use crate::config::Config;
use crate::instance::Instance;

/// The root of the source, below the mount.
#[derive(Debug)]
pub struct Source {
    root: OwnedFd,
    dir: PathBuf,
}

impl Source {
    /// Opens it, if clients are to open files in it. In the private namespace, before terrace covers it.
    pub fn open(config: &mut Config, dir: &Path) -> Option<Source> {
        if !config.wants_passthrough() || !rustix::process::geteuid().is_root() {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty()).ok()?;
        config.fuse.direct_opens = true;
        Some(Source { root, dir: dir.to_owned() })
    }

    /// The root as clients find it, and which directory that is; none where the kernel writes no files itself: then the source is not the truth.
    fn told(&self, instance: &Instance) -> Option<(String, String)> {
        let stat = rustix::fs::fstat(&self.root).ok()?;
        if !commands::ask(instance, Passthrough {}).is_ok_and(|reply| reply.active) {
            return None;
        }
        let root = format!("/proc/{}/fd/{}", std::process::id(), self.root.as_raw_fd());
        Some((root, format!("{}:{}", stat.st_dev, stat.st_ino)))
    }
}

/// The variables that tell clients of it. Also that there is none: the run may be one within another.
pub fn environment(source: Option<&Source>, instance: &Instance) -> Vec<(&'static str, OsString)> {
    let at = source.map(|source| source.dir.clone()).unwrap_or_default();
    let (root, id) = source.and_then(|source| source.told(instance)).unwrap_or_default();
    vec![("TERRACE_SOURCE", root.into()), ("TERRACE_SOURCE_ID", id.into()), ("TERRACE_AT", at.into())]
}
