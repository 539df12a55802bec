//! Targets in a store: calls to the crate `terrace-remote`, if it is built in.

use std::io;
use std::path::Path;

use terrace_tier::DeviceConfig;
use terrace_tier::target::{Target, TargetError, TargetRequest};
use terrace_tier::{Found, Scanned, Superblock};

use rustix::process::Pid;

#[cfg(feature = "remote")]
mod built {
    use super::*;
    use terrace_tier::Access;
    use terrace_tier::target::Fault;

    /// Opens a target for the process `holder` and its children. A descriptor represents it, as for other
    /// targets.
    pub(crate) fn open(request: &TargetRequest, holder: Pid) -> Result<Target, TargetError> {
        let handed_on = terrace_remote::open(request, holder.as_raw_pid())?.handed_on();
        handed_on.map_err(|err| TargetError::new(&request.path, Fault::Io(err)))
    }

    /// Reads the superblock without using the target. Also returns whether it is in use, and the process if
    /// it is on this machine.
    pub(crate) fn look(path: &Path) -> Result<(Found, Option<Option<i32>>), TargetError> {
        let look = terrace_remote::look(path)?;
        let holder = look.holder.map(|holder| holder.is_here().then_some(holder.pid));
        Ok((look.found, holder))
    }

    pub(crate) fn count(path: &Path) -> Result<Scanned, TargetError> {
        terrace_remote::count(path)
    }

    /// Empties the target; returns its superblock.
    pub(crate) fn empty(path: &Path) -> Result<Superblock, TargetError> {
        terrace_remote::empty(path)
    }

    /// Erases an open target that is no longer used.
    pub(crate) fn give_up(target: &Target) -> io::Result<()> {
        use std::os::fd::AsFd;
        terrace_remote::Target::taken_over(target.fd.as_fd())?.give_up()
    }

    /// Opens the target's medium for the engine, in the engine's process.
    pub(crate) fn open_medium(device: &mut DeviceConfig, target: &Target) -> io::Result<()> {
        use std::os::fd::AsFd;
        let target = terrace_remote::Target::taken_over(target.fd.as_fd())?;
        device.read_ns = device.read_ns.or(Some(target.read.as_nanos() as u64));
        device.access = Access::Medium(target.medium()?);
        Ok(())
    }
}

#[cfg(not(feature = "remote"))]
mod built {
    use super::*;
    use terrace_tier::target::Fault;

    fn missing(path: &Path) -> TargetError {
        let line =
            "this terrace was built without tiers in stores; build it with `make remote`, or name a file";
        TargetError::new(path, Fault::Other(line.to_owned()))
    }

    /// Fails: the feature is not built in.
    pub(crate) fn open(request: &TargetRequest, _: Pid) -> Result<Target, TargetError> {
        Err(missing(&request.path))
    }

    pub(crate) fn look(path: &Path) -> Result<(Found, Option<Option<i32>>), TargetError> {
        Err(missing(path))
    }

    pub(crate) fn count(path: &Path) -> Result<Scanned, TargetError> {
        Err(missing(path))
    }

    pub(crate) fn empty(path: &Path) -> Result<Superblock, TargetError> {
        Err(missing(path))
    }

    pub(crate) fn give_up(_: &Target) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn open_medium(_: &mut DeviceConfig, _: &Target) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub(crate) use built::{count, empty, give_up, look, open, open_medium};
