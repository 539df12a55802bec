//! Targets in a store, of which the crate `terrace-remote` knows more, if it is built in.

use std::io;
use std::path::Path;

use terrace_engine::DeviceConfig;
use terrace_engine::device::target::{Target, TargetError, TargetRequest};
use terrace_engine::device::{Found, Scanned, Superblock};

use rustix::process::Pid;

#[cfg(feature = "remote")]
mod built {
    use super::*;
    use terrace_engine::Access;
    use terrace_engine::device::target::Fault;

    /// Opens a target for the process `holder` and those that it starts. What stands for it is a descriptor, as of others.
    pub fn open(request: &TargetRequest, holder: Pid) -> Result<Target, TargetError> {
        let handed_on = terrace_remote::open(request, holder.as_raw_pid())?.handed_on();
        handed_on.map_err(|err| TargetError::new(&request.path, Fault::Io(err)))
    }

    /// What is there, without using it; whether somebody does, and his process, if it is one of this machine.
    pub fn look(path: &Path) -> Result<(Found, Option<Option<i32>>), TargetError> {
        let look = terrace_remote::look(path)?;
        let holder = look.holder.map(|holder| holder.is_here().then_some(holder.pid));
        Ok((look.found, holder))
    }

    /// Counts its pages.
    pub fn count(path: &Path) -> Result<Scanned, TargetError> {
        terrace_remote::count(path)
    }

    /// Empties it. Returns what it was.
    pub fn empty(path: &Path) -> Result<Superblock, TargetError> {
        terrace_remote::empty(path)
    }

    /// Gives up what is in a target that is open, and used by nobody any more.
    pub fn give_up(target: &Target) -> io::Result<()> {
        use std::os::fd::AsFd;
        terrace_remote::Target::taken_over(target.fd.as_fd())?.give_up()
    }

    /// Opens what the engine reads and writes a target by, in the process of the engine.
    pub fn open_medium(device: &mut DeviceConfig, target: &Target) -> io::Result<()> {
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
    use terrace_engine::device::target::Fault;

    fn missing(path: &Path) -> TargetError {
        let line =
            "this terrace was built without targets in stores; build it with `make remote`, or name a file";
        TargetError::new(path, Fault::Other(line.to_owned()))
    }

    /// There is none.
    pub fn open(request: &TargetRequest, _: Pid) -> Result<Target, TargetError> {
        Err(missing(&request.path))
    }

    /// Likewise.
    pub fn look(path: &Path) -> Result<(Found, Option<Option<i32>>), TargetError> {
        Err(missing(path))
    }

    /// Likewise.
    pub fn count(path: &Path) -> Result<Scanned, TargetError> {
        Err(missing(path))
    }

    /// Likewise.
    pub fn empty(path: &Path) -> Result<Superblock, TargetError> {
        Err(missing(path))
    }

    /// Likewise.
    pub fn give_up(_: &Target) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Likewise.
    pub fn open_medium(_: &mut DeviceConfig, _: &Target) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub use built::{count, empty, give_up, look, open, open_medium};
