//! The wrapped command of `terrace run`: its start, its end, and the signals forwarded to it.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::error::{Failure, Result, reason};
use crate::sys::{self, SignalNumber};

use super::preload;
use super::supervised::Supervisor;

/// Signals caught while the command runs. The terminal sends its signals to the command too, so catching them
/// only keeps this process alive. Signals from other processes are forwarded to the command.
const SIGNALS: &[SignalNumber] =
    &[libc::SIGCHLD, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Exited(u8),
    Killed(SignalNumber),
}

/// Runs the command to its end.
pub(super) fn run(
    words: &[OsString],
    cwd: Option<&Path>,
    environment: &[(&'static str, OsString)],
    supervisor: &mut Supervisor,
) -> Result<Outcome> {
    let before = sys::block(SIGNALS);
    let too_many = |err| Failure::new("run", reason(err), "raise the limit on open files");
    let signals = sys::signal_fd(SIGNALS).map_err(too_many)?;
    let line = supervisor.line.try_clone().map_err(too_many)?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for (name, value) in preload::for_program(&words[0], environment.to_vec()) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(cwd) = cwd {
        // Our working directory is below the mount point. The command needs the one that terrace serves.
        command.current_dir(cwd);
    }
    // Sends the process id to the supervisor before the exec. If this process is killed, the supervisor knows
    // which process to wait for.
    let begin = move || {
        line.say_pid();
        sys::restore_mask(&before)
    };
    // SAFETY: runs between fork and exec. A send of bytes on the stack and setting the signal mask are
    // async-signal-safe and touch no memory of ours.
    unsafe { command.pre_exec(begin) };
    let child = command.spawn().map_err(|err| not_run(&words[0], err))?;
    Ok(wait(Pid::from_child(&child), &signals, supervisor))
}

/// Exit codes as in a shell.
fn not_run(name: &OsString, err: std::io::Error) -> Failure {
    let (code, cure) = match err.kind() {
        std::io::ErrorKind::NotFound => (127, "check the name of the command and PATH"),
        _ => (126, "name a program that this user may execute"),
    };
    Failure::new(name.display(), reason(err), cure).with_code(code)
}

fn wait(pid: Pid, signals: &impl AsFd, supervisor: &mut Supervisor) -> Outcome {
    let mut listening = true;
    loop {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        if listening {
            fds.push(PollFd::new(&supervisor.line, PollFlags::IN));
        }
        let _ = rustix::event::poll(&mut fds, None);
        let told = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if told {
            listening = supervisor.poll();
        }
        while let Some(signal) = sys::next_signal(signals) {
            if signal.number != libc::SIGCHLD && !signal.from_kernel {
                sys::send(pid, signal.number);
            }
        }
        if let Ok(Some((_, status))) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
            return outcome(status);
        }
    }
}

fn outcome(status: WaitStatus) -> Outcome {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Outcome::Exited(code as u8),
        (None, Some(signal)) => Outcome::Killed(signal),
        (None, None) => unreachable!("WNOHANG alone reports only ends"),
    }
}
