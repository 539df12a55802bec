//! The interface of supervisor and terraced: the resources that terraced inherits, and its exit statuses.

pub(crate) mod channel;
mod shortage;

use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use rustix::process::Pid;
use terrace_api::schedule::Schedule;
use terrace_opens::guard::Listener;

use crate::config::Config;
use crate::engine::Memory;
use crate::instance::{Instance, Kind};
use crate::mountpoint::Place;
use crate::tier::Tier;

use channel::Channel;
pub(crate) use shortage::{Kills, Shortage};

/// Exit status of a terraced that cannot start and has sent the reason.
pub(crate) const EXIT_REFUSED: i32 = 3;
/// Exit status of a terraced that ended in order after its source refused data; it has sent a message.
pub(crate) const EXIT_LOST: i32 = 4;

/// Resources that terraced inherits from its supervisor at each start.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Source and mount point.
    pub place: Place,
    pub config: Config,
    /// For all programs or for one command.
    pub kind: Kind,
    /// Pages that programs will read.
    pub schedule: Option<Schedule>,
    pub memory: Memory,
    /// The tier on a device.
    pub tier: Tier,
    /// /dev/fuse; none with leases, which need no mount.
    pub fuse: Option<OwnedFd>,
    /// The fanotify group, where programs announce their writes.
    pub opens: Option<Arc<Listener>>,
    /// The mount's device, major and minor; none if the mount table does not show it.
    pub mount_dev: Option<(u32, u32)>,
    pub control: UnixListener,
    /// Socket for clients of the preload path.
    pub preload: OwnedFd,
    /// Socket for scrapes of metrics.
    pub metrics: Option<TcpListener>,
    /// Channel to the supervisor: `ready`, or `failed LINE`.
    pub to_supervisor: Channel,
    /// Pipe from the supervisor: a byte permits terraced to open and close descriptors, another one answers
    /// `ready`.
    pub go: OwnedFd,
    pub instance: Instance,
    /// Descriptors of the supervisor, which terraced leaves open.
    pub kept: Vec<RawFd>,
    pub supervisor: Pid,
    /// oom_score_adj of the command, which terraced keeps; see `supervisor/setup.rs`.
    pub oom_score_adj: Option<i32>,
    /// Kills for lack of memory.
    pub shortage: Shortage,
}
