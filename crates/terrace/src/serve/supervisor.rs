//! The supervisor of servers of keys: it starts a server, and the next one after a kill. It gives up when
//! servers crash too often.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::server;
use super::setup::ServerSetup;
use crate::error::{Failure, Result, reason};
use crate::handover::channel::{self, Channel, Event, Poll};
use crate::handover::{EXIT_LOST, EXIT_REFUSED};
use crate::instance::{self, Info, Kind, Lock, SCHEMA};
use crate::supervisor::{CRASHES_MAX, CRASHES_WITHIN, Crashes, End, Next};
use crate::sys::{self, Side, SignalNumber};

/// Signals that the supervisor takes from its descriptor; servers inherit them blocked.
const SIGNALS: &[SignalNumber] = &[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

enum Exit {
    Done,
    Refused,
    Lost,
    Crashed { how: String, killed: bool },
}

struct Supervisor {
    setup: ServerSetup,
    signals: OwnedFd,
    from_server: Channel,
    to_supervisor: Channel,
    /// A stop is requested.
    stopping: bool,
    /// At least one server has served.
    served: bool,
    /// Message of a server that cannot start, or could not write everything.
    refusal: Option<Failure>,
    restarts: u32,
    died: Option<String>,
    lock: Lock,
}

/// Runs servers until the end.
pub(super) fn supervise(setup: ServerSetup, lock: Lock) -> Result<()> {
    sys::block(SIGNALS);
    let no_descriptors = |err| Failure::new("supervisor", reason(err), "raise the limit of open files");
    let signals = sys::signal_fd(SIGNALS).map_err(no_descriptors)?;
    let (from_server, to_supervisor) = channel::pair().map_err(no_descriptors)?;
    let (refusal, died) = (None, None);
    Supervisor {
        setup,
        signals,
        from_server,
        to_supervisor,
        stopping: false,
        served: false,
        refusal,
        restarts: 0,
        died,
        lock,
    }
    .run()
}

impl Supervisor {
    fn run(mut self) -> Result<()> {
        let mut crashes = Crashes::default();
        let ended = loop {
            let exit = match sys::fork() {
                Ok(Side::Parent(child)) => self.watch(child),
                Ok(Side::Child) => server::main(self.setup, self.to_supervisor),
                Err(err) => {
                    Exit::Crashed { how: format!("could not be started: {}", reason(err)), killed: true }
                }
            };
            let (how, killed) = match exit {
                Exit::Done => break Ok(()),
                // At the first start this is final. A restarted server may succeed later.
                Exit::Refused if !self.served => break Err(self.said("it could not start")),
                Exit::Refused => {
                    (format!("could not start again: {}", self.said("it sent no message")), false)
                }
                Exit::Lost => break Err(self.said("it could not write everything")),
                Exit::Crashed { how, killed } => (how, killed),
            };
            tracing::error!("the server {how}");
            // Also during a stop: the next server writes the data left in memory, and ends.
            if !self.served {
                let why = format!("it {how}");
                break Err(Failure::new("server", why, "see its messages above, and start it again"));
            }
            let end = if killed { End::Killed } else { End::Crashed };
            match crashes.note(end, Instant::now()) {
                Next::Start(pause) => std::thread::sleep(pause),
                Next::GiveUp => {
                    let (dir, within) = (self.setup.dir.display(), CRASHES_WITHIN.as_secs());
                    let why = format!("the server {how}, {CRASHES_MAX} times in {within} s");
                    let cure = "see its messages above; synced data are in the store";
                    break Err(Failure::new(dir, why, cure));
                }
            }
            self.restarts += 1;
            self.died = Some(how);
        };
        self.clean_up();
        ended
    }

    fn clean_up(self) {
        if let Some(path) = &self.setup.unix {
            let _ = std::fs::remove_file(path);
        }
        self.setup.instance.remove();
        drop(self.lock);
    }

    fn said(&mut self, silent: &str) -> Failure {
        let unsaid = || Failure::new("server", silent, "see its messages above");
        self.refusal.take().unwrap_or_else(unsaid)
    }

    /// Watches one server until its end.
    fn watch(&mut self, child: Pid) -> Exit {
        self.refusal = None;
        if self.stopping {
            sys::send(child, libc::SIGTERM);
        }
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.from_server.as_fd(), PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            let _ = rustix::event::poll(&mut fds, None);
            let (speaks, signals) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if speaks {
                self.poll(child);
            }
            if signals && let Some(exit) = self.take_signals(child) {
                return exit;
            }
        }
    }

    fn poll(&mut self, child: Pid) {
        while let Poll::Line(line) = self.from_server.poll() {
            match channel::parse(&line) {
                Some(Event::Ready) => self.note_ready(child),
                Some(Event::Failed(line)) => self.refusal = Some(Failure::from_line(&line)),
                _ => {}
            }
            if !self.from_server.has_line() {
                return;
            }
        }
    }

    fn note_ready(&mut self, child: Pid) {
        let dir = self.setup.dir.display();
        match self.served {
            false => terrace_output::error_line!(
                "terrace: keys of {dir} are served at {}",
                self.setup.places.join(" and ")
            ),
            true => tracing::warn!("a new server has taken over the keys of {dir}"),
        }
        self.served = true;
        let info = Info {
            schema: SCHEMA.to_owned(),
            pid: rustix::process::getpid().as_raw_pid(),
            terraced: child.as_raw_pid(),
            pid_namespace: instance::pid_namespace(),
            restarts: self.restarts,
            last_death: self.died.clone(),
            kind: Kind::Kv,
            src: self.setup.dir.clone(),
            mnt: self.setup.dir.clone(),
            device: None,
            claim: None,
            memory_bytes: self.setup.store.memory_bytes,
            policy: self.setup.config.policy.clone(),
            tiers: self.setup.config.tier.device.iter().map(|device| device.path.clone()).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            metrics: self.setup.metrics.as_ref().and_then(|held| Some(held.local_addr().ok()?.to_string())),
        };
        if let Err(err) = self.setup.instance.write_info(&info) {
            let record = self.setup.instance.path("info.json");
            let record = record.display();
            match self.restarts {
                0 => tracing::warn!(
                    "{record}: the record cannot be written ({err}): `terrace stat` does not find this server; free space there, and start it \
                     again"
                ),
                _ => tracing::warn!(
                    "{record}: the record still names the server before the restart ({err}): `terrace stat` shows that process; free space \
                     there"
                ),
            }
        }
    }

    /// Handles pending signals; returns the server's exit, if it has ended.
    fn take_signals(&mut self, child: Pid) -> Option<Exit> {
        while let Some(signal) = sys::next_signal(&self.signals) {
            if signal.number != libc::SIGCHLD {
                self.stopping = true;
                sys::send(child, libc::SIGTERM);
            }
        }
        match rustix::process::waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                // The last message may have arrived after the first poll.
                if rustix::io::ioctl_fionread(self.from_server.as_fd()).is_ok_and(|bytes| bytes > 0) {
                    self.poll(child);
                }
                Some(exit_of(status))
            }
            _ => None,
        }
    }
}

fn exit_of(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => Exit::Done,
        (Some(EXIT_REFUSED), _) => Exit::Refused,
        (Some(EXIT_LOST), _) => Exit::Lost,
        (_, Some(signal)) => {
            Exit::Crashed { how: format!("was killed by signal {signal}"), killed: signal == libc::SIGKILL }
        }
        (code, _) => {
            Exit::Crashed { how: format!("ended with status {}", code.unwrap_or(-1)), killed: false }
        }
    }
}
