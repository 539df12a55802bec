//! The supervisor's event loop: starts terraced, handles messages and signals, restarts terraced.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitOptions, WaitStatus, waitid};
use terrace_opens::holder_word;

use super::crashes::{CRASHES_MAX, CRASHES_WITHIN, Crashes, End, Next};
use super::notify;
use super::setup::SupervisorEnds;
use super::stuck::{self, Rest, Thread};
use crate::daemon;
use crate::data_loss;
use crate::error::{Failure, SEE_ALL_MESSAGES};
use crate::handover::channel::{self, Channel, Event, Poll};
use crate::handover::{EXIT_LOST, EXIT_REFUSED, Kills, Shared};
use crate::instance::{self, Info, Kind, SCHEMA};
use crate::mounts::utab;
use crate::sys::{self, Side, SignalNumber};
use crate::tier::record;

/// Signals that the supervisor reads from its descriptor; terraced inherits them blocked.
pub(super) const SIGNALS: &[SignalNumber] =
    &[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Time for the other threads of a killed terraced to end before they are inspected.
const FOLLOW_WITHIN: Duration = Duration::from_millis(50);

/// Time after which an error is logged about a dying terraced that cannot be inspected.
const UNSEEN_AFTER: Duration = Duration::from_secs(5);

/// Interval of the inspection.
const FOLLOW_EVERY: Duration = Duration::from_millis(20);

/// Outcome of an instance.
#[derive(Debug)]
pub(super) enum Ended {
    /// Unmounted, or stopped in order.
    Done,
    /// terraced could not start.
    Refused(Failure),
    /// terraced crashed too often.
    GaveUp(Failure),
    /// Unmounted, but the source refused data.
    Lost(Failure),
}

/// Channel to the starting command, and the message for it after the clean-up.
type LastWords = Option<(Channel, String)>;

/// Outcome of one terraced.
enum Exit {
    Done,
    Refused,
    Lost,
    Crashed { how: String, killed: bool },
}

#[derive(Clone, Copy)]
enum Source {
    Terraced,
    Thread,
    Starter,
    Command,
    Signals,
}

/// State of the loop.
pub(super) struct Watch {
    shared: Shared,
    signals: OwnedFd,
    from_terraced: Channel,
    /// Pipe to terraced: the `go` byte, then the answer to `ready`.
    go: OwnedFd,
    aborter: Option<Channel>,
    thread: Thread,
    /// Time of the working thread's death: the other threads should follow.
    thread_dead: Option<Instant>,
    /// Earlier terraced processes that have not ended yet.
    late: Vec<Pid>,
    /// Channel to the starting command.
    starter: Option<Channel>,
    /// Started by a command that does not wait for the end, or by `run`: ignore the terminal's signals.
    background: bool,
    /// pidfd of the wrapped command. Until it is known, /dev/null reserves the descriptor number before the
    /// first clone.
    command: OwnedFd,
    /// The starting command is dead, and the wrapped command is waited for.
    orphaned: bool,
    /// An orderly stop is requested.
    stopping: bool,
    /// terraced has written everything, and only closes its descriptors.
    done: bool,
    /// The present terraced serves.
    ready: bool,
    /// At least one terraced has served.
    served: bool,
    /// `ready` was sent to the starting command.
    starter_told: bool,
    /// Message of a terraced that cannot start, or could not write everything.
    refusal: Option<Failure>,
    crashes: Crashes,
    restarts: u32,
    /// Cause of the last death.
    died: Option<String>,
    /// The error about a terraced that cannot be inspected is logged.
    unseen_told: bool,
}

impl Watch {
    pub(super) fn new(shared: Shared, ends: SupervisorEnds, starter: Option<Channel>) -> Watch {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("/dev/null opens"));
        let mut watch = Watch {
            shared,
            signals: sys::signal_fd(SIGNALS).expect("a signalfd"),
            from_terraced: ends.from_terraced,
            go: ends.go,
            aborter: ends.aborter,
            thread: Thread::none().expect("/dev/null opens"),
            thread_dead: None,
            late: Vec::new(),
            background: starter.is_some(),
            starter,
            command: null(),
            orphaned: false,
            stopping: false,
            done: false,
            ready: false,
            served: false,
            starter_told: false,
            refusal: None,
            crashes: Crashes::default(),
            restarts: 0,
            died: None,
            unseen_told: false,
        };
        watch.shared.kept =
            sys::open_descriptors().expect("/proc is mounted, and the supervisor has just begun");
        if watch.shared.kind == Kind::Mount
            && let Some(starter) = &watch.starter
        {
            // It is closed as soon as terraced serves, and terraced may then reuse the number.
            let starter = starter.as_fd().as_raw_fd();
            watch.shared.kept.retain(|fd| *fd != starter);
        }
        watch
    }

    /// Runs until the end of the instance.
    pub(super) fn run(mut self) -> (Shared, Ended, LastWords) {
        loop {
            self.take_back_go();
            let exit = match sys::clone_sharing_files() {
                Ok(Side::Parent(child)) => self.watch(child),
                Ok(Side::Child) => daemon::main(self.shared, self.restarts > 0),
                // Lack of memory, perhaps only for a while: retry as after a kill.
                Err(err) => Exit::Crashed { how: format!("could not be started: {err}"), killed: true },
            };
            match exit {
                Exit::Done => return self.end(Ended::Done),
                // The closed descriptors are of no use to a successor.
                Exit::Crashed { how, .. } if self.done => {
                    tracing::warn!("terraced {how} after everything was written");
                    return self.end(Ended::Done);
                }
                Exit::Refused => {
                    let failure = self.said("it could not start");
                    return self.end(Ended::Refused(failure));
                }
                Exit::Lost => {
                    let failure = self.said("it could not write everything");
                    return self.end(Ended::Lost(failure));
                }
                Exit::Crashed { how, killed } => {
                    self.suspend_leases();
                    let how = self.explain(how, killed);
                    tracing::error!("terraced {how}");
                    if !self.served {
                        let why = format!("it {how} before it served");
                        let failure = Failure::new("terraced", why, SEE_ALL_MESSAGES);
                        return self.end(Ended::Refused(failure));
                    }
                    if self.shared.kind == Kind::Mount {
                        // The next terraced closes the starter's descriptor, which is not in `kept`.
                        self.tell_starter();
                    }
                    match self.crashes.note(self.end_of(killed), Instant::now()) {
                        Next::Start(pause) => self.pause(pause),
                        Next::GiveUp => {
                            let failure = self.one_too_many(&how);
                            return self.end(Ended::GaveUp(failure));
                        }
                    }
                    self.restarts += 1;
                }
            }
        }
    }

    /// Adds the cause to the description of an end, if it was lack of memory.
    fn explain(&mut self, how: String, killed: bool) -> String {
        let cause = self.shared.shortage.explain(killed, self.shared.config.memory);
        self.died = Some(cause.map_or(how.clone(), |cause| format!("{how} {cause}")));
        self.died.clone().unwrap_or(how)
    }

    fn end_of(&self, killed: bool) -> End {
        match killed {
            true if self.shared.shortage.is_now() || !self.ready => End::KilledInVain,
            true => End::Killed,
            false => End::Crashed,
        }
    }

    /// Pauses before the next terraced, after too many kills in a short time.
    fn pause(&self, pause: Duration) {
        if !pause.is_zero() {
            tracing::warn!("the next terraced starts in {:.1} s", pause.as_secs_f64());
            let until = Instant::now() + pause;
            while Instant::now() < until {
                self.answer_opens();
                std::thread::sleep(FOLLOW_EVERY.min(pause));
            }
        }
    }

    /// terraced's message about its end.
    fn said(&mut self, silent: &str) -> Failure {
        let unsaid = || Failure::new("terraced", silent, SEE_ALL_MESSAGES);
        self.refusal.take().unwrap_or_else(unsaid)
    }

    /// The outcome, and the message to the starting command.
    fn end(self, ended: Ended) -> (Shared, Ended, LastWords) {
        let words = match &ended {
            Ended::Done => "done".to_owned(),
            Ended::Refused(failure) | Ended::GaveUp(failure) | Ended::Lost(failure) => {
                tracing::error!("{failure}");
                format!("{} {failure}", if self.served { "gone" } else { "failed" })
            }
        };
        (self.shared, ended, self.starter.map(|starter| (starter, words)))
    }

    fn one_too_many(&self, how: &str) -> Failure {
        let within = CRASHES_WITHIN.as_secs();
        let lost = data_loss::told_by_supervisor(&self.shared.instance);
        let why = format!("terraced {how}, {CRASHES_MAX} times in {within} s: unmounted; {lost}");
        let cure = format!("{}, and mount again", self.shared.instance.see_log());
        Failure::new(self.shared.place.mnt.display(), why, cure)
    }

    /// Watches one terraced until its end.
    fn watch(&mut self, child: Pid) -> Exit {
        self.ready = false;
        self.refusal = None;
        self.thread_dead = None;
        self.thread.forget();
        if self.stopping {
            sys::send(child, libc::SIGTERM);
        }
        loop {
            if let Some(exit) = self.stuck(child) {
                return exit;
            }
            let is_away = self.suspend_if_stopped(child) || self.thread_dead.is_some();
            if is_away {
                self.answer_opens();
            }
            let told = self.wait(is_away);
            if self.thread_dead.is_none() && self.thread.is_ending() {
                self.thread_dead = Some(Instant::now());
                // The exit may take longer than the kernel waits for a lease.
                self.suspend_leases();
            }
            for source in told {
                match source {
                    Source::Thread => {}
                    Source::Terraced => self.read_terraced(child),
                    Source::Starter => self.read_starter(),
                    Source::Command => self.stop(child),
                    Source::Signals => {
                        if let Some(exit) = self.take_signals(child) {
                            return exit;
                        }
                    }
                }
            }
        }
    }

    /// Waits, and returns the readable sources. Signals come last, so that the last messages of an ended
    /// terraced are read first. The starter is read only while terraced serves: its message opens a
    /// descriptor (see the rule in `supervisor.rs`).
    fn wait(&self, is_away: bool) -> Vec<Source> {
        let mut sources = vec![(Source::Terraced, self.from_terraced.as_fd())];
        let dying = self.thread_dead.is_some();
        if let Some(end) = self.thread.end().filter(|_| !dying) {
            sources.push((Source::Thread, end));
        }
        if let Some(starter) = self.starter.as_ref().filter(|_| self.ready && !self.orphaned) {
            sources.push((Source::Starter, starter.as_fd()));
        }
        if self.orphaned && !self.stopping {
            sources.push((Source::Command, self.command.as_fd()));
        }
        sources.push((Source::Signals, self.signals.as_fd()));
        let mut fds: Vec<_> =
            sources.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        // After an interrupted wait there are no events; the next wait returns them.
        let soon = if dying || is_away { FOLLOW_EVERY } else { stuck::LOOK_EVERY };
        let soon = Timespec { tv_sec: 0, tv_nsec: soon.subsec_nanos().into() };
        let _ = rustix::event::poll(&mut fds, Some(&soon));
        let told = |fd: &PollFd<'_>| !fd.revents().is_empty();
        sources.iter().zip(&fds).filter(|(_, fd)| told(fd)).map(|((source, _), _)| *source).collect()
    }

    /// Removes a `go` byte that a quickly dead terraced has not read.
    fn take_back_go(&self) {
        while rustix::io::ioctl_fionread(&self.shared.go).is_ok_and(|bytes| bytes > 0) {
            let _ = rustix::io::read(&self.shared.go, &mut [0u8; 1]);
        }
    }

    /// Watches terraced's working thread, then sends `go`. By the rule in `supervisor.rs`, terraced keeps the
    /// watch's descriptor numbers open.
    fn watch_thread(&mut self, child: Pid, id: i32) {
        if let Some(id) = Pid::from_raw(id) {
            self.thread.watch(child, id);
        }
        if let Some(aborter) = &mut self.aborter {
            aborter.say(&format!("thread {} {id}", child.as_raw_pid()));
        }
        let _ = rustix::io::write(&self.go, b"g");
    }

    /// Detects a killed terraced that waits for its own answers.
    fn stuck(&mut self, child: Pid) -> Option<Exit> {
        let since = self.thread_dead?;
        if since.elapsed() < FOLLOW_WITHIN {
            return None;
        }
        match stuck::rest_of(child, self.shared.place.src_fd.as_fd()) {
            Rest::WaitsForItself => {}
            Rest::Ends => return None,
            Rest::Unknown(err) => {
                self.tell_unseen(&err, since.elapsed());
                return None;
            }
        }
        self.late.push(child);
        let signal = stuck::killed_by(child);
        let by = signal.map_or(String::new(), |signal| format!(" by signal {signal}"));
        let killed = signal.is_none_or(|signal| signal == libc::SIGKILL);
        Some(Exit::Crashed { how: format!("was killed{by}, and hangs"), killed })
    }

    /// Logs once that a terraced does not end and cannot be inspected: the next one cannot start beside it.
    fn tell_unseen(&mut self, err: &std::io::Error, since: Duration) {
        if since >= UNSEEN_AFTER && !std::mem::replace(&mut self.unseen_told, true) {
            tracing::error!(
                "terraced was killed, does not end, and cannot be inspected ({err}), so no other is started beside it; let the supervisor \
                 trace it (kernel.yama.ptrace_scope below 2, CAP_SYS_PTRACE in a container), or `umount --force` the mount"
            );
        }
    }

    /// Reads all pending messages.
    fn read_terraced(&mut self, child: Pid) {
        while let Poll::Line(line) = self.from_terraced.poll() {
            self.handle_event(child, &line);
            if !self.from_terraced.has_line() {
                return;
            }
        }
    }

    fn handle_event(&mut self, child: Pid, line: &str) {
        match channel::parse(line) {
            Some(Event::Ready) => {
                self.ready = true;
                self.write_info(child);
                let _ = rustix::io::write(&self.go, b"r");
                if !std::mem::replace(&mut self.served, true) {
                    self.note_mount();
                    self.tell_manager(notify::READY);
                }
            }
            Some(Event::Free) => self.tell_starter(),
            Some(Event::Thread(id)) => self.watch_thread(child, id),
            Some(Event::Failed(line) | Event::Gone(line)) => self.refusal = Some(Failure::from_line(&line)),
            Some(Event::Kills(group, machine)) => self.shared.shortage.note_others(Kills { group, machine }),
            Some(Event::Stopping) => self.stopping = true,
            Some(Event::Done) => self.done = true,
            Some(Event::Warning(_) | Event::ThreadOf(..)) | None => {}
        }
    }

    /// Reads from `run`: the process to wait for if `run` itself dies, or end of file at its death.
    fn read_starter(&mut self) {
        let Some(starter) = &mut self.starter else { return };
        match starter.poll() {
            Poll::Line(line) => {
                let pid = line.strip_prefix("pid ").and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
                let opened = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
                if let Some(opened) = opened {
                    let _ = rustix::io::dup3(&opened, &mut self.command, rustix::io::DupFlags::CLOEXEC);
                }
            }
            Poll::Nothing => {}
            // With an unknown command, /dev/null stands for it and is always readable: the stop is then
            // immediate.
            Poll::End => {
                self.orphaned = true;
                tracing::info!("`terrace run` has died; this instance stops when the command ends");
            }
        }
    }

    fn take_signals(&mut self, child: Pid) -> Option<Exit> {
        while let Some(signal) = sys::next_signal(&self.signals) {
            match signal.number {
                libc::SIGCHLD => {}
                // In the background, the terminal's signals are not for the supervisor.
                libc::SIGINT | libc::SIGQUIT | libc::SIGHUP if self.background => {}
                _ => self.stop(child),
            }
        }
        self.suspend_if_stopped(child);
        self.late.retain(|late| {
            !matches!(rustix::process::waitpid(Some(*late), WaitOptions::NOHANG), Ok(Some(_)))
        });
        match rustix::process::waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => Some(exit_of(status, self.refusal.is_some() && !self.served)),
            _ => None,
        }
    }

    /// A stopped (SIGSTOP) daemon gives no leases back, and the kernel breaks them after a time
    /// (/proc/sys/fs/lease-break-time). Opens of watched files would wait without a limit. So clients read the
    /// source until the daemon runs again and has checked the files. Returns whether the daemon is stopped.
    fn suspend_if_stopped(&self, child: Pid) -> bool {
        let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let is_stopped = matches!(waitid(WaitId::Pid(child), look), Ok(Some(_)));
        if is_stopped {
            self.suspend_leases();
        }
        is_stopped
    }

    /// Lets opens go on in place of a daemon that does not run. Leases are suspended.
    fn answer_opens(&self) {
        let Some(opens) = &self.shared.opens else { return };
        let pending = sys::open_descriptors().unwrap_or_default();
        if let Err(err) = opens.allow_all(pending, || self.suspend_leases()) {
            tracing::error!("fanotify: opens of files wait for terraced: {err}");
        }
    }

    /// Suspends the leases until a daemon has checked them.
    fn suspend_leases(&self) {
        if self.shared.fuse.is_none() {
            holder_word::suspend(self.shared.memory.leases());
        }
    }

    /// Sends `ready` to the starting command, which then returns. Only once terraced would outlive the
    /// supervisor.
    fn tell_starter(&mut self) {
        if !std::mem::replace(&mut self.starter_told, true)
            && let Some(starter) = &mut self.starter
        {
            starter.say("ready");
        }
        if self.shared.kind == Kind::Mount {
            self.starter = None;
        }
    }

    /// Adds the mount to utab. In the foreground, no starting command does this. The child is reaped together
    /// with late terraced processes.
    fn note_mount(&mut self) {
        if !self.background && self.shared.kind == Kind::Mount {
            let noted = utab::note(&self.shared.place.src, &self.shared.place.mnt);
            self.late.extend(noted.map(|child| Pid::from_child(&child)));
        }
    }

    /// Notifies the service manager, which waits only for a supervisor in the foreground.
    fn tell_manager(&self, state: &str) {
        if !self.background {
            notify::say(state);
        }
    }

    fn stop(&mut self, child: Pid) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.tell_manager(notify::STOPPING);
        }
        sys::send(child, libc::SIGTERM);
    }

    fn write_info(&self, terraced: Pid) {
        let Shared { place, config, kind, supervisor, instance, mount_dev, .. } = &self.shared;
        let info = Info {
            schema: SCHEMA.to_owned(),
            pid: supervisor.as_raw_pid(),
            terraced: terraced.as_raw_pid(),
            pid_namespace: instance::pid_namespace(),
            restarts: self.restarts,
            last_death: self.died.clone(),
            kind: *kind,
            src: place.src.clone(),
            mnt: place.mnt.clone(),
            device: *mount_dev,
            claim: place.claim.as_ref().map(|claim| claim.number),
            memory_bytes: config.memory.most().0,
            policy: config.policy.clone(),
            tiers: record::paths(instance)
                .unwrap_or_else(|| config.tier.device.iter().map(|device| device.path.clone()).collect()),
            metrics: self
                .shared
                .metrics
                .as_ref()
                .and_then(|listener| Some(listener.local_addr().ok()?.to_string())),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        if let Err(err) = instance.write_info(&info) {
            let record = instance.path("info.json");
            let record = record.display();
            match self.restarts {
                0 => tracing::error!(
                    "{record}: the record cannot be written ({err}): commands do not find this instance; free space there, end process {} \
                     with SIGTERM, and start it again",
                    info.pid
                ),
                _ => tracing::error!(
                    "{record}: the record still names the terraced before the restart ({err}): after a death of the supervisor, commands \
                     take this instance for dead; free space there"
                ),
            }
        }
    }
}

/// Classifies an exit status; `refused`: terraced sent why it cannot start, and never served.
fn exit_of(status: WaitStatus, refused: bool) -> Exit {
    let how = match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => return Exit::Done,
        (Some(EXIT_REFUSED), _) if refused => return Exit::Refused,
        (Some(EXIT_LOST), _) => return Exit::Lost,
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    Exit::Crashed { how, killed: status.terminating_signal() == Some(libc::SIGKILL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended_with(code: i32) -> WaitStatus {
        let script = format!("exit {code}");
        let mut shell = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let pid = Some(Pid::from_child(&shell));
        let (_, status) = rustix::process::waitpid(pid, WaitOptions::empty()).unwrap().unwrap();
        let _ = shell.wait(); // Already reaped.
        status
    }

    #[test]
    fn only_one_that_never_served_can_refuse() {
        assert!(matches!(exit_of(ended_with(EXIT_REFUSED), true), Exit::Refused));
        assert!(matches!(exit_of(ended_with(EXIT_REFUSED), false), Exit::Crashed { killed: false, .. }));
        assert!(matches!(exit_of(ended_with(EXIT_LOST), false), Exit::Lost));
        assert!(matches!(exit_of(ended_with(0), true), Exit::Done));
    }
}
