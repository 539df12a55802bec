//! One server of keys: it opens the store over the supervisor's memory, answers clients and commands, and
//! closes the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;
use terrace_kv::keyspace::system_clock;
use terrace_kv::store::StoreBlobs;
use terrace_kv::{Listener, Running, Server};
use terrace_store::Store;

use super::answers::Answers;
use super::setup::ServerSetup;
use crate::control;
use crate::daemon::{abort_on_panic, metrics};
use crate::engine::open_media;
use crate::error::{Failure, Result, reason};
use crate::handover::channel::Channel;
use crate::handover::{EXIT_LOST, EXIT_REFUSED};
use crate::sys;

/// Decoded collections may use this fraction of the memory: a quarter.
const DECODED_SHARE: u64 = 4;
/// Interval of the check whether a client has requested the end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Body of the process.
pub(super) fn main(setup: ServerSetup, mut to_supervisor: Channel) -> ! {
    let _ = rustix::thread::set_name(c"terrace-kv");
    let supervisor = rustix::process::getppid();
    abort_on_panic();
    let code = match live(&setup, supervisor, &mut to_supervisor) {
        Ok(()) => 0,
        Err((failure, code)) => {
            to_supervisor.say(&format!("failed {failure}"));
            code
        }
    };
    if rustix::process::getppid() != supervisor {
        // Cleans up in place of a dead supervisor.
        setup.unix.as_ref().map(std::fs::remove_file);
        setup.instance.remove();
    }
    sys::exit_now(code)
}

fn live(
    setup: &ServerSetup,
    supervisor: Option<Pid>,
    to_supervisor: &mut Channel,
) -> std::result::Result<(), (Failure, i32)> {
    let refused = |failure| (failure, EXIT_REFUSED);
    terrace_fs::set_up_heap();
    let signals = sys::signal_fd(&[libc::SIGTERM]).map_err(|err| refused(cannot("signals", err)))?;
    let mut options = setup.store.clone();
    open_media(&mut options.engine.devices, &setup.tier.held)
        .map_err(|err| refused(cannot("a tier in a store", err)))?;
    let store = Store::open_over(&setup.dir, &options, &setup.segment)
        .map_err(|err| refused(Failure::from_line(&err.to_string())))?;
    let running = start(setup, &store, supervisor).map_err(refused)?;
    to_supervisor.say("ready");
    wait_for_end(&signals, running.server());
    running.stop();
    store.close().map_err(|err| (Failure::from_line(&err.to_string()), EXIT_LOST))
}

fn start(setup: &ServerSetup, store: &Store, supervisor: Option<Pid>) -> Result<Running> {
    let blobs = StoreBlobs::new(store.clone()).map_err(|err| Failure::from_line(&err.to_string()))?;
    let decoded_max = (setup.store.memory_bytes / DECODED_SHARE) as usize;
    let server = Arc::new(Server::new(Arc::new(blobs), setup.kv.clone(), decoded_max, system_clock()));
    let counted = Arc::downgrade(&server);
    store.count_memory(move || counted.upgrade().map_or(0, |server| server.memory_bytes() as u64));
    let listeners = setup.listeners.iter().map(Listener::try_clone).collect::<std::io::Result<Vec<_>>>();
    let listeners = listeners.map_err(|err| cannot("sockets", err))?;
    let control = setup.control.try_clone().map_err(|err| cannot("control socket", err))?;
    let answers = Arc::new(Answers::new(store.clone(), server.clone(), supervisor, setup));
    let commands = Arc::new(control::Server::default());
    metrics::start(setup.metrics.as_ref(), &answers, &setup.instance)
        .map_err(|err| cannot("threads", err))?;
    crate::daemon::thread("control", move || commands.serve(&control, answers))
        .map_err(|err| cannot("threads", err))?;
    terrace_kv::start(server, listeners).map_err(|err| cannot("threads", err))
}

/// Waits for SIGTERM, or for a stop request of a client or `terrace`.
fn wait_for_end(signals: &std::os::fd::OwnedFd, server: &Server) {
    let soon = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
    while !server.is_stopping.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(signals, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&soon));
        if sys::next_signal(signals).is_some() {
            return;
        }
    }
}

fn cannot(what: &str, err: std::io::Error) -> Failure {
    Failure::new(what, reason(err), "raise this limit, or serve with less memory and fewer threads")
}
