//! Messages between processes of terrace, as lines over a socket. Supervisors exchange them with the starting
//! command, terraced, a server of keys, and the aborter.
//!
//! Supervisor to command: `warning LINE` (before `ready`: a requested feature is missing), `ready`,
//! `failed LINE` (nothing is mounted), `gone LINE` (an end without a stop), `done` (an orderly end). `run` to
//! supervisor: `pid N`, the wrapped command. [`Event`] names the other messages. End of file means that the
//! other side died.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::error::{Failure, Result, SEE_ALL_MESSAGES};

/// One message. A variant without another direction goes from the supervisor to the starting command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The instance will serve without a requested feature: the reason.
    Warning(String),
    /// The mount is served.
    Ready,
    /// From terraced to its supervisor only: terraced now outlives the supervisor.
    Free,
    /// The mount was never served: the reason.
    Failed(String),
    /// The mount is no longer served: the reason.
    Gone(String),
    /// The instance ended in order, and all data are written. From terraced to its supervisor: nothing is left
    /// to do for a successor.
    Done,
    /// From terraced to its supervisor only: leases are being given up after a stop. A successor stops, too.
    Stopping,
    /// From terraced to its supervisor only: the id of its working thread.
    Thread(i32),
    /// From terraced to its supervisor only: the kernel's kills for lack of memory, in its group and on the
    /// machine.
    Kills(u64, u64),
    /// From the supervisor to its aborter: terraced's process id, and the id of that thread.
    ThreadOf(i32, i32),
}

#[derive(Debug)]
pub(crate) struct Channel {
    stream: UnixStream,
    unread: Vec<u8>,
}

pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
    let (one, other) = UnixStream::pair()?;
    Ok((Channel { stream: one, unread: Vec::new() }, Channel { stream: other, unread: Vec::new() }))
}

/// Result of one read of the channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    /// A whole line.
    Line(String),
    Nothing,
    /// The other side is gone.
    End,
}

impl Channel {
    /// Another sender on the same socket; received data stay with the original.
    pub(crate) fn try_clone(&self) -> io::Result<Channel> {
        Ok(Channel { stream: self.stream.try_clone()?, unread: Vec::new() })
    }

    /// Sends one line; ignores a closed peer.
    pub(crate) fn say(&mut self, line: &str) {
        let _ = self.stream.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
    }

    /// Sends the id of the calling process, as `pid N`. Async-signal-safe: it allocates nothing, and a closed
    /// peer causes no SIGPIPE.
    pub(crate) fn say_pid(&self) {
        let mut line = [0; 16];
        let mut rest = &mut line[..];
        let _ = writeln!(rest, "pid {}", std::process::id());
        let unused = rest.len();
        let said = &line[..line.len() - unused];
        let _ = rustix::net::send(&self.stream, said, rustix::net::SendFlags::NOSIGNAL);
    }

    /// Waits for the next line; none at end of file.
    pub(crate) fn wait(&mut self) -> Option<String> {
        loop {
            match self.poll() {
                Poll::Line(line) => return Some(line),
                Poll::End => return None,
                Poll::Nothing => {}
            }
        }
    }

    /// Reads once; does not block while the descriptor is readable.
    pub(crate) fn poll(&mut self) -> Poll {
        if let Some(line) = self.buffered() {
            return Poll::Line(line);
        }
        let mut chunk = [0u8; 4096];
        match self.stream.read(&mut chunk) {
            Ok(0) => Poll::End,
            Ok(length) => {
                self.unread.extend_from_slice(&chunk[..length]);
                self.buffered().map_or(Poll::Nothing, Poll::Line)
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => Poll::Nothing,
            Err(_) => Poll::End,
        }
    }

    /// Is a whole line buffered already? Polling the descriptor does not show it.
    pub(crate) fn has_line(&self) -> bool {
        self.unread.contains(&b'\n')
    }

    fn buffered(&mut self) -> Option<String> {
        let end = self.unread.iter().position(|b| *b == b'\n')?;
        let rest = self.unread.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.unread, rest);
        line.pop();
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    /// Waits until the mount is served, or has failed. Passes warnings to `warn`.
    pub(crate) fn wait_ready(&mut self, mut warn: impl FnMut(&str)) -> Result<()> {
        loop {
            match self.wait().as_deref().map(parse) {
                Some(Some(Event::Warning(line))) => warn(&line),
                Some(Some(Event::Ready)) => return Ok(()),
                Some(Some(Event::Failed(line) | Event::Gone(line))) => return Err(Failure::from_line(&line)),
                _ => {
                    let why = "it ended without a message";
                    return Err(Failure::new("supervisor", why, SEE_ALL_MESSAGES));
                }
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Parses a line of the supervisor.
pub(crate) fn parse(line: &str) -> Option<Event> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("warning", line) => Some(Event::Warning(line.to_owned())),
        ("ready", _) => Some(Event::Ready),
        ("free", _) => Some(Event::Free),
        ("failed", why) => Some(Event::Failed(why.to_owned())),
        ("gone", why) => Some(Event::Gone(why.to_owned())),
        ("done", _) => Some(Event::Done),
        ("stopping", _) => Some(Event::Stopping),
        ("thread", ids) => match ids.split_once(' ') {
            Some((process, id)) => Some(Event::ThreadOf(process.parse().ok()?, id.parse().ok()?)),
            None => ids.parse().ok().map(Event::Thread),
        },
        ("kills", counts) => {
            let (group, machine) = counts.split_once(' ')?;
            Some(Event::Kills(group.parse().ok()?, machine.parse().ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let (mut supervisor, mut command) = pair().unwrap();
        supervisor.say("warning terrace: no tier");
        supervisor.say("ready");
        supervisor.say("gone terrace: it\ndied; look");
        let mut warnings = Vec::new();
        command.wait_ready(|line| warnings.push(line.to_owned())).unwrap();
        assert_eq!(warnings, ["terrace: no tier"]);
        assert_eq!(parse(&command.wait().unwrap()), Some(Event::Gone("terrace: it died; look".to_owned())));
        drop(supervisor);
        assert_eq!(command.poll(), Poll::End);
    }

    #[test]
    fn a_process_says_its_id() {
        let (command, mut supervisor) = pair().unwrap();
        command.say_pid();
        assert_eq!(supervisor.wait(), Some(format!("pid {}", std::process::id())));
        drop(supervisor);
        command.say_pid();
    }

    #[test]
    fn a_supervisor_that_dies_is_an_error() {
        let (supervisor, mut command) = pair().unwrap();
        drop(supervisor);
        assert!(command.wait_ready(|line| panic!("{line}")).is_err());
    }
}
