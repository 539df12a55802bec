//! The interface of supervisor and terraced: resources that terraced inherits, and the exit statuses by which it tells how it ended.

pub mod channel;
mod shortage;

use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use rustix::process::Pid;
use terrace_api::schedule::Schedule;

use crate::config::Config;
use crate::engine::Memory;
use crate::instance::{Instance, Kind};
use crate::mountpoint::Place;
use crate::tier::Tier;

use channel::Channel;
pub use shortage::{Kills, Shortage};

/// Exit status of a terraced that cannot start, after it said why.
pub const EXIT_REFUSED: i32 = 3;
/// Exit status of a terraced that ended in order, but with a source that did not take everything, after it said so.
pub const EXIT_LOST: i32 = 4;

/// Resources that terraced inherits from its supervisor, at its first start and at every other.
#[derive(Debug)]
pub struct Shared {
    /// Source and mount point.
    pub place: Place,
    /// All settings.
    pub config: Config,
    /// For everybody or for one command.
    pub kind: Kind,
    /// What programs will read.
    pub schedule: Option<Schedule>,
    /// The memory files.
    pub memory: Memory,
    /// The tier on a device.
    pub tier: Tier,
    /// /dev/fuse; none where there is no mount, and leases tell who writes.
    pub fuse: Option<OwnedFd>,
    /// The mount's device, major and minor, if the kernel's table had it.
    pub mount_dev: Option<(u32, u32)>,
    /// Where commands come in.
    pub control: UnixListener,
    /// Where clients of the preload path come in.
    pub preload: OwnedFd,
    /// Where metrics are asked for.
    pub metrics: Option<TcpListener>,
    /// To the supervisor: `ready`, or `failed LINE`.
    pub to_supervisor: Channel,
    /// From the supervisor: a byte when terraced may begin to open and close descriptors.
    pub go: OwnedFd,
    /// Its directory.
    pub instance: Instance,
    /// Descriptors of the supervisor, which terraced leaves open.
    pub kept: Vec<RawFd>,
    /// The supervisor.
    pub supervisor: Pid,
    /// As the command was started with, which terraced keeps; see `supervisor/setup.rs`.
    pub oom_score_adj: Option<i32>,
    /// Deaths for want of memory.
    pub shortage: Shortage,
}
